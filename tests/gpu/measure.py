#!/usr/bin/env python3
"""Measures Weft on one GPU beside PyTorch and UCX, each from one run on the same machine, and prints a markdown page with
the commands.

    measure.py BIN_DIR [--device cuda] [--only SECTION[,SECTION..]] [--models MODEL[,MODEL..]] [--peers PEER[,PEER..]]
               [--rounds N] [--minutes M] [--small] [--bench PATH] [--perftest PATH] [--out docs/measurements/gpu.md]

Sections: training (tokens/s, images/s and model FLOP/s against PyTorch eager and torch.compile, memory peak, time per job
that is not compute), transfers (between two processes, against ucx_perftest), cyclic (live activations of ddp and of
ddp,rule=cdp_v2, four ranks on the device). Models: gpt2, resnet50, vit_b16. Peers: eager, compile. --small with --device cpu runs every section at
a size for a CPU, to check this script. PyTorch (python3 -c "import torch") is needed for the peers alone; without it their
rows say so. Rounds are interleaved: ours, peer, ours, peer; figures are medians.

A measurement that fails has a row that says so, and the rest goes on. --out is written anew after every measurement, so
that what was measured is kept however this ends. With --minutes nothing goes on for longer: what is under way then is
ended.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ("training", "transfers", "cyclic")
MODELS = ("gpt2", "resnet50", "vit_b16")
# Ways to run Weft, with the line of the run file, and ways to run the peer, with its argument.
WEFT = {"Weft": "", "Weft, kernels: any": "kernels: any\n"}
PEERS = {"PyTorch eager": "eager", "torch.compile": "compile"}
# Dense bf16 products of one GPU, FLOP/s, by name: the makers' data sheets. The first that fits counts.
PEAKS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
LEAST_SECONDS = 5  # nothing is begun for less
FAILURES = (RuntimeError, OSError, subprocess.SubprocessError, ValueError, LookupError)


class Clock:
    """Time that is left for this script."""

    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes if minutes else float("inf")

    def remaining(self):
        return self.end - time.monotonic()


class Ended(RuntimeError):
    """Failure of a command that did not come to its end; `output` is what it had printed."""

    def __init__(self, why, output=""):
        super().__init__(why)
        self.output = output


def run(clock, command, timeout=900):
    """The command's output. It is ended, with all that it started, when its time or the whole's is over."""
    limit = min(timeout, clock.remaining())
    if limit < LEAST_SECONDS:
        raise Ended("there was no time left for it")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise Ended(f"ended after {limit:.0f} s", process.communicate()[0]) from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode != 0:
        raise Ended(f"{shlex.join(map(str, command))}: {errors.strip()[-2000:]}", output)
    return output


def gpu_name():
    try:
        return run(Clock(1), ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines()[0].strip()
    except FAILURES:
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

    def __init__(self, name, model, data, optimizer, batch, unit, per_sample, flops=None):
        self.name, self.model, self.data, self.optimizer = name, model, data, optimizer
        self.batch, self.unit, self.per_sample, self.flops = batch, unit, per_sample, flops
        self.results, self.why, self.shown = {}, {}, None

    def run_file(self, steps, precision, microbatches=1, stages=1, schedule="gpipe"):
        return (f"name: {self.name}\nmodel: {self.model}\ndata: {self.data}\n"
                f"train: {{steps: {steps}, batch: {self.batch}, microbatches: {microbatches}, optimizer: {self.optimizer}}}\n"
                f"stages: {stages}\nschedule: {schedule}\nprecision: {precision}\n")

    def rate(self, results):
        return self.batch * self.per_sample / statistics.median(r["step_seconds"] for r in results)


def gpt_flops(layers, width, context, vocabulary):
    """Returns the FLOPs of a token, forward and backward: 6 a weight of the products, and the attention's own, counted without
    the causal mask."""
    return 6 * (12 * layers * width * width + width * vocabulary) + 12 * layers * width * context


def cases(options, folder):
    small = options.small
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
    flops = gpt_flops(2, 64, 32, 256) if small else gpt_flops(12, 768, 1024, 50257)
    known = [Case("gpt2", gpt, f"{{text: {{path: {text}}}}}", adamw, 4 if small else 16, "tokens/s", context, flops),
             Case("resnet50", resnet, cifar, sgd, 8 if small else 128, "images/s", 1),
             Case("vit_b16", vit, cifar, sgd, 8 if small else 128, "images/s", 1)]
    return [case for case in known if case.name in options.models]


def weft_training(options, folder, case, extra, steps, warmup):
    file, out = folder / f"{case.name}.yaml", folder / "out"
    file.write_text(case.run_file(steps + warmup, options.precision) + extra)
    command = [str(options.bin / "weft"), "train", str(file), "--device", options.device, "--processes", "1", "--overwrite", "--out", str(out)]
    run(options.clock, command)
    ends = [json.loads(line)["end_seconds"] for line in (out / "steps.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    idle = summary["idle_seconds"][0]
    jobs = (steps + warmup) * 3  # one forward, one backward, one update
    return {"step_seconds": (ends[-1] - ends[warmup - 1]) / steps, "peak_bytes": sum(summary["peak_bytes"][0].values()),
            "gap_microseconds": 1e6 * idle.get("dispatch", 0) / jobs, "command": command, "file": file.read_text()}


def peer_training(options, case, steps, warmup, compiled):
    command = [sys.executable, str(HERE / "torch_peer.py"), case.name, "--batch", str(case.batch), "--steps", str(steps),
               "--warmup", str(warmup), "--precision", options.precision, "--device", options.device]
    command += ["--compile"] * compiled + ["--small"] * options.small
    return json.loads(run(options.clock, command).splitlines()[-1])


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def brief(error):
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:160].replace("|", "/")


def training_page(options, chosen, steps, warmup, peak):
    rows, shown = [], ""
    for case in chosen:
        def mfu(rate):
            return f"{case.flops * rate / peak:.1%}" if case.flops and peak and options.precision == "bf16" else "-"

        best = case.results.get("torch.compile")
        for name in (*WEFT, *PEERS):
            results = case.results.get(name)
            if not results:
                if name in case.why:
                    rows.append((case.name, name, f"did not run: {case.why[name]}", "", "", "", "", "0"))
                continue
            rate = case.rate(results)
            memory = [r["peak_bytes"] for r in results if "peak_bytes" in r]
            rows.append((case.name, name, f"{rate:,.0f} {case.unit}", mfu(rate), f"{rate / case.rate(best):.2f}" if best else "-",
                         mib(statistics.median(memory)) if memory else "-",
                         f"{statistics.median(r['gap_microseconds'] for r in results):.1f}" if name in WEFT else "",
                         str(len(results))))
        if case.shown:
            shown += f"\n`{shlex.join(case.shown['command'])}` with\n\n```yaml\n{case.shown['file']}```\n"
    return (f"## Training, one rank, {options.precision}\n\nMedians of up to {options.rounds} rounds, each the mean of {steps} steps after "
            f"{warmup}. MFU: counted model FLOPs over the makers' dense bf16 peak. Weft's memory is the sum of the peaks of its "
            "classes, which need not be at one time; PyTorch's is its allocator's peak. Weft is deterministic, unless the run file says "
            "`kernels: any`: then it may use what the peers use, of which nothing is asked to be deterministic (cuDNN's search for the "
            "fastest convolution, cuDNN's attention). Goals: Weft not below torch.compile, at most 20 us a job that are not compute.\n\n"
            + table(["model", "who", "throughput", "MFU", "of torch.compile", "memory peak", "us a job not compute", "rounds"], rows)
            + shown)


def training(options, folder):
    """Tokens/s, images/s, MFU and memory."""
    steps, warmup = (3, 1) if options.small else (30, 20)
    name = gpu_name()
    peak = next((value for key, value in PEAKS.items() if key in name), None)
    chosen = cases(options, folder)
    peers = [who for who, argument in PEERS.items() if argument in options.peers]
    for _ in range(options.rounds):
        for case in chosen:
            for who in (*WEFT, *peers):
                try:
                    if who in WEFT:
                        made = weft_training(options, folder, case, WEFT[who], steps, warmup)
                        case.shown = case.shown or made
                    else:
                        made = peer_training(options, case, steps, warmup, who == "torch.compile")
                    case.results.setdefault(who, []).append(made)
                except FAILURES as error:
                    case.why[who] = brief(error)
                    print(f"{case.name}, {who}: {error}", file=sys.stderr)
                yield training_page(options, chosen, steps, warmup, peak)


def transfers(options, folder):
    """Between two processes, beside ucx_perftest."""
    command = [str(options.bench)] + (["--cuda"] if options.device.startswith("cuda") else [])
    command += (["--rounds", "1", "--quick"] if options.small else ["--rounds", "3"]) + (["--perftest", str(options.perftest)] if options.perftest else [])
    try:
        words = run(options.clock, command, timeout=1800).strip()
    except FAILURES as error:
        print(f"transfers: {error}", file=sys.stderr)
        words = f"{getattr(error, 'output', '')}did not come to its end: {brief(error)}"
    yield f"## Transfers between two processes\n\n`{shlex.join(command)}`\n\n```\n{words}\n```\n"


def cyclic(options, folder):
    """Live activations of ddp against the cyclic rule."""
    rows, commands = [], []
    for case in cases(options, folder):
        if case.name == "gpt2":
            continue
        file = folder / f"{case.name}_cyclic.yaml"
        text = case.run_file(6, options.precision, microbatches=4, stages=4, schedule="ddp")
        file.write_text(text + ("kernels: any\n" if case.name == "resnet50" and options.device != "cpu" else ""))
        command = [str(options.bin / "weft"), "compare", str(file), "--measure", "--schedules", "ddp,ddp,rule=cdp_v2",
                   "--device", options.device, "-o", "json"]
        commands.append(shlex.join(command))
        try:
            rows_of = {row["schedule"]: row for row in json.loads(run(options.clock, command, timeout=1800))["schedules"]}
            plain, ruled = (row["live_bytes"] for row in rows_of.values())
            rows.append((case.name, mib(plain), mib(ruled), f"{1 - ruled / plain:.0%}"))
        except FAILURES as error:
            print(f"cyclic, {case.name}: {error}", file=sys.stderr)
            rows.append((case.name, f"did not run: {brief(error)}", "", ""))
        yield ("## Live activations, four ranks on the device\n\n" + "\n".join(f"`{c}`  " for c in commands) + "\n\n"
               + table(["model", "ddp", "ddp,rule=cdp_v2", "less by"], rows))


def chosen_of(parser, text, known):
    chosen = text.split(",")
    if unknown := set(chosen) - set(known):
        parser.error(f"no such thing: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default=",".join(PEERS.values()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--bench", type=pathlib.Path)
    parser.add_argument("--perftest", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.bench = (options.bench or options.bin.parent / "bench" / "transport_bench").resolve()
    options.models = chosen_of(parser, options.models, MODELS)
    options.peers = chosen_of(parser, options.peers, tuple(PEERS.values()))
    options.rounds = 1 if options.small else options.rounds
    chosen = chosen_of(parser, options.only, SECTIONS)
    options.clock = Clock(options.minutes)
    where = gpu_name() if options.device.startswith("cuda") else f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    if not where:
        sys.exit("measure.py: nvidia-smi finds no GPU here; use --device cpu --small to check the script")
    head = f"# Measured on {where}\n\n`python3 tests/gpu/measure.py {shlex.join(sys.argv[1:])}`\n"
    pages = {}
    # If this script is ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as scratch:
        for section in (training, transfers, cyclic):
            if section.__name__ not in chosen:
                continue
            print(f"{section.__name__}: {section.__doc__}", file=sys.stderr, flush=True)
            for page in section(options, pathlib.Path(scratch)):
                pages[section.__name__] = page
                if options.out:
                    part = options.out.with_suffix(".part")
                    part.write_text("\n".join([head, *pages.values()]))
                    part.replace(options.out)
    print("\n".join([head, *pages.values()]))


if __name__ == "__main__":
    main()
