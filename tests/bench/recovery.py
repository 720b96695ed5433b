#!/usr/bin/env python3
"""Kills or stops a worker process of a training again and again, and measures the time until the next new step.

    recovery.py BIN_DIR [--kills 200] [--processes 4] [--spares 1] [--every 1000] [--schedule 1f1b] [--no-redundancy] [--stop]
                [--seconds 270] [--rows FILE] [--out FILE]

The training is a gpt of 4 stages on 4 ranks, with `redundancy: {peers: 1}` unless --no-redundancy; then it goes on from checkpoints of every
`--every` steps. A random process that holds ranks is killed (SIGKILL) while a spare is ready. `next step` is the time from the kill to the line
of a step that had not ended before; `steps again` are those between the beginning of the next attempt and the kill. The phases are those of the
metric weft_recovery_seconds_total; `detect` is what remains of the whole time. With --stop the process is stopped (SIGSTOP) until its lease is
over: `named` is the time until the training says that it was silent; behind the next new step it is continued, and becomes a spare.

It ends after --seconds, whatever it has by then. With --rows, what was measured is added to the file, and the tables are of all that it holds: so
200 kills can be made in several calls. Prints a markdown page. It asserts nothing but that no step is reported twice or left out.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_ports import free_ports  # noqa: E402

LIMIT = 120
PHASES = ["fence", "state", "first_job", "step"]
BINS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0]


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=,stat=,comm=", "--ppid", str(pid)], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(row[0]) for row in rows if "weft-worker" in row[2] and "Z" not in row[1]]


def coordinator_of(worker):
    words = pathlib.Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    return words[words.index("--coordinator") + 1]


def write_run(folder, options, steps):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / "run.yaml"
    path.write_text(f"name: recovery\nmodel: {{gpt: {{layers: 6, width: {options.width}, heads: 4, context: 64}}}}\n"
                    "data: {text: {path: text.txt}, order: sequential}\n"
                    f"train: {{steps: {steps}, batch: 16, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                    f"stages: 4\nschedule: {options.schedule}\ncheckpoint: {{every: {options.every}}}\n" +
                    ("" if options.no_redundancy else "redundancy: {peers: 1}\n"))
    return path


class Training:
    """A training of `weft train` that is disturbed."""

    def __init__(self, options, folder):
        self.bin, self.out, self.messages = options.bin_dir, folder / "out", folder / "messages"
        self.members, self.processes = options.processes, options.processes + options.spares
        port = free_ports(1 + self.processes)
        self.metrics = f"http://127.0.0.1:{port}/metrics"
        self.run = subprocess.Popen([self.bin / "weft", "train", write_run(folder, options, 1000000), "--processes", str(options.processes),
                                     "--spares", str(options.spares), "--metrics", f"127.0.0.1:{port}", "--out", self.out],
                                    stdout=subprocess.DEVNULL, stderr=self.messages.open("w"))

    def steps(self):
        path = self.out / "steps.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def await_true(self, what, condition):
        began = time.monotonic()
        while not (found := condition()):
            if self.run.poll() is not None or time.monotonic() - began > LIMIT:
                raise RuntimeError(f"{what}: not within {LIMIT} s\n{self.messages.read_text()[-2000:]}")
            time.sleep(0.002)
        return time.monotonic(), found

    def figures(self, name):
        """The values of a metric, by its only label."""
        with urllib.request.urlopen(self.metrics, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith(name + "{")}

    def recovered(self):
        """The seconds that all recoveries have taken so far, by phase."""
        found = self.figures("weft_recovery_seconds_total")
        return [found[phase] for phase in PHASES]

    def is_ready(self):
        """Whether all ranks have the processes that they had at first, and a spare is there."""
        workers = self.figures("weft_workers")
        return workers.get("busy") == self.members and workers.get("free", 0) >= self.processes - self.members

    def holders(self):
        """The processes that hold ranks, as the coordinator tells it."""
        workers = children(self.run.pid)
        shown = subprocess.run([self.bin / "weft", "describe", "1", "-o", "json", "--coordinator", coordinator_of(workers[0])],
                               capture_output=True, text=True)
        members = json.dumps(json.loads(shown.stdout)["members"]) if shown.returncode == 0 else ""
        return [worker for worker in workers if f"pid {worker} on host" in members]

    def attempts(self):
        """The step with which the newest attempt begins, and how many attempts the training's messages tell of."""
        found = re.findall(r"goes on from (?:its checkpoint|the copies) of step (\d+)|begins again with step (\d+)", self.messages.read_text())
        return (int(found[-1][0] or found[-1][1]) if found else 0), len(found)

    def disturb(self, worker, stop):
        """Returns the figures of one kill or stop: seconds to the next new step, steps that are made again, seconds of
        each phase, seconds until it is named."""
        done, before, (_, attempts) = self.steps(), self.recovered(), self.attempts()
        silences = self.messages.read_text().count("was silent")
        began = time.monotonic()
        os.kill(worker, signal.SIGSTOP if stop else signal.SIGKILL)
        if stop:
            named, _ = self.await_true("it is named", lambda: self.messages.read_text().count("was silent") > silences)
            done = max(done, self.steps())
        else:
            time.sleep(0.02)  # lines of steps that had ended are on their way
            named, done = began, max(done, self.steps())
        ended, _ = self.await_true("a new step", lambda: self.steps() > done)
        time.sleep(0.2)  # the metrics are exported every 50 ms
        phases = [now - then for now, then in zip(self.recovered(), before)]
        begun, count = self.attempts()
        if count == attempts or sum(phases) == 0:
            raise RuntimeError("the run did not begin again")
        if stop:
            os.kill(worker, signal.SIGCONT)
        return {"seconds": ended - began, "again": done - begun, "phases": [ended - began - sum(phases)] + phases, "named": named - began}

    def end(self):
        self.run.send_signal(signal.SIGTERM)
        self.run.wait(60)
        made = [json.loads(line)["step"] for line in (self.out / "steps.jsonl").read_text().splitlines()]
        if made != list(range(made[0], made[0] + len(made))):
            raise RuntimeError("a step was reported twice, out of order or not at all")


