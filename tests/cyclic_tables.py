#!/usr/bin/env python3
"""Shows what the cyclic order costs and saves: the table of its paper as formula, simulation and measurement side by
side, and the activations alive over time of real models.

    cyclic_tables.py BIN_DIR [--small] [--models] [--out docs/measurements/cyclic.md] [--pictures docs/pictures]

Prints one markdown page. --small: N = 3 only, for a quick check; exits 1 if a synchronous or cyclic placement that the
page is about does not run, or a measured peak is above what every order can hold. --models: also the pictures of resnet50
and vit_b16, which takes minutes. A placement that the build does not know is said to be refused, with the reason.
"""

import argparse
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import bits
import markdown

CPU = "2-core machine"
RULE = "cdp_v2"


class Placement:
    """A row of the table: a schedule with and without the rule. Formulas are in units of A, the activations that one
    micro-batch leaves in the whole model, P, the bytes of its weights, and O, what a stage hands to the next."""

    def __init__(self, name, schedule, activation, weights, sent, outputs, steps, ranks, one_process=False):
        self.name, self.schedule, self.one_process = name, schedule, one_process
        self.activation, self.weights, self.sent, self.outputs = activation, weights, sent, outputs
        self.steps, self.ranks = steps, ranks


def relayed_by_pyramid(n):
    """Returns what the stages of cdp_mp send in a step, in P: for each stage with several holders the running sum from
    micro-batch to micro-batch, once more to its home if the last micro-batch is elsewhere, and the version to every other
    holder."""
    return sum((n - 1) + (1 - math.gcd(n, holders) / holders) + (holders - 1) for holders in range(2, n + 1)) / n


