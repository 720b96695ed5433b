#!/usr/bin/env python3
"""Measures Weft on one GPU beside PyTorch and UCX, each from one run on the same machine, and prints a markdown page with
the commands.

    measure.py BIN_DIR [--device cuda] [--small] [--only SECTION[,SECTION..]] [--out docs/measurements/gpu.md]

Sections: training (tokens/s, images/s and model FLOP/s against PyTorch eager and torch.compile, memory peak, time per job
that is not compute), transfers (between two processes, against ucx_perftest), cyclic (live activations of ddp and of
ddp,rule=cdp_v2, four ranks on the device). --small with --device cpu runs every section at a size for a CPU, to check
this script. PyTorch (python3 -c "import torch") is needed for the peers alone; without it their rows say so. Rounds are
interleaved: ours, peer, ours, peer; figures are medians.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ("training", "transfers", "cyclic")
# Dense bf16 products of one GPU, FLOP/s, by name: the makers' data sheets.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


def run(command, timeout=900, env=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def gpu_name():
    try:
        return run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).strip()
    except (OSError, RuntimeError):
        return ""


def write_text(path, count=1 << 20):
    generator = random.Random(1)
    words = ["weft", "warp", "loom", "thread", "shuttle", "cloth", "pattern", "weave"]
    text = " ".join(generator.choice(words) for _ in range(count // 5))
    path.write_text(text)


def write_images(path, samples=2000):
    """CIFAR-10 records: a label and 3072 bytes."""
    generator = random.Random(1)
    path.write_bytes(b"".join(bytes([i % 10]) + generator.randbytes(3072) for i in range(samples)))


class Case:
    """One model as Weft's run file has it and as the peer knows it."""

    def __init__(self, name, model, data, optimizer, batch, unit, per_sample):
        self.name, self.model, self.data, self.optimizer = name, model, data, optimizer
        self.batch, self.unit, self.per_sample = batch, unit, per_sample

    def run_file(self, steps, precision, microbatches=1, stages=1, schedule="gpipe"):
        return (f"name: {self.name}\nmodel: {self.model}\ndata: {self.data}\n"
                f"train: {{steps: {steps}, batch: {self.batch}, microbatches: {microbatches}, optimizer: {self.optimizer}}}\n"
                f"stages: {stages}\nschedule: {schedule}\nprecision: {precision}\n")


def cases(folder, small):
    text, images = folder / "text.txt", folder / "images.bin"
    write_text(text)
    write_images(images, 64 if small else 2000)
    adamw, sgd = "{adamw: {lr: 3.0e-4}}", "{sgd: {lr: 0.1, momentum: 0.9}}"
    gpt = "{gpt: {layers: 2, width: 64, heads: 2, context: 32}}" if small else "{gpt: {preset: gpt2}}"
    context, size = (32, 32) if small else (1024, 224)
    resnet = f"{{resnet50: {{classes: 10, width: {8 if small else 64}, size: {size}, stem: imagenet}}}}"
    vit = (f"{{vit_b16: {{layers: 2, width: 64, heads: 2, classes: 10, size: {size}}}}}" if small
           else f"{{vit_b16: {{classes: 10, size: {size}}}}}")
    cifar = f"{{cifar10: {{path: {images}, resize: true}}}}"
    return [Case("gpt2", gpt, f"{{text: {{path: {text}}}}}", adamw, 4 if small else 16, "tokens/s", context),
            Case("resnet50", resnet, cifar, sgd, 8 if small else 128, "images/s", 1),
            Case("vit_b16", vit, cifar, sgd, 8 if small else 128, "images/s", 1)]


def weft_training(options, folder, case, steps, warmup, extra=""):
    file, out = folder / f"{case.name}.yaml", folder / "out"
    file.write_text(case.run_file(steps + warmup, options.precision) + extra)
    command = [str(options.bin / "weft"), "train", str(file), "--device", options.device, "--processes", "1", "--out", str(out)]
    run(command)
    seconds = [json.loads(line)["seconds"] for line in (out / "steps.jsonl").read_text().splitlines()][warmup:]
    summary = json.loads((out / "summary.json").read_text())
    idle = summary["idle_seconds"][0]
    jobs = (steps + warmup) * 3  # one forward, one backward, one update
    return {"step_seconds": statistics.median(seconds), "peak_bytes": sum(summary["peak_bytes"][0].values()),
            "gap_microseconds": 1e6 * idle.get("dispatch", 0) / jobs, "command": command, "file": file.read_text()}


def peer_training(options, case, steps, warmup, compiled):
    command = [sys.executable, str(HERE / "torch_peer.py"), case.name, "--batch", str(case.batch), "--steps", str(steps),
               "--warmup", str(warmup), "--precision", options.precision, "--device", options.device]
    command += ["--compile"] * compiled + ["--small"] * options.small
    return json.loads(run(command).splitlines()[-1])


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def peak_of(name):
    return next((value for key, value in PEAKS.items() if key in name), None)


