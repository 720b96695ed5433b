"""Checkpoints as state_dicts of PyTorch."""
import json
import os
import re
from pathlib import Path

import torch

from weft.errors import BadRun
from weft.graph_file import read_safetensors, write_safetensors

_INDEX = "model.safetensors.index.json"


def load_checkpoint(folder: str | os.PathLike, *, model: str | os.PathLike | None = None) -> dict[str, torch.Tensor]:
    """Returns the weights of a checkpoint as a state_dict.

    folder: the output folder of a training, of which the last checkpoint is taken, or one checkpoint.
    model: the exported folder that was trained. It is found by itself where the output folder has a summary.json.

    For an exported model, `module.load_state_dict(.., strict=True)` takes the result: it has frozen parameters, buffers,
    further names of tied parameters and counters. For a built-in model, docs/guide/models.md has the names.
    """
    checkpoint = _checkpoint_in(Path(folder))
    state = {}
    for file in sorted(set(_index_of(checkpoint)["weight_map"].values())):
        for name, tensor in read_safetensors(checkpoint / file).items():
            state[re.sub(r"^stage[0-9]+\.", "", name)] = tensor
    exported = Path(model) if model is not None else _exported_model_of(checkpoint.parent)
    return _completed(state, exported) if exported is not None else state


def export_weights(folder: str | os.PathLike, path: str | os.PathLike, *, model: str | os.PathLike | None = None) -> None:
    """Writes the state_dict of a checkpoint as one safetensors file; the parameters are those of `load_checkpoint`."""
    state = load_checkpoint(folder, model=model)
    shared, tensors = set(), {}
    for name, tensor in state.items():  # of tied names the first: a safetensors file holds each tensor once
        if tensor.data_ptr() not in shared or tensor.numel() == 0:
            tensors[name] = tensor
        shared.add(tensor.data_ptr())
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(Path(path), tensors)


def _checkpoint_in(folder: Path) -> Path:
    if (folder / _INDEX).exists():
        return folder
    found = [c for c in [folder / "checkpoint", *folder.glob("checkpoint-*")] if (c / _INDEX).exists()]
    if not found:
        raise BadRun(f"{folder} holds no whole checkpoint")
    return max(found, key=lambda c: int(_index_of(c)["metadata"]["version"]))


def _index_of(checkpoint: Path) -> dict:
    try:
        return json.loads((checkpoint / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRun(f"{checkpoint} is no whole checkpoint: {error}") from error


def _exported_model_of(output: Path) -> Path | None:
    try:
        run = json.loads((output / "summary.json").read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, KeyError):
        return None
    exported = run["model"].get("exported") if isinstance(run["model"], dict) else None
    return Path(exported["folder"]) if exported else None


def _completed(state: dict[str, torch.Tensor], exported: Path) -> dict[str, torch.Tensor]:
    """Returns the state with what a checkpoint does not hold, in the types that the module has."""
    try:
        model = json.loads((exported / "model.json").read_text(encoding="utf-8"))
        fixed = read_safetensors(exported / "weights.safetensors")
        unread = exported / "unread.safetensors"
        whole = {**fixed, **(read_safetensors(unread) if unread.exists() else {}), **state}
    except (OSError, ValueError) as error:
        raise BadRun(f"{exported} is not the exported model of this checkpoint: {error}; give it as model=") from error
    if set(state) - set(fixed):
        raise BadRun(f"{exported} is not the model of this checkpoint, which has {sorted(set(state) - set(fixed))[0]}")
    from weft.graph_file import TYPE_OF
    others = [model.get("count"), model.get("evaluation")]
    for layer in [*model["layers"], *(other for other in others if isinstance(other, dict))]:
        for constant in layer["constants"]:
            whole[constant["name"]] = whole[constant["name"]].to(TYPE_OF[constant["type"]])
    for name in model["outside_state"]:
        del whole[name]
    whole.update({alias: whole[name] for alias, name in model["aliases"].items()})
    return whole
