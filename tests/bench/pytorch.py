#!/usr/bin/env python3
"""Times training steps of Weft beside eager PyTorch on this machine's CPU, one thread a process, and prints a table.

    pytorch.py BIN_DIR --python PYTHON [--only resnet18|gpt] [--rounds N] [--steps N]

PYTHON is an interpreter that has torch of the version that Weft links. resnet18: batch 16, CIFAR's stem, SGD, one
process. gpt: 8 layers, width 256, context 128, batch 16, AdamW, data parallel on two processes. Rounds are interleaved:
ours, peer, ours, peer; a figure is the median over a round's steps but the first five, and the ratio is of the same round.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WARM_UP = 5


def write_cifar(folder):
    path = os.path.join(folder, "data_batch_1.bin")
    rnd = random.Random(1)
    with open(path, "wb") as file:
        for _ in range(1024):
            file.write(bytes([rnd.randrange(10)]) + rnd.randbytes(3072))
    return path


def write_text(folder):
    path = os.path.join(folder, "text.txt")
    rnd = random.Random(1)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(60_000):
            file.write(rnd.choice(["warp", "weft", "loom", "thread", "reed"]) + " ")
    return path


def run_file(what, folder, steps):
    if what == "resnet18":
        return (f"model: {{resnet18: {{}}}}\ndata: {{cifar10: {{path: {write_cifar(folder)}}}, order: sequential}}\n"
                f"train: {{steps: {steps}, batch: 16, microbatches: 1, seed: 1, optimizer: {{sgd: {{lr: 0.01}}}}}}\n"
                "stages: 1\nschedule: {ddp: {ranks: 1}}\n")
    return ("model: {gpt: {layers: 8, width: 256, heads: 4, context: 128}}\n"
            f"data: {{text: {{path: {write_text(folder)}}}, order: sequential}}\n"
            f"train: {{steps: {steps}, batch: 16, microbatches: 2, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
            "stages: 1\nschedule: ddp\n")


def ours(bins, what, steps):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.yaml")
        with open(path, "w", encoding="ascii") as file:
            file.write("name: bench\n" + run_file(what, folder, steps))
        processes = "1" if what == "resnet18" else "2"
        done = subprocess.run([os.path.join(bins, "weft"), "train", path, "--out", os.path.join(folder, "out"), "--processes", processes],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{what}: weft train exits with {done.returncode}: {done.stderr[-800:]}")
        with open(os.path.join(folder, "out", "steps.jsonl"), encoding="ascii") as file:
            return [json.loads(line)["seconds"] for line in file]


def peer(python, what, steps):
    done = subprocess.run([python, str(HERE / "pytorch_peer.py"), what, str(steps)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{what}: the peer exits with {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", choices=["resnet18", "gpt"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    print("| model | round | Weft, ms | PyTorch, ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for what in ("resnet18", "gpt"):
        if options.only not in (None, what):
            continue
        for number in range(options.rounds):
            mine = 1e3 * statistics.median(ours(options.bin_dir, what, options.steps)[WARM_UP:])
            its = 1e3 * statistics.median(peer(options.python, what, options.steps)[WARM_UP:])
            print(f"| {what} | {number + 1} | {mine:.1f} | {its:.1f} | {mine / its:.2f} |", flush=True)


if __name__ == "__main__":
    main()