def training(options, folder):
    """Tokens/s, images/s, MFU and memory."""
    steps, warmup, rounds = (3, 1, 1) if options.small else (30, 20, 3)
    peak = peak_of(gpu_name())
    rows, shown = [], ""
    for case in cases(folder, options.small):
        extra = "kernels: any\n" if case.name == "resnet50" and options.device != "cpu" else ""
        peers = {"PyTorch eager": [], "torch.compile": []}
        ours, why = [], {}
        for _ in range(rounds):
            ours.append(weft_training(options, folder, case, steps, warmup, extra))
            for name, results in peers.items():
                try:
                    results.append(peer_training(options, case, steps, warmup, name == "torch.compile"))
                except RuntimeError as error:
                    why[name] = str(error).splitlines()[-1][:120]
        speed = case.batch * case.per_sample / statistics.median(r["step_seconds"] for r in ours)
        flops = next((r["flops_per_second"] * r["step_seconds"] for r in peers["PyTorch eager"] if "flops_per_second" in r), None)

        def mfu(rate):
            return f"{flops * rate / (case.batch * case.per_sample) / peak:.1%}" if flops and peak else "-"

        rows.append((case.name, "Weft", f"{speed:,.0f} {case.unit}", mfu(speed), "1.00",
                     mib(statistics.median(r["peak_bytes"] for r in ours)),
                     f"{statistics.median(r['gap_microseconds'] for r in ours):.1f}"))
        for name, results in peers.items():
            if not results:
                rows.append((case.name, name, f"did not run: {why[name]}", "", "", "", ""))
                continue
            rate = case.batch * case.per_sample / statistics.median(r["step_seconds"] for r in results)
            memory = [r["peak_bytes"] for r in results if "peak_bytes" in r]
            rows.append((case.name, name, f"{rate:,.0f} {case.unit}", mfu(rate), f"{speed / rate:.2f}",
                         mib(statistics.median(memory)) if memory else "-", ""))
        shown += f"\n`{shlex.join(ours[0]['command'])}` with\n\n```yaml\n{ours[0]['file']}```\n"
    return (f"## Training, one rank, {options.precision}\n\nMedian of {rounds} rounds of {steps} steps after {warmup}; MFU: counted "
            "model FLOPs over the makers' dense bf16 peak. Goals: Weft not below torch.compile, at most 20 us a job that are not "
            "compute.\n\n" + table(["model", "who", "throughput", "MFU", "Weft over it", "memory peak", "us a job not compute"], rows)
            + shown)


def transfers(options, folder):
    """Between two processes, beside ucx_perftest."""
    bench = options.bin.parent / "bench" / "transport_bench"
    command = [str(bench)] + (["--cuda"] if options.device.startswith("cuda") else []) + (["--rounds", "1"] if options.small else [])
    return f"## Transfers between two processes\n\n`{shlex.join(command)}`\n\n```\n{run(command, timeout=1800).strip()}\n```\n"


def cyclic(options, folder):
    """Live activations of ddp against the cyclic rule."""
    rows, commands = [], []
    for case in cases(folder, options.small)[1:]:
        file = folder / f"{case.name}_cyclic.yaml"
        stages = 4
        text = case.run_file(6, options.precision, microbatches=4, stages=stages, schedule="ddp")
        file.write_text(text + ("kernels: any\n" if case.name == "resnet50" and options.device != "cpu" else ""))
        command = [str(options.bin / "weft"), "compare", str(file), "--measure", "--schedules", "ddp,ddp,rule=cdp_v2",
                   "--device", options.device, "-o", "json"]
        commands.append(shlex.join(command))
        rows_of = {row["schedule"]: row for row in json.loads(run(command, timeout=1800))["schedules"]}
        plain, ruled = (row["live_bytes"] for row in rows_of.values())
        rows.append((case.name, mib(plain), mib(ruled), f"{1 - ruled / plain:.0%}"))
    return ("## Live activations, four ranks on the device\n\n" + "\n".join(f"`{c}`  " for c in commands) + "\n\n"
            + table(["model", "ddp", "ddp,rule=cdp_v2", "less by"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    where = gpu_name() if options.device.startswith("cuda") else f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    if not where:
        sys.exit("measure.py: nvidia-smi finds no GPU here; use --device cpu --small to check the script")
    page = f"# Measured on {where}\n\n`python3 tests/gpu/measure.py {shlex.join(sys.argv[1:])}`\n"
    with tempfile.TemporaryDirectory() as scratch:
        for section in (training, transfers, cyclic):
            if section.__name__ in chosen:
                print(f"{section.__name__}: {section.__doc__}", file=sys.stderr)
                page += "\n" + section(options, pathlib.Path(scratch))
    if options.out:
        options.out.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