def placements(n):
    ring = 2 * (n - 1)
    half = (n + 1) / 2
    chain = 2 * n * (n - 1)
    visits = 2 * n - 1
    r = f",rule={RULE}"
    return [
        Placement("one process, all ranks", "ddp", n, n, None, None, None, n, True),
        Placement("one process, all ranks, cyclic", "ddp" + r, half, n, None, None, None, n, True),
        Placement("one process, weights once", "fsdp", n, 1, None, None, None, n, True),
        Placement("one process, weights once, cyclic", "fsdp" + r, half, (1, 2 - 1 / n), None, None, None, n, True),
        Placement("data parallel", "ddp", 1, 1, ring, 0, ring, n),
        Placement("data parallel, cyclic", "ddp" + r, 1, 1, ring, 0, 1, n),
        Placement("data and model parallel", f"lpp,groups={n},ranks={n}", 1 / n, 1 / n, ring, chain, ring, n * n),
        Placement("data and model parallel, cyclic", "cdp_mp" + r, 1 / n, (1 / n, 2 / n), relayed_by_pyramid(n), chain, 1,
                  n * (n + 1) // 2),
        Placement("pipeline", "gpipe", 1, 1 / n, 0, chain, 1, n),
        Placement("pipeline, cyclic", "gpipe" + r, 1, (1 / n, 2 / n), 0, chain, 1, n),
        Placement("sharded", "fsdp", 1, 2 / n, 3 * (n - 1), 0, ring, n),
        Placement("sharded, cyclic", "fsdp" + r, 1, (2 / n, 3 / n), 3 * (n - 1), 0, 1, n),
        Placement("sharded, cyclic, migrating", "fsdp,residency=migrating" + r, 1, (1 / n, 2 / n), (3 * visits, 5 * visits), 0,
                  1, n),
    ]


def weft_json(command, timeout=600):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    try:
        return json.loads(done.stdout), done.stderr
    except json.JSONDecodeError:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("weft: ")


def gpt_cut(n, blocks_of_stage):
    """Layers of each stage: embedding and head go with the first and the last blocks."""
    return [blocks_of_stage + (s == 0) + (s == n - 1) for s in range(n)]


def gpt_run(folder, n, blocks_of_stage, width, steps):
    blocks, cut = blocks_of_stage * n, gpt_cut(n, blocks_of_stage)
    return (f"name: cyclic{n}\nmodel: {{gpt: {{layers: {blocks}, width: {width}, heads: 4, context: 64}}}}\n"
            f"data: {{text: {{path: {folder}/text.txt}}}}\n"
            f"train: {{steps: {steps}, batch: {2 * n}, microbatches: {n}, seed: 5, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
            f"stages: {cut}\nschedule: gpipe\n")


def number(value):
    if value is None:
        return "-"
    text = f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def formula(value):
    if isinstance(value, tuple):
        return f"{number(value[0])} to {number(value[1])}"
    return number(value)


def measured_rows(weft, file, chosen, processes, steps):
    """Returns the measured row of each schedule, by its name; or why it was not measured."""
    rows = {}
    for one_process in (True, False):
        wanted = sorted({p.schedule for p in chosen if p.one_process == one_process})
        if not wanted:
            continue
        command = [weft, "compare", str(file), "--measure", "--steps", str(steps), "-o", "json", "--processes",
                   "1" if one_process else str(processes)]
        for schedule in wanted:
            command += ["--schedules", schedule]
        found, reason = weft_json(command, 3600)
        for row in found["schedules"] if found else []:
            rows[(one_process, row["schedule"])] = row
        for schedule in wanted:
            rows.setdefault((one_process, schedule), {"ran": False, "reason": reason})
    return rows


def simulated_row(weft, schedule, n, profile):
    """The same figures of a simulation with a measured profile."""
    return weft_json([weft, "simulate", schedule, "--stages", str(n), "--microbatches", str(n), "--steps", "6", "--profile",
                      str(profile), "--communication", "-o", "json"])


def of_measurement(row, one_process, unit_a, unit_p, unit_o):
    """Activations and weights of a device, and bytes sent, in units: simulated, then measured."""
    stats = row["rank_stats"]
    together = sum if one_process else max
    weights = lambda s: s["peak_bytes"].get("weights", 0)
    simulated = row["simulated"]
    return {
        "activation": (simulated["live_bytes"] / unit_a if one_process
                       else max(s["simulated"]["activation_bytes"] for s in stats) / unit_a,
                       row["live_bytes"] / unit_a if one_process
                       else max(s["peak_bytes"].get("activations", 0) for s in stats) / unit_a),
        "weights": (together(s["simulated"]["weight_bytes"] for s in stats) / unit_p,
                    together(weights(s) for s in stats) / unit_p),
        "sent": (model_state(simulated["bytes_sent"]) / unit_p, model_state(row["bytes_sent"]) / unit_p),
        "outputs": (outputs(simulated["bytes_sent"]) / unit_o, outputs(row["bytes_sent"]) / unit_o),
        "steps": row["communication_steps"],
        "ranks": row["ranks"],
    }


def model_state(sent):
    """Bytes of weights and gradients; what goes from stage to stage is counted apart."""
    return sum(sent.values()) - outputs(sent)


def outputs(sent):
    """Bytes of activations and their gradients."""
    return sum(sent.get(kind, 0) for kind in ("activation", "input_gradient"))


def table(n, chosen, rows, unit_a, unit_p, unit_o):
    lines = [f"| N = {n} | schedule | activations of a device, A | weights of a device, P | weights and gradients sent, P | "
             "activations and their gradients sent, O | comm. steps | devices |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    refused = []
    for p in chosen:
        row = rows[(p.one_process, p.schedule)]
        if not row["ran"]:
            refused.append(f"`{p.schedule}`: {row['reason']}")
            cells = [f"{formula(v)} / - / -" for v in (p.activation, p.weights, p.sent, p.outputs)] + [formula(p.steps)]
            lines.append(f"| {p.name} | `{p.schedule}` | " + " | ".join(cells) + f" | {1 if p.one_process else p.ranks} |")
            continue
        f = of_measurement(row, p.one_process, unit_a, unit_p, unit_o)
        cells = [f"{formula(getattr(p, key))} / {number(f[key][0])} / {number(f[key][1])}"
                 for key in ("activation", "weights", "sent", "outputs")]
        if p.one_process:
            cells[2:] = ["0", "0"]
        cells.append("0" if p.one_process else f"{formula(p.steps)} / {f['steps']}")
        lines.append(f"| {p.name} | `{p.schedule}` | " + " | ".join(cells) + f" | {1 if p.one_process else f['ranks']} |")
    return lines, refused


def live_lines(n, chosen, rows):
    lines = []
    for p in chosen:
        row = rows[(p.one_process, p.schedule)]
        if not row["ran"] or p.one_process:
            continue
        lines.append(f"| {n} | `{p.schedule}` | {row['simulated']['live_activations']} | {row['live_activations']} | "
                     f"{max(s['peak_activations'] for s in row['rank_stats'])} | "
                     f"{words([s['peak_weight_versions'] for s in row['rank_stats']])} | {row['processes']} | "
                     f"{1e3 * row['step_seconds']:.0f} | {1e3 * row['predicted_step_seconds']:.0f} |")
    return lines


def words(values):
    if None in values:
        return "-"
    return str(values[0]) + " each" if len(set(values)) == 1 and len(values) > 1 else ", ".join(map(str, values))


def simulated_table(weft, n, profile, unit_a, unit_p):
    lines = [f"| N = {n}, simulated | schedule | activations of a device, A | weights of a device, P | comm. steps | "
             "activations of all devices at a time | devices |", "| --- | --- | --- | --- | --- | --- | --- |"]
    refused = []
    for p in placements(n):
        found, reason = simulated_row(weft, p.schedule, n, profile)
        if found is None:
            refused.append(f"`{p.schedule}`: {reason}")
            lines.append(f"| {p.name} | `{p.schedule}` | {formula(p.activation)} / - | {formula(p.weights)} / - | "
                         f"{formula(p.steps)} | - | {1 if p.one_process else p.ranks} |")
            continue
        stats = found["rank_stats"]
        activation = (found["peak_live_bytes"] if p.one_process
                      else max(s["peak_activation_bytes"] for s in stats)) / unit_a
        held = [s["held_bytes"] for s in stats]
        weights = (sum(held) if p.one_process else max(held)) / unit_p
        steps = "0" if p.one_process else f"{formula(p.steps)} / {found['communication_steps']}"
        lines.append(f"| {p.name} | `{p.schedule}` | {formula(p.activation)} / {number(activation)} | "
                     f"{formula(p.weights)} / {number(weights)} | {steps} | {found['peak_live_activations']} | "
                     f"{1 if p.one_process else found['ranks']} |")
    return lines, refused


# ---- activations over time of real models

MODELS = {
    # Samples of a micro-batch, and what the paper saves.
    "resnet50": ("{{resnet50: {{stem: imagenet, size: {side}, channels: 1, classes: 10}}}}", 4, 30),
    "vit_b16": ("{{vit_b16: {{size: {side}, channels: 1, classes: 10}}}}", 2, 42),
}
# Side of the images: in the real runs, and in the profile, which is the models' usual one.
RUN_SIDE, PROFILE_SIDE = 128, 224


def write_images(folder, side):
    rng, count = random.Random(11), 64
    images = struct.pack(">IIII", 0x803, count, side, side) + rng.randbytes(count * side * side)
    labels = struct.pack(">II", 0x801, count) + bytes(rng.randrange(10) for _ in range(count))
    (folder / f"pixels{side}.idx").write_bytes(images)
    (folder / f"classes{side}.idx").write_bytes(labels)


def model_run(folder, model, n, side, steps):
    samples = MODELS[model][1]
    return (f"name: {model}\nmodel: {MODELS[model][0].format(side=side)}\n"
            f"data: {{idx: {{images: {folder}/pixels{side}.idx, labels: {folder}/classes{side}.idx}}}}\n"
            f"train: {{steps: {steps}, batch: {samples * n}, microbatches: {n}, optimizer: {{sgd: {{lr: 1.0e-3}}}}}}\n"
            f"stages: {n}\nschedule: ddp\n")


def divided(profile, stages):
    """The profile with layers that are large beside a stage cut into equal parts, so that near-equal stages exist."""
    layers = profile["layers"]
    time = lambda layer: layer["forward"] + layer["backward"]
    total = sum(map(time, layers))
    parts = []
    for layer in layers:
        count = max(1, round(4 * stages * time(layer) / total))
        part = {key: value if key in ("name", "output_bytes") else value / count for key, value in layer.items()}
        parts += [part] * count
    return dict(profile, layers=parts)


def picture(weft, arguments, path):
    done = subprocess.run([weft, "simulate"] + arguments + ["-o", "memory"], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    path.write_text(done.stdout)


def mib(size):
    return f"{size / (1 << 20):.1f}"


def alive_row(model, n, how, ddp, cyclic):
    return (f"| {model} | {n} | {how} | {mib(ddp)} | {mib(cyclic)} | {100 * (1 - cyclic / ddp):.0f} % | "
            f"{100 * (1 - (n + 1) / (2 * n)):.1f} % | {MODELS[model][2]} % |")


def model_lines(weft, folder, model, processes, pictures):
    """Rows of the table of peaks, and the pictures' names."""
    lines, names = [], []
    schedules = ["ddp", f"ddp,rule={RULE}"]
    file, out = folder / f"{model}.yaml", folder / f"kept-{model}"
    file.write_text(model_run(folder, model, 4, RUN_SIDE, 4))
    command = [weft, "compare", str(file), "--measure", "--steps", "4", "--processes", str(processes), "--out", str(out),
               "-o", "json"]
    for schedule in schedules:
        command += ["--schedules", schedule]
    found, reason = weft_json(command, 3600)
    rows = {row["schedule"]: row for row in found["schedules"]} if found else {}
    if all(rows.get(s, {}).get("ran") for s in schedules):
        ddp, cyclic = (rows[s] for s in schedules)
        lines.append(alive_row(model, 4, "measured", ddp["live_bytes"], cyclic["live_bytes"]))
        lines.append(alive_row(model, 4, "simulated with the same run's times and sizes", ddp["simulated"]["live_bytes"],
                               cyclic["simulated"]["live_bytes"]))
        names.append(f"cyclic_{model}_4.svg")
        picture(weft, [str(out / "ddp/trace.json"), str(out / f"ddp-rule-{RULE}/trace.json")], pictures / names[-1])
    else:
        lines.append(f"| {model} | 4 | measured | did not run: "
                     f"{'; '.join(r.get('reason', '') for r in rows.values()) or reason} | | | | |")
    profile_path = folder / f"{model}.json"
    file.write_text(model_run(folder, model, 4, PROFILE_SIDE, 4))
    done = subprocess.run([weft, "profile", str(file), "--steps", "8", "-o", str(profile_path)], capture_output=True,
                          text=True, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"profile of {model}: {done.stderr.strip()}")
    profile = json.loads(profile_path.read_text())
    for n in (4, 8, 32):
        path = folder / f"{model}-{n}.json"
        path.write_text(json.dumps(divided(profile, n)))
        sizes = ["--stages", str(n), "--microbatches", str(n), "--steps", "4", "--profile", str(path)]
        peaks = [weft_json([weft, "simulate", s] + sizes + ["-o", "json"])[0]["peak_live_bytes"] for s in schedules]
        lines.append(alive_row(model, n, "simulated from the measured profile", *peaks))
        if n > 4:
            names.append(f"cyclic_{model}_{n}.svg")
            picture(weft, schedules + sizes, pictures / names[-1])
    return lines, names


# ---- the page

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--pictures", type=pathlib.Path, default=pathlib.Path("docs/pictures"))
    options = parser.parse_args()
    weft = str(options.bin / "weft")
    sections, refusals, bad = [], [], []
    live = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        bits.write_data(folder)
        for n in (3,) if options.small else (3, 4):
            file = folder / f"gpt{n}.yaml"
            file.write_text(gpt_run(folder, n, 1 if options.small else 4, 32 if options.small else 128, 4))
            chosen = placements(n)
            rows = measured_rows(weft, file, chosen, options.processes, 4 if options.small else 6)
            unit_a, unit_p, unit_o = units(weft, file)
            lines, refused = table(n, chosen, rows, unit_a, unit_p, unit_o)
            sections.append("\n".join(lines))
            refusals += refused
            live += live_lines(n, chosen, rows)
            bad += problems(n, chosen, rows)
        if not options.small:
            file, profile = folder / "gpt8.yaml", folder / "gpt8.json"
            file.write_text(gpt_run(folder, 8, 4, 128, 4))
            unit_a, unit_p, _ = units(weft, file, profile, gpt_cut(8, 4))
            lines, refused = simulated_table(weft, 8, profile, unit_a, unit_p)
            sections.append("\n".join(lines))
            refusals += refused
        alive, pictures = [], []
        if options.models:
            options.pictures.mkdir(parents=True, exist_ok=True)
            for side in (RUN_SIDE, PROFILE_SIDE):
                write_images(folder, side)
            for model in MODELS:
                lines, names = model_lines(weft, folder, model, options.processes, options.pictures)
                alive += lines
                pictures += names
    page = text(sections, refusals, live, alive, pictures)
    print(page)
    for problem in bad:
        print(problem, file=sys.stderr)
    if options.out:
        options.out.write_text(markdown.wrapped(page))
    return 1 if bad else 0


def units(weft, file, profile=None, cut=None):
    """A, P and O: what a micro-batch leaves in the whole model, the bytes of its weights, and what a stage hands to the next,
    by `weft profile`. With a path, the profile is kept there as stages of so many layers, without the optimizer's state."""
    found, reason = weft_json([weft, "profile", str(file)])
    if found is None:
        raise RuntimeError(f"profile of {file}: {reason}")
    layers = found["layers"]
    if profile:
        stages, remaining = [], list(layers)
        for count in cut:
            parts, remaining = remaining[:count], remaining[count:]
            stage = {key: sum(part[key] for part in parts)
                     for key in ("forward", "backward", "update", "activation_bytes", "weight_bytes")}
            stages.append(dict(stage, output_bytes=parts[-1]["output_bytes"]))
        profile.write_text(json.dumps({"unit": "s", "stages": stages}))
    return sum(l["activation_bytes"] for l in layers), sum(l["weight_bytes"] for l in layers), layers[0]["output_bytes"]


def problems(n, chosen, rows):
    """Returns results that must not occur, whatever the machine does."""
    found = []
    for p in chosen:
        row = rows[(p.one_process, p.schedule)]
        if not row["ran"]:
            continue
        most = p.ranks // n * n * n  # every rank's micro-batches on every stage
        if p.schedule == f"ddp,rule={RULE}":
            versions = [s["peak_weight_versions"] for s in row["rank_stats"]]
            if any(v != 1 for v in versions):
                found.append(f"{p.schedule}: {versions} versions of a stage's weights by rank, where one is enough")
        if row["live_activations"] > most:
            found.append(f"{p.schedule}: {row['live_activations']} activations alive, of {most} that there are")
    for schedule in ("ddp", f"ddp,rule={RULE}", f"gpipe,rule={RULE}"):
        if not any(rows[(p.one_process, p.schedule)]["ran"] for p in chosen if p.schedule == schedule):
            found.append(f"{schedule} did not run (N = {n})")
    return found


PAGE_TABLES = """# Cyclic data parallelism: what it holds and sends

The table compares the placements of Table 1 of [*Cyclic Data Parallelism for Efficient Parallelism of Deep Neural Networks*](https://arxiv.org/abs/2403.08837), each under the synchronous order and under the cyclic one (`rule: %(rule)s`).

Each cell is **formula / simulated / measured**. The units are:

- **A**: the bytes of activations that one micro-batch leaves in the whole model until its backward, as `weft profile` measures them;
- **P**: the bytes of the model's weights;
- **O**: the bytes that a stage hands to the next for one micro-batch, and gets back as a gradient;
- **tick**: the time of one forward or one backward, where all take equal time;
- **N**: the number of stages, of micro-batches and, except for data and model parallelism, of ranks.

The model is a gpt with its blocks in N stages of nearly equal work. Embedding and head are in the first and the last stage. The formulas assume equal stages, so they are a little off. Measured with `weft compare --measure` on a %(cpu)s, with all ranks in two processes (in one, where the device is one process), beside other work: the times are no measure of speed. Simulated is the same run with its own job times.

- **Formulas** are closed forms of these placements for equal stages and equal times. They are Weft's own, not those that the paper prints, and count what each placement has to hold and to send.
- **Weights.** The formula counts the newest version. A range goes up to one old version more, where a device reads old and new weights of a stage. Data parallelism needs no second version: each rank reads one version of a stage at a time, and installs the next one when it has done so. Formula and simulation count what is fetched for use. The measured figure does not count it where the owner's memory is read in place, as between processes of one machine.
- **Sent** counts all ranks together in one step. Weights and gradients are in P; activations and their gradients are in O, 2 N (N-1) where each stage is on another device than the next. In the cyclic rows, the first holder that installs late gets no version in the first step, so a run of few steps sends a little less than its formula.
- **Communication steps** are the most between two ticks ([definition](../guide/command_line.md#communication-steps)): formula / computed from the job graph. A real run has no common ticks to count them at. cdp_mp needs two, because the last micro-batch is not always at the home of its stage.
- **Migrating states.** A stage's state moves 2N times in a step, and the last stage's N times: 2N - 1 moves of a whole model. Under AdamW a state has the two moments, one or two versions, and a sum except before the first backward: 3 to 5 times the weights. So it sends 3 (2N-1) to 5 (2N-1) P, where fetching sends 3 (N-1). What it saves is that no rank ever owns a stage. The measured weights of a device include the end of the run, when all states are on the last rank. The simulated ones are two states at a time, of two versions each.
- **One process** has all N ranks, so its device is the process, and nothing leaves it. As replicas (`ddp`) its ranks have a copy of the weights each, N in all. As owners of a stage each (`fsdp`) they have every live version once, because they read each other's memory in place. [Below](#one-copy-for-the-ranks-of-a-process) is more about it.
- **Measured activations** also include what a forward has in hand while it runs. That matters where stages are as small as here.

"""
PAGE_SHARED = """
## One copy for the ranks of a process

Training in the cyclic order on one device needs each version of the weights once, whatever the number of ranks. In Weft that is `fsdp` with all ranks in one process. Each stage has one rank that holds and updates it. The other ranks fetch the weights for each job, and a fetch within a process hands out the owner's memory. An update writes beside a version that is still read. So the process holds at most 2 - 1/N times P: all stages but the last have two live versions for a part of the cycle. It holds the optimizer's state once too. Bits and activations are those of `ddp`.

The ranks of `ddp` in one process keep a copy each, as replicas on devices of their own do. So a budget (`memory`) means the same wherever they are.

Simulation and budget do not know which ranks are in one process. They charge each rank of `fsdp` with a copy of the stage that it fetches. So the simulated figure of these rows is an upper bound.

"""
PAGE_LIVE = """
## Activations over all ranks

The most activations (of one micro-batch on one stage) that were alive over all ranks at one time. In equal ticks the cyclic order holds N(N+1)/2, and data parallelism N^2 at its peak. Real jobs take unequal times and share two cores, so ranks drift apart.

| N | schedule | simulated | measured | of one rank | weight versions by rank | processes | ms a step | predicted ms, a core a rank |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
PAGE_MODELS = """
## Activations alive over time

`ddp` and `ddp,rule=%(rule)s` for two models: MiB at the peak over all ranks. N = 4 ran for real, on random images of %(side)d x %(side)d, with four (resnet50) and two samples per micro-batch.

N = 8 and 32, and another N = 4, are simulated from `weft profile` of the models at %(profile)d x %(profile)d. Neither model has 32 layers, so layers that are large beside a stage are cut into equal parts.

The column of equal stages is 1 - (N+1)/2N: what is saved where every stage takes the same time and leaves the same bytes. A vit is nearly like that. A resnet is not: its first blocks leave most, and what they leave lives longest. So its average over a cycle, which the cyclic order always holds, is nearer to the peak, and the more so, the longer the last blocks take. The last column is what the paper reports.

| model | N | | ddp | cyclic | lower by | equal stages | paper |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def text(sections, refusals, live, alive, pictures):
    page = PAGE_TABLES % {"rule": RULE, "cpu": CPU} + "\n\n".join(sections) + "\n"
    if refusals:
        page += "\nNot in this build, or refused:\n\n" + "\n".join(f"- {r}" for r in dict.fromkeys(refusals)) + "\n"
    page += PAGE_SHARED.rstrip() + "\n" + PAGE_LIVE + "\n".join(live) + "\n"
    if alive:
        page += PAGE_MODELS % {"rule": RULE, "side": RUN_SIDE, "profile": PROFILE_SIDE} + "\n".join(alive) + "\n\n"
        page += "\n\n".join(f"![{name[:-4].replace('_', ' ')}](../pictures/{name})" for name in pictures) + "\n"
    return page + ("\nWritten by `tests/cyclic_tables.py build/release/bin --models --out docs/measurements/cyclic.md`.\n")


if __name__ == "__main__":
    sys.exit(main())
