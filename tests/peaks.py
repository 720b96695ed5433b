#!/usr/bin/env python3
"""Trains a gpt under every schedule family and compares the most activations that were alive on each rank with what
the simulator says: of the schedule, and of the order in which the run's jobs really went.

    peaks.py BIN_DIR [--small] [--bytes] [--out docs/measurements/peaks.md] [--before TEXT]

Prints one markdown table; exits 1 if a run fails or a rank measured another number than its own order has. --small:
one size, for a quick check. --bytes: also trains every schedule with six models and three options, and compares the bytes of
each rank and class with the prediction (peak_bytes.py). --before: a sentence for the page on the figures of a version
before.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import bits
import markdown
import peak_bytes
from standing_workers import StandingWorkers


def weft_json(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def peaks(command):
    return [rank["peak_activations"] for rank in weft_json(command)["rank_stats"]]


def steps_in_turn(trace, steps):
    """Whether every rank was done with a step before it began the next, so that the most of a run is that of a step."""
    ended = {}
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["cat"] not in ("idle", "transfer", "planned")]
    for event in sorted(events, key=lambda e: e["ts"]):
        rank = event["args"]["rank"]
        step, end = ended.get(rank, (0, 0))
        if event["args"]["step"] < step or (event["args"]["step"] > step and event["ts"] < end):
            return False
        ended[rank] = (event["args"]["step"], max(end, event["ts"] + event["dur"]))
    return {step for step, _ in ended.values()} == {steps - 1}


def words(values):
    return str(values[0]) + " each" if len(set(values)) == 1 and len(values) > 1 else ", ".join(map(str, values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--before", default="")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    weft = str(options.bin / "weft")
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as scratch, StandingWorkers(options.bin, scratch, 2) as workers:
        folder = pathlib.Path(scratch)
        bits.write_data(folder)
        title, text = bits.models(folder, options.small)[0]
        file, out = folder / "run.yaml", folder / "out"
        for name, schedule in bits.schedules(weft):
            file.write_text(text + f"schedule: {schedule}\n")
            predicted = peaks([weft, "simulate", str(file), "--backward", "2", "-o", "json"])
            code, error = bits.train_standing(workers, file, out, ["--processes", str(min(2, len(predicted)))])
            if code != 0:
                rows.append((name, words(predicted), "**fails**", ""))
                print(f"{name}: {error[0]}", file=sys.stderr)
                bad += 1
                continue
            summary = json.loads((out / "summary.json").read_text())
            trace = out / "trace.json"
            by_step = [peaks([weft, "simulate", str(trace), "--from-step", str(step), "-o", "json"])
                       for step in range(summary["steps"])]
            replayed = [max(of_rank) for of_rank in zip(*by_step)]
            measured = summary["peak_activations"]
            same = measured == replayed and steps_in_turn(trace, summary["steps"])
            bad += not same
            rows.append((name, words(predicted), words(measured), words(replayed) if same else f"**{words(replayed)}**"))
            print(f"{name}: {'same' if same else 'differs'}", file=sys.stderr)
        by_class = peak_bytes.compare(weft, folder, options.small, weft_json) if options.bytes else {}
    page = ("# The most activations alive, measured and simulated\n\nThe figures are activations of one micro-batch on one stage, by "
            f"rank: {title}, on two worker processes. The first column is the simulator with equal times (a backward takes twice "
            "the time of a forward). The last column is the simulator with the order in which the run's jobs really ran (`weft simulate "
            "trace.json`, the most of its steps).\n\nFixed orders, and ranks that never wait for another, have the same number in all "
            "columns, however long jobs take. A greedy schedule decides by what is ready, so its first column is a prediction. Schedules "
            "on old weights are not here: their steps overlap, so their order is not that of one step.\n\nMeasured and replayed "
            f"are equal under every schedule{'' if bad == 0 else f', **except {bad}**'}. Written by `tests/peaks.py "
            "build/release/bin --out docs/measurements/peaks.md`; `ctest -R simulated_test` and `ctest -R peaks` assert "
            "it.\n\n")
    page += "| schedule | simulated, equal times | measured | simulated, in the order that really was |\n"
    page += "| --- | --- | --- | --- |\n"
    page += "".join(f"| `{name}` | {' | '.join(cells)} |\n" for name, *cells in rows)
    if by_class:
        page += peak_bytes.section(by_class, options.before)
    print(page)
    if options.out:
        options.out.write_text(markdown.wrapped(page))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
