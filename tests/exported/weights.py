#!/usr/bin/env python3
"""Trains with weights from files, and writes weights to one, by real processes and without PyTorch.

    weights.py BIN_DIR

The models are those of tests/exported/models, and a built-in one.
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import exported  # noqa: E402
from bits import tensors_in  # noqa: E402

BUILT_IN = """
model: {gpt: {layers: 2, width: 16, heads: 2, context: 8}}
data: {text: {path: text.txt}}
train: {steps: 2, batch: 8, microbatches: 2}
stages: 2
schedule: 1f1b
"""


def read(path):
    """The tensors of a file: the format's word, the sizes and the bytes of each, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {n: (e["dtype"], e["shape"], data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]])
            for n, e in header.items()}


def write(path, tensors):
    header, content = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def write_shards(folder, tensors):
    """Writes two files and an index, as transformers does."""
    folder.mkdir()
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate([names[::2], names[1::2]]):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        write(folder / file, {n: tensors[n] for n in part})
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def as_bfloat16(tensor):
    """The upper halves of float32 numbers."""
    dtype, shape, data = tensor
    return ("BF16", shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))) if dtype == "F32" else tensor


def widened(tensor):
    dtype, shape, data = tensor
    return ("F32", shape, b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))) if dtype == "BF16" else tensor


def as_float16(tensor):
    dtype, shape, data = tensor
    halves = [max(-65504.0, min(65504.0, v)) for v in struct.unpack(f"<{len(data) // 4}f", data)]
    return ("F16", shape, struct.pack(f"<{len(halves)}e", *halves))


def of_half(tensor):
    _, shape, data = tensor
    return ("F32", shape, struct.pack(f"<{len(data) // 2}f", *struct.unpack(f"<{len(data) // 2}e", data)))


def initial(weft, run, out, *flags):
    """The weights with which a training begins, by name in the model."""
    exported.train(weft, run, out, *flags)
    found = tensors_in((out / "checkpoint-0").glob("*.safetensors"))
    return {name.split(".", 1)[1]: value for name, value in found.items()}


def check_exported(weft, folder):
    """An exported model begins with the weights of a file, in each form that they may have."""
    run, own = exported.run_file(folder, "mlp", steps=1), read(folder / "mlp.weft" / "weights.safetensors")
    # Other values than the exported ones; subnormal and special halves among those of one tensor.
    other = {n: (d, s, b[4:] + b[:4]) for n, (d, s, b) in own.items()}
    name = next(n for n, (_, s, _) in other.items() if s == [24] and "layers.0" in n)
    special = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -2.5, 65504.0, 1e-3, 0.333] + [0.25] * 14
    halves = {**other, name: ("F32", [24], struct.pack("<24f", *special))}
    write(folder / "plain.safetensors", other)
    narrow = {n: as_bfloat16(t) for n, t in other.items()}
    write_shards(folder / "narrow", narrow)
    half = {n: as_float16(t) if t[0] == "F32" else t for n, t in halves.items()}
    write(folder / "half.safetensors", half)
    cases = [("plain.safetensors", other), ("narrow", {n: widened(t) for n, t in narrow.items()}),
             ("half.safetensors", {n: of_half(t) if t[0] == "F16" else t for n, t in half.items()})]
    failures = []
    for number, (path, wanted) in enumerate(cases):
        made = initial(weft, run, folder / f"weights.{number}", "--weights", str(folder / path))
        if not made or any(value != wanted[n][2] for n, value in made.items()):
            failures.append(f"the training does not begin with {path}")
    # Frozen parameters come from the file too: changed ones give another loss.
    plain = exported.train(weft, run, folder / "plain", "--reference")
    frozen = {n: (d, s, b[4:] + b[:4] if n.startswith("layers.2") else b) for n, (d, s, b) in own.items()}
    write(folder / "frozen.safetensors", frozen)
    same = exported.train(weft, run, folder / "same", "--reference", "--weights", str(folder / "mlp.weft" / "weights.safetensors"))
    changed = exported.train(weft, run, folder / "changed", "--reference", "--weights", str(folder / "frozen.safetensors"))
    failures += [] if same == plain else ["the exported weights, named by --weights, are not the exported weights"]
    failures += [] if changed != plain else ["a frozen parameter is not taken from the file"]
    return failures


