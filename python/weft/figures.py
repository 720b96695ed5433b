"""Reads the result of a loss function: the loss, and further figures by name that an evaluation shows.

A figure is a mean over the samples by itself, or a sum and its count, so that its mean is exact over unequal batches.
"""
import re
from dataclasses import dataclass
from typing import Any, Callable

import torch

from weft.errors import NotExportable

# Names that lines and tables of a validation or evaluation use themselves.
_TAKEN = ("all_samples", "checkpoint", "correct", "name", "predictions", "samples", "step", "version")
_MOST = 64
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class WrongFigures(NotExportable):
    """The loss function returns something that is no figure."""


@dataclass(frozen=True)
class FigureForm:
    name: str
    counted: bool  # a sum, beside which its count is returned


class _Fields(dict):
    """The fields of the example, which say what is missing."""

    def __missing__(self, name):
        raise NotExportable(f"the loss function reads the field {name!r}, and the example has only {', '.join(sorted(self))}")


class Figures:
    """Calls a loss function, with fields of the types that it was given them in."""

    def __init__(self, loss: Callable, types: dict[str, torch.dtype]):
        self._loss, self._types = loss, types
        self.forms: list[FigureForm] = []  # of the last packing
        self.further = False               # true once there was a figure beside the loss

    def loss(self, model: torch.nn.Module, fields: dict[str, torch.Tensor]) -> Any:
        """Returns the loss alone, as the function returns it: a number, or a sum and its count."""
        return self._named(model, fields)["loss"]

    def packed(self, model: torch.nn.Module, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the figures in one tensor of float64: the loss, then the others by name, counts behind their sums."""
        named = self._named(model, fields)
        forms, numbers = [], []
        for name in ["loss", *sorted(n for n in named if n != "loss")]:
            parts = named[name] if isinstance(named[name], (tuple, list)) else (named[name],)
            if len(parts) not in (1, 2):
                raise WrongFigures(f"the figure {name} has {len(parts)} numbers; return one, or a sum and its count")
            forms.append(FigureForm(name, len(parts) == 2))
            numbers += [_number(name, part) for part in parts]
        self.forms = forms
        return torch.stack(numbers)

    def _named(self, model, fields) -> dict:
        # A cast to the type that it has would be an operation of the graph.
        given = {n: t if t.dtype == self._types[n] else t.to(self._types[n]) for n, t in fields.items()}
        returned = self._loss(model, _Fields(given))
        named = returned if isinstance(returned, dict) else {"loss": returned}
        _check_names(named)
        self.further = self.further or len(named) > 1
        return named


def _check_names(named: dict) -> None:
    if "loss" not in named:
        raise WrongFigures('the loss function returns a dictionary without "loss"')
    if len(named) > _MOST:
        raise WrongFigures(f"the loss function returns {len(named)} figures, and {_MOST} are the most")
    for name in named:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WrongFigures(f"the figure {name!r} must have a name of letters, digits and _, as top5_accuracy")
        if name in _TAKEN:
            raise WrongFigures(f"the figure {name} must have another name; weft eval prints something else under it")


def _number(name: str, part: Any) -> torch.Tensor:
    if isinstance(part, torch.Tensor) and part.dim() == 0 and not part.is_complex():
        return part.to(torch.float64)
    if isinstance(part, (int, float)):
        return torch.full((), part, dtype=torch.float64)
    kind = f"a tensor of the size {list(part.shape)}" if isinstance(part, torch.Tensor) else f"a {type(part).__name__}"
    raise WrongFigures(f"the figure {name} is {kind}; return one number, or a sum and its count")
