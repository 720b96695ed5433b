"""`weft.write_data`: writes samples from anything iterable as the arrays that a run reads."""
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Iterable

import numpy

from weft.errors import BadRun

_HEADER = 128  # bytes of an array's header, which is written once the samples are counted


def write_data(dataset: Iterable | str | os.PathLike, folder: str | os.PathLike, *, fields: list[str] | None = None,
               length: int | None = None, pad: dict[str, float] | float = 0, tokenizer: Any = None) -> dict[str, Any]:
    """Writes each field of the samples as one array, and returns the section `data` of a run that reads them.

    dataset: samples one after the other, each a dictionary of numbers, lists, arrays or tensors by field: a dataset of
        Hugging Face or of PyTorch, a generator, WebDataset. Or tuples, as most datasets of PyTorch give them, whose parts
        `fields` names in order. Or the path of a Parquet file, which needs pyarrow.
    folder: made if it is not there. NAME.npy holds the field NAME; what was there under that name is replaced.
    fields: names of the fields to write; by default all of the first sample's. For tuples, the names of all their parts.
    length: cuts or pads the first dimension of each field that has one. Fields with samples of several lengths need it; then
        `NAME_mask` says, with 1 and 0, what is data.
    pad: the value that fills up, of all fields or by field, as {"labels": -100}.
    tokenizer: of the text that the samples come from; its hash is noted in data.json, so that a model can be kept together
        with the tokenizer that it was trained with.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, _Array] = {}
    try:
        for number, sample in enumerate(_samples(dataset)):
            sample = _named(sample, number, fields)
            for name in fields or (list(arrays) if arrays else list(sample)):
                if name.endswith("_mask") and name.removesuffix("_mask") in arrays and name not in sample:
                    continue  # made here
                if name not in sample:
                    raise BadRun(f"sample {number} has no field {name}")
                value, mask = _fitted(name, sample[name], length, pad)
                _array(arrays, target, name).append(number, value)
                if mask is not None and f"{name}_mask" not in sample:
                    _array(arrays, target, f"{name}_mask").append(number, mask)
        if not arrays:
            raise BadRun("the dataset has no sample")
        _drop_whole_masks(arrays)
        counts = {name: array.finish() for name, array in arrays.items()}
    finally:
        for array in arrays.values():
            array.drop()
    note = {"samples": next(iter(counts.values())), "fields": sorted(arrays)}
    if tokenizer is not None:
        note["tokenizer_sha256"] = tokenizer_hash(tokenizer)
    (target / "data.json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    return {"arrays": {name: str((target / f"{name}.npy").resolve()) for name in sorted(arrays)}}


def tokenizer_hash(tokenizer: Any) -> str:
    """Returns the SHA-256 of what a tokenizer does: of its rules where it can tell them, else of its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        text = backend.to_str()
    elif hasattr(tokenizer, "get_vocab"):
        text = json.dumps(sorted(tokenizer.get_vocab().items()))
    else:
        raise BadRun(f"a {type(tokenizer).__name__} says neither its rules nor its vocabulary; leave tokenizer= out")
    return hashlib.sha256(text.encode()).hexdigest()


def _samples(dataset) -> Iterable[Any]:
    if not isinstance(dataset, (str, os.PathLike)):
        if isinstance(dataset, dict):
            raise BadRun("write_data takes samples, each a dictionary, not one dictionary of columns")
        if not hasattr(dataset, "__iter__"):  # PyTorch's datasets are asked by number
            if not hasattr(dataset, "__len__"):
                raise BadRun(f"write_data takes samples one after the other, and not a {type(dataset).__name__}")
            return (dataset[i] for i in range(len(dataset)))
        return dataset
    if not str(dataset).endswith(".parquet"):
        raise BadRun(f"{dataset} is no Parquet file; read other files in Python, and give the samples")
    try:
        import pyarrow.parquet  # only for Parquet
    except ImportError as error:
        raise BadRun(f"reading {dataset} needs pyarrow: pip install pyarrow") from error
    rows = pyarrow.parquet.ParquetFile(dataset)
    return (sample for batch in rows.iter_batches() for sample in batch.to_pylist())


