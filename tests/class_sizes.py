#!/usr/bin/env python3
"""Prints the largest classes of production code (lines over all files that define their methods), the longest
functions and the longest headers. Fails if a class is above --class-lines or a function above --function-lines.

    class_sizes.py [--top N] [--class-lines N] [--function-lines N] [ROOT]

A class counts every line of its header and of each .cc that defines a method of it and of no other class of that
folder more often, so that cutting a class over several files by method does not make it smaller.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

METHOD = re.compile(r"^(?!\s|//|#|using|return|typedef)[^;={]*?\b([A-Z]\w*)::~?(\w+|operator\S+)\(")
CLASS = re.compile(r"^(?:class|struct)\s+(?:\w+\([^)]*\)\s+)?([A-Z]\w*)(?:\s+final)?\s*(?::[^;]*)?\{")


def production_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True,
                            text=True, check=True).stdout.split("\n")
    return sorted(f for f in listed if f.endswith((".cc", ".h", ".cu")) and not f.startswith("tests/")
                  and (pathlib.Path(root) / f).exists())


def class_lines(text_of):
    """Lines of each class: its headers' and those of the .cc files that are mainly about it."""
    declared = {}
    for file, lines in text_of.items():
        if file.endswith(".h"):
            for line in lines:
                match = CLASS.match(line)
                if match:
                    declared.setdefault(match.group(1), file)
    files_of = collections.defaultdict(set)
    for file, lines in text_of.items():
        if file.endswith(".h"):
            continue
        methods = collections.Counter(m.group(1) for m in map(METHOD.match, lines) if m)
        if methods:
            files_of[methods.most_common(1)[0][0]].add(file)
    for name, files in files_of.items():
        if name in declared:
            files.add(declared[name])
    return sorted(((sum(len(text_of[f]) for f in files), name, sorted(files)) for name, files in files_of.items()
                   if name in declared), reverse=True)


def function_lines(text_of):
    """Functions as clang-format leaves them: from a line with a bracket to a brace that closes in its column."""
    found = []
    for file, lines in text_of.items():
        if not file.endswith((".cc", ".cu")):
            continue
        start = None
        for number, line in enumerate(lines):
            if start is None and re.match(r"^(?!//|#|namespace|class|struct|enum|extern|using|[})])\S.*\(", line):
                start = number
            if start is not None and line.endswith((";", "}")) and not line.startswith((" ", "}")):
                start = None  # a declaration, or a function in one line
            if line == "}" and start is not None:
                found.append((number - start + 1, file, lines[start].strip()))
                start = None
    return sorted(found, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", default=str(pathlib.Path(__file__).resolve().parent.parent))
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--class-lines", type=int)
    parser.add_argument("--function-lines", type=int)
    options = parser.parse_args()
    text_of = {f: (pathlib.Path(options.root) / f).read_text(errors="replace").splitlines()
               for f in production_files(options.root)}
    classes, functions = class_lines(text_of), function_lines(text_of)
    print("Largest classes (lines, files)")
    for lines, name, files in classes[: options.top]:
        print(f"  {lines:5} {name:24} {len(files)}: {' '.join(files)}")
    print("Longest functions")
    for lines, file, head in functions[: options.top]:
        print(f"  {lines:5} {file}: {head[:90]}")
    print("Longest headers")
    for lines, file in sorted(((len(t), f) for f, t in text_of.items() if f.endswith(".h")), reverse=True)[: options.top]:
        print(f"  {lines:5} {file}")
    above = [f"class {name}: {lines} lines" for lines, name, _ in classes
             if options.class_lines and lines > options.class_lines]
    above += [f"{file}: {head}: {lines} lines" for lines, file, head in functions
              if options.function_lines and lines > options.function_lines]
    if above:
        sys.exit("too large:\n  " + "\n  ".join(above))


if __name__ == "__main__":
    main()
