#!/usr/bin/env python3
"""Prints where the time of a build went: a markdown table by folder, and the slowest outputs.

    build_time.py BUILD [--slowest 10]

BUILD is a build folder, as build/release. The seconds are those of its .ninja_log: from the start of each command to its end. On an
idle machine with as many jobs as cores they are about the CPU seconds. Objects from the compiler cache took no time, so build
with CCACHE_DISABLE=1 into an empty folder first.
"""

import argparse
import collections
import pathlib
import re
import sys

KINDS = ("sources", "precompiled headers", "libraries", "programs", "other")


def outputs(log):
    """Seconds by output of the newest build."""
    seconds = {}
    for line in log.read_text().splitlines():
        if line.startswith("#"):
            continue
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000
    return seconds


def kind_of(output):
    if output.endswith(".gch"):
        return "precompiled headers"
    if output.endswith(".o"):
        return "sources"
    if re.search(r"\.(a|so)$", output):
        return "libraries"
    return "programs" if re.match(r"(bin|tests|bench)/[^/.]+$", output) else "other"


def folder_of(output):
    match = re.match(r"(.+)/CMakeFiles/", output)
    return match[1] if match else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--slowest", type=int, default=10)
    options = parser.parse_args()
    log = options.build / ".ninja_log"
    if not log.exists():
        sys.exit(f"there is no {log}; build first")
    seconds = outputs(log)
    rows = collections.defaultdict(list)
    for output, taken in seconds.items():
        kind = kind_of(output)
        rows[kind, folder_of(output) if kind == "sources" else ""].append(taken)
    print("| what | folder | count | seconds | mean |\n| --- | --- | --- | --- | --- |")
    for (kind, folder), taken in sorted(rows.items(), key=lambda row: (KINDS.index(row[0][0]), -sum(row[1]))):
        print(f"| {kind} | {f'`{folder}`' if folder else ''} | {len(taken)} | {sum(taken):.1f} | {sum(taken) / len(taken):.1f} |")
    print(f"| all | | {len(seconds)} | {sum(seconds.values()):.1f} | |\n")
    for output, taken in sorted(seconds.items(), key=lambda item: -item[1])[:options.slowest]:
        print(f"{taken:7.1f} s  {output}")


if __name__ == "__main__":
    main()
