#!/usr/bin/env python3
"""Trains a resnet18 and an mlp on MNIST and a gpt on a text under the synchronous and the stale rules, several seeds
each, and evaluates every checkpoint on data that was held out.

    convergence.py BIN_DIR --images FILE --labels FILE --text FILE [--out docs/measurements/convergence.md]
        [--seeds N] [--steps N] [--reference] [--work DIR] [--cifar10 DIR] [--only STUDY]
    convergence.py BIN_DIR --small

--images, --labels: in the format of MNIST, also .gz; the last fifth is held out. --text: any text; the last tenth is
held out. Writes the page and beside it one picture of loss curves a model; prints the page. --reference trains by the
plain loop, whose bits are those of the runtime (docs/measurements/bits.md), and is cheaper than it on one core; all but
PipeDream-2BW, which would be the same loop as CDP-v1: the runtime trains that, and the weights are compared. --work keeps
what was trained there, and trains only what is not there yet. --small: a few steps on made-up data, for a quick check that
all of this works. Exits 1 if a run fails, or rules that are the same training end with other weights, or others with the
same. --cifar10: also a whole resnet18 on CIFAR-10, shuffled, cropped and flipped, whose folder (the binary version) is
given: the kind of training of Table 2 of arXiv 2403.08837. It wants a GPU, or days. --only: this study alone (mnist, text,
shuffled, cifar10), for a page of its own; may be repeated.

A seed decides the initial weights and the order of the training data; every rule gets the same ones.
"""

import argparse
import gzip
import json
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import bits
import markdown

# Name on the page, schedule, what it does.
RULES = [
    ("DP", "ddp", "all micro-batches read the newest weights"),
    ("CDP-v1", "{ddp: {}, rule: cdp_v1}", "all read those of one update before"),
    ("CDP-v2", "{ddp: {}, rule: cdp_v2}", "each reads the newest where the cyclic order leaves time for them"),
    ("PipeDream-2BW", "pipedream_2bw", "all read those of one update before, on a pipeline"),
]
TWIN, TWIN_OF = "PipeDream-2BW", "CDP-v1"
COLORS = ["#1b6ca8", "#d1495b", "#2e933c", "#8d5bb5"]
STAGES = 4  # as many micro-batches and ranks


class Study:
    """One model on its data: what is trained, on what, and how it is evaluated."""

    def __init__(self, name, title, model, train, steps, data, flags, window):
        self.name, self.title, self.model, self.train, self.steps = name, title, model, train, steps
        self.data, self.flags, self.window = data, flags, min(window, steps)


def read(path):
    raw = pathlib.Path(path).read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def idx(path, dimensions):
    """The items of an IDX file of bytes, and an item's sizes."""
    raw = read(path)
    if raw[:4] != bytes([0, 0, 8, dimensions]):
        sys.exit(f"{path} is no IDX file of bytes with {dimensions} dimensions")
    sizes = struct.unpack(f">{dimensions}I", raw[4:4 + 4 * dimensions])
    at, size = 4 + 4 * dimensions, 1
    for n in sizes[1:]:
        size *= n
    return [raw[at + i * size:at + (i + 1) * size] for i in range(sizes[0])], sizes[1:]


def write_idx(path, items, sizes):
    path.write_bytes(bytes([0, 0, 8, 1 + len(sizes)]) + struct.pack(f">{1 + len(sizes)}I", len(items), *sizes) +
                     b"".join(items))


def mnist(folder, options, steps):
    images, sizes = idx(options.images, 3)
    labels, _ = idx(options.labels, 1)
    if len(images) != len(labels):
        sys.exit(f"{len(images)} images, {len(labels)} labels")
    kept = len(images) - len(images) // 5
    write_idx(folder / "test.images", images[kept:], sizes)
    write_idx(folder / "test.labels", labels[kept:], ())

    def data(seed):
        order = list(range(kept))
        random.Random(seed).shuffle(order)
        for kind, items, of_item in (("images", images, sizes), ("labels", labels, ())):
            write_idx(folder / f"train{seed}.{kind}", [items[i] for i in order], of_item)
        return f"{{idx: {{images: {folder}/train{seed}.images, labels: {folder}/train{seed}.labels}}}}"

    return Study(
        "mnist", f"resnet18 on {pathlib.Path(options.images).name}: {kept} images to train, {len(images) - kept} held out",
        f"{{resnet18: {{width: 8, channels: 1, size: {sizes[0]}, classes: 10, stem: cifar}}}}",
        "batch: 32, optimizer: {sgd: {lr: 0.05, momentum: 0.9, weight_decay: 5.0e-4}}", steps, data,
        ["--data-images", folder / "test.images", "--data-labels", folder / "test.labels"], 25)


