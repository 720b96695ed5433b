#!/usr/bin/env python3
"""Checks the sources with clang, without building anything: its thread-safety analysis, or clang-tidy.

    static_checks.py BUILD thread-safety|tidy [--jobs N] [--since COMMIT] [--slowest N]

BUILD is a folder that was configured with clang (`cmake --preset static`) and in which the target
weft_generated_sources is built. No object is made and nothing is linked. If the folder compiles sources in batches
(WEFT_UNITY), a batch is checked at once, so its headers are read once.

A batch that passed is not checked again until one of the files that it reads, its command or the checks change.
--since leaves out batches that read no file that differs from the commit. Prints what was found, and exits with 1 then.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
# Sources are checked also where a batch includes them.
OURS = r"/(base|client|coordinator|planner|run|schedules|tests|worker|proto/(session|wire))/[^:]*\.(h|cc)$"


class Batch:
    """One entry of compile_commands.json."""

    def __init__(self, entry, build):
        words = shlex.split(entry["command"])
        self.file = entry["file"]
        self.directory = entry["directory"]
        self.name = os.path.relpath(self.file, build if self.file.startswith(str(build)) else SOURCE)
        drop = words.index("-o")
        self.words = [w for w in words[:drop] + words[drop + 2:] if w not in ("-c", self.file)]
        while os.path.basename(self.words[0]) in ("ccache", "env") or "=" in self.words[0]:
            self.words.pop(0)

    def is_ours(self):
        """Generated code is nobody's to correct."""
        return not self.file.endswith(".pb.cc")


def commands(batch, check, depfile):
    reads = ["-MD", "-MF", depfile, "-MT", "checked"]
    if check == "thread-safety":
        return [batch.words + ["-fsyntax-only", "-Wthread-safety", "-Werror"] + reads + [batch.file]]
    tidy = ["clang-tidy", "--quiet", "--header-filter=" + OURS, "--checks=-bugprone-suspicious-include", batch.file, "--"]
    # clang-tidy writes no list of what it reads.
    return [batch.words + ["-E", "-o", os.devnull] + reads + [batch.file], tidy + batch.words[1:] + ["-Wno-everything"]]


def tidy_settings(batch):
    """The settings of its folder and of those above, as clang-tidy reads them."""
    file = pathlib.Path(batch.file)
    folders = [f for f in file.parents if f == SOURCE or SOURCE in f.parents]
    return [(f / ".clang-tidy").read_text() for f in folders if (f / ".clang-tidy").exists()]


def files_read(depfile):
    text = pathlib.Path(depfile).read_text().replace("\\\n", " ")
    return [f.replace("\\ ", " ") for f in re.split(r"(?<!\\)\s+", text.split(":", 1)[1].strip()) if f]


def state_of(files, directory):
    state = {}
    for f in files:
        path = os.path.join(directory, f)
        try:
            info = os.stat(path)
            state[os.path.realpath(path)] = [info.st_mtime_ns, info.st_size]
        except OSError:
            state[path] = None
    return state


def run(batch, check, folder, settings):
    """Returns (seconds, what was found)."""
    key = hashlib.sha256("\0".join([batch.file, check]).encode()).hexdigest()[:24]
    depfile, stamp = str(folder / (key + ".d")), folder / (key + ".json")
    begin = time.monotonic()
    for command in commands(batch, check, depfile):
        done = subprocess.run(command, cwd=batch.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            stamp.unlink(missing_ok=True)
            return time.monotonic() - begin, done.stdout
    stamp.write_text(json.dumps({"settings": settings(batch),
                                 "files": state_of(files_read(depfile), batch.directory)}))
    return time.monotonic() - begin, ""


def known(batch, check, folder):
    """Returns what the batch read when it passed the last time."""
    key = hashlib.sha256("\0".join([batch.file, check]).encode()).hexdigest()[:24]
    try:
        return json.loads((folder / (key + ".json")).read_text())
    except (OSError, ValueError):
        return None


def has_passed(batch, check, folder, settings):
    before = known(batch, check, folder)
    return before is not None and before["settings"] == settings(batch) and all(
        state_of([f], "/").get(os.path.realpath(f)) == state for f, state in before["files"].items())


def reads_any(batch, changed):
    """Whether the batch reads one of the files, by a quick run of the preprocessor."""
    listed = subprocess.run(batch.words + ["-MM", batch.file], cwd=batch.directory, capture_output=True, text=True)
    if listed.returncode != 0:
        return True
    text = listed.stdout.replace("\\\n", " ").split(":", 1)[1]
    return any(os.path.realpath(os.path.join(batch.directory, f)) in changed for f in text.split())


def changed_since(commit):
    listed = subprocess.run(["git", "-C", str(SOURCE), "diff", "--name-only", commit], capture_output=True, text=True,
                            check=True).stdout.split("\n")
    return {str(SOURCE / f) for f in listed if f}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("check", choices=["thread-safety", "tidy"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--only", metavar="REGEX", help="check the batches whose name matches alone")
    parser.add_argument("--slowest", type=int, default=0)
    options = parser.parse_args()
    build = options.build.resolve()
    folder = build / "static_checks"
    folder.mkdir(exist_ok=True)

    def settings(batch):
        return [options.check] + (tidy_settings(batch) if options.check == "tidy" else []) + batch.words

    entries = json.loads((build / "compile_commands.json").read_text())
    batches = [b for b in (Batch(e, build) for e in entries if e["file"].endswith((".cc", ".cxx"))) if b.is_ours()]
    batches = [b for b in batches if not options.only or re.search(options.only, b.name)]
    todo = [b for b in batches if not has_passed(b, options.check, folder, settings)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        if options.since:
            changed = changed_since(options.since)
            reads = list(pool.map(lambda b: reads_any(b, changed), todo))
            todo = [b for b, any_changed in zip(todo, reads) if any_changed]
        print(f"{options.check}: {len(todo)} of {len(batches)} batches to check", flush=True)
        pending = {pool.submit(run, b, options.check, folder, settings): b for b in todo}
        took, failed = [], 0
        for count, future in enumerate(concurrent.futures.as_completed(pending), 1):
            batch, (seconds, found) = pending[future], future.result()
            took.append((seconds, batch.name))
            failed += bool(found)
            print(f"[{count}/{len(todo)}] {batch.name} {seconds:.1f} s" + ("\n" + found if found else ""), flush=True)
    for seconds, name in sorted(took, reverse=True)[: options.slowest]:
        print(f"  {seconds:6.1f} s {name}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{options.check}: {len(todo) - failed} passed, {failed} failed, {used.ru_utime + used.ru_stime:.0f} CPU seconds")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
