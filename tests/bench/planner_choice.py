#!/usr/bin/env python3
"""Compares the plan that weft plan chooses with a measured sweep: every family that reads new weights and that the
sizes allow, trained in turn.

    tests/bench/planner_choice.py BIN_DIR [--models mlp,gpt,vit,resnet18] [--repeats N] [--steps N]

For each model, on two ranks in two processes: measures a profile, plans with it, and trains the plan and the sweep by
weft compare --measure. Families with as many stages as the plan have its cut. Makes its own data. Each line of output
is one JSON object: a schedule with the median of its repeats, or, with `chosen`, a model with its plan over the best of
the others. A measurement wants the machine for itself.
"""
import argparse
import json
import re
import tempfile

from step_time import weft, write_idx, write_text

# By model: its text in a run file, samples of a micro-batch, micro-batches of a step.
MODELS = {
    "mlp": ("{mlp: {layers: 8, width: 1024, inputs: 1024, classes: 10}}", 96, 8),
    "gpt": ("{gpt: {layers: 6, width: 256, heads: 4, context: 64}}", 2, 8),
    "vit": ("{vit_b16: {layers: 5, width: 192, heads: 3, patch: 4, size: 32, channels: 1, classes: 10}}", 4, 8),
    "resnet18": ("{resnet18: {classes: 10, channels: 1, size: 32, stem: cifar, width: 32}}", 4, 8),
}


def write_run(folder, model, steps, schedule):
    """Writes the run file and returns its path. A schedule that is a plan has stages and micro-batches of its own."""
    text, samples, microbatches = MODELS[model]
    data = "text: {path: text.txt}" if model == "gpt" else "idx: {images: images.idx, labels: labels.idx}"
    planned = schedule.startswith("{file")
    path = f"{folder}/{model}.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"name: {model}\nmodel: {text}\ndata: {{{data}, order: sequential}}\n"
                   f"train: {{steps: {steps}, batch: {samples * microbatches}, seed: 1, "
                   "optimizer: {adamw: {lr: 1.0e-3}}"
                   + ("" if planned else f", microbatches: {microbatches}") + "}\n"
                   + ("" if planned else "stages: 2\n") + f"schedule: {schedule}\n")
    return path


def measure(bins, folder, model, options):
    profile, network, plan = (f"{folder}/{name}" for name in ("profile.json", "network.yaml", "plan.yaml"))
    run = write_run(folder, model, options.steps, "1f1b")
    weft(bins, "profile", run, "--ranks", "2", "--steps", "20", "-o", profile, "--network", network)
    with_profile = ["--profile", profile, "--network", network, "--workers", "2"]
    planned = weft(bins, "plan", run, *with_profile, "-o", "yaml")
    with open(plan, "w", encoding="utf-8") as file:
        file.write(planned)
    run = write_run(folder, model, options.steps, "{file: plan.yaml}")
    measured = json.loads(weft(bins, "compare", run, "--measure", "--ranks", "2", "-o", "json",
                               "--steps", str(options.steps), "--repeats", str(options.repeats)))
    rows = [row for row in measured["schedules"] if row["ran"]]
    for row in rows:
        print(json.dumps({"model": model, "schedule": row["schedule"], "planned": row["chosen"],
                          "stages": row["stages"], "step_ms": round(row["step_seconds"] * 1e3, 2),
                          "repeats_ms": [round(s * 1e3, 2) for s in row["step_seconds_of_repeats"]]}), flush=True)
    others = [row for row in rows if not row["chosen"]]
    best = min(others, key=lambda row: row["step_seconds"])
    own = next(row for row in rows if row["chosen"])
    print(json.dumps({"model": model, "chosen": own["schedule"], "candidates": len(others), "best": best["schedule"],
                      "step_ms": round(own["step_seconds"] * 1e3, 2), "best_ms": round(best["step_seconds"] * 1e3, 2),
                      "predicted_ms": round(float(re.search(r"^  step: (.*)$", planned, re.M)[1]) * 1e3, 2),
                      "slower_percent": round((own["step_seconds"] / best["step_seconds"] - 1) * 100, 1)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            write_idx(scratch, side=32, classes=10)
            write_text(scratch)
            measure(args.bin_dir, scratch, name, args)
