#!/usr/bin/env python3
"""Measures the cost of dropout in a step of gpt: two builds in turn, each with dropout 0.1 and without.

    dropout_step.py OLD_BIN_DIR NEW_BIN_DIR [--rounds N] [--only float32|bf16]

Makes its own data. A step's time is CPU time of the plain loop (`weft train --reference`), of a long run less that of a short one, so that neither its
start nor other programs count; the least of all rounds. Peaks of activations are of `weft train` on one rank with all micro-batches alive. Each
line of output is one JSON object; `ratio` and `peak_ratio` are new over old with dropout. The builds' losses must be equal to the bit.
"""
import argparse, json, os, resource, subprocess, sys, tempfile

from step_time import train, write_text

# Blocks, width, context, samples of a micro-batch, steps of the short run; the long one has three times as many.
SIZES = [("2 blocks, width 128, 4 x 64 tokens", 2, 128, 64, 4, 8), ("4 blocks, width 256, 4 x 128 tokens", 4, 256, 128, 4, 2)]


def run_text(text, layers, width, context, samples, steps, dropout, precision):
    return (f"model: {{gpt: {{layers: {layers}, width: {width}, heads: 4, context: {context}, dropout: {dropout}}}}}\n"
            f"data: {{text: {{path: {text}}}, order: sequential}}\nprecision: {precision}\n"
            f"train: {{steps: {steps}, batch: {4 * samples}, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
            f"stages: 1\nschedule: gpipe\n")


def plain_loop(bins, folder, spec):
    """CPU seconds, and the last loss."""
    path, out = os.path.join(folder, "plain.yaml"), os.path.join(folder, "plain")
    with open(path, "w") as f:
        f.write("name: plain\n" + spec)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([os.path.join(bins, "weft"), "train", path, "--reference", "--overwrite", "--out", out], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(out, "steps.jsonl")) as f:
        loss = json.loads(f.readlines()[-1])["loss"]
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, loss


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old"), p.add_argument("new")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", choices=["float32", "bf16"])
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(folder)
        for precision in [a.only] if a.only else ["float32", "bf16"]:
            for name, *size, steps in SIZES:
                cpu, losses, ms, peaks = {}, {}, {}, {}
                for _ in range(a.rounds):
                    for dropout in (0.1, 0):
                        for build in ("old", "new"):
                            for n in (steps, 3 * steps):
                                seconds, loss = plain_loop(getattr(a, build), folder, run_text(text, *size, n, dropout, precision))
                                cpu.setdefault((build, dropout, n), []).append(seconds)
                                losses.setdefault((dropout, n), set()).add(loss)
                for build in ("old", "new"):
                    for dropout in (0.1, 0):
                        few, many = min(cpu[build, dropout, steps]), min(cpu[build, dropout, 3 * steps])
                        ms[build, dropout] = 1e3 * (many - few) / (2 * steps)
                    summary, _, _ = train(getattr(a, build), folder, "run", run_text(text, *size, 2, 0.1, precision), "--processes", "1")
                    peaks[build] = summary["peak_bytes"][0]["activations"]
                if any(len(values) != 1 for values in losses.values()):
                    sys.exit(f"{name}, {precision}: the builds' losses differ: {losses}")
                print(json.dumps({"size": name, "precision": precision, "ms": {f"{b}, dropout {d}": round(t, 2) for (b, d), t in ms.items()},
                                  "ratio": round(ms["new", 0.1] / ms["old", 0.1], 3), "peak_bytes": peaks,
                                  "peak_ratio": round(peaks["new"] / peaks["old"], 3)}), flush=True)


if __name__ == "__main__":
    main()