def shuffled(folder, options, steps):
    """An mlp on the same images, in an order that the run itself draws anew for each epoch."""
    images, sizes = idx(options.images, 3)
    labels, _ = idx(options.labels, 1)
    kept = len(images) - len(images) // 5
    for kind, items, of_item in (("images", images, sizes), ("labels", labels, ())):
        write_idx(folder / f"all.{kind}", items[:kept], of_item)
        write_idx(folder / f"held_out.{kind}", items[kept:], of_item)
    return Study(
        "shuffled", f"mlp on {pathlib.Path(options.images).name}, shuffled: {kept} images to train, {len(images) - kept} held out",
        f"{{mlp: {{layers: 4, width: 128, inputs: {sizes[0] * sizes[1]}, classes: 10}}}}",
        "batch: 64, optimizer: {sgd: {lr: 0.05, momentum: 0.9, weight_decay: 5.0e-4}}", steps,
        lambda seed: f"{{idx: {{images: {folder}/all.images, labels: {folder}/all.labels}}, order: shuffled}}",
        ["--data-images", folder / "held_out.images", "--data-labels", folder / "held_out.labels"], 25)


def text(folder, options, steps):
    whole = read(options.text)
    kept, context = len(whole) - len(whole) // 10, 64
    (folder / "test.txt").write_bytes(whole[kept:])

    def data(seed):
        # Whole blocks in another order: samples follow one another in the file.
        blocks = [whole[i:i + 16 * context] for i in range(0, kept - 16 * context, 16 * context)]
        random.Random(seed).shuffle(blocks)
        (folder / f"train{seed}.txt").write_bytes(b"".join(blocks))
        return f"{{text: {{path: {folder}/train{seed}.txt}}}}"

    return Study(
        "text", f"gpt on {pathlib.Path(options.text).name}: {kept} bytes to train, {len(whole) - kept} held out",
        f"{{gpt: {{layers: 4, width: 64, heads: 4, context: {context}}}}}",
        "batch: 16, optimizer: {adamw: {lr: 2.0e-3, weight_decay: 0.1}}", steps, data,
        ["--data-text", folder / "test.txt"], 25)


def cifar10(options, steps):
    folder = options.cifar10.resolve()
    return Study(
        "cifar10", "resnet18 on CIFAR-10: 50000 images to train, 10000 held out",
        "{resnet18: {width: 64, channels: 3, size: 32, classes: 10, stem: cifar}}",
        "batch: 128, optimizer: {sgd: {lr: 0.05, momentum: 0.9, weight_decay: 5.0e-4}}, lr_schedule: cosine", steps,
        lambda seed: f"{{cifar10: {{path: {folder}}}, order: shuffled, augment: {{crop: 4, flip: true}}}}",
        ["--data-cifar10", folder / "test_batch.bin"], 390)


