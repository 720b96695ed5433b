#!/usr/bin/env python3
"""Checks the documents: links, anchors, commands, and the length of lines.

    docs.py BIN_DIR

Every relative link leads to a file, and its anchor to a heading there, as GitHub makes anchors. Every `weft COMMAND` is a command
of `weft --help`, each script of the project that a page starts is executable, and what a page shows of `weft simulate` is what it
prints. Lines have at most 120 columns, and rows of tables at most 170, except where a line has no space to break at. Tables of
docs/measurements have no bound: programs write them. The metrics that the operators' page explains are those that the sources
make. The script of PyTorch that the page of the models shows is the one that is tested. Prints what is wrong and exits 1.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 120
ROW_COLUMNS = 170  # a row of a table cannot be broken
NO_COMMANDS = {"run"}  # words that follow `weft` in code without being a command


def pages():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True,
                            text=True, check=False)
    names = listed.stdout.split() if listed.returncode == 0 else []
    return [ROOT / name for name in names] or sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def without_code(text):
    """The text with code replaced by blanks, fenced and inline, so that line numbers stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    text = re.sub(r"^```.*?^```", blank, text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]+`", blank, text)


def slug(heading):
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.M):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def links(page, text):
    for match in re.finditer(r"\]\(\s*([^)\s]+)\s*\)", without_code(text)):
        target, where = match[1], f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            yield f"{where}: {target} leads nowhere"
        elif anchor and (to.suffix != ".md" or anchor not in anchors(to)):
            yield f"{where}: {target}: {to.name} has no heading {anchor!r}"


def lines(page, text):
    written = "measurements" in page.relative_to(ROOT).parts
    for number, line in enumerate(text.splitlines(), 1):
        row = line.lstrip().startswith("|")
        most = ROW_COLUMNS if row else COLUMNS
        breakable = " " in line.strip()[: COLUMNS - 20]
        if len(line) > most and breakable and not (row and written):
            yield f"{page.relative_to(ROOT)}:{number}: {len(line)} columns; {most} are the most"


def commands(page, text, known):
    code = re.findall(r"^```.*?^```", text, re.M | re.S) + re.findall(r"`[^`\n]+`", text)
    for name in {name for part in code for name in re.findall(r"(?:^|[`$;|&] ?)weft ([a-z]+(?:-[a-z]+)*)\b", part, re.M)} - known - NO_COMMANDS:
        yield f"{page.relative_to(ROOT)}: weft {name} is no command"


def programs(page, text):
    """Looks for scripts that a page starts by their names in the project: each must be there and executable."""
    started = re.findall(r"^(?: {4}|\$ )?((?:tests|deploy)/[\w/]+\.(?:py|sh))\b", text, re.M)
    started += re.findall(r"`((?:tests|deploy)/[\w/]+\.(?:py|sh)) [^`]+`", text)
    for name in sorted(set(started)):
        if not os.access(ROOT / name, os.X_OK):
            yield f"{page.relative_to(ROOT)}: {name} is no program of the project"


def shown_outputs(page, text, weft):
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for command, output in re.findall(r"^\$ (weft simulate .*)\n((?:(?!\$ ).*\n)+)", block, re.M):
            prints = subprocess.run([weft] + shlex.split(command)[1:], capture_output=True, text=True, check=False,
                                    env={**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "100"}).stdout
            if prints.strip() != output.strip():
                yield f"{page.relative_to(ROOT)}: {command} prints something else than is shown:\n{prints}"


def metrics():
    """The metrics that the sources make against those that the operators' page explains."""
    made, prefixes = set(), set()
    for folder in ("base", "coordinator", "worker"):
        for source in (ROOT / folder).rglob("*.cc"):
            for joined, name in re.findall(r'(?:Add(?:Counter|Gauge|Histogram)\(|GaugesByState\(m,)\s*(absl::StrCat\()?"(weft_[a-z0-9_]+)"',
                                           source.read_text()):
                (prefixes if joined else made).add(name)
    page = "docs/guide/operating.md"
    told = set(re.findall(r"`(weft_[a-z0-9_]+)", (ROOT / page).read_text()))
    if len(made) < 30:
        yield f"docs.py: only {len(made)} metrics were found in the sources"
    yield from (f"{page}: {name} is not explained" for name in sorted(made - told))
    yield from (f"{page}: no source makes {name}" for name in sorted(told - made) if not name.startswith(tuple(prefixes)))


def main():
    weft = pathlib.Path(sys.argv[1]).resolve() / "weft"
    help_text = subprocess.run([weft, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  ([a-z-]+)  ", help_text, re.M))
    if len(known) < 10:
        sys.exit("docs.py: cannot read the commands of weft --help")
    problems, checked = [], pages()
    for page in checked:
        text = page.read_text()
        problems += [*links(page, text), *lines(page, text), *commands(page, text, known), *programs(page, text),
                     *shown_outputs(page, text, weft)]
    problems += metrics()
    script = (ROOT / "tests/conformance/gpt_in_pytorch.py").read_text()
    if script[script.index("import json"):] not in (ROOT / "docs/guide/models.md").read_text():
        problems.append("docs/guide/models.md: the script is not tests/conformance/gpt_in_pytorch.py")
    print("\n".join(problems) or f"{len(checked)} pages are as they should be")
    return 1 if problems or len(checked) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
