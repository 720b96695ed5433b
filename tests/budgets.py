#!/usr/bin/env python3
"""Trains every schedule with six models and three options within budgets of memory, and compares what each rank had with its budget.

    budgets.py BIN_DIR [--small] [--out docs/measurements/budgets.md]

Three budgets of each training: the largest figure that is predicted for a rank without one, the least that `weft simulate`
admits, and the middle of both. A rank's measured bytes are the most that it had at a time, without memory of the host. One byte less than the least must be refused by `weft train` too. Prints one markdown table; exits 1 if a training within
an admitted budget fails, if a rank exceeds its budget, or if a refused training begins. --small: each sixth schedule with one
model and no option.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import bits
import markdown
import peak_bytes

COUNTED = [*peak_bytes.CLASSES, "buffers", "received"]
REFUSED = 78

PAGE = """# Budgets of memory

A training within `memory: BYTES` is a schedule with a model and an option, on two processes. The budgets are

- *whole*: the largest figure that `weft simulate RUN.yaml -o json` predicts for a rank without a budget (`peak_bytes`),
- *least*: the smallest budget that is admitted, found by bisection,
- *middle*: half way between them.

*Within* counts the ranks whose measured bytes are at most the budget: the most that a rank had alive at a time
(`most_bytes` in `summary.json`). *Refused below* counts the trainings that
`weft train` refuses with one byte less than the least. *Left over* is what the rank that measured most left of the
least budget, in percent of it: a training that was refused may have fitted by so much. It comes from what LibTorch takes
while a job runs, which is [predicted from above](../design/memory.md#what-is-predicted), and from gradients that could
have waited for each other and did not. Of {schedules} such trainings, {none} take no budget: their backwards are on other ranks
than their forwards.

{table}

Of {runs} trainings within a budget, {within} kept all ranks within it, and all ended. `held` counts those in which the
budget held a forward back (idle time with the cause `memory`). Made by
`tests/budgets.py build/release/bin --out docs/measurements/budgets.md`; `ctest -R budgets` makes a part of it.
"""


class Row:
    """Trainings of one model with one option."""

    def __init__(self):
        self.schedules, self.trainings, self.refused, self.left, self.failures = 0, 0, 0, [], []
        self.within = dict.fromkeys(["whole", "middle", "least"], 0)
        self.ranks = dict.fromkeys(self.within, 0)
        self.runs, self.good, self.held = 0, 0, 0


class Training:
    def __init__(self, weft, folder, text):
        self.weft, self.file, self.out, self.text = weft, folder / "run.yaml", folder / "out", text

    def write(self, budget):
        self.file.write_text(self.text + (f"memory: {budget}\n" if budget else ""))

    def ranks(self, budget=None):
        """The simulated ranks, or None where the training is refused."""
        self.write(budget)
        done = subprocess.run([self.weft, "simulate", str(self.file), "--backward", "2", "-o", "json"], capture_output=True,
                              text=True, timeout=600, check=False)
        return json.loads(done.stdout)["rank_stats"] if done.returncode == 0 else None

    def least(self, enough):
        """The least budget that is admitted, between 1 and `enough`."""
        low, high = 0, enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.ranks(middle) is not None else (middle, high)
        return high

    def measured(self, budget, processes):
        """Returns the bytes of each rank and the seconds in which the budget held forwards back, or why it failed."""
        self.write(budget)
        code, error = bits.train(self.weft, self.file, self.out, ["--processes", str(processes)])
        if code != 0:
            return code, error[0]
        summary = json.loads((self.out / "summary.json").read_text())
        held = sum(rank["memory"] for rank in summary["idle_seconds"])
        return 0, (summary["most_bytes"], held)


def add(row, name, training):
    ranks = training.ranks()
    if ranks is None:
        return
    processes = min(2, len(ranks))
    row.schedules += 1
    whole = max(sum(rank["peak_bytes"][c] for c in COUNTED) for rank in ranks)
    if training.ranks(2 * whole) is None:
        return  # the backward of a forward is on another rank
    least = training.least(2 * whole)
    row.trainings += 1
    code, said = training.measured(least - 1, processes)
    row.refused += code == REFUSED
    if code != REFUSED:
        row.failures.append(f"{name}: {least - 1} bytes are refused by weft simulate, and weft train ended with {code}")
    for which, budget in {"whole": max(whole, least), "middle": (whole + least) // 2, "least": least}.items():
        if budget < least:
            continue
        row.runs += 1
        code, said = training.measured(budget, processes)
        if code != 0:
            row.failures.append(f"{name}: within {budget} bytes: {said}")
            continue
        bytes_of, held = said
        within = sum(b <= budget for b in bytes_of)
        row.within[which] += within
        row.ranks[which] += len(bytes_of)
        row.good += within == len(bytes_of)
        row.held += held > 0
        if within < len(bytes_of):
            row.failures.append(f"{name}: ranks had {bytes_of} within {budget} bytes")
        if which == "least":
            row.left.append(100 * (budget - max(bytes_of)) / budget)


def line(name, rows):
    def total(figure):
        return sum(figure(row) for row in rows)

    within = [f"{total(lambda r, w=which: r.within[w])} of {total(lambda r, w=which: r.ranks[w])}" for which in ("whole", "middle", "least")]
    left = [percent for row in rows for percent in row.left] or [0]
    return (f"| {name}: {total(lambda r: r.trainings)} | {' | '.join(within)} | {total(lambda r: r.held)} | {total(lambda r: r.refused)} | "
            f"{min(left):.0f}, {statistics.median(left):.0f}, {max(left):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    weft = str(options.bin / "weft")
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        bits.write_data(folder)
        for title, name, text in peak_bytes.runs(folder, weft, options.small):
            if options.small and ";" in title:
                continue
            row = rows.setdefault(title, Row())
            before = len(row.failures)
            add(row, name, Training(weft, folder, text))
            for failure in row.failures[before:]:
                print(f"{title}, {failure}", file=sys.stderr, flush=True)
    lines = ["| model: trainings | ranks within: whole | middle | least | held | refused below | left over: least, median, most |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [line(title, [row]) for title, row in rows.items()] + [line("**all**", list(rows.values()))]
    table = "\n".join(lines)
    if options.out:
        runs, good, schedules, trainings = (sum(getattr(row, figure) for row in rows.values())
                                            for figure in ("runs", "good", "schedules", "trainings"))
        page = PAGE.format(table=table, runs=runs, within=good, schedules=schedules, none=schedules - trainings)
        options.out.write_text(markdown.wrapped(page))
    print(table)
    return 1 if any(row.failures for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