def call(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def weights(out):
    return [path.read_bytes() for path in sorted((out / "checkpoint").glob("*.safetensors"))]


def run(weft, study, rule, schedule, seed, folder, how):
    """The losses of a training's steps, what its evaluation says, and its weights."""
    out = folder / f"{study.name}-{rule}-{seed}"
    file = out.with_suffix(".yaml")
    file.write_text(f"name: {out.name}\nmodel: {study.model}\ndata: {study.data(seed)}\n"
                    f"train: {{steps: {study.steps}, microbatches: {STAGES}, seed: {seed}, {study.train}}}\n"
                    f"stages: {STAGES}\nschedule: {schedule}\n")
    start = time.monotonic()
    if not (out / "checkpoint/model.safetensors.index.json").exists():
        call([weft, "train", file, "--overwrite", "--out", out] + how)
    losses = [json.loads(line)["loss"] for line in (out / "steps.jsonl").read_text().splitlines()]
    if len(losses) != study.steps:
        sys.exit(f"{out} has {len(losses)} steps, not {study.steps}; remove it")
    result = json.loads(call([weft, "eval", file, "--checkpoint", out / "checkpoint", "-o", "json"] + study.flags))
    print(f"{out.name}: test loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f} "
          f"({time.monotonic() - start:.0f} s)", file=sys.stderr)
    return losses, result, weights(out)


def smooth(values, window):
    """Means of the last `window` values, from the first whole window on, with the step of each."""
    sums = [sum(values[:window])]
    for old, new in zip(values, values[window:]):
        sums.append(sums[-1] - old + new)
    return [(window + i, s / window) for i, s in enumerate(sums)]


def nice_step(span, most):
    size = 10.0**-6
    while True:
        for factor in (1, 2, 5):
            if span / (size * factor) <= most:
                return size * factor
        size *= 10


class Curves:
    """A picture of curves: a line for the mean over seeds, a band from the least to the most."""
    WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 400, 62, 40, 20, 46

    def __init__(self, title, x_most, y_least, y_most):
        self.x_most, self.y_least, self.y_most = x_most, y_least, y_most
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
            'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{self.LEFT}" y="22" font-size="14">{title}</text>'
        ]
        self.axes()

    def x(self, value):
        return self.LEFT + value / self.x_most * (self.WIDTH - self.LEFT - self.RIGHT)

    def y(self, value):
        return self.TOP + (self.y_most - value) / (self.y_most - self.y_least) * (self.HEIGHT - self.TOP - self.BOTTOM)

    def axes(self):
        right, bottom = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        step = nice_step(self.y_most - self.y_least, 8)
        tick = int(self.y_least / step + 1) * step
        while tick <= self.y_most:
            self.parts.append(f'<path d="M{self.LEFT} {self.y(tick):.1f}H{right}" stroke="#ddd"/>'
                              f'<text x="{self.LEFT - 6}" y="{self.y(tick) + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
            tick += step
        step = nice_step(self.x_most, 8)
        for i in range(int(self.x_most / step) + 1):
            self.parts.append(f'<text x="{self.x(i * step):.1f}" y="{bottom + 18}" '
                              f'text-anchor="middle">{i * step:.4g}</text>')
        self.parts.append(f'<path d="M{self.LEFT} {self.TOP}V{bottom}H{right}" stroke="#444" fill="none"/>'
                          f'<text x="{(self.LEFT + right) / 2}" y="{bottom + 36}" text-anchor="middle">step</text>'
                          f'<text transform="translate(18 {(self.TOP + bottom) / 2}) rotate(-90)" '
                          'text-anchor="middle">loss</text>')

    def add(self, number, name, runs, dashed):
        """`runs`: of each seed the same steps with a value each."""
        steps = [step for step, _ in runs[0]]
        of_step = [[run[i][1] for run in runs] for i in range(len(steps))]
        every = max(1, len(steps) // 300)
        chosen = range(0, len(steps), every)
        point = lambda i, value: f"{self.x(steps[i]):.1f} {self.y(value):.1f}"
        band = [point(i, max(of_step[i])) for i in chosen] + [point(i, min(of_step[i])) for i in reversed(chosen)]
        self.curve(number, name, band, [point(i, statistics.mean(of_step[i])) for i in chosen], dashed)

    def curve(self, number, name, band, line, dashed):
        """Draws a band and a line, points as in a path, and the entry of the legend."""
        color, dash = COLORS[number], ' stroke-dasharray="6 5"' if dashed else ""
        self.parts.append(f'<path d="M{"L".join(band)}Z" fill="{color}" fill-opacity="0.12"/>'
                          f'<path d="M{"L".join(line)}" stroke="{color}" stroke-width="1.6" fill="none"{dash}/>')
        x, y = self.WIDTH - self.RIGHT - 240, self.TOP + 14 + 18 * number
        self.parts.append(f'<path d="M{x} {y - 4}h24" stroke="{color}" stroke-width="2"{dash}/>'
                          f'<text x="{x + 32}" y="{y}">{name}</text>')

    def text(self):
        return "\n".join(self.parts + ["</svg>", ""])


def draw(study, curves):
    all_values = [value for runs in curves.values() for run in runs for _, value in run]
    picture = Curves(f"Loss of the training batches, mean of {study.window} steps: {study.title.split(':')[0]}",
                     study.steps, 0.95 * min(all_values), 1.02 * max(all_values))
    for i, (name, runs) in enumerate(curves.items()):
        same = name == TWIN and runs == curves[TWIN_OF]
        picture.add(i, f"{name}, equal to {TWIN_OF}" if same else name, runs, dashed=name == TWIN)
    return picture.text()


def spread(values, form):
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values) if len(values) > 1 else 0:{form}}"