def measure(options, folder):
    training = Training(options, folder)
    rng, rows, began = random.Random(time.time_ns() if options.seed is None else options.seed), [], time.monotonic()
    try:
        while len(rows) < options.kills and time.monotonic() - began < options.seconds:
            training.await_true("all processes", lambda: training.steps() > 0 and training.is_ready())
            least = training.steps() + rng.randint(2, 8)
            training.await_true("some steps", lambda: training.steps() >= least)
            if len(holders := training.holders()) == options.processes:
                rows.append(training.disturb(rng.choice(holders), options.stop))
    finally:
        training.end()
    return rows


def job_times(options, folder):
    """Seconds of forwards and backwards in the same training, undisturbed."""
    run = [options.bin_dir / "weft", "train", write_run(folder, options, 40), "--processes", str(options.processes), "--out", folder / "plain"]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    trace = json.loads((folder / "plain/trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    jobs = sorted(e["dur"] * 1e-6 for e in events if e.get("ph") == "X" and e.get("cat") in ("forward", "backward"))
    return jobs, json.loads((folder / "plain/summary.json").read_text())["step_seconds"]["p50"]


def share(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def percentiles(name, values, form):
    return f"| {name} | " + " | ".join(form(share(values, part)) for part in (0.5, 0.9, 0.99)) + f" | {form(max(values))} |"


def histogram(columns):
    """Counts of each phase's times by size."""
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for low, high in zip([0.0] + BINS, BINS + [float("inf")]):
        name = f"{low:g} s and more" if high == float("inf") else f"{low:g} to {high:g} s" if low else f"below {high:g} s"
        counts = [sum(low <= value < high or (low == 0.0 and value < 0) for value in values) for values in columns.values()]
        lines.append(f"| {name} | " + " | ".join(str(count) for count in counts) + " |")
    return lines


def page(options, rows, jobs, step):
    verb = "stopped (SIGSTOP) for longer than its lease" if options.stop else "killed (SIGKILL)"
    source = f"from checkpoints of every {options.every} steps" if options.no_redundancy else "from copies in memory (`redundancy: {peers: 1}`)"
    seconds = lambda value: f"{value:.3f} s"
    columns = {"whole": [row["seconds"] for row in rows]}
    for i, phase in enumerate(["detect"] + PHASES):
        columns[phase.replace("_", " ")] = [row["phases"][i] for row in rows]
    lines = [
        f"A gpt of 4 stages, width {options.width}, 4 ranks on {options.processes} processes and {options.spares} spare (`{options.schedule}`), {source}. Undisturbed, a job",
        f"takes {1e3 * share(jobs, 0.1):.1f} to {1e3 * share(jobs, 0.9):.1f} ms (10th to 90th percentile, median {1e3 * statistics.median(jobs):.1f}) and a step"
        f" {1e3 * step:.0f} ms. {len(rows)} times a process that holds ranks is {verb}.", "",
        "| from then | p50 | p90 | p99 | most |", "| --- | --- | --- | --- | --- |",
        *([percentiles("until it is named", [row["named"] for row in rows], seconds)] if options.stop else []),
        *([percentiles("until it is replaced: all are prepared again", [sum(row["phases"][:3]) for row in rows], seconds)] if options.stop else []),
        percentiles("to the next step that had not ended before", columns["whole"], seconds),
        percentiles("steps made again that had ended", [row["again"] for row in rows], str),
        *(percentiles(name, values, seconds) for name, values in columns.items() if name != "whole"), "",
        *([] if options.stop else histogram(columns) + [""])]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-redundancy", action="store_true", help="go on from checkpoints")
    parser.add_argument("--stop", action="store_true", help="stop the process instead of killing it")
    parser.add_argument("--seconds", type=float, default=270, help="begin no kill after so long")
    parser.add_argument("--rows", type=pathlib.Path, help="add what was measured to this file, and show all that it holds")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        jobs, step = job_times(options, folder)
        rows = measure(options, folder)
    if options.rows:
        with options.rows.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    text = page(options, rows, jobs, step)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
