#!/usr/bin/env python3
"""Kills a worker process of a training again and again, and measures the time until the next new step.

    recovery.py BIN_DIR [--kills 40] [--processes 2] [--spares 1] [--every 5] [--schedule 1f1b] [--redundancy] [--out FILE]

The training is a small gpt of 4 stages with a checkpoint of every few steps. With --redundancy the same kills are also made in a
training with `redundancy: {peers: 1}`, and the time per step of both is measured without kills, in turns. `next step` is the time from the kill to the line
of a step that had not ended before; `steps again` are those between the beginning of the next attempt and the kill. The phases are those of the
metric weft_recovery_seconds_total; `detect` is what remains of the whole time. Prints a markdown page.
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

LIMIT = 120


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=,stat=,comm=", "--ppid", str(pid)], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(row[0]) for row in rows if "weft-worker" in row[2] and "Z" not in row[1]]


def steps(out):
    path = out / "steps.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def await_steps(run, out, least):
    began = time.monotonic()
    while steps(out) < least:
        if run.poll() is not None or time.monotonic() - began > LIMIT:
            return None
        time.sleep(0.005)
    return time.monotonic()


def beginning(log, seen):
    """The step with which the newest attempt begins, and how many attempts the training's messages tell of."""
    found = re.findall(r"goes on from (?:its checkpoint|the copies) of step (\d+)|begins again with step (\d+)", log.read_text())
    return (int(found[-1][0] or found[-1][1]) if len(found) > seen else None), len(found)


def write_run(folder, schedule, every, redundancy, steps=1000000):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / "run.yaml"
    path.write_text("name: recovery\nmodel: {gpt: {layers: 6, width: 128, heads: 4, context: 64}}\n"
                    "data: {text: {path: text.txt}, order: sequential}\n"
                    f"train: {{steps: {steps}, batch: 16, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                    f"stages: 4\nschedule: {schedule}\ncheckpoint: {{every: {every}}}\n" +
                    ("redundancy: {peers: 1}\n" if redundancy else ""))
    return path


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def undisturbed(options, folder, redundancy, steps=60):
    """The median time of a step without kills, and the processor time of the whole run."""
    folder.mkdir()
    began = cpu_seconds()
    run = [options.bin_dir / "weft", "train", write_run(folder, options.schedule, 1000, redundancy, steps), "--processes",
           str(options.processes), "--out", folder / "out"]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads((folder / "out/summary.json").read_text())["step_seconds"]["p50"], cpu_seconds() - began


def overhead(options, folder):
    """The ratios of the time per step, and of processor time, with and without redundancy, of runs in turns."""
    steps, cpu = [], []
    for turn in range(options.turns):
        plain = undisturbed(options, folder / f"plain{turn}", False)
        redundant = undisturbed(options, folder / f"redundant{turn}", True)
        steps.append(redundant[0] / plain[0])
        cpu.append(redundant[1] / plain[1])
    return sorted(steps), sorted(cpu)


def ratio_words(ratios):
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}"


PHASES = ["fence", "state", "first_job", "step"]


