#!/usr/bin/env python3
"""Trains a gpt on text, an mlp, a two_tower, residual networks and a vision transformer on IDX images under every schedule family, at several sizes and numbers of
processes, and compares every checkpoint, byte by byte, with the plain loop's (weft train --reference). The trainings are
submitted one after the other to the same worker processes.

    bits.py BIN_DIR [--small] [--checkpoints] [--processes 1,2,4] [--only TEXT] [--out docs/measurements/bits.md]

Prints one markdown table; exits 1 if any bit differs, a run fails, or a family of `weft simulate --help` has no case
here. --small: one size, for a quick check. --checkpoints: each training also saves a checkpoint after every step
(checkpoint: {every: 1}), which is compared with that of the plain loop, state and all; then the next schedule of the
same rule goes on from the first of them, to the bits of the undisturbed training. --only: the models whose title holds
this text; may be repeated.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import markdown
from standing_workers import StandingWorkers

# Parameters by family; a family that is not here runs without any.
PARAMETERS = {
    "lpp": "groups: 2, ranks: 2",
    "fslpp": "groups: 2, ranks: 2",
    "depth_first": "ranks: 2",
    "breadth_first": "ranks: 2",
    "interleaved": "ranks: 2",
}
# Families that are nothing without parameters of text.
INSTEAD = {
    "custom": 'custom: {workers: 4, compute: "(s + b) % W", weights: "s % W"}',
}
# Schedules with a name of their own in the table.
NAMED = [
    ("gradient accumulation, depth_first on one rank", "{depth_first: {ranks: 1}}"),
    ("gradient accumulation, lpp on one rank", "{lpp: {groups: 1, ranks: 1}}"),
    ("ddp with gradient accumulation, custom", '{custom: {workers: 4, compute: "b % W"}}'),
    ("ddp with gradient accumulation, lpp in groups of one rank", "{lpp: {groups: 4, ranks: 1}}"),
    ("custom, looped pipelines",
     '{custom: {workers: 4, R: 2, compute: "(R*b) % W + s % R", priority: "((k != forward)*B + b)*S + s"}}'),
    ("custom, halves",
     '{custom: {workers: 4, compute: "(s < S/2 ? 0 : W/2) + b % (W/2)", weights: "(s < S/2 ? 0 : W/2) + s % (W/2)", '
     'limit: "s < S/2 ? 2 : 1"}}'),
    ("lpp, S in flight", "{lpp: {groups: 1, ranks: 2, in_flight: S}}"),
    ("1f1b for slow links", '{1f1b: {in_flight: "2*(S-s)-1"}}'),
    ("gpipe, depth first", "{gpipe: {order: depth_first}}"),
    ("periodic, stages apart, two micro-batches a window",
     '{periodic: {placement: 0+1+0+1, window: 16, forward: 0+2+4+6+8+10+13+17, backward: 15+12+11+7+30+27+25+19}}'),
    ("fsdp, by width", "{fsdp: {shard: width}}"),
    ("custom, backwards one rank on",
     '{custom: {workers: 4, compute: "k == forward ? s % W : (s + 1) % W", weights: "s % W"}}'),
]
# Schedules that read old weights: each training is another, with a plain loop of its own. Name in the table, text,
# micro-batches, and whose plain loop it is.
OLD_WEIGHTS = [
    ("pipedream", "{pipedream: }", 1, "pipedream"),
    ("custom, pipedream with limits",
     '{custom: {workers: 4, compute: "s", staleness: "S-1-s", limit: "s == 0 ? 4 : s == 3 ? 1 : 2"}}', 1, "pipedream"),
    ("pipedream for slow links", '{pipedream: {in_flight: "2*(S-s)-1"}}', 1, "pipedream for slow links"),
    ("pipedream_2bw", "{pipedream_2bw: }", 8, "pipedream_2bw"),
] + [(f"{name},rule=cdp_{v}", f"{{{text}, rule: cdp_{v}}}", 4, f"cdp_{v}")
     for v in ("v1", "v2")
     for name, text in (("ddp", "ddp: "), ("fsdp", "fsdp: "), ("gpipe", "gpipe: "), ("1f1b", "1f1b: "), ("cdp_mp", "cdp_mp: "),
                        ("lpp,groups=2,ranks=2", "lpp: {groups: 2, ranks: 2}"),
                        ("lpp,groups=4,ranks=1", "lpp: {groups: 4, ranks: 1}"))] + [
    ("cdp_mp", "{cdp_mp: }", 4, "cdp_v2"),  # which it is without a rule
] + [(f"fsdp,residency=migrating,rule=cdp_{v}", f"{{fsdp: {{residency: migrating}}, rule: cdp_{v}}}", 4, f"cdp_{v}")
     for v in ("v1", "v2")]
# The image that is no black one (write_data), and the training whose step with it is skipped: a first step makes
# the weights so large that the image overflows, and the training that is compared goes on from there.
BRIGHT = 52
GROWS, SKIPS = "{sgd: {lr: 1000, weight_decay: 1000, momentum: 0.9}}", "{sgd: {lr: 1.0e-30, momentum: 0.9}}, non_finite: skip"
EXTRA = [
    # Policies for the activations that a forward leaves for its backward, fused and split.
    ("1f1b", "activations: recompute"),
    ("1f1b", "activations: offload"),
    ("zb_h1", "activations: recompute"),
    ("fsdp", "activations: offload"),
]


def write_data(folder):
    words = ["warp ", "weft ", "loom ", "shuttle ", "reed ", "cloth ", "thread ", "heddle "]
    rng = random.Random(7)
    text = "".join(rng.choice(words) for _ in range(40000))
    (folder / "text.txt").write_text(text)
    count, side = 512, 12
    images = struct.pack(">IIII", 0x803, count, side, side)
    labels = struct.pack(">II", 0x801, count)
    pixels = bytearray()
    for _ in range(count):
        label = rng.randrange(10)
        labels += bytes([label])
        pixels += bytes(200 + rng.randrange(50) if p % 10 == label else rng.randrange(60) for p in range(side * side))
    (folder / "images.idx").write_bytes(images + bytes(pixels))
    (folder / "labels.idx").write_bytes(labels)
    # All black but number 52, which an mlp whose weights have grown (models) has no finite scores for.
    blinking = struct.pack(">IIII", 0x803, 512, side, side)
    blinking += b"".join(bytes([255 if i == BRIGHT else 0]) * (side * side) for i in range(512))
    (folder / "blinking.idx").write_bytes(blinking)


def models(folder, small):
    def text(order):
        return f"data: {{text: {{path: {folder}/text.txt}}, order: {order}}}"

    def images(name="images", more=""):
        return f"data: {{idx: {{images: {folder}/{name}.idx, labels: {folder}/labels.idx}}{more}}}"

    idx = images()
    changed = images(more=", order: shuffled, augment: {crop: 2, flip: true}")

    def gpt(width, context, batch, steps, order="sequential"):
        return (f"gpt, width {width}, context {context}, {order}, 4 stages, 8 micro-batches",
                f"model: {{gpt: {{layers: 6, width: {width}, heads: 4, context: {context}, dropout: 0.1}}}}\n{text(order)}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 5, optimizer: {{adamw: {{lr: 3.0e-3}}}}}}\n"
                "stages: 4\n")

    def mlp(width, batch, steps):
        return (f"mlp, width {width}, shuffled, images cropped and flipped, 4 stages, 8 micro-batches",
                f"model: {{mlp: {{layers: 5, width: {width}, inputs: 144, classes: 10}}}}\n{changed}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 2, "
                "optimizer: {sgd: {lr: 0.1, momentum: 0.9, weight_decay: 0.01}}}\nstages: 4\n")

    def skipping(batch, steps):
        return (f"mlp, width 8, a step skipped, 4 stages, 8 micro-batches",
                f"model: {{mlp: {{layers: 7, width: 8, inputs: 144, classes: 10}}}}\n{images('blinking')}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 1, optimizer: {SKIPS}}}\nstages: 4\n")

    def two_tower(stem, width, batch, steps):
        return (f"two_tower, {'stem' if stem else 'halves'}, width {width}, 4 stages, 8 micro-batches",
                f"model: {{two_tower: {{stem: {stem}, layers: 2, width: {width}, inputs: 144, classes: 10}}}}\n{idx}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 3, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                "stages: 4\n")

    def resnet(depth, width, batch, steps):
        return (f"resnet{depth}, width {width}, 4 stages, 8 micro-batches",
                f"model: {{resnet{depth}: {{width: {width}, channels: 1, size: 12, classes: 10}}}}\n{idx}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 4, "
                "optimizer: {sgd: {lr: 0.05, momentum: 0.9, weight_decay: 0.001}}}\nstages: 4\n")

    def vit(width, batch, steps):
        return (f"vit_b16, width {width}, 4 stages, 8 micro-batches",
                f"model: {{vit_b16: {{layers: 4, width: {width}, heads: 4, patch: 3, channels: 1, size: 12, classes: 10}}}}\n{idx}\n"
                f"train: {{steps: {steps}, batch: {batch}, microbatches: 8, seed: 6, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                "stages: 4\n")

    if small:
        return [gpt(32, 32, 8, 3, "shuffled"), mlp(48, 16, 4), skipping(16, 5), two_tower(1, 48, 16, 3),
                resnet(18, 4, 16, 2)]
    return [gpt(32, 32, 8, 4), gpt(96, 64, 16, 3, "shuffled"), mlp(48, 16, 6), mlp(256, 64, 6), skipping(16, 6),
            two_tower(1, 48, 16, 4), two_tower(0, 256, 64, 4), resnet(18, 16, 32, 3), resnet(50, 4, 16, 3), vit(48, 16, 3)]


def families(weft):
    text = subprocess.run([weft, "simulate", "--help"], capture_output=True, text=True, check=True).stdout
    section = text[text.index("Schedules:"):] if "Schedules:" in text else text
    return sorted(set(re.findall(r"^  ([a-z0-9_]+) +\S", section, re.M)))


def tensors(folder):
    """Every tensor's bytes by name, in the folder and below."""
    return tensors_in(pathlib.Path(folder).rglob("*.safetensors"))


