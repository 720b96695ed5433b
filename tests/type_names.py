#!/usr/bin/env python3
"""Checks that no two types of our headers have one name: type_names.py

All of them are in one namespace, and a program may link any two. The linker takes one of two functions of one name without a word,
as the destructors that compilers write. Types inside other types, and those in sources alone, are not looked at."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPE = re.compile(r"^(?:class|struct|enum(?: class)?)\s+(?:ABSL_\w+\s+)?(\w+)[^;{]*\{", re.MULTILINE)


def main():
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "*.h"], capture_output=True, text=True, check=True).stdout.split()
    headers = [f for f in files if not f.startswith("tests/")]
    homes = collections.defaultdict(set)
    for header in headers:
        for name in TYPE.findall((ROOT / header).read_text()):
            homes[name].add(header)
    assert len(homes) > 100, "the headers were not found"
    twice = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    for name, where in twice.items():
        print(f"{name} is in {' and '.join(where)}")
    print(f"{len(homes)} types in {len(headers)} headers, {len(twice)} names twice")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
