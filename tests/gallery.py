#!/usr/bin/env python3
"""Compares the gallery of schedules, docs/schedules, and the picture of README.md with what weft simulates today.

    gallery.py BIN_DIR [--write]

Each page must have a formula, a picture, when to use it, what it costs and a source; each family of `weft simulate --help`
must have a page. Each picture of the gallery has the command that made it below it; each picture of the documents is on a
page. Prints what differs and exits 1. --write draws the pictures anew.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys

import bits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/schedules"
# Parts that a page must have, and the pages that are no family's.
PARTS = ["```", "**When to use it.**", "**What it costs.**", "**Source.**"]
WITHOUT_PARTS = ["README.md", "custom.md", "no_chain.md"]
# Rows of "What it costs": where the figure is in the JSON of `weft simulate`.
ROWS = {
    "makespan": lambda run: run["makespan"],
    "peak activations, largest rank": lambda run: most(run, "peak_activations"),
    "activations and gradients received, largest rank": lambda run: receives(run),
    "weight fetches, largest rank": lambda run: most(run, "weight_fetches"),
    "weight versions, largest rank": lambda run: most(run, "peak_weight_versions"),
    "idle of the rank that idles most": lambda run: most(run, "idle"),
}


def most(run, field):
    return max(rank[field] for rank in run["rank_stats"])


def receives(run):
    return max(rank["activation_receives"] + rank["gradient_receives"] for rank in run["rank_stats"])


class Gallery:
    def __init__(self, weft, write):
        self.weft, self.write, self.problems, self.checked = weft, write, [], 0

    def simulate(self, arguments):
        done = subprocess.run([self.weft, "simulate"] + arguments, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            self.problems.append(f"weft simulate {shlex.join(arguments)}: {done.stderr.strip()}")
            return None
        return done.stdout

    def run(self, arguments):
        text = self.simulate(arguments + ["-o", "json"])
        return None if text is None else json.loads(text)

    def check(self, where, stands, is_now):
        self.checked += 1
        if abs(float(stands) - is_now) > 1e-9:
            self.problems.append(f"{where}: {stands} stands there, it is {is_now:g}")

    def picture(self, page, name, arguments):
        svg = self.simulate(arguments + ["-o", "svg"])
        if svg is None:
            return
        path = page.parent / name
        self.checked += 1
        if self.write:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            self.problems.append(f"{page.name}: {name} is not what its command draws; draw it anew with --write")

    def costs(self, page, text, arguments, prefix=""):
        run = self.run(arguments)
        if run is None:
            return
        for row, figure in re.findall(rf"^\| {prefix}([^|]+?) \| ([0-9.]+)[^|]*\|", text, re.M):
            period = re.fullmatch(r"period over (\d+) steps", row)
            if period:
                steps = self.run(arguments + ["--steps", period[1]])
                self.check(f"{page}, {row}", figure, steps["period"])
            elif row in ROWS:
                self.check(f"{page}, {row}", figure, ROWS[row](run))

    def page(self, path):
        text = path.read_text()
        if path.name not in WITHOUT_PARTS:
            self.problems += [f"{path.name} lacks {part}" for part in PARTS if part not in text]
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)\s+`weft simulate ([^`]+) -o svg`", text)
        commanded = {name for name, _ in pictures}
        self.problems += [f"{path.name}: {name} has no command `weft simulate .. -o svg` below it"
                          for name in re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", text) if name not in commanded]
        if not pictures and path.name not in WITHOUT_PARTS:
            self.problems.append(f"{path.name} has no picture with its command")
        for name, command in pictures:
            self.picture(path, name, shlex.split(command))
        if pictures and path.name != "custom.md":
            self.costs(path.name, text, shlex.split(pictures[0][1]))
            # Rows of the page's other schedules have their names in front.
            for _, command in pictures[1:]:
                name = command.split()[0]
                self.costs(path.name, text, shlex.split(command), f"{re.escape(name)}: ")

    def unused(self):
        """Each picture of the documents is shown by one of them."""
        shown = {(page.parent / name).resolve() for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
                 for name in re.findall(r"\]\(([^)#\s]+\.svg)\)", page.read_text())}
        self.problems += [f"no page shows {picture.relative_to(ROOT)}" for picture in sorted(ROOT.glob("docs/**/*.svg"))
                          if picture.resolve() not in shown]

    def side_by_side(self):
        """The table of the front page: the same model in four or eight stages, figures in quarters of it."""
        rows = re.findall(r"^\| \[\w+\]\(\w+\.md\) \| `([^`]+)`, S = (\d+) \| (.+) \|$", (FOLDER / "README.md").read_text(),
                          re.M)
        if len(rows) < 12:
            self.problems.append("README.md: the table side by side has lost its rows, or changed its form")
        for schedule, stages, cells in rows:
            part = 4 / int(stages)
            arguments = [schedule, "--stages", stages, "--microbatches", "8", "--forward", str(part), "--backward",
                         str(2 * part)]
            one, many = self.run(arguments), self.run(arguments + ["--steps", "8"])
            figures = [one["makespan"], many["period"], round(100 * (1 - 24 / many["period"])),
                       part * most(one, "peak_activations"), receives(one), most(one, "weight_fetches")]
            for stands, is_now in zip(cells.replace(" %", "").split(" | "), figures, strict=True):
                self.check(f"README.md, {schedule}", stands, is_now)

    def families(self):
        headings = "".join(path.read_text().splitlines()[0] for path in FOLDER.glob("*.md"))
        self.problems += [f"no page has {name} in its heading" for name in bits.families(self.weft)
                          if f"`{name}`" not in headings]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    gallery = Gallery(str((options.bin / "weft").resolve()), options.write)
    gallery.families()
    for path in sorted(FOLDER.glob("*.md")):
        gallery.page(path)
    gallery.page(ROOT / "README.md")
    gallery.unused()
    gallery.side_by_side()
    print("\n".join(gallery.problems) or f"{gallery.checked} pictures and figures are as they stand")
    return 1 if gallery.problems or gallery.checked < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
