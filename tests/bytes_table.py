#!/usr/bin/env python3
"""Trains every schedule with six models within three budgets of memory, and compares the bytes that each rank's allocator counted
with those that are predicted.

    bytes_table.py BIN_DIR [--only TEXT] [--every N] [--separate-memory] [--rows FILE] [--out docs/measurements/bytes.md]

The budgets of a training are the least that is admitted, the largest figure that is predicted for a rank without one, and the
middle of both. The prediction is that of the order in which the run's jobs really went (bench/counted_peaks). Exits 1 if a
training within an admitted budget fails, if a rank exceeds its budget, if a counted class is outside of its predicted range, or
if a budget of one byte less than the least begins to train.

--only: the models whose title holds this text; may be repeated. --every: each Nth schedule. --separate-memory: one process for each rank,
and none shares memory with another. --rows: adds the trainings to those in the file, one JSON a line, so that the table can be
made in parts; the page is of all rows in the file.
"""
import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import bits
import budgets
import markdown
import peak_bytes

CLASSES = ["weights", "gradients", "optimizer", "activations", "received", "buffers"]
REFUSED = 78
BUDGETS = ["whole", "middle", "least"]

PAGE = """# Bytes, predicted and counted

A training is a schedule with a model within a budget (`memory: BYTES`). The budgets are the least that is admitted,
the largest figure that is predicted for a rank without a budget, and the middle of both. What a rank counted are
the peaks of its allocator (`peak_bytes` and `most_bytes` in `summary.json`).

- **Equal**: ranks that counted, to the byte, what the order of the run's jobs predicts, of those for which it
  predicts one value ([when that is](../design/memory.md#what-is-predicted)). For the others it predicts a range.
- **Outside**: ranks and classes that counted more or less than predicted, at all.
- **Over**: ranks that had more alive at a time than their budget.
- **Refused**: trainings that are refused with one byte less than the least budget. *Might fit* are those of them
  whose training within the least budget counted at most the refused one on every rank: what is predicted from
  above, mostly buffers, kept them out. [Budgets of memory](budgets.md) says by how much, and how much less it is
  [with a profile](budgets.md#with-a-profile), which measures buffers.

{table}

{separate}{done} Made by `tests/bytes_table.py build/release/bin`, in parts (`--only`, `--every`,
`--separate-memory`, `--rows`); `ctest -R bytes_table` makes a small one.
"""
SEPARATE = """*Separate memory*: one process for each rank, and copies of all tensors between them
(`separate_memory: true`, with `WEFT_IN_PLACE=0`), under a part of the schedules. Else two processes read each
other's memory.

"""


class Training(budgets.Training):
    """A run file's text with one budget after the other, and what its ranks counted beside what is predicted."""

    def __init__(self, options, folder, text, separate):
        super().__init__(str(options.bin / "weft"), folder, text + ("separate_memory: true\n" if separate else ""))
        self.counted, self.separate = str(options.bin.parent / "bench" / "counted_peaks"), separate

    def tool(self, *words):
        done = subprocess.run([self.counted, *map(str, words)], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)

    def within(self, budget, processes):
        """The row of a training within the budget."""
        code, said = self.train(budget, processes)
        if code != 0:
            return {"failed": said}
        summary = json.loads((self.out / "summary.json").read_text())
        ranges = self.tool("peaks", self.file, self.out, *["--separate-memory"] * self.separate)
        row = {"most": summary["most_bytes"], "single": collections.Counter(), "equal": collections.Counter(), "outside": []}
        for rank, (counted, predicted) in enumerate(zip(summary["peak_bytes"], ranges, strict=True)):
            for name in CLASSES:
                least, most = predicted[name]
                if not least <= counted[name] <= most:
                    row["outside"].append(f"rank {rank} counted {counted[name]} bytes of {name}, predicted {least} to {most}")
                if least == most:
                    row["single"][name] += 1
                    row["equal"][name] += counted[name] == most
        return row


