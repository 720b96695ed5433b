#!/usr/bin/env python3
"""Exports Llamas of published sizes from the meta device, where they have no weights, and compares schedules for them.

    outlines.py BIN_DIR [--out docs/measurements/outlines.md]     needs torch and transformers

Each export runs in a process of its own, whose memory is measured.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Layers, width, width of the inner layer, heads, heads of keys, and stages to compare with.
SIZES = {"Llama-8B": (32, 4096, 14336, 32, 8, 8), "Llama-70B": (80, 8192, 28672, 64, 8, 16),
         "Llama-405B": (126, 16384, 53248, 128, 8, 32)}
CONTEXT, VOCABULARY = 2048, 128256
RUN = """model: {{exported: {model}}}
data: {{arrays: {{input_ids: ids.npy, labels: ids.npy}}}}
train: {{steps: 10, batch: 64, microbatches: 32, optimizer: adamw}}
precision: float32
stages: {stages}
schedule: 1f1b
"""
PAGE = """# Models without weights

Llamas of published sizes, exported from the meta device
([outlines](../guide/your_own_model.md#a-model-that-is-too-large-for-this-machine)) with a context of {context} tokens.
Each export ran in a process of its own, on one core of a busy machine.

- **Memory** is the most that the process had, with PyTorch and transformers in it.
- **model.json** holds the graphs of all layers.
- **Compared**: how many schedules `weft compare` simulated for 32 micro-batches, and the seconds of the command.
- **Of a rank** is the most bytes that a rank of `1f1b` is predicted to hold, with 2 texts a micro-batch, in float32
  and with all activations kept.

{table}

Made by `tests/exported/outlines.py build/release/bin --out docs/measurements/outlines.md`, with
{versions}.
"""


def export(name, path):
    """Exports one model; prints what it took as JSON."""
    import torch
    import transformers
    import weft
    layers, width, inner, heads, key_heads, _ = SIZES[name]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, max_position_embeddings=8192, use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(2, CONTEXT, dtype=torch.int64)
    begun = time.monotonic()
    made = weft.export(model, {"input_ids": ids, "labels": ids}, path=path)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "layers": len(made),
                      "seconds": time.monotonic() - begun,
                      "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                      "versions": f"transformers {transformers.__version__} and PyTorch {torch.__version__.split('+')[0]}"}))


def measure(weft, name, folder):
    """Returns the row of a model, and the versions."""
    model = folder / f"{name}.weft"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, "--export", name, model], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr}")
    made = json.loads(done.stdout.splitlines()[-1])
    run = folder / f"{name}.yaml"
    run.write_text(RUN.format(model=model, stages=SIZES[name][-1]))
    begun = time.monotonic()
    compared = subprocess.run([weft, "compare", run, "-o", "json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if compared.returncode != 0:
        sys.exit(f"{name}: {compared.stderr}")
    schedules = json.loads(compared.stdout)["schedules"]
    chosen = next(s for s in schedules if s["schedule"] == "1f1b")
    return [name, f"{made['parameters'] / 1e9:.1f}", made["layers"], f"{made['seconds']:.0f}", f"{made['bytes'] / (1 << 30):.1f}",
            f"{(model / 'model.json').stat().st_size / (1 << 20):.2f}", SIZES[name][-1], len(schedules), f"{seconds:.1f}",
            f"{chosen['peak_bytes'] / (1 << 30):.0f}"], made["versions"]


def main():
    if sys.argv[1:2] == ["--export"]:
        export(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    head = ["model", "parameters, 10^9", "layers", "export, s", "memory, GiB", "model.json, MiB", "stages", "compared", "in s", "of a rank, GiB"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    with tempfile.TemporaryDirectory() as name:
        for size in SIZES:
            row, versions = measure(options.bin.resolve() / "weft", size, pathlib.Path(name))
            lines.append(f"| {' | '.join(map(str, row))} |")
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text(PAGE.format(context=CONTEXT, table="\n".join(lines), versions=versions))


if __name__ == "__main__":
    main()
