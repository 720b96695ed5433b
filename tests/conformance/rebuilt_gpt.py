#!/usr/bin/env python3
"""Whether a gpt rebuilt from its checkpoint and docs/guide/models.md has the loss that `weft eval` prints.

    rebuilt_gpt.py BIN_DIR           by gpt_by_hand.py, with nothing but Python
    rebuilt_gpt.py BIN_DIR --torch   by gpt_in_pytorch.py; exits 77, with one line, where python3 has no torch or safetensors

Trains a small gpt, cut between its blocks, with dropout: for a few steps, after which the epsilon of its norms still counts, and
for many, after which its GELU does, by erf and by tanh.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gpt_by_hand

HEADS = 2
RUN = f"""
model: {{gpt: {{layers: 2, width: 8, heads: {HEADS}, context: 12, dropout: 0.1, gelu: GELU}}}}
data: {{text: {{path: text.txt}}}}
train: {{steps: STEPS, batch: 8, microbatches: 2, optimizer: {{adamw: {{lr: RATE}}}}}}
stages: 3
schedule: 1f1b
"""
# Float32's rounding in `weft eval`, of losses near 1. An epsilon of 1e-6, or the GELU by tanh, changes one of the losses by 3e-5
# and more.
TOLERANCE = 3e-6


def of_python(checkpoint, text, gelu):
    by_name = {"erf": gpt_by_hand.gelu_by_erf, "tanh": gpt_by_hand.gelu_by_tanh}
    return gpt_by_hand.Gpt(checkpoint, HEADS, by_name[gelu]).loss(text.read_bytes())


def of_torch(checkpoint, text, _):
    script = pathlib.Path(__file__).with_name("gpt_in_pytorch.py")
    done = subprocess.run([sys.executable, script, checkpoint, text, str(HEADS)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return float(done.stdout)


def agrees(weft, folder, steps, rate, gelu, by_torch):
    run, out = folder / "run.yaml", folder / f"out{steps}{gelu}"
    run.write_text(RUN.replace("STEPS", str(steps)).replace("RATE", str(rate)).replace("GELU", gelu))
    subprocess.run([weft, "train", run, "--processes", "1", "--out", out], check=True, capture_output=True)
    evaluated = subprocess.run([weft, "eval", run, "--checkpoint", out / "checkpoint", "-o", "json"], check=True, capture_output=True)
    wanted = json.loads(evaluated.stdout)["loss"]
    rebuild = of_torch if by_torch else of_python
    loss = rebuild(out / "checkpoint", folder / "text.txt", gelu)
    print(f"after {steps} steps, GELU by {gelu}: weft eval {wanted:.7f}, rebuilt {loss:.7f}")
    return abs(loss - wanted) <= TOLERANCE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    if options.torch:
        there = subprocess.run([sys.executable, "-c", "import torch, safetensors.torch"], capture_output=True, check=False)
        if there.returncode != 0:
            print("SKIPPED: python3 has no torch or no safetensors; gpt_in_pytorch.py has not been tried")
            return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_bytes(b"The warp is what the weft goes through, over and under. " * 6)
        weft, runs = str(options.bin.resolve() / "weft"), [(10, 0.003, "erf"), (100, 0.03, "erf")]
        runs += [] if options.torch else [(100, 0.03, "tanh")]  # the script of the page has one GELU
        differing = [run for run in runs if not agrees(weft, folder, *run, options.torch)]
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
