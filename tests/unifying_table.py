#!/usr/bin/env python3
"""Table 1 of "Unifying Parallelization Schemes to Train Deep Nets", and its guideline: formula, simulation and measurement.

    unifying_table.py BIN_DIR [--check] [--out docs/measurements/unifying_table.md]

--check simulates many sizes and exits 1 where a figure is not that of its formula although the formula's condition holds,
or where no size meets a condition. Without it, prints the page, which has one size of each row, also measured.
"""

import argparse
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import cyclic_tables
import markdown


class Size:
    """Stages, micro-batches, and groups of ranks; G and R are 0 where a scheme has none."""

    def __init__(self, s, b, g=0, r=0):
        self.s, self.b, self.g, self.r = s, b, g, r

    def words(self):
        grouped = f", G = {self.g}, R = {self.r}" if self.g else ""
        return f"S = {self.s}, B = {self.b}{grouped}"


class Column:
    """A figure of a row: the published formula, its value, the value's condition, and what is simulated."""

    def __init__(self, published, value, condition="always", holds=lambda n: True):
        self.published, self.value, self.condition, self.holds = published, value, condition, holds


COLUMNS = ["latency", "activations received", "weights received", "activations stored", "weights stored"]
ALWAYS = "always"


class Row:
    def __init__(self, name, schedule, example, sizes, columns):
        self.name, self.schedule, self.example, self.sizes, self.columns = name, schedule, example, sizes, columns


def grid(*ranges):
    return itertools.product(*ranges)


def looped_sizes():
    for s, b, g, r in grid(range(2, 9), range(2, 9), range(1, 5), range(1, 9)):
        if b % g == 0 and s % r == 0:
            yield Size(s, b, g, r)