def check_round(weft, folder):
    """A checkpoint, as a folder and as one file, is what the next training begins with."""
    (folder / "text.txt").write_text("to be or not to be, that is the question: " * 20)
    (folder / "gpt.yaml").write_text(BUILT_IN)
    failures = []
    for name, run in (("gpt", folder / "gpt.yaml"), ("tied", exported.run_file(folder, "gpt_tied", stages=4))):
        out = folder / f"round.{name}"
        trained, _ = exported.train(weft, run, out)
        file = folder / f"{name}.safetensors"
        done = subprocess.run([weft, "export-weights", out, file], capture_output=True, text=True, check=False)
        wanted = {n.split(".", 1)[1]: value for n, value in trained.items()}
        if done.returncode != 0 or {n: t[2] for n, t in read(file).items()} != wanted:
            failures.append(f"{name}: export-weights ended with {done.returncode}: {done.stderr}")
            continue
        for number, path in enumerate([out / "checkpoint", file]):
            if initial(weft, run, folder / f"again.{name}.{number}", "--weights", str(path)) != wanted:
                failures.append(f"{name}: the training does not begin with {path}")
    return failures


def check_refusals(weft, folder):
    own = read(folder / "mlp.weft" / "weights.safetensors")
    first = "layers.0.weight"
    cases = [
        ("a missing tensor", {n: t for n, t in own.items() if n != first}, f"lacks 1 of the model's 8 tensors: {first}"),
        ("a tensor too many", {**own, "head.weight": own[first]}, "holds what the model does not have: head.weight"),
        ("another size", {**own, first: ("F32", [12, 24], own[first][2])}, "with the sizes [12, 24], and the model has it with [24, 12]"),
        ("another type", {**own, first: ("F64", [24, 6], own[first][2])}, "sizes"),
        ("whole numbers", {**own, first: ("I32", [24, 12], own[first][2])}, "as I32; weights are F32, BF16 or F16"),
        ("one frozen parameter of two", {n: t for n, t in own.items() if n != "layers.2.bias"}, "lacks 1 of"),
    ]
    failures = []
    run, path = exported.run_file(folder, "mlp"), folder / "wrong.safetensors"
    for title, tensors, words in cases:
        write(path, tensors)
        for flags, prefix in ((["--weights", path], "--weights: "), ([], "run.yaml:")):
            text = run.read_text()
            if not flags:
                run.write_text(text + "weights: wrong.safetensors\n")
            done = subprocess.run([weft, "train", run, "--out", folder / "refused", *flags], capture_output=True, text=True, check=False)
            run.write_text(text)
            good = done.returncode == 78 and words in done.stderr and prefix in done.stderr and done.stderr.count("\n") == 1
            if not good or (folder / "refused").exists():
                failures.append(f"{title}, {flags}: exit {done.returncode}, {done.stderr}")
    done = subprocess.run([weft, "train", run, "--weights", folder / "none"], capture_output=True, text=True, check=False)
    if done.returncode != 78 or "none" not in done.stderr:
        failures.append(f"no file: exit {done.returncode}, {done.stderr}")
    done = subprocess.run([weft, "export-weights", folder / "mlp.weft", folder / "x"], capture_output=True, text=True, check=False)
    if done.returncode != 78 or "holds no whole checkpoint" not in done.stderr:
        failures.append(f"export-weights of no checkpoint: exit {done.returncode}, {done.stderr}")
    print(f"{len(cases)} wrong files, {len(failures)} not refused as they should be")
    return failures


def main():
    weft = pathlib.Path(sys.argv[1]).resolve() / "weft"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(HERE / "models", folder, dirs_exist_ok=True)
        failures = check_exported(weft, folder) + check_round(weft, folder) + check_refusals(weft, folder)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