def tensors_in(files):
    """Every tensor's bytes by name, of safetensors files."""
    found = {}
    for path in sorted(files):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = data[8 + length + begin:8 + length + end]
    return found


def train(weft, file, out, arguments):
    done = subprocess.run([weft, "train", str(file), "--overwrite", "--out", str(out)] + arguments, capture_output=True, text=True,
                          timeout=600)
    return done.returncode, done.stderr.strip().splitlines()[-1:] or [""]


def train_standing(workers, file, out, arguments):
    """The same on workers that stay."""
    code, said = workers.train(file, out, arguments)
    return code, said.strip().splitlines()[-1:] or [""]


def lacks_ranks(code, error):
    """Returns true if a run was refused because it has fewer ranks than processes."""
    return code == 2 and "ranks of the schedule" in error[0]


def schedules(weft):
    """The schedules of the synchronous training: name in the table, text."""
    own = [name for name, *_ in OLD_WEIGHTS]
    names = [name for name in families(weft) if name not in own]
    cases = []
    for name in names:
        if name in INSTEAD:
            cases.append((name, f"{{{INSTEAD[name]}}}"))
        else:
            cases.append((name, f"{{{name}: {{{PARAMETERS.get(name, '')}}}}}"))
    cases += [(f"{name}, {more}", f"{{{name}: {{{PARAMETERS.get(name, '')}}}, {more}}}") for name, more in EXTRA
              if name in names]
    return cases + NAMED


