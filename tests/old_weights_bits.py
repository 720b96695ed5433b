#!/usr/bin/env python3
"""Trains mlp, gpt and a small resnet18 under every rule that reads old weights, in every placement, for N = 3 and 4 stages and
micro-batches, and compares every checkpoint, byte by byte, with that of the rule's plain loop (weft train --reference).

    old_weights_bits.py BIN_DIR [--small] [--steps 20] [--out docs/measurements/old_weights_bits.md]

Prints a markdown table for each model; exits 1 if any bit differs, a run fails, or two different rules end with the same weights. --small: N = 3, fewer
steps and one optimizer a model.
"""

import argparse
import pathlib
import struct
import random
import sys
import tempfile
import time

import markdown
from bits import tensors, train, write_data

RULES = ["cdp_v1", "cdp_v2"]
OPTIMIZERS = {
    "SGD with momentum": "{sgd: {lr: 0.05, momentum: 0.9, weight_decay: 0.01}}",
    "AdamW": "{adamw: {lr: 2.0e-3}}",
}


def placements(n):
    """(row, schedule without its rule) of what takes a rule."""
    looped = "{groups: 2, ranks: 2}" if n == 4 else "{groups: 3, ranks: 1}"
    return [("ddp", "ddp: {}"), ("1f1b", "1f1b: {}"), ("gpipe", "gpipe: {}"), ("lpp", f"lpp: {looped}"),
            ("cdp_mp", "cdp_mp: {}"), ("fsdp", "fsdp: {}"), ("fsdp, migrating", "fsdp: {residency: migrating}")]


def cases(n):
    """(row, rule that the reference is run with, schedule, micro-batches)."""
    found = [(f"{rule}, {row}", rule, f"{{{schedule}, rule: {rule}}}", n) for rule in RULES
             for row, schedule in placements(n)]
    found.append(("pipedream_2bw", "pipedream_2bw", "{pipedream_2bw: {}}", n))
    found.append(("pipedream", "pipedream", "{pipedream: {}}", 1))
    return found


def write_small_images(folder):
    """Images of 8 x 8 pixels whose class is a bright row."""
    rng = random.Random(3)
    count, side, classes = 256, 8, 4
    pixels, labels = bytearray(), bytearray()
    for _ in range(count):
        label = rng.randrange(classes)
        labels.append(label)
        pixels += bytes(180 + rng.randrange(60) if p // side == 2 * label else rng.randrange(80)
                        for p in range(side * side))
    (folder / "small.idx").write_bytes(struct.pack(">IIII", 0x803, count, side, side) + bytes(pixels))
    (folder / "small-labels.idx").write_bytes(struct.pack(">II", 0x801, count) + bytes(labels))


def models(folder):
    text = f"data: {{text: {{path: {folder}/text.txt}}}}"
    idx = f"data: {{idx: {{images: {folder}/images.idx, labels: {folder}/labels.idx}}}}"
    small = f"data: {{idx: {{images: {folder}/small.idx, labels: {folder}/small-labels.idx}}}}"
    return [
        ("mlp", f"model: {{mlp: {{layers: 5, width: 48, inputs: 144, classes: 10}}}}\n{idx}\n"),
        ("gpt", f"model: {{gpt: {{layers: 4, width: 32, heads: 4, context: 32, dropout: 0.1}}}}\n{text}\n"),
        ("resnet18", "model: {resnet18: {width: 4, channels: 1, size: 8, classes: 4}}\n" + small + "\n"),
    ]


class Scratch:
    """Run files and their outcomes, in one folder."""

    def __init__(self, weft, folder):
        self.weft, self.folder = weft, folder

    def train(self, text, out, arguments):
        file = self.folder / "run.yaml"
        file.write_text(text)
        code, error = train(self.weft, file, self.folder / out, arguments)
        return (tensors(self.folder / out / "checkpoint") if code == 0 else None), error[0]


def run_column(scratch, n, head, steps, rows):
    """All cases of one model, optimizer and N. Returns how many were not the same."""
    bad, wanted = 0, {}
    for row, rule, schedule, microbatches in cases(n):
        text = (f"{head}stages: {n}\nschedule: {schedule}\n").replace("MICROBATCHES", str(microbatches)).replace(
            "STEPS", str(steps))
        if rule not in wanted:
            wanted[rule], error = scratch.train(text, "plain", ["--reference"])
            if wanted[rule] is None:
                sys.exit(f"the reference of {rule} failed: {error}")
            # pipedream_2bw is the rule of cdp_v1 on a pipeline.
            if any(wanted[rule] == other for name, other in wanted.items()
                   if name != rule and {name, rule} != {"cdp_v1", "pipedream_2bw"}):
                sys.exit(f"{rule} ends with the weights of another rule: this compares nothing")
        results = []
        for count in ["1", "2", str(n)]:
            start = time.monotonic()
            got, error = scratch.train(text, "out", ["--processes", count])
            same = got is not None and got == wanted[rule]
            results.append(count if same else f"**{count} {'differs' if got else 'fails'}**")
            bad += not same
            print(f"{row}, N = {n}, on {count}: {'same' if same else error or 'differs'} "
                  f"({time.monotonic() - start:.1f} s)", file=sys.stderr)
        rows.setdefault(row, []).append(", ".join(results))
    return bad


def table_of(model, titles, rows):
    """The table of one model, under its heading: a column for each optimizer and N."""
    columns = [i for i, (name, _) in enumerate(titles) if name == model]
    return ["", f"## {model}", "", "| rule and placement | " + " | ".join(titles[i][1] for i in columns) + " |",
            "| --- " * (len(columns) + 1) + "|"] + [
                f"| {row} | " + " | ".join(cells[i] for i in columns) + " |" for row, cells in rows.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    bad, rows, titles = 0, {}, []
    with tempfile.TemporaryDirectory() as scratch_folder:
        folder = pathlib.Path(scratch_folder)
        write_data(folder)
        write_small_images(folder)
        scratch = Scratch(str(options.bin / "weft"), folder)
        for number, (title, head) in enumerate(models(folder)):
            for place, (name, optimizer) in enumerate(OPTIMIZERS.items()):
                if options.small and place != number % 2:
                    continue
                train_line = (f"train: {{steps: STEPS, batch: 12, microbatches: MICROBATCHES, seed: 5, "
                              f"optimizer: {optimizer}}}\n")
                for n in [3] if options.small else [3, 4]:
                    titles.append((title, f"{name}, N = {n}"))
                    print(", ".join(titles[-1]), file=sys.stderr)
                    bad += run_column(scratch, n, head + train_line, 5 if options.small else options.steps, rows)
    table = [line for model in dict.fromkeys(model for model, _ in titles) for line in table_of(model, titles, rows)]
    page = ("# One numerical result with old weights\n\nA cell names numbers of worker processes. On each of them, the weights "
            f"trained for {5 if options.small else options.steps} steps were equal, to the bit, to those of the rule's plain loop over "
            "micro-batches with explicit old parameters (`weft train --reference`). The loops of different rules end with different "
            "weights (pipedream_2bw is the rule of cdp_v1).\n\n" + ("" if bad == 0 else f"**{bad} were not equal.** ") +
            "Written by `tests/old_weights_bits.py build/release/bin --out docs/measurements/old_weights_bits.md`.\n" +
            "\n".join(table) + "\n")
    print(page)
    if options.out:
        options.out.write_text(markdown.wrapped(page))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
