#!/usr/bin/env python3
"""Trains within budgets of memory while the kernel limits the processes to the same memory.

    budget_groups.py BIN_DIR [--out docs/measurements/budget_groups.md] [--only TEXT]

A training of a gpt and its coordinator run in a control group. Its limit is what the same processes had at most with a model that
has next to no weights, plus the budget of each rank: the least that `weft simulate` admits. The kernel kills a process that needs
more, and the training fails. Needs root and the memory controller of control groups, of either version. Prints one markdown table;
exits 1 if a training fails, and 77 where there is no such group.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import bits
import budgets
import markdown

RUN = """name: budget
model: {{gpt: {{layers: 8, width: {width}, heads: 4, context: {context}}}}}
data: {{text: {{path: {folder}/text.txt}}}}
train: {{steps: 3, batch: 16, microbatches: 8, seed: 5, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}
stages: 4
schedule: {schedule}
"""
SIZES, NOTHING = {"width": 384, "context": 128}, {"width": 8, "context": 4}
SCHEDULES = [
    "{1f1b: }", "{gpipe: }", "{zb_h1: }", "{ddp: {ranks: 4}}", "{fsdp: }", "{fsdp: {shard: width}}",
    "{lpp: {groups: 2, ranks: 2}}", "{interleaved: {ranks: 2}}", "{v_half: }", "{dualpipe_v: }",
    "{1f1b: , activations: recompute}", "{pipedream_2bw: }",
]
SHARES = [100, 95, 90, 85, 80, 75, 70, 65, 60]
PAGE = """# Budgets that the kernel holds

Each training is a gpt of 8 layers, {width} wide, with {context} tokens a sample, in 4 stages, on 2 worker processes; 3
steps of 16 samples in 8 micro-batches. The budget is the least that `weft simulate` admits. The processes and the
coordinator are in a control group, and the kernel kills what takes more than the limit: the sum of the ranks' budgets, and
what the same processes had at most with a model {small} wide with {few} tokens, *without a model*. Then the training is
made again with less and less of the budgets in the limit, until the kernel kills it: *needed* is the smallest part, of
{shares}, with which it still ended; nothing less was tried.

{table}

{said} Made by `tests/budget_groups.py build/release/bin --out docs/measurements/budget_groups.md`.
"""


class Group:
    """A control group for the memory of the processes that are started in it."""

    def __init__(self):
        old, new = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
        self.is_old = (old / "memory.limit_in_bytes").exists()
        self.group = (old if self.is_old else new) / f"weft_budgets_{os.getpid()}"
        try:
            self.group.mkdir()
        except OSError as error:
            sys.exit(f"NOT TESTED: no control group: {error}")
        if not (self.group / self.name("memory.limit_in_bytes", "memory.max")).exists():
            self.group.rmdir()
            sys.exit("NOT TESTED: control groups have no memory controller here")

    def name(self, old, new):
        return old if self.is_old else new

    def limit(self, count):
        """Limits the memory, and forgets what was needed before."""
        (self.group / self.name("memory.limit_in_bytes", "memory.max")).write_text(str(count or "-1" if self.is_old else count or "max"))

    def most(self):
        return int((self.group / self.name("memory.max_usage_in_bytes", "memory.peak")).read_text())

    def run(self, command):
        """Returns the exit code, what was said at last, and the most bytes that the group had meanwhile."""
        if self.is_old:
            (self.group / "memory.force_empty").write_text("0")
            (self.group / "memory.max_usage_in_bytes").write_text("0")
        before = 0 if self.is_old else self.most()
        done = subprocess.run(["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.group), *command],
                              capture_output=True, text=True, timeout=600, check=False)
        most = self.most()
        if not self.is_old and most == before:
            raise RuntimeError("the kernel's peak is that of an earlier training; it cannot be reset here")
        return done.returncode, (done.stderr.strip().splitlines() or [""])[-1], most


@contextlib.contextmanager
def group():
    made = Group()
    try:
        yield made
    finally:
        made.group.rmdir()


def try_schedule(weft, folder, made, schedule):
    """Returns the row of a schedule, and whether it is good."""
    def training(sizes, budget):
        run = budgets.Training(weft, folder, RUN.format(folder=folder, schedule=schedule, **sizes))
        run.write(budget)
        return made.run([weft, "train", str(run.file), "--overwrite", "--out", str(run.out), "--processes", "2"])

    planned = budgets.Training(weft, folder, RUN.format(folder=folder, schedule=schedule, **SIZES))
    ranks = planned.ranks()
    least = planned.least(2 * max(sum(rank["peak_bytes"][c] for c in budgets.COUNTED) for rank in ranks))
    made.limit(None)
    code, said, base = training(NOTHING, None)
    if code != 0:
        raise RuntimeError(f"{schedule}, without a model: {said}")
    needed = None
    for share in SHARES:
        made.limit(base + len(ranks) * least * share // 100)
        code, said, _ = training(SIZES, least)
        if code != 0:
            break
        needed = share
    ends = f"**failed**: {said}" if needed is None else f"{needed} %"
    return [f"`{schedule}`", str(len(ranks)), f"{least / 2**20:.1f}", f"{base / 2**20:.0f}", ends], needed is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    rows, good = [], 0
    with tempfile.TemporaryDirectory() as scratch, group() as made:
        folder = pathlib.Path(scratch)
        bits.write_data(folder)
        for schedule in SCHEDULES:
            if options.only in schedule:
                row, fine = try_schedule(str(options.bin.resolve() / "weft"), folder, made, schedule)
                print("  ".join(row), file=sys.stderr, flush=True)
                rows.append(row)
                good += fine
    head = ["schedule", "ranks", "least budget of a rank, MiB", "without a model, MiB", "needed"]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
    if options.out:
        said = f"{good} of {len(rows)} trainings ended within the kernel's limit."
        options.out.write_text(markdown.wrapped(PAGE.format(table=table, said=said, small=NOTHING["width"], few=NOTHING["context"],
                                                         shares=", ".join(f"{s} %" for s in SHARES), **SIZES)))
    print(table)
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
