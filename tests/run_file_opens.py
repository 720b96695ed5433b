#!/usr/bin/env python3
"""Checks that the daemons open the files of runs through base/run_files.h alone: run_file_opens.py

Files of a run are opened beneath the roots of an operator. A source that opened one by itself would lead out of them. So sources of
the rooms that handle such files must not open any, but for those in the list below, which open other files. Comments are not looked
at, nor are libraries that open files; folders are listed, and names removed and changed, by path (base/run_files.h says why)."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ["base/durable_file.cc", "coordinator/record/", "coordinator/shell/", "run/", "worker/shell/checkpoint/", "worker/shell/compute/",
         "worker/shell/data/", "worker/shell/loop/", "worker/shell/reference/", "worker/shell/torch/"]
OPENS = re.compile(r"\bstd::[io]?fstream\b(?!\s+\w+\s*=\s*RunFileToRead\()|\bf?open\(|\bcreat\(|\bopenat2?\(|\bmkostemp\(|\bcopy_file\(")
OTHERS = {
    "base/durable_file.cc": 1,  # the parents of a folder that is made, of the daemon's own folders as well
    "coordinator/shell/user_tokens.cc": 1,  # a file of the configuration
    "worker/shell/compute/cuda_driver.cc": 1,  # a file of the kernel
}


def main():
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "*.cc", "*.h"], capture_output=True, text=True, check=True).stdout.split()
    sources = [f for f in files if any(f.startswith(room) for room in ROOMS)]
    assert len(sources) > 200, "the sources were not found"
    wrong = 0
    for source in sources:
        code = re.sub(r"//.*", "", (ROOT / source).read_text())
        code = re.sub(r"[.>]\s*open\(|\"[^\"\n]*\"", "", code)  # methods, and words in messages
        found = OPENS.findall(code)
        if len(found) == OTHERS.get(source, 0):
            continue
        wrong += 1
        print(f"{source} opens files by itself: {', '.join(found) or 'none'}; take OpenRunFile or RunFileToRead (base/run_files.h)")
    print(f"{len(sources)} sources, {wrong} of which open files of runs by themselves")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
