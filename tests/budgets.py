#!/usr/bin/env python3
"""Trains every schedule with six models and three options within budgets of memory, and compares what each rank had with its budget.

    budgets.py BIN_DIR [--small] [--out docs/measurements/budgets.md]
    budgets.py BIN_DIR --profile [--only TEXT] [--every N] [--rows FILE] [--out docs/measurements/budgets.md]

Three budgets of each training: the largest figure that is predicted for a rank without one, the least that `weft simulate`
admits, and the middle of both. A rank's measured bytes are the most that it had at a time, without memory of the host. One byte less than the least must be refused by `weft train` too. Prints one markdown table; exits 1 if a training within
an admitted budget fails, if a rank exceeds its budget, or if a refused training begins. --small: each sixth schedule with one
model and no option.

--profile: trains within the least budget alone, by formulas and by the buffers that `weft profile` measures for each model, and
writes the page's section on that. --only: the models whose title holds this text; may be repeated. --every: each Nth schedule.
--rows: adds the trainings to those in the file, one JSON a line, so that the table can be made in parts.
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
while a job runs, which is [predicted from above](../design/memory.md#what-is-predicted), and from sums and gradients
that could have waited for each other and did not. Of {schedules} such trainings, {none} take no budget: their backwards are on other ranks
than their forwards.

{table}

Of {runs} trainings within a budget, {within} kept all ranks within it, and all ended. `held` counts those in which the
budget held a forward back (idle time with the cause `memory`). Made by
`tests/budgets.py build/release/bin --out docs/measurements/budgets.md`; `ctest -R budgets` makes a part of it.
"""


SECTION = "\n## With a profile\n"
PROFILED = SECTION + """
A part of these trainings, {trainings} of them, within the least budget that is admitted, and again with [`buffers:
profile.json`](../guide/run_file.md#memory): what jobs take while they run, as `weft profile` measured it for each model and
number of samples, in the place of formulas. *Buffers* are those that are predicted for the rank that measured most, less
those that it counted, in percent of the least budget. *Smaller* is how much less the least budget is, in percent of that by
formulas; *within* counts the ranks whose measured bytes are at most the budget.

{table}

Left over with a profile by schedule, the median of the models:

{schedules}

Every training with a profile is refused with one byte less. What is left over is, for the most part, in other classes: a
budget is a bound over all timings, and sums and gradients could have waited for each other and did not. Schedules
on old weights have most of them.
So could states that migrate, which are buffers on their way: they are the largest figures of the column. Next are schedules
with split backwards, whose halves may lie apart by as many micro-batches as their limits say. In stages of several layers,
buffers are counted as if their maxima came where most lies beside them ([memory](../design/memory.md#measured-buffers)). Made by
`tests/budgets.py build/release/bin --profile --rows FILE --out docs/measurements/budgets.md`, in parts (`--only`, `--every`);
`ctest -R budgets_profile` makes a small one.
"""

LEFT_ALONE = "{} is left as it is, because it says that there are no such faults"


class Row:
    """Trainings of one model with one option."""

    def __init__(self):
        self.schedules, self.trainings, self.refused, self.left, self.failures = 0, 0, 0, [], []
        self.within = dict.fromkeys(["whole", "middle", "least"], 0)
        self.ranks = dict.fromkeys(self.within, 0)
        self.runs, self.good, self.held = 0, 0, 0


class Training:
    """A run file's text with one budget after the other."""

    def __init__(self, weft, folder, text):
        self.weft, self.file, self.out, self.text = weft, folder / "run.yaml", folder / "out", text

    def write(self, budget=None):
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

    def train(self, budget, processes):
        """Trains within the budget. Returns the exit code, and the last line of what it said on the error stream."""
        self.write(budget)
        code, error = bits.train(self.weft, self.file, self.out, ["--processes", str(processes)])
        return code, error[0]

    def measured(self, budget, processes):
        """Returns the bytes of each rank and the seconds in which the budget held forwards back, or why it failed."""
        code, said = self.train(budget, processes)
        if code != 0:
            return code, said
        self.summary = summary = json.loads((self.out / "summary.json").read_text())
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


def spread(percents):
    return f"{min(percents):.0f}, {statistics.median(percents):.0f}, {max(percents):.0f}"


def line(name, rows):
    def total(figure):
        return sum(figure(row) for row in rows)

    within = [f"{total(lambda r, w=which: r.within[w])} of {total(lambda r, w=which: r.ranks[w])}" for which in ("whole", "middle", "least")]
    left = [percent for row in rows for percent in row.left] or [0]
    return (f"| {name}: {total(lambda r: r.trainings)} | {' | '.join(within)} | {total(lambda r: r.held)} | {total(lambda r: r.refused)} | "
            f"{spread(left)} |")


def profile_of(weft, folder, title, text, profiles):
    """The file with the buffers of the model, for the text's samples."""
    key = (title, next(line for line in text.splitlines() if line.startswith("train:")))
    if key not in profiles:
        file, profiles[key] = folder / "profiled.yaml", folder / f"profile{len(profiles)}.json"
        file.write_text(text)
        subprocess.run([weft, "profile", str(file), "--steps", "2", "-o", str(profiles[key])], check=True, timeout=600,
                       capture_output=True)
    return profiles[key]