def section(study, results, curves_file, seeds):
    """A study's part of the page, and whether equal are the rules that must be, and only these. `results` by rule: of
    each seed its losses, evaluation and weights."""
    lines = [f"## {study.title}", "", f"`model: {study.model}`, `train: {{steps: {study.steps}, microbatches: {STAGES}, "
             f"{study.train}}}`, `stages: {STAGES}`, seeds {', '.join(map(str, seeds))}.", "",
             f"![Loss of the training batches by step]({curves_file})", "",
             "| rule | loss of the last 50 steps | test loss | test accuracy, % | by seed, % |", "| --- " * 5 + "|"]
    for name, runs in results.items():
        accuracies = [100 * result["accuracy"] for _, result, _ in runs]
        lines.append(f"| {name} | {spread([statistics.mean(losses[-50:]) for losses, _, _ in runs], '.4f')} | "
                     f"{spread([result['loss'] for _, result, _ in runs], '.4f')} | {spread(accuracies, '.2f')} | "
                     f"{', '.join(f'{a:.2f}' for a in accuracies)} |")
    same = [a[2] == b[2] for a, b in zip(results[TWIN_OF], results[TWIN])]
    if not all(same):
        lines += ["", f"**{TWIN} and {TWIN_OF}, the same update rule, ended with other weights.**"]
    others = [len({tuple(results[name][i][2]) for name in results}) for i in range(len(seeds))]
    return lines, all(same) and others == [len(RULES) - 1] * len(seeds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    for name in ("--images", "--labels", "--text"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every training, for a quick look (default: each model's own)")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--cifar10", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=["mnist", "text", "shuffled", "cifar10"])
    options = parser.parse_args()
    if options.small:
        options.seeds, options.steps, options.reference = 1, 3, True
    elif None in (options.images, options.labels, options.text):
        parser.error("--images, --labels and --text name the data; or --small")
    weft, seeds = options.bin / "weft", list(range(1, options.seeds + 1))
    page = ["# Training on old weights: does it converge?", "",
            f"Every rule has the same initial weights, data, steps and settings; {len(seeds)} seeds (initial weights and "
            f"order of the data), N = {STAGES} stages and micro-batches. Learning rates are constant, without",
            "warm-up; settings were chosen once, and no others tried for any rule. After ± stands the standard deviation over seeds; bands are from the least to the most. "
            "`weft eval` counts loss and accuracy on the data that was held out.", "",
            "| rule | schedule | weights that are read |", "| --- | --- | --- |"]
    page += [f"| {name} | `{schedule}` | {what} |" for name, schedule, what in RULES]
    all_same = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.work or pathlib.Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if options.small:
            bits.write_data(folder)
            options.images, options.labels, options.text = (folder / name
                                                            for name in ("images.idx", "labels.idx", "text.txt"))
        studies = [mnist(folder, options, options.steps or 400), text(folder, options, options.steps or 600),
                   shuffled(folder, options, options.steps or 1250)]  # the last: 10 epochs
        if options.cifar10:
            studies.append(cifar10(options, options.steps or 39000))  # about 100 epochs
        studies = [study for study in studies if study.name in (options.only or [study.name])]
        for study in studies:
            results = {name: [] for name, *_ in RULES}
            for seed in seeds:
                for name, schedule, _ in RULES:
                    how = ["--reference"] if options.reference and name != TWIN else []
                    results[name].append(run(weft, study, name, schedule, seed, folder, how))
            curves = {name: [smooth(losses, study.window) for losses, _, _ in runs] for name, runs in results.items()}
            file = f"convergence_{study.name}.svg"
            if options.out:
                (options.out.parent / file).write_text(draw(study, curves))
            lines, same = section(study, results, file, seeds)
            page += [""] + lines
            all_same = all_same and same
    page += ["", f"{TWIN} and {TWIN_OF} are one update rule on two placements. " +
             (f"The runtime trained {TWIN}, the plain loop {TWIN_OF}. " if options.reference else "") +
             "Their last weights are " + ("" if all_same else "**not** ") + "equal to the bit with every seed."]
    if not options.cifar10:
        page += ["", "## What the paper measured",
                 "",
                 "[arXiv 2403.08837](https://arxiv.org/abs/2403.08837) compares the test accuracy of DP, CDP-v1 and CDP-v2 for a whole",
                 "ResNet-18 on CIFAR-10 (its Table 2). The trainings above are not that experiment: the networks are far smaller, no data is",
                 "CIFAR-10, and the trainings are short. So its numbers do not stand beside these. The machine of this page has",
                 "neither CIFAR-10 nor a GPU. Where both are, `--cifar10 cifar-10-batches-bin` adds that training to this page: 100 epochs",
                 "of the whole ResNet-18, shuffled, with random crops and flips, and with a cosine learning rate."]
    only = "".join(f"--only {study} " for study in options.only or [])
    page += ["", "Written by" + (" (the plain loop of `weft train --reference`, with which the runtime agrees to the bit: "
                                 "[bits](old_weights_bits.md))" if options.reference else ""), "",
             "    tests/convergence.py build/release/bin --images FILE --labels FILE --text FILE \\",
             "      " + only + ("--reference " if options.reference else "") +
             f"--out docs/measurements/{options.out.name if options.out else 'convergence.md'}", ""]
    print("\n".join(page))
    if options.out:
        options.out.write_text(markdown.wrapped("\n".join(page)))
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
