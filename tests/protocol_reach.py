#!/usr/bin/env python3
"""Prints how many production files outside a protocol's own name it: the reach of each way in which the
holders of a stage's weights come to agree, and of clipping. A mechanism that others need not know has a small
reach. Words of the interface (Operation, Layout, TensorKind) do not count: what interprets it knows all of
them. Nor do the places where a user chooses: the families, the run file and the command line.

protocol_reach.py [--files] [--most N] [ROOT]; fails if a reach is above N, or a name is that of nothing."""
import argparse
import pathlib
import re
import subprocess
import sys

# Its name, what names it in code, and the files that are its own.
PROTOCOLS = [
    ("relay", r"\bRelay\w*", r"relay"),
    ("migrating", r"[Mm]igrat\w*", r"migrat|state_route"),
    ("collective", r"[Cc]ollective\w*", r"collective|joint_order|nccl"),
    ("sharded", r"[Ss]harded\w*|\bshards\b", r"shard"),
    ("sliced sum", r"SlicedSum\w*", r"sliced_sum"),
    ("clipping", r"\bclip_norm\b|\bClipp\w*|\btakes_norm\b|\bWithGlobalNorm\b", r"norm|clip"),
]
CATALOGUE = r"^schedules/(sync/catalogue|families/)|^run/run_spec\.|^client/commands/"  # where choices are made by name


def production_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True,
                            text=True, check=True).stdout.split("\n")
    return [f for f in listed if f.endswith((".cc", ".h", ".cu")) and not f.startswith("tests/")
            and (pathlib.Path(root) / f).exists() and not re.search(CATALOGUE, f)]


def code_of(path):
    text = path.read_text(errors="replace")
    return re.sub(r'//[^\n]*|"(\\.|[^"\\\n])*"', "", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default=str(pathlib.Path(__file__).resolve().parent.parent))
    parser.add_argument("--files", action="store_true", help="name the files")
    parser.add_argument("--most", type=int, help="fail above this reach")
    options = parser.parse_args()
    code = {f: code_of(pathlib.Path(options.root) / f) for f in production_files(options.root)}
    highest = 0
    for name, pattern, own in PROTOCOLS:
        gone = [word for word in pattern.split("|") if not any(re.search(word, text) for text in code.values())]
        if gone:
            sys.exit(f"{name}: no code has {gone[0]}; look for the names that it has now")
        files = [f for f, text in code.items() if not re.search(own, f) and re.search(pattern, text)]
        highest = max(highest, len(files))
        print(f"{name:12} {len(files):3}")
        for f in files if options.files else []:
            print(f"    {f}")
    if options.most is not None and highest > options.most:
        sys.exit(f"a protocol is named in {highest} production files outside its own; at most {options.most}")


if __name__ == "__main__":
    main()
