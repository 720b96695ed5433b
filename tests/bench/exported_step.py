#!/usr/bin/env python3
"""Times training steps of small exported models beside the same modules in eager PyTorch, one thread each, and prints a table.

    exported_step.py BIN_DIR [--rounds N] [--steps N]       with a Python that has torch, numpy and transformers

GPT-2, Llama and BERT of transformers as tests/exported/known_models.py makes them (width 32, 2 layers, 16 tokens), 4 samples
a step, AdamW; Weft with one rank on one process, PyTorch in a plain loop with its fused AdamW. Rounds are interleaved: ours,
peer, ours, peer. A figure is the median over a round's steps but the first fifty, and the ratio is of the same round.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "exported"), str(HERE.parent), str(HERE.parents[1] / "python")]

import exported  # noqa: E402
import known_models  # noqa: E402
import weft  # noqa: E402

WARM_UP = 50
RUN = """
model: {{exported: model.weft}}
data: {{arrays: {{{arrays}}}}}
train: {{steps: {steps}, batch: 4, microbatches: 1, seed: 3, optimizer: {{adamw: {{lr: 0.001}}}}}}
stages: 1
schedule: {{ddp: {{ranks: 1}}}}
"""


def ours(program, folder, number):
    exported.train(program, folder / "run.yaml", folder / f"out{number}", "--processes", "1")
    return [line["seconds"] for line in exported.lines_of(folder / f"out{number}") if "loss" in line]


def peers(module, loss, fields, steps):
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.001, fused=True)
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss(module, fields).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | round | Weft, ms | PyTorch, ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for name, build, samples, loss in known_models.of_transformers():
        if name not in ("GPT-2", "Llama", "BERT"):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            torch.manual_seed(1)
            module, fields = build(), samples(4)
            weft.export(module, fields, loss, path=str(folder / "model.weft"))
            for field, values in samples(64).items():
                numpy.save(folder / f"model.{field}.npy", values.numpy())
            arrays = ", ".join(f"{field}: model.{field}.npy" for field in fields)
            (folder / "run.yaml").write_text(RUN.format(arrays=arrays, steps=options.steps))
            for number in range(options.rounds):
                mine = 1e3 * statistics.median(ours(options.bin.resolve() / "weft", folder, number)[WARM_UP:])
                its = 1e3 * statistics.median(peers(module, loss, fields, options.steps)[WARM_UP:])
                print(f"| {name} | {number + 1} | {mine:.2f} | {its:.2f} | {mine / its:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