def measure(options, folder, title, name, text):
    """The row of one schedule with one model: what its budgets are, and what came of each."""
    training = Training(options, folder, text, options.separate_memory)
    row = {"model": title, "schedule": name, "separate": options.separate_memory, "budgets": {}}
    ranks = training.ranks()
    training.write()
    least = training.tool("least", training.file) if ranks is not None else 0
    if least == 0:
        return {**row, "none": True}  # no training, or none within a budget: backwards are on other ranks than forwards
    processes = len(ranks) if options.separate_memory else min(2, len(ranks))
    whole = max(least, max(sum(rank["peak_bytes"].values()) for rank in ranks))
    code, said = training.train(least - 1, processes)
    row["refused"] = code == REFUSED
    for which, budget in zip(BUDGETS, (whole, (whole + least) // 2, least)):
        row["budgets"][which] = {"bytes": budget, **training.within(budget, processes)}
    return row


def faults(row):
    """What is wrong with a row, in words."""
    if row.get("none"):
        return
    name = f"{row['model']}, {row['schedule']}{', separate memory' * row['separate']}"
    if not row["refused"]:
        yield f"{name}: one byte less than the least budget is not refused"
    for which, of_budget in row["budgets"].items():
        if "failed" in of_budget:
            yield f"{name}, {which}: {of_budget['failed']}"
            continue
        yield from (f"{name}, {which}: {text}" for text in of_budget["outside"])
        over = [bytes_of for bytes_of in of_budget["most"] if bytes_of > of_budget["bytes"]]
        if over:
            yield f"{name}, {which}: ranks had {over} within {of_budget['bytes']} bytes"


def line(title, rows):
    rows = [row for row in rows if not row.get("none")]
    runs = [run for row in rows for run in row["budgets"].values() if "failed" not in run]
    equal = [f"{sum(run['equal'].get(name, 0) for run in runs)} of {sum(run['single'].get(name, 0) for run in runs)}"
             for name in CLASSES[:5]]
    ranks = sum(len(run["most"]) for run in runs)
    outside = sum(len(run["outside"]) for run in runs)
    over = sum(most > run["bytes"] for run in runs for most in run["most"])
    fit = sum(max(row["budgets"]["least"].get("most", [row["budgets"]["least"]["bytes"]])) < row["budgets"]["least"]["bytes"]
              for row in rows)
    return (f"| {title}: {len(rows)} | {len(runs)} | {ranks} | {' | '.join(equal)} | {outside} | {over} | "
            f"{sum(row['refused'] for row in rows)} | {fit} |")


def table(rows):
    by_title = collections.defaultdict(list)
    for row in rows:
        by_title[row["model"] + "; separate memory" * row["separate"]].append(row)
    lines = ["| model: schedules | runs | ranks | equal: " + " | ".join(CLASSES[:5]) + " | outside | over | refused | might fit |",
             "| --- " * 12 + "|"]
    return "\n".join(lines + [line(title, of_title) for title, of_title in by_title.items()] + [line("**all**", rows)])


def cases(options, folder, weft):
    for title, text in peak_bytes.models(folder):
        row = title.split(", 4 stages")[0]
        if options.only and not any(part in title for part in options.only):
            continue
        for name, schedule, microbatches in peak_bytes.schedules(weft)[::options.every]:
            yield row, name, text.replace("microbatches: 8", f"microbatches: {microbatches}") + f"schedule: {schedule}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--separate-memory", action="store_true")
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.separate_memory:
        os.environ["WEFT_IN_PLACE"] = "0"
    rows = [json.loads(text) for text in options.rows.read_text().splitlines()] if options.rows and options.rows.exists() else []
    had = {(row["model"], row["schedule"], row["separate"]) for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        bits.write_data(folder)
        for title, name, text in cases(options, folder, str(options.bin / "weft")):
            if (title, name, options.separate_memory) in had:
                continue
            rows.append(measure(options, folder, title, name, text))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    wrong = [text for row in rows for text in faults(row)]
    print(*wrong, sep="\n", file=sys.stderr, flush=True)
    if not any(row["budgets"] for row in rows):
        sys.exit("nothing was trained")
    print(table(rows))
    if options.out:
        trained = sum(not row.get("none", False) for row in rows)
        done = (f"Of {len(rows)} pairs of a schedule and a model, {len(rows) - trained} take no budget, because backwards are on other ranks than "
                "their forwards, or cannot be trained.")
        page = PAGE.format(table=table(rows), done=done, separate=SEPARATE if any(row["separate"] for row in rows) else "")
        options.out.write_text(markdown.wrapped(page))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
