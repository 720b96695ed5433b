#!/usr/bin/env python3
"""Measures the cost of a job by the number of ranks that one worker process carries.

    tests/bench/ranks_in_a_process.py BIN [--other BIN] [--sizes 10,50,100,200,400] [--steps N] [--limit SECONDS]

Trains a gpt of tiny layers under 1f1b with as many stages, ranks and micro-batches as each size says, in one
worker process. A job computes almost nothing, so what is left is what the process spends on a job: wall time of
the fastest step over its jobs (a forward and a backward for each stage and micro-batch). With --other, a second
build is measured by turns with the first. Also the most threads that the worker process had. One line a size.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time


def run_file(folder, size):
    with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as text:
        text.write("the quick brown fox jumps over the lazy dog. " * 2000)
    path = os.path.join(folder, f"ranks{size}.yaml")
    with open(path, "w", encoding="ascii") as out:
        # Embedding and head are layers too.
        out.write(f"""name: ranks{size}
model: {{gpt: {{layers: {size - 2}, width: 8, heads: 1, context: 4}}}}
data: {{text: {{path: text.txt}}, order: sequential}}
train: {{steps: STEPS, batch: {size}, microbatches: {size}, seed: 1, optimizer: {{sgd: {{lr: 0.01}}}}}}
stages: {size}
schedule: {{1f1b: {{}}}}
""")
    return path


def threads_of(parent):
    """The most threads of a child named weft-worker."""
    most = 0
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/status", encoding="ascii") as status:
                    fields = dict(line.split(":", 1) for line in status if ":" in line)
                if fields["Name"].strip().startswith("weft-worker"):
                    most = max(most, int(fields["Threads"]))
    except (OSError, KeyError):
        pass
    return most


def measure(binary, folder, size, steps, limit):
    path = run_file(folder, size)
    with open(path, encoding="ascii") as text:
        content = text.read().replace("STEPS", str(steps))
    with open(path, "w", encoding="ascii") as out:
        out.write(content)
    result = os.path.join(folder, f"out{size}-{time.monotonic_ns()}")
    command = [os.path.join(binary, "weft"), "train", path, "--processes", "1", "--out", result]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        threads, end = 0, time.monotonic() + limit
        while process.poll() is None and time.monotonic() < end:
            threads = max(threads, threads_of(process.pid))
            time.sleep(0.1)
        if process.poll() is None:
            process.terminate()
            process.wait()
            return None, threads
        if process.returncode != 0:
            print(process.stderr.read(), file=sys.stderr)
            return None, threads
    with open(os.path.join(result, "steps.jsonl"), encoding="ascii") as log:
        seconds = [json.loads(line)["seconds"] for line in log]
    return 1e6 * min(seconds) / (2 * size * size), threads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--other")
    parser.add_argument("--sizes", default="10,50,100,200,400")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600)
    options = parser.parse_args()
    binaries = [options.bin] + ([options.other] if options.other else [])
    print("ranks  " + "  ".join(f"{name:>24}" for name in ["us a job, threads"] * len(binaries)))
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, options.sizes.split(",")):
            cells = []
            for binary in binaries:
                cost, threads = measure(binary, folder, size, options.steps, options.limit)
                cells.append(f"not one run in {options.limit:.0f} s" if cost is None else f"{cost:.1f}, {threads}")
            print(f"{size:>5}  " + "  ".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
