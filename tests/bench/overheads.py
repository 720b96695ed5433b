#!/usr/bin/env python3
"""Measures the cost of durability, as ratios of time per step: with over without, in pairs of runs in turn.

    overheads.py BIN_DIR [--only store|redundancy|checkpoint|hashes] [--pairs 8] [--steps 250] [--seconds 270] [--folder DIR] [--rows FILE]

store       a coordinator with its store on the disk against one that keeps its runs in memory; daemons, 2 workers
redundancy  `redundancy: {peers: 1}` against none
checkpoint  `checkpoint: {every: 50}` against none
hashes      `--record hashes` against none

All train a gpt of 6 layers, width 128, 256 tokens a micro-batch, AdamW, `1f1b` with 4 stages on 2 processes, whose state has 15 MB. A run's time
per step is the mean over all steps but the first 50, so that it has its share of each checkpoint. A pair is two runs of the same, one after the
other, and each pair changes their order. The ratio is that of a pair; the table has the median, the quartiles and the extremes. `processor` is
the same ratio of the processor time of all processes, start and end included. No pair is begun that may end behind --seconds. --folder holds stores and output: a disk, where it is one.
With --rows, the pairs are added to the file, and the table is of all that it holds.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP = 50
GOALS = {"store": 1.02, "redundancy": 1.05, "checkpoint": 1.03, "hashes": 1.02}


def write_run(folder, steps, more=""):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / "run.yaml"
    path.write_text("name: overhead\nmodel: {gpt: {layers: 6, width: 128, heads: 4, context: 64}}\n"
                    "data: {text: {path: text.txt}, order: sequential}\n"
                    f"train: {{steps: {steps}, batch: 16, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                    f"stages: 4\nschedule: 1f1b\n{more}")
    return path


def ended(process):
    """Waits for a process; returns its exit code and the processor time of it and of those that it waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def seconds_per_step(out):
    with open(out / "steps.jsonl", encoding="ascii") as file:
        return statistics.fmean([json.loads(line)["seconds"] for line in file][WARM_UP:])


def train(bins, folder, steps, more="", flags=()):
    """Seconds of a step, and processor time, of `weft train`."""
    run = subprocess.Popen([bins / "weft", "train", write_run(folder, steps, more), "--processes", "2", "--out", folder / "out", *flags],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    words = run.stderr.read()
    code, processor = ended(run)
    if code:
        sys.exit(f"weft train: exit {code}: {words[-800:]}")
    return seconds_per_step(folder / "out"), processor


def submit(bins, folder, steps, store):
    """The same of a coordinator and two workers."""
    address = f"unix:{folder}/c.sock"
    kept = ["--store", folder / "store"] if store else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [subprocess.Popen([bins / "weft-coordinator", "--listen", address, "--output-root", folder, *kept], **quiet)]
    daemons += [subprocess.Popen([bins / "weft-worker", "--coordinator", address, "--name", f"w{i}"], **quiet) for i in range(2)]
    try:
        command = [bins / "weft", "submit", write_run(folder, steps), "--processes", "2", "--out", folder / "out", "--coordinator", address]
        for _ in range(100):
            done = subprocess.run(command, capture_output=True)
            if done.returncode != 69:  # the coordinator does not listen yet
                break
            time.sleep(0.1)
        if done.returncode:
            sys.exit(f"weft submit: exit {done.returncode}: {done.stderr[-800:]}")
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        processor = sum(ended(daemon)[1] for daemon in daemons)
    return seconds_per_step(folder / "out"), processor


def run_once(name, bins, folder, steps, on):
    with tempfile.TemporaryDirectory(dir=folder) as place:
        place = pathlib.Path(place)
        if name == "store":
            return submit(bins, place, steps, on)
        if name == "hashes":
            return train(bins, place, steps, flags=["--record", "hashes"] if on else [])
        more = {"redundancy": "redundancy: {peers: 1}\n", "checkpoint": "checkpoint: {every: 50}\n"}[name]
        return train(bins, place, steps, more if on else "")


def measure(name, options):
    pairs, began = [], time.monotonic()
    for i in range(options.pairs):
        passed = time.monotonic() - began
        if pairs and passed + 1.2 * passed / len(pairs) > options.seconds:
            break
        both = {}
        for on in (False, True) if i % 2 else (True, False):
            both[on] = run_once(name, options.bin_dir, options.folder, options.steps, on)
        pairs.append({"name": name, "with": both[True], "without": both[False]})
        print(f"{name} {i + 1}: {1e3 * both[True][0]:.2f} / {1e3 * both[False][0]:.2f} ms", file=sys.stderr, flush=True)
    return pairs


def row(name, pairs):
    """A line of the table: of seconds per step, and of processor time."""
    ratios, processor = (sorted(pair["with"][i] / pair["without"][i] for pair in pairs) for i in (0, 1))
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    without = 1e3 * statistics.median(pair["without"][0] for pair in pairs)
    return (f"| {name} | {len(pairs)} | {without:.1f} ms | {statistics.median(ratios):.3f} | {quarters[0]:.3f} to {quarters[2]:.3f} | "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f} | {statistics.median(processor):.3f} | {GOALS[name]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--only", choices=GOALS)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=270, help="for each of the four")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--rows", type=pathlib.Path, help="add the pairs to this file, and show all that it holds")
    options = parser.parse_args()
    pairs = [pair for name in ([options.only] if options.only else GOALS) for pair in measure(name, options)]
    if options.rows:
        with options.rows.open("a", encoding="ascii") as file:
            file.writelines(json.dumps(pair) + "\n" for pair in pairs)
        pairs = [json.loads(line) for line in options.rows.read_text().splitlines()]
    print("| | pairs | step without | ratio, median | quartiles | least to most | processor | goal |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in GOALS:
        if found := [pair for pair in pairs if pair["name"] == name]:
            print(row(name, found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
