"""Weft in Python: gives a PyTorch model and its data to Weft, trains them, and takes the weights back.

    layers = weft.export(model, example, loss=my_loss, path="model.weft")
    data = weft.write_data(samples, "data")
    done = weft.train({"model": {"exported": "model.weft"}, "data": data, "stages": 2, "schedule": "1f1b",
                       "train": {"steps": 100, "batch": 32, "microbatches": 4}})
    model.load_state_dict(done.state_dict(), strict=True)

docs/guide/python.md has all of it. Functions that give or take weights need torch; no other part imports it.
"""
import importlib
from typing import TYPE_CHECKING

from weft.errors import BadRun, NotExportable, RunFailed, WeftError

if TYPE_CHECKING:
    from weft.checkpoints import export_weights, load_checkpoint
    from weft.data import tokenizer_hash, write_data
    from weft.exporting import export
    from weft.gpt2 import from_gpt2, to_gpt2
    from weft.runs import compare, evaluate, plan, simulate
    from weft.training import Training, train

__all__ = ["BadRun", "NotExportable", "RunFailed", "Training", "WeftError", "compare", "evaluate", "export",
           "export_weights", "from_gpt2", "load_checkpoint", "plan", "simulate", "to_gpt2", "tokenizer_hash", "train",
           "write_data"]

# Module of each name; torch and numpy are imported when they are first needed.
_MODULES = {"compare": "runs", "evaluate": "runs",
            "export": "exporting", "export_weights": "checkpoints", "load_checkpoint": "checkpoints",
            "from_gpt2": "gpt2", "to_gpt2": "gpt2", "plan": "runs", "simulate": "runs", "tokenizer_hash": "data", "train": "training", "Training": "training",
            "write_data": "data"}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(importlib.import_module(f"weft.{_MODULES[name]}"), name)


def __dir__():
    return sorted({*globals(), *_MODULES})