def recovered(port):
    """The seconds that all recoveries have taken so far, by phase."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("weft_recovery_seconds_total{")}
    return [found[phase] for phase in PHASES]


def free_ports(count):
    for port in range(20000 + os.getpid() % 20000, 60000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for i, one in enumerate(sockets):
                one.bind(("127.0.0.1", port + i))
            return port
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError("no ports are free")


def measure(options, folder, redundancy):
    folder.mkdir()
    log = folder / "log"
    out, port = folder / "out", free_ports(1 + options.processes + options.spares)
    run = subprocess.Popen([options.bin_dir / "weft", "train", write_run(folder, options.schedule, options.every, redundancy), "--processes",
                            str(options.processes), "--spares", str(options.spares), "--metrics", f"127.0.0.1:{port}", "--out", out],
                           stdout=subprocess.DEVNULL, stderr=log.open("w"))
    rng, rows = random.Random(options.seed), []
    try:
        while len(rows) < options.kills:
            # As many processes as at the beginning, and some steps since the last kill.
            if await_steps(run, out, steps(out) + rng.randint(options.every, 3 * options.every)) is None:
                raise RuntimeError("the training does not get on")
            workers = children(run.pid)
            if len(workers) < options.processes + options.spares:
                continue
            done, before, attempts = steps(out), recovered(port), beginning(log, 0)[1]
            began = time.monotonic()
            os.kill(rng.choice(workers), signal.SIGKILL)
            # Lines of steps that had ended are on their way.
            time.sleep(0.02)
            done = max(done, steps(out))
            ended = await_steps(run, out, done + 1)
            if ended is None:
                raise RuntimeError(f"no new step within {LIMIT} s of kill {len(rows) + 1}")
            time.sleep(0.2)  # the metrics are exported every 50 ms
            phases = [now - then for now, then in zip(recovered(port), before)]
            begun, _ = beginning(log, attempts)
            if sum(phases) == 0 or begun is None:
                continue  # a spare was killed
            rows.append((ended - began, done - begun, [ended - began - sum(phases)] + phases))
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    lines = (out / "steps.jsonl").read_text().splitlines()
    made = [json.loads(line)["step"] for line in lines]
    if made != sorted(set(made)):
        raise RuntimeError("a step was reported twice or out of order")
    return rows


def share(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def phase_rows(rows):
    lines = []
    for i, phase in enumerate(["detect"] + PHASES):
        values = [row[i] for row in rows]
        lines.append(f"| {phase.replace('_', ' ')} | " + " | ".join(f"{share(values, part):.2f} s" for part in (0.5, 0.9, 0.99)) +
                     f" | {max(values):.2f} s |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redundancy", action="store_true", help="measure also with a second copy in memory")
    parser.add_argument("--turns", type=int, default=5, help="pairs of runs for the time per step")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tables = [(False, measure(options, folder / "plain", False))]
        if options.redundancy:
            tables.append((True, measure(options, folder / "redundant", True)))
        ratios = overhead(options, folder) if options.redundancy else None
    flag = " --redundancy" if options.redundancy else ""
    lines = [
        "# Recovery from a killed worker", "",
        f"`tests/bench/recovery.py build/release/bin --kills {options.kills} --spares {options.spares} --every {options.every}{flag}` on a 2-core machine",
        f"without a GPU: a gpt of 4 stages on {options.processes} processes and {options.spares} spare (`{options.schedule}`), with a",
        f"checkpoint of every {options.every} steps. A random worker process of the run is killed (SIGKILL), {options.kills} times. Each time",
        "the run goes on by itself; no step is reported twice or left out.", ""]
    for redundancy, rows in tables:
        times, again = [row[0] for row in rows], [row[1] for row in rows]
        lines += [
            "With `redundancy: {peers: 1}`, from copies in memory:" if redundancy else "From the newest checkpoint:", "",
            "| from the kill | p50 | p90 | p99 | most |", "| --- | --- | --- | --- | --- |",
            "| to the next step that had not ended before | " +
            " | ".join(f"{share(times, part):.2f} s" for part in (0.5, 0.9, 0.99)) + f" | {max(times):.2f} s |",
            "| steps made again | " + " | ".join(str(share(again, part)) for part in (0.5, 0.9, 0.99)) + f" | {max(again)} |",
            *phase_rows([row[2] for row in rows]), ""]
    if ratios:
        lines += [f"With redundancy, as ratios to runs without ({options.turns} pairs of 60 steps, in turns): time per step",
                  f"{ratio_words(ratios[0])}; processor time of all processes {ratio_words(ratios[1])}.", ""]
    lines += [
        "The phases: the loss is noticed; the others end the attempt and get new leases; all are prepared, with the checkpoint",
        "read; a job is done, where there are copies behind their way to the ranks; a step ends that had not ended before.",
        "[How it works](../design/recovery.md).", ""]
    if options.note:
        lines[6:6] = [options.note]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