def begin(weft, file, folder, training):
    """The flags with which the run's trainings begin: those that skip a step go on from one with other weights."""
    text = file.read_text()
    if SKIPS not in text:
        return []
    file.write_text(text.replace(SKIPS, GROWS))
    grown = folder / f"grown-{training}"
    code, error = train(weft, file, grown, ["--reference", "--until", "1"])
    file.write_text(text)
    if code != 0:
        sys.exit(f"the first step failed: {error[0]}")
    return ["--resume", str(grown / "checkpoint")]


def reference(weft, file, folder, flags, training):
    """Returns the weights with which the plain loop ends the run."""
    code, error = train(weft, file, folder / "plain", ["--reference"] + flags)
    if code != 0:
        sys.exit(f"the reference failed: {error[0]}")
    wanted = tensors(folder / "plain/checkpoint")
    start = tensors(flags[1]) if flags else tensors(folder / "plain/checkpoint-0")
    if wanted == {name: start.get(name) for name in wanted}:
        sys.exit("the reference did not train")
    skipped = sum(json.loads(line).get("skipped", False) for line in (folder / "plain/steps.jsonl").read_text().splitlines())
    # Old weights may not have grown yet.
    if training == "synchronous" and skipped != (SKIPS in file.read_text()):
        sys.exit(f"the reference skipped {skipped} steps")
    return wanted


