#!/usr/bin/env python3
"""Writes the exported models and data of the tests into a folder, with a Python that has torch and numpy; for the known
architectures also transformers and torchvision.

    make_models.py FOLDER [NAME ..]     all models, or those that are named; tests/exported/models is the repository's
                                        folder, whose older models stay as an older version wrote them
    make_models.py FOLDER plugged LIBRARY   the model that calls an operation of the tests' library (plugins.py)
"""
import contextlib
import json
import pathlib
import sys

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import weft  # noqa: E402
from architectures import ARCHITECTURES  # noqa: E402
from modules import MODULES, MODULES_WITH_PLUGINS  # noqa: E402
from weft.cutting import block_patterns  # noqa: E402
from weft.narrowing import narrowed  # noqa: E402

SAMPLES = 24  # of the data
SCORED = ("classifier", "gpt_scored")  # with metrics
KEPT = (*SCORED, "mlp", "cnn", "gpt_dropout", "gpt_tied", "gpt_counted", "cnn_norms", "drawing", "noisy", "functions", "lstm",
        "typed", "gpt_bf16", "norms_bf16", *ARCHITECTURES)  # in the repository


def is_narrow(name):
    """Returns true for a model whose runs compute in bfloat16."""
    return name.endswith("_bf16")


def computing(name, module):
    """Returns a region in which the module computes as the runs of this model do."""
    return narrowed(module, block_patterns(module)) if is_narrow(name) else contextlib.nullcontext()


def make(folder, name, plugins=()):
    """Writes one model and its data; returns the module, its loss and the data. `plugins`: libraries that it calls."""
    build, loss, samples = {**MODULES, **MODULES_WITH_PLUGINS, **ARCHITECTURES}[name]
    torch.manual_seed(20 + len(name))
    module = build()
    weft.export(module, samples(4), loss, path=str(folder / f"{name}.weft"),
                precisions=("float32", "bf16") if is_narrow(name) else ("float32",), plugins=plugins)
    data = samples(SAMPLES)
    for field, values in data.items():
        small = values.to(torch.uint8) if values.dtype == torch.int64 else values
        numpy.save(folder / f"{name}.{field}.npy", small.numpy())
    return module, loss, data


def figures(module, loss, data, batch):
    """Returns the loss and the metrics of the module in evaluation mode over the data, by PyTorch, in batches."""
    sums, samples = {}, len(next(iter(data.values())))
    torch.set_num_threads(1)
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        for begin in range(0, samples, batch):
            part = {n: t[begin:begin + batch].clone() for n, t in data.items()}
            many = min(batch, samples - begin)
            returned = loss(module, part)
            for name, figure in (returned if isinstance(returned, dict) else {"loss": returned}).items():
                total, count = figure if isinstance(figure, tuple) else (float(figure) * many, many)
                before = sums.get(name, (0.0, 0.0))
                sums[name] = before[0] + float(total), before[1] + float(count)
    module.train()
    return {name: total / count for name, (total, count) in sums.items()}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:3] == ["plugged"]:
        make(folder, "plugged", plugins=sys.argv[3:])
        return 0
    for name in sys.argv[2:] or KEPT:
        module, loss, data = make(folder, name)
        if name in SCORED:
            some = {n: t[:20] for n, t in data.items()}
            (folder / f"{name}.figures.json").write_text(json.dumps(figures(module, loss, some, 3)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