def guided_sizes():
    """G = B/k groups of S ranks, which is W = S B / k: epsilon = 1/k."""
    for s, b, k in grid(range(2, 7), range(2, 13), range(1, 7)):
        if b % k == 0 and k <= s:
            yield Size(s, b, b // k, s)


def pairs(most):
    return [Size(s, b) for s, b in grid(range(2, most), range(2, most))]


def inner_receives(n):
    """Micro-batches of a rank, on each stage that has another rank before it."""
    return n.s * n.b // (n.g * n.r)


def looped_columns(weights):
    capped = lambda n: n.s // n.r * min(n.s, n.b // n.g)
    looped = "$B/G \\le R$"
    short = lambda n: n.b // n.g <= n.r
    return {
        "latency": Column("$S + B/G - 1$", lambda n: n.s + n.b // n.g - 1, looped, short),
        "activations received": Column("$B$", lambda n: n.b, "$W = S$ and $R > 1$; else $S B / W$",
                                       lambda n: n.g * n.r == n.s and n.r > 1 and n.s > 2),
        "activations stored": Column("$(S/R) \\min(S, B/G)$", capped, looped, short),
        **weights,
    }


LPP = {"weights received": Column("0", lambda n: 0), "weights stored": Column("$S/R$", lambda n: n.s // n.r)}
FSLPP = {
    "weights received": Column("$S - 1$", lambda n: n.s - 1, "$R = 1$ and $G = S$: each rank fetches all stages but its own; else "
                               "those of its $S/R$ stages that it does not own", lambda n: n.r == 1 and n.g == n.s),
    "weights stored": Column("1", lambda n: 1, "$S \\le \\mathrm{lcm}(G, R)$", lambda n: n.s <= math.lcm(n.g, n.r)),
}

ROWS = [
    Row("Distributed data parallel (DDP), $W = B$", "ddp", Size(4, 4), pairs(9), {
        "latency": Column("$S$", lambda n: n.s),
        "activations received": Column("0", lambda n: 0),
        "weights received": Column("0", lambda n: 0),
        "activations stored": Column("$S$", lambda n: n.s),
        "weights stored": Column("$S$", lambda n: n.s),
    }),
    Row("Fully sharded DDP (FSDP), $W = B$", "fsdp", Size(4, 4), pairs(9), {
        "latency": Column("$S$", lambda n: n.s),
        "activations received": Column("0", lambda n: 0),
        "weights received": Column("$S - 1$", lambda n: n.s - 1, "$B = S$, and a copy for the forward alone; the backward fetches "
                                   "it again", lambda n: n.b == n.s),
        "activations stored": Column("$S$", lambda n: n.s),
        "weights stored": Column("1", lambda n: 1, "$S \\le B$", lambda n: n.s <= n.b),
    }),
    Row("Pipeline (PP), $W = S$", "1f1b", Size(4, 8), pairs(9), {
        "latency": Column("$B + S - 1$", lambda n: n.b + n.s - 1),
        "activations received": Column("$B$", lambda n: n.b),
        "weights received": Column("0", lambda n: 0),
        "activations stored": Column("$\\min(S, B)$", lambda n: min(n.s, n.b), "1F1B, or another cap; all forwards first keep $B$"),
        "weights stored": Column("1", lambda n: 1),
    }),
    Row("Looped pipeline (LPP), $W = G R$", "lpp,groups={g},ranks={r}", Size(4, 4, 2, 2), list(looped_sizes()),
        looped_columns(LPP)),
    Row("Fully sharded LPP (FSLPP), $W = G R$", "fslpp,groups={g},ranks={r}", Size(6, 6, 2, 3), list(looped_sizes()),
        looped_columns(FSLPP)),
    Row("Guideline: LPP with $W = \\epsilon S B$, $G = \\epsilon B$, $R = S$, $\\epsilon = 1/4$", "lpp,groups={g},ranks={r}",
        Size(4, 4, 1, 4), list(guided_sizes()), {
            "latency": Column("$S + 1/\\epsilon - 1$", lambda n: n.s + n.b // n.g - 1, "$1/\\epsilon \\le S$"),
            "activations stored": Column("$1/\\epsilon$", lambda n: n.b // n.g, "$1/\\epsilon \\le S$"),
            "weights stored": Column("1", lambda n: 1),
        }),
    Row("Guideline, $\\epsilon = 1/2$", "lpp,groups={g},ranks={r}", Size(4, 4, 2, 4),
        [n for n in guided_sizes() if n.b == 2 * n.g], {
            "latency": Column("$S + 1$", lambda n: n.s + 1),
            "activations stored": Column("2", lambda n: 2),
            "weights stored": Column("1", lambda n: 1),
        }),
]


def schedule_of(row, n):
    return row.schedule.format(g=n.g, r=n.r)


def weft_json(command, timeout=600):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def copies(row, fetches):
    """Fetched copies that a rank is counted to have: fslpp keeps one of each stage that it fetches, for its forwards and again
    for its backwards; else there is the one that the rank computes with."""
    return fetches // 2 if row.schedule.startswith("fslpp") else fetches > 0


def simulated(weft, row, n):
    """The figures of the largest rank. A unit of time is one forward and one backward."""
    run = weft_json([weft, "simulate", schedule_of(row, n), "--stages", str(n.s), "--microbatches", str(n.b), "--weight", "1",
                     "-o", "json"])
    ranks = run["rank_stats"]
    most = lambda key: max(rank[key] for rank in ranks)
    return {
        "latency": run["makespan"] / 2,
        "activations received": most("activation_receives"),
        "weights received": most("weight_fetches") / 2,  # for the forward, and as many for the backward
        "activations stored": most("peak_activations"),
        "weights stored": max(rank["held_bytes"] - copies(row, rank["weight_fetches"]) for rank in ranks),
    }


def check(weft):
    problems, checked = [], 0
    for row in ROWS:
        met = dict.fromkeys(row.columns, 0)
        for n in row.sizes:
            figures = simulated(weft, row, n)
            for key, column in row.columns.items():
                if not column.holds(n):
                    continue
                met[key] += 1
                if figures[key] != column.value(n):
                    problems.append(f"{schedule_of(row, n)}, {n.words()}: {key} is {figures[key]:g}, the formula says "
                                    f"{column.value(n)}")
        problems += [f"{row.name}: no size meets the condition of '{key}'" for key, count in met.items() if count == 0]
        checked += sum(met.values())
    print(f"{checked} figures of {sum(len(row.sizes) for row in ROWS)} simulations")
    return problems


# ---- the page

STEPS, SIDE, SAMPLES = 6, 32, 16


def run_file(folder, n):
    """Equal layers, one a stage: as wide as a sample, and as many classes."""
    width = SIDE * SIDE
    return (f"name: unify\nmodel: {{mlp: {{layers: {n.s}, width: {width}, inputs: {width}, classes: {width}}}}}\n"
            f"data: {{idx: {{images: {folder}/pixels{SIDE}.idx, labels: {folder}/classes{SIDE}.idx}}}}\n"
            f"train: {{steps: {STEPS}, batch: {SAMPLES * n.b}, microbatches: {n.b}, seed: 3, optimizer: {{sgd: {{lr: 1.0e-3}}}}}}\n"
            f"stages: {n.s}\nschedule: gpipe\n")


def measured(weft, folder, row, n):
    """The figures of a real run: of the largest rank, but for what is received, of which there is the sum of all ranks."""
    file = folder / "run.yaml"
    file.write_text(run_file(folder, n))
    found = weft_json([weft, "compare", file, "--measure", "--steps", STEPS, "--processes", 2, "--schedules",
                       schedule_of(row, n), "-o", "json"])
    [run] = found["schedules"]
    if not run["ran"]:
        raise RuntimeError(f"{schedule_of(row, n)}: {run['reason']}")
    width, sent = SIDE * SIDE, run["bytes_sent"]
    stage, output = 4 * (width * width + width), 4 * SAMPLES * width
    stats = run["rank_stats"]
    return {
        "latency": run["step_seconds"],
        "activations received": sent.get("activation", 0) / output,
        "weights received": sent.get("weights", 0) / stage,
        "activations stored": max(rank["peak_activations"] for rank in stats),
        "weights stored": max(rank["peak_bytes"].get("weights", 0) for rank in stats) / stage,
        "ranks": run["ranks"],
    }


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def lines_of(weft, folder, row):
    n = row.example
    simulation, run = simulated(weft, row, n), measured(weft, folder, row, n)
    lines = ["", f"## {row.name}", "",
             f"`{schedule_of(row, n)}`, {n.words()}: {run['ranks']} ranks, measured in two processes.", "",
             "| | formula | | simulated | measured | holds |", "| --- | --- | --- | --- | --- | --- |"]
    for key in COLUMNS:
        column = row.columns.get(key)
        formula, value = ("-", "-") if column is None else (column.published, number(column.value(n)))
        condition = "" if column is None else column.condition
        if column is not None and not column.holds(n):
            value += " (condition not met)"
        shown = {"latency": f"{1e3 * run['latency']:.0f} ms"}.get(key, number(run[key]))
        shown += ", all ranks" if key.endswith("received") else ""
        lines.append(f"| {key} | {formula} | {value} | {number(simulation[key])} | {shown} | {condition} |")
    return lines


PAGE = """# The unifying table: formula, simulation, measurement

Table 1 of [*Unifying Parallelization Schemes to Train Deep Nets*](https://github.com/a-rahimi/parallel-training), A. Rahimi, compares five schemes, and its text gives a guideline. Here each of these seven stands beside what Weft simulates and measures.

**Symbols.** S stages, B micro-batches, W ranks; looped schemes have G groups of R ranks. Figures are of the largest rank.

**Units.** Latency: the time of one forward and one backward of a stage. Activations: of one micro-batch in one stage. Weights: of one stage. Activations and weights received are those of the forwards; the backwards receive as many gradients, and fetch the weights again.

**Holds** says when the formula is the simulated figure, found by simulating many sizes. `ctest -R unifying_table` holds all of these to it. Where nothing stands in the column *formula*, the text says nothing.

- The table counts no gradient sums and no updates. So here they take no time, and what they send is left out.
- A bound on activations such as min(S, B) needs a cap. A schedule that runs all forwards first keeps every micro-batch that passes the rank.
- *Weights stored* counts those that a rank owns. A rank that fetches weights has copies beside: one of each stage that it fetches under fslpp, the one that it computes with under fsdp.
- *Measured* is a run of an mlp with equal layers on a 2-core machine beside other work, by `weft compare --measure`. Its latency is the time of a step of all ranks on two cores, and no measure of the schedule. What is received is measured for all ranks together: all that goes from rank to rank, weights for forwards and for backwards. Weights stored are what a rank has allocated: two where another rank still reads a version while the next one is made.
- The paper's bound says that no schedule has more than M/S of a rank's peak throughput, with M the activations of the fullest rank. `weft simulate` prints both: `throughput_per_rank` and `throughput_bound`.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    weft = str(options.bin / "weft")
    if options.check:
        problems = check(weft)
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1 if problems else 0
    lines = [PAGE.strip()]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        cyclic_tables.write_images(folder, SIDE)
        for row in ROWS:
            lines += lines_of(weft, folder, row)
    page = "\n".join(lines) + "\n\nWritten by `tests/unifying_table.py build/release/bin --out docs/measurements/unifying_table.md`.\n"
    print(page)
    if options.out:
        options.out.write_text(markdown.wrapped(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