def stop_and_resume(workers, file, folder, cases, wanted, flags, until, count):
    """Each case makes the first steps, and the one behind it the others; how many ended with other bits."""
    text = file.read_text()
    bad = 0
    for (first, first_text), (second, second_text) in zip(cases, cases[1:] + cases[:1]):
        file.write_text(text.replace("SCHEDULE", first_text))
        code, error = train_standing(workers, file, folder / "stopped", ["--processes", count, "--until", str(until)] + flags)
        if code == 0:
            file.write_text(text.replace("SCHEDULE", second_text))
            code, error = train_standing(workers, file, folder / "out",
                                         ["--processes", count, "--resume", str(folder / "stopped/checkpoint")])
        if lacks_ranks(code, error):
            continue
        same = code == 0 and tensors(folder / "out/checkpoint") == wanted
        bad += not same
        print(f"stopped under {first}, resumed under {second}: {'same' if same else error[0] or 'differs'}",
              file=sys.stderr)
    return bad


def checkpoints_differ(wanted, got, last):
    """The steps whose checkpoints on the way are not those of the plain loop."""
    return [step for step in range(1, last)
            if tensors(got / f"checkpoint-{step}") != tensors(wanted / f"checkpoint-{step}")
            or not tensors(got / f"checkpoint-{step}")]


CHECKPOINTS = ("Each training saved a checkpoint after every step (`checkpoint: {every: 1}`). All of them held the plain loop's tensors, the "
               "optimizer's state among them. The next schedule of the same rule went on from the first checkpoint, on the same number of "
               "processes, and ended with the plain loop's bits; a cell names the number of processes only then.\n\n")


