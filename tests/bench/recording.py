#!/usr/bin/env python3
"""Measures the cost of recording hashes in whole trainings: with `--record hashes` over without.

    recording.py BIN_DIR [--rounds N] [--steps T] [--only NAME]

Trains each run in turn with and without, in alternating order, and prints a line of JSON for each:
  time_ratio     medians of the steps' times, of all trainings without their first steps
  cpu_ratio      CPU time of a step, of all processes: the least of the trainings, less that of a training of two steps
  bytes_per_job  of hashes.jsonl
  equal          whether `weft diff` finds the first and the last recording equal
Where other programs have the cores too, only cpu_ratio says something. recording_bench measures the jobs alone.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from step_time import write_text

RUNS = {  # schedule, stages, micro-batches, width, context, samples of a micro-batch
    "1f1b": ("1f1b", 2, 4, 128, 64, 8),
    "zb_h1": ("zb_h1", 2, 4, 128, 64, 8),
    "ddp": ("{ddp: {ranks: 2}}", 2, 4, 128, 64, 8),
    "width": ("{fsdp: {shard: width}}", 2, 2, 128, 64, 8),
    "cyclic": ("{ddp: {}, rule: cdp_v2}", 2, 2, 128, 64, 8),
    "few_tokens": ("1f1b", 2, 4, 128, 32, 2),
}


def write_run(folder, name, text, steps):
    schedule, stages, microbatches, width, context, samples = RUNS[name]
    path = os.path.join(folder, name + ".yaml")
    with open(path, "w") as f:
        f.write(f"name: {name}\nmodel: {{gpt: {{layers: 4, width: {width}, heads: 4, context: {context}}}}}\ndata: {{text: {{path: {text}}}}}\n"
                f"train: {{steps: {steps}, batch: {samples * microbatches}, microbatches: {microbatches}, seed: 1, "
                f"optimizer: {{adamw: {{lr: 3.0e-4}}}}}}\nstages: {stages}\nschedule: {schedule}\n")
    return path


def train(bins, path, out, *flags):
    """Seconds of each step, and the CPU time of the command with all that it started."""
    process = subprocess.Popen([os.path.join(bins, "weft"), "train", path, "--out", out, *flags], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    words = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{path}: exit {process.returncode}: {words[-800:]}")
    with open(os.path.join(out, "steps.jsonl")) as f:
        return [json.loads(line)["seconds"] for line in f], usage.ru_utime + usage.ru_stime


def measure(bins, folder, name, text, rounds, steps):
    path = write_run(folder, name, text, steps)
    seconds, long, short, recorded = {0: [], 1: []}, {0: [], 1: []}, {0: [], 1: []}, []
    for i in range(rounds):
        for record in (0, 1) if i % 2 else (1, 0):
            flags, out = ["--record", "hashes"] * record, os.path.join(folder, f"{name}-{record}-{i}")
            times, cpu = train(bins, path, out, *flags)
            seconds[record] += times[1:]
            long[record].append(cpu)
            short[record].append(train(bins, path, out + "-short", "--until", "2", *flags)[1])
            recorded += [out] * record
    equal = subprocess.run([os.path.join(bins, "weft"), "diff", recorded[0], recorded[-1]], capture_output=True).returncode == 0
    with open(os.path.join(recorded[0], "hashes.jsonl")) as f:
        lines = f.readlines()[1:]
    cpu = {r: (min(long[r]) - min(short[r])) / (steps - 2) for r in (0, 1)}
    return {"run": name, "time_ratio": round(statistics.median(seconds[1]) / statistics.median(seconds[0]), 3),
            "cpu_ratio": round(cpu[1] / cpu[0], 3), "cpu_ms_per_step": round(1000 * cpu[0], 2), "jobs": len(lines),
            "bytes_per_job": round(sum(map(len, lines)) / len(lines)), "equal": equal}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bins")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=RUNS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(folder)
        for name in [options.only] if options.only else RUNS:
            print(json.dumps(measure(options.bins, folder, name, text, options.rounds, options.steps)), flush=True)


if __name__ == "__main__":
    main()
