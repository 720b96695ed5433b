"""The folder of an exported model: `model.json`, graphs of operations, and `weights.safetensors`.

docs/guide/exported_format.md in Weft's documentation describes the format.
"""
import json
import math
import os
import struct
from typing import Any

import torch

from weft.errors import NotExportable

FORMAT = 3
# The file of the graphs for each precision of a run.
MODEL_FILES = {"float32": "model.json", "bf16": "model.bf16.json"}

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64",
         torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
         torch.bool: "BOOL"}
TYPE_OF = {name: dtype for dtype, name in TYPES.items()}
# Types that a weights file holds as another one, without loss.
_HELD_AS = {torch.bool: torch.uint8, torch.int32: torch.int64, torch.int16: torch.int64, torch.int8: torch.int64}
_HELD = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
_MEMORY_FORMATS = {torch.contiguous_format: "contiguous", torch.preserve_format: "preserve",
                   torch.channels_last: "channels_last"}


class Samples:
    """A whole number in a graph that is so many times the samples of a micro-batch."""

    def __init__(self, times: int):
        self.times = times


def argument_json(value: Any, number_of) -> Any:
    """Returns an argument of an operation in the form of the file; `number_of` gives a value's number."""
    number = number_of(value)
    if number is not None:
        return {"value": number}
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Samples):
        return {"samples": value.times}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, (list, tuple)):
        if any(number_of(v) is not None for v in value):
            return {"values": [number_of(v) for v in value]}
        return {"list": [argument_json(v, number_of) for v in value]}
    if isinstance(value, torch.dtype):
        return {"type": TYPES[value]}
    if isinstance(value, torch.device):
        return {"device": "own"}
    if value is torch.strided:
        return {"layout": "strided"}
    if isinstance(value, torch.memory_format) and value in _MEMORY_FORMATS:
        return {"memory_format": _MEMORY_FORMATS[value]}
    raise NotExportable(f"an argument of the type {type(value).__name__} has no form in the file")


def argument_of(form: Any, values: list, samples: int, device: torch.device) -> Any:
    """Returns the argument that the file's form says, for an operation on `values` of so many samples."""
    if not isinstance(form, dict):
        return form
    (kind, content), = form.items()
    if kind == "value":
        return values[content]
    if kind == "values":
        return [None if number is None else values[number] for number in content]
    if kind == "list":
        return [argument_of(v, values, samples, device) for v in content]
    if kind == "samples":
        return content * samples
    if kind == "float":
        return float(content)
    if kind == "text":
        return content
    if kind == "type":
        return TYPE_OF[content]
    if kind == "device":
        return device
    if kind == "layout":
        return torch.strided
    if kind == "memory_format":
        return {name: f for f, name in _MEMORY_FORMATS.items()}[content]
    raise ValueError(f"the file has an argument of the unknown kind {kind}")


def write_weights(path: str, tensors: dict[str, torch.Tensor], unread: dict[str, torch.Tensor]) -> None:
    """Writes the weights of a folder, which is there.

    unread: the part of the module's state_dict that no layer reads. Workers do not read it.
    """
    write_safetensors(os.path.join(path, "weights.safetensors"), tensors)
    if unread:
        write_safetensors(os.path.join(path, "unread.safetensors"), unread)


def write_model(path: str, model: dict, precision: str = "float32") -> None:
    """Writes the graphs of a precision."""
    file = os.path.join(path, MODEL_FILES[precision])
    with open(f"{file}.partial", "w", encoding="utf-8") as partial:
        json.dump(model, partial, separators=(",", ":"))
    os.replace(f"{file}.partial", file)


def read_folder(path: str, precision: str = "float32") -> tuple[dict, dict[str, torch.Tensor]]:
    """Returns the graphs of a folder, and its tensors by name."""
    with open(os.path.join(path, MODEL_FILES[precision]), encoding="utf-8") as file:
        model = json.load(file)
    return model, read_safetensors(os.path.join(path, "weights.safetensors"))


def write_safetensors(path: str | os.PathLike, tensors: dict[str, torch.Tensor]) -> None:
    """Writes the file, whole or not at all."""
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        held = tensor.detach().cpu().to(_HELD_AS.get(tensor.dtype, tensor.dtype)).contiguous()
        if held.dtype not in _HELD:
            raise NotExportable(f"{name} is of the type {held.dtype}; weights are float32, and buffers float32, "
                                "bfloat16, bool or whole numbers: convert it, as model.float() does")
        part = held.view(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""
        header[name] = {"dtype": _HELD[held.dtype], "shape": list(held.shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = os.fspath(path) + ".partial"
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    os.replace(partial, path)


def read_safetensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file by their names."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = TYPE_OF[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors
