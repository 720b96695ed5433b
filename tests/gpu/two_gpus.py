#!/usr/bin/env python3
"""Trains on two GPUs, a process and a rank on each, under reduction ordered and fast, and compares the results with the
plain loop on one GPU; then kills one of the two processes and looks how the run ends.

    two_gpus.py BIN_DIR [--keep DIR]

Exits 77, with one line, where there are not two GPUs. docs/guide/multi_gpu.md says what to expect.
"""

import argparse
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77

# Text, run in one step by two micro-batches: a sum of two has the same bits in any order.
RUN = """
name: two-gpus
model: {{gpt: {{layers: 4, width: 128, heads: 4, context: 64}}}}
data: {{text: {{path: {text}}}, order: sequential}}
train: {{steps: {steps}, batch: {batch}, microbatches: {microbatches}, seed: 1, optimizer: {{{optimizer}}}{clip}}}
stages: {stages}
schedule: {{{schedule}, reduction: {reduction}}}
"""

# Schedule, stages, micro-batches, clipped, whether fast has the bits of the plain loop, and whether collectives serve it.
CASES = [
    ("ddp: {}", 3, 2, False, True, True),
    ("ddp: {}", 3, 2, True, True, True),
    ("lpp: {groups: 2, ranks: 1}", 3, 8, False, False, True),
    ("dualpipe: {}", 2, 8, False, False, True),
    ("fsdp: {}", 3, 2, False, True, False),
    ("fsdp: {shard: width}", 3, 2, False, True, True),
    ("fsdp: {shard: width}", 3, 2, True, True, True),
    ("1f1b: {}", 2, 8, False, True, False),
]


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def write_run(folder, name, schedule, reduction, stages, microbatches, clip=False, steps=5, restarts=3):
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / f"{name}.yaml"
    path.write_text(RUN.format(text=text, steps=steps, batch=2 * microbatches, microbatches=microbatches, stages=stages,
                               schedule=schedule, reduction=reduction, clip=", clip_norm: 0.5" if clip else "",
                               # adamw divides by what may be next to nothing
                               optimizer="sgd: {lr: 0.05}") + f"restarts: {restarts}\n")
    return path


def weft(bin_dir, *arguments, timeout=600):
    return subprocess.run([bin_dir / "weft", *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        head = json.loads(data[8:8 + size])
        for name, entry in head.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = data[8 + size + begin:8 + size + end]
    return found


def difference(a, b):
    """The greatest of any element, relative to the greatest of its tensor."""
    worst = 0.0
    for name, one in a.items():
        x = struct.unpack(f"<{len(one) // 4}f", one)
        y = struct.unpack(f"<{len(one) // 4}f", b[name])
        scale = max([1e-6, *map(abs, x)])
        worst = max([worst, *(abs(p - q) / scale for p, q in zip(x, y))])
    return worst


class Checks:
    def __init__(self):
        self.failed = 0

    def that(self, condition, what):
        print(("ok      " if condition else "FAILED  ") + what, flush=True)
        self.failed += not condition


def compare(bin_dir, folder, checks):
    for number, (schedule, stages, microbatches, clip, exact, served) in enumerate(CASES):
        for reduction in ("ordered", "fast"):
            name = f"{number}-{reduction}"
            title = f"{schedule}, {reduction}{', clipped' if clip else ''}"
            path = write_run(folder, name, schedule, reduction, stages, microbatches, clip)
            plain, out = folder / f"{name}-plain", folder / f"{name}-out"
            done = weft(bin_dir, "train", path, "--reference", "--device", "cuda", "--overwrite", "--out", plain)
            checks.that(done.returncode == 0, f"{title}: the plain loop on one GPU {done.stderr[-500:] if done.returncode else ''}")
            done = weft(bin_dir, "train", path, "--processes", 2, "--device", "cuda", "--overwrite", "--out", out)
            checks.that(done.returncode == 0, f"{title}: two GPUs {done.stderr[-500:] if done.returncode else ''}")
            if done.returncode:
                continue
            summary = json.loads((out / "summary.json").read_text())
            said = summary.get("reduction", "")
            if reduction == "ordered":
                checks.that(said == "", f"{title}: nothing is said of the reduction")
            else:
                checks.that(said.startswith("fast: ") == served, f"{title}: {said}")
            a, b = tensors(plain / "checkpoint"), tensors(out / "checkpoint")
            checks.that(set(a) == set(b) and len(a) > 0, f"{title}: the same tensors")
            if reduction == "ordered" or exact:
                checks.that(a == b, f"{title}: the bits of the plain loop")
            else:
                worst = difference(a, b)
                checks.that(worst < 1e-4, f"{title}: {worst:.2e} from the plain loop")
            if reduction == "fast" and served:
                checks.that(summary["bytes_sent"]["gradient"] == 0 and summary["bytes_sent"]["gradient_sum"] > 0,
                            f"{title}: no gradient is a message")


def workers_of(pid):
    """Process numbers of the weft-worker children of a process."""
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "weft-worker" in line]


def kill_one(bin_dir, folder, checks, reduction):
    path = write_run(folder, f"killed-{reduction}", "ddp: {}", reduction, 3, 2, steps=1_000_000, restarts=0)
    out = folder / f"killed-{reduction}-out"
    with open(folder / f"killed-{reduction}.log", "w+") as log:
        run = subprocess.Popen([bin_dir / "weft", "train", path, "--processes", "2", "--device", "cuda", "--out", out],
                               stdout=log, stderr=log)
        steps = out / "steps.jsonl"
        until = time.time() + 300
        while time.time() < until and run.poll() is None and not (steps.exists() and steps.stat().st_size > 0):
            time.sleep(0.1)
        workers = workers_of(run.pid)
        checks.that(len(workers) == 2, f"kill, {reduction}: two workers are training")
        if workers:
            os.kill(workers[-1], signal.SIGKILL)
        began = time.time()
        try:
            code = run.wait(timeout=120)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            code = None
        log.seek(0)
        words = log.read()
    checks.that(code == 1, f"kill, {reduction}: the run fails {time.time() - began:.1f} s later, with exit code {code}")
    checks.that("was lost" in words and "SIGKILL" in words, f"kill, {reduction}: it names the process that was killed")
    remaining = [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]
    checks.that(not remaining, f"kill, {reduction}: no worker is left")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the runs, which stays")
    options = parser.parse_args()
    count = gpus()
    if count < 2:
        print(f"SKIPPED: two_gpus needs two NVIDIA GPUs, {count} are here; nothing of it was tried", flush=True)
        return SKIPPED
    checks = Checks()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        compare(options.bin_dir.resolve(), folder, checks)
        for reduction in ("ordered", "fast"):
            kill_one(options.bin_dir.resolve(), folder, checks, reduction)
    print(f"{checks.failed} checks failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
