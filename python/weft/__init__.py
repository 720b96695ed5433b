"""Weft's side in Python: gives a PyTorch model to `weft train`.

    weft.export(model, example, loss=my_loss, path="model.weft")

writes the model, its loss and its weights as a folder; a run file names it as `model: {exported: model.weft}`.
Only `export` needs torch.
"""
from weft.errors import NotExportable

__all__ = ["NotExportable", "export"]


def export(*arguments, **keywords):
    """Exports a model; `weft.exporting.export` has the parameters."""
    from weft.exporting import export as run  # torch takes seconds to import
    return run(*arguments, **keywords)