def _named(sample, number: int, fields: list[str] | None) -> dict[str, Any]:
    """Returns the sample's parts by the names of their fields."""
    if isinstance(sample, dict):
        return sample
    if not isinstance(sample, (tuple, list)):
        raise BadRun(f"sample {number} is a {type(sample).__name__}; write_data takes dictionaries of fields")
    if fields is None or len(fields) != len(sample):
        raise BadRun(f"sample {number} is a {type(sample).__name__} of {len(sample)} parts; name them all with fields=[..]")
    return dict(zip(fields, sample))


def _fitted(name, value, length, pad) -> tuple[numpy.ndarray, numpy.ndarray | None]:
    """Returns the value as an array of a type that arrays have, and what of it is data."""
    array = numpy.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype.kind == "b":
        array = array.astype(numpy.uint8)
    elif array.dtype.kind == "f":
        array = array.astype(numpy.float32)
    elif array.dtype.kind == "u" and array.size and int(array.max()) > numpy.iinfo(numpy.int64).max:
        raise BadRun(f"the field {name} holds {int(array.max())}; whole numbers have 64 bits with a sign")
    elif array.dtype.kind not in "iu":
        raise BadRun(f"the field {name} holds {array.dtype}; fields are numbers: tokenize text, decode images")
    if length is None or array.ndim == 0:
        return array, None
    data = min(length, array.shape[0])
    filled = numpy.full((length, *array.shape[1:]), pad.get(name, 0) if isinstance(pad, dict) else pad,
                        numpy.result_type(array.dtype, numpy.int16) if array.dtype.kind in "iu" else array.dtype)
    filled[:data] = array[:data]
    return filled, (numpy.arange(length) < data).astype(numpy.uint8)


def _drop_whole_masks(arrays: dict[str, "_Array"]) -> None:
    """Forgets masks of fields that were never filled up."""
    for name in [n for n, a in arrays.items() if n.endswith("_mask") and a.made_here and a.all_ones]:
        arrays.pop(name).drop()


def _array(arrays, target, name) -> "_Array":
    if name not in arrays:
        arrays[name] = _Array(target / f"{name}.npy", made_here=name.endswith("_mask"))
    return arrays[name]


class _Array:
    """An array that grows by samples. It has its name once it is whole."""

    def __init__(self, path: Path, made_here: bool):
        self._path, self._partial = path, path.with_suffix(".npy.partial")
        self._file = open(self._partial, "wb")
        self._file.write(b" " * _HEADER)
        self._count, self._shape, self._dtype = 0, None, None
        self.made_here, self.all_ones = made_here, True

    def append(self, number: int, value: numpy.ndarray) -> None:
        if self._shape is None:
            # Whole numbers are held as wide as any sample may need, for later ones may be larger; those of images stay.
            self._shape = value.shape
            self._dtype = numpy.dtype("<i8") if value.dtype.kind in "iu" and value.dtype != numpy.uint8 else value.dtype
        if value.shape != self._shape:
            raise BadRun(f"sample {number} has the sizes {list(value.shape)} in {self._path.stem}, and the first "
                         f"{list(self._shape)}; give length= to pad")
        if not numpy.can_cast(value.dtype, self._dtype, "safe" if self._dtype == numpy.uint8 else "same_kind"):
            raise BadRun(f"sample {number} has {value.dtype} in {self._path.stem}, and the first {self._dtype}; make all "
                         "of them one kind, as float(value)")
        self.all_ones = self.all_ones and bool((value == 1).all())
        self._file.write(numpy.ascontiguousarray(value, self._dtype).tobytes())
        self._count += 1

    def finish(self) -> int:
        """Writes the header and gives the file its name; returns the number of samples."""
        head = repr({"descr": self._dtype.str, "fortran_order": False, "shape": (self._count, *self._shape)})
        room = _HEADER - 10
        if len(head) >= room:
            raise BadRun(f"the field {self._path.stem} has too many dimensions")
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + head.encode().ljust(room - 1) + b"\n")
        self._file.close()
        os.replace(self._partial, self._path)
        return self._count

    def drop(self) -> None:
        """Leaves nothing of an array that is not whole."""
        self._file.close()
        self._partial.unlink(missing_ok=True)
