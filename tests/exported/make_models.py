#!/usr/bin/env python3
"""Writes the exported models and data of the tests into a folder, with a Python that has torch and numpy.

    make_models.py FOLDER       tests/exported/models is the folder of the repository
"""
import pathlib
import sys

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import weft  # noqa: E402
from modules import MODULES  # noqa: E402

SAMPLES = 24  # of the data
KEPT = ("mlp", "cnn", "gpt_dropout", "gpt_tied", "gpt_counted", "cnn_norms", "drawing", "lstm")  # in the repository


def make(folder, name):
    """Writes one model and its data; returns the module, its loss and the data."""
    build, loss, samples = MODULES[name]
    torch.manual_seed(20 + len(name))
    module = build()
    weft.export(module, samples(4), loss, path=str(folder / f"{name}.weft"))
    data = samples(SAMPLES)
    for field, values in data.items():
        small = values.to(torch.uint8) if values.dtype == torch.int64 else values
        numpy.save(folder / f"{name}.{field}.npy", small.numpy())
    return module, loss, data


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        make(folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