def with_profile(weft, folder, title, name, text, profiles):
    """What a training leaves over of its least budget, by formulas and by a profile."""
    row = {"model": title, "schedule": name}
    ranks = Training(weft, folder, text).ranks()
    if ranks is None:
        return {**row, "none": True}
    whole = max(sum(rank["peak_bytes"][c] for c in COUNTED) for rank in ranks)
    if Training(weft, folder, text).ranks(2 * whole) is None:
        return {**row, "none": True}  # the backward of a forward is on another rank
    measured = f"buffers: {profile_of(weft, folder, title, text, profiles).name}\n"
    for which, more in {"formulas": "", "profile": measured}.items():
        training = Training(weft, folder, text + more)
        least = training.least(2 * whole)
        code, said = training.measured(least, min(2, len(ranks)))
        row[which] = {"least": least, **({"failed": said} if code != 0 else {"most": said[0]})}
        if code == 0:
            full = said[0].index(max(said[0]))
            predicted = training.ranks(least)[full]["peak_bytes"]["buffers"]
            row[which]["buffers"] = predicted - training.summary["peak_bytes"][full]["buffers"]
        code, said = training.measured(least - 1, min(2, len(ranks)))
        row[which]["refused"] = code == REFUSED
    return row


def left_of(found):
    """What the rank that measured most left of the least budget, in percent."""
    return 100 * (found["least"] - max(found["most"])) / found["least"]


def left_over(rows, which):
    return spread([left_of(row[which]) for row in rows])


def spare_buffers(rows, which):
    """Buffers that were predicted and not counted, of the rank that had most."""
    return spread([100 * row[which]["buffers"] / row[which]["least"] for row in rows])


def profiled_line(title, rows):
    smaller = [100 * (1 - row["profile"]["least"] / row["formulas"]["least"]) for row in rows]
    ranks = [(most, row["profile"]["least"]) for row in rows for most in row["profile"]["most"]]
    return (f"| {title}: {len(rows)} | {left_over(rows, 'formulas')} | {left_over(rows, 'profile')} | "
            f"{spare_buffers(rows, 'formulas')} | {spare_buffers(rows, 'profile')} | "
            f"{spread(smaller)} | "
            f"{sum(most <= budget for most, budget in ranks)} of {len(ranks)} |")


def profiled_table(rows):
    by_title = {}
    for row in rows:
        by_title.setdefault(row["model"], []).append(row)
    lines = ["| model: trainings | left over by formulas: least, median, most | with a profile | buffers by formulas | with a profile | "
             "smaller | within, with a profile |", "| --- " * 7 + "|"]
    return "\n".join(lines + [profiled_line(title, of_title) for title, of_title in by_title.items()] +
                     [profiled_line("**all**", rows)])


def by_schedule(rows):
    """A list of the schedules by what they leave over with a profile: the median of their models."""
    left = {}
    for row in rows:
        left.setdefault(row["schedule"], []).append(left_of(row["profile"]))
    median = {schedule: statistics.median(percents) for schedule, percents in left.items()}
    lines, low = [], 0
    for high in (5, 10, 20, 100):
        names = sorted(schedule for schedule, percent in median.items() if low <= percent < high)
        if names:
            lines.append(f"- *{low} to {high} %*: {'; '.join(names)}")
        low = high
    return "\n".join(lines)


def profiled_faults(row):
    name = f"{row['model']}, {row['schedule']}"
    for which in ("formulas", "profile"):
        found = row[which]
        if "failed" in found:
            yield f"{name}, {which}: within {found['least']} bytes: {found['failed']}"
        elif max(found["most"]) > found["least"]:
            yield f"{name}, {which}: ranks had {found['most']} within {found['least']} bytes"
        if not found["refused"]:
            yield f"{name}, {which}: one byte less than {found['least']} is not refused"


def profile_table(options):
    """Makes the table by formulas and by profiles."""
    weft = str(options.bin / "weft")
    rows = [json.loads(text) for text in options.rows.read_text().splitlines()] if options.rows and options.rows.exists() else []
    had = {(row["model"], row["schedule"]) for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        folder, profiles, seen = pathlib.Path(scratch), {}, {}
        bits.write_data(folder)
        for title, name, text in peak_bytes.runs(folder, weft, False):
            seen[title] = seen.get(title, -1) + 1
            wanted = not options.only or any(part == title or part in title.split(";")[0] and ";" not in title for part in options.only)
            if not wanted or seen[title] % options.every or (title, name) in had:
                continue
            rows.append(with_profile(weft, folder, title, name, text, profiles))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    rows = [row for row in rows if not row.get("none")]
    wrong = [text for row in rows for text in profiled_faults(row)]
    rows.sort(key=lambda row: list(seen).index(row["model"]) if row["model"] in seen else len(seen))
    print(*wrong, sep="\n", file=sys.stderr, flush=True)
    whole = [row for row in rows if all("most" in row[which] for which in ("formulas", "profile"))]
    if not whole:
        sys.exit("nothing was trained")
    table = profiled_table(whole)
    print(table)
    if options.out and wrong:
        print(LEFT_ALONE.format(options.out), file=sys.stderr, flush=True)
    elif options.out:
        section = PROFILED.format(table=table, trainings=len(whole), schedules=by_schedule(whole))
        page = options.out.read_text().split(SECTION)[0] + markdown.wrapped(section)
        options.out.write_text(page)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.profile:
        return profile_table(options)
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
    wrong = any(row.failures for row in rows.values())
    if options.out and wrong:
        print(LEFT_ALONE.format(options.out), file=sys.stderr, flush=True)
    elif options.out:
        runs, good, schedules, trainings = (sum(getattr(row, figure) for row in rows.values())
                                            for figure in ("runs", "good", "schedules", "trainings"))
        page = PAGE.format(table=table, runs=runs, within=good, schedules=schedules, none=schedules - trainings)
        section = options.out.read_text().partition(SECTION) if options.out.exists() else ("", "", "")
        options.out.write_text(markdown.wrapped(page) + "".join(section[1:]))
    print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