def flags_of(options):
    flags = " --small" * options.small + " --checkpoints" * options.checkpoints + "".join(f" --only {text}" for text in options.only)
    return flags + f" --out docs/measurements/{options.out.name if options.out else 'bits.md'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    weft = str(options.bin / "weft")
    cases = [(name, text, 8, "synchronous") for name, text in schedules(weft)]
    if len(cases) < 10:
        sys.exit("weft simulate --help lists hardly any schedule: its form has changed")
    cases += OLD_WEIGHTS
    processes = ["2"] if options.small else options.processes.split(",")
    bad = 0
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = stack.enter_context(StandingWorkers(options.bin, folder, max(map(int, processes))))
        write_data(folder)
        sizes = [size for size in models(folder, options.small)
                 if not options.only or any(part in size[0] for part in options.only)]
        if not sizes:
            sys.exit(f"no model has {' or '.join(options.only)} in its title")
        rows = {name: [] for name, *_ in cases}
        resumed = []
        for title, text in sizes:
            file = folder / "run.yaml"
            plain_loops = {}
            before = {}  # the schedule of the same training that came last: its folder
            steps = int(re.search(r"steps: (\d+)", text)[1])
            for name, schedule, microbatches, training in cases:
                if SKIPS in text and "migrating" in schedule:
                    rows[name].append("refused")  # which has no norm of all stages
                    continue
                file.write_text(text.replace("microbatches: 8", f"microbatches: {microbatches}") +
                                f"schedule: {schedule}\n" +
                                ("checkpoint: {every: 1, keep: 1000}\n" if options.checkpoints else ""))
                plain = folder / ("plain-" + training)
                if training not in plain_loops:
                    flags = begin(weft, file, folder, training)
                    plain_loops[training] = reference(weft, file, folder, flags, training), flags
                    if options.checkpoints:
                        shutil.rmtree(plain, ignore_errors=True)
                        shutil.copytree(folder / "plain", plain)
                wanted, flags = plain_loops[training]
                results = []
                for count in processes + ["1"] * ("1" not in processes):
                    if count == "1" and results and "1" not in processes:
                        break  # one process is for schedules of one rank
                    start = time.monotonic()
                    code, error = train_standing(workers, file, folder / "out", ["--processes", count] + flags)
                    if lacks_ranks(code, error):
                        continue  # more processes than ranks
                    same = code == 0 and tensors(folder / "out/checkpoint") == wanted
                    if same and options.checkpoints:
                        differ = checkpoints_differ(plain, folder / "out", steps)
                        if differ:
                            same, error = False, [f"the checkpoints of steps {differ} differ"]
                        if same and training in before:
                            code, error = train_standing(workers, file, folder / "resumed", [
                                "--processes", count, "--resume", str(before[training] / "checkpoint-1")])
                            same = code == 0 and tensors(folder / "resumed/checkpoint") == wanted
                        before[training] = folder / ("before-" + training)
                        shutil.rmtree(before[training], ignore_errors=True)
                        shutil.copytree(folder / "out", before[training])
                    results.append(count if same else f"**{count} differs**" if code == 0 else f"**{count} fails**")
                    bad += not same
                    print(f"{title}: {name} on {count}: {'same' if same else error[0] or 'differs'} "
                          f"({time.monotonic() - start:.1f} s)", file=sys.stderr)
                rows[name].append(", ".join(results))
            if "shuffled" in title or "skipped" in title:
                synchronous = [(name, schedule) for name, schedule, _, training in cases if training == "synchronous"]
                wanted, flags = plain_loops["synchronous"]
                file.write_text(text + "schedule: SCHEDULE\n")
                # In the small check some pairs stand for all.
                pairs = synchronous[::7] if options.small else synchronous
                until = 4 if "skipped" in title else 2  # behind the step that is skipped
                resumed_bad = stop_and_resume(workers, file, folder, pairs, wanted, flags, until, "2")
                bad += resumed_bad
                resumed.append(f"{title}: {len(pairs)} pairs, " + ("all the same" if resumed_bad == 0 else f"**{resumed_bad} differ**"))
    letters = [chr(ord("A") + i) for i in range(len(sizes))]
    table = ["The columns are these models:", ""] + [f"- {letter}: {title}" for letter, (title, _) in zip(letters, sizes)]
    table += ["", "| schedule | " + " | ".join(letters) + " |", "| --- " * (len(sizes) + 1) + "|"]
    table += [f"| `{name}` | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    if any("refused" in cells for cells in rows.values()):
        table += ["", "*refused*: a step is skipped by a norm of all stages, which migrating states do not have."]
    stopped = ["", "Stopped on two processes, and resumed under another schedule:", ""] + [f"- {line}" for line in resumed]
    page = ("# One numerical result\n\nA cell names numbers of worker processes. On each of them, the trained weights of every stage were equal, "
            "to the bit, to those of the plain loop over micro-batches in one process (`weft train --reference`). With old weights that "
            "loop is the one of the same rule: pipedream (on one micro-batch), pipedream_2bw, and the cyclic rules (on four).\n\n" +
            (CHECKPOINTS if options.checkpoints else "") + ("" if bad == 0 else f"**{bad} were not equal.** ") +
            f"Written by `tests/bits.py build/release/bin{flags_of(options)}`.\n\n" + "\n".join(table + stopped) + "\n")
    print(page)
    if options.out:
        options.out.write_text(markdown.wrapped(page))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
