#!/usr/bin/env python3
"""Trains exported models by real processes, and compares the bits.

    exported.py BIN_DIR           the models of tests/exported/models: every schedule against weft train --reference, evaluations,
                                  and what is refused
    exported.py BIN_DIR --device D   the same models on another device, whose library WEFT_DEVICE_PATH has: every schedule against
                                  weft train --reference there, which for the tests' own device has the bits of the CPU
    exported.py BIN_DIR --torch   exports the modules of modules.py anew, compares the first step of a training and evaluations
                                  with PyTorch's own, and tries what cannot be exported; exits 77, with one line, where python3 has no torch or numpy

make_models.py writes tests/exported/models.
"""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from bits import tensors_in  # noqa: E402
from standing_workers import StandingWorkers  # noqa: E402
# Micro-batches of 3 samples: the models were exported with 4.
RUN = """
model: {{exported: {model}.weft}}
data: {{arrays: {{{arrays}}}}}
train: {{steps: {steps}, batch: 12, microbatches: 4, seed: 3, optimizer: {optimizer}}}
stages: {stages}
schedule: {schedule}
precision: {precision}
"""
ADAMW = "{adamw: {lr: 0.01}}"
GROUPS = '{adamw: {lr: 0.01, weight_decay: 0.5, no_decay: ["*.bias", "conv?.1.*"]}}'
# Schedules and processes for each model; all models together meet every one.
SCHEDULES = {
    "mlp": [("1f1b", 1), ("{fsdp: }", 2), ("{zb_h1: }", 1)],
    "cnn": [("{ddp: }", 2), ("{fsdp: {shard: width}}", 1), ("{1f1b: , activations: offload}", 1)],
    "gpt_dropout": [("{lpp: {groups: 2, ranks: 2}}", 2), ("{zb_h1: }", 2), ("{1f1b: , activations: recompute}", 2),
                    ("{fsdp: , activations: offload}", 1)],
    "gpt_tied": [("1f1b", 2), ("{zb_h1: , activations: recompute}", 1), ("{fsdp: {shard: width}, activations: offload}", 2),
                 ("{lpp: {groups: 2, ranks: 2}}", 1), ("ddp", 1)],
    "gpt_counted": [("1f1b", 2), ("{ddp: , activations: recompute}", 1), ("{zb_h1: , activations: offload}", 1),
                    ("{fsdp: {shard: width}}", 2)],
    "cnn_norms": [("1f1b", 2), ("{ddp: , activations: recompute}", 1), ("{fsdp: {shard: width}}", 2)],
    "drawing": [("{ddp: }", 2), ("{1f1b: , activations: recompute}", 1), ("{zb_h1: , activations: offload}", 2)],
    "noisy": [("{fsdp: {shard: width}, activations: recompute}", 1), ("{zb_h1: }", 2)],
    "typed": [("{1f1b: }", 2), ("{zb_h1: , activations: recompute}", 1)],
    "functions": [("{zb_h1: , activations: recompute}", 1), ("{1f1b: , activations: offload}", 2)],
    "lstm": [("1f1b", 2), ("{zb_h1: , activations: recompute}", 1), ("{1f1b: , activations: offload}", 2)],
    "gpt_bf16": [("{zb_h1: , activations: recompute}", 2), ("{fsdp: {shard: width}, activations: offload}", 1), ("ddp", 2)],
    "norms_bf16": [("1f1b", 2), ("{fsdp: {shard: width}}", 1), ("{ddp: , activations: recompute}", 2)],
    "known_gpt2": [("{zb_h1: }", 2), ("{1f1b: , activations: offload}", 1)],
    "known_llama": [("{1f1b: , activations: recompute}", 2), ("{fsdp: {shard: width}}", 1)],
    "known_mixtral": [("{zb_h1: , activations: offload}", 2), ("ddp", 1)],
    "known_bert": [("{1f1b: }", 1), ("{zb_h1: , activations: recompute}", 2)],
    "known_t5": [("{1f1b: , activations: recompute}", 2), ("{fsdp: {shard: width}}", 1)],
    "known_vit": [("{zb_h1: }", 1), ("{1f1b: , activations: offload}", 2)],
    "known_efficientnet": [("1f1b", 2), ("{ddp: , activations: recompute}", 1)],
    "known_ddpm": [("{ddp: , activations: recompute}", 2), ("{fsdp: {shard: width}, activations: offload}", 1)],
}
DRAWING = ("drawing", "noisy", "known_gpt2", "known_ddpm")  # models whose numbers are drawn by Weft's keys
STAGES = {"known_ddpm": 1}  # U-Nets have no place to cut; others have 3


def run_file(folder, name, *, steps=3, optimizer=ADAMW, schedule=None, stages=None, precision=None):
    """Writes a run of a model in the folder; returns its path. Models that end with _bf16 compute in that."""
    fields = sorted(p.name.split(".")[1] for p in folder.glob(f"{name}.*.npy"))
    arrays = ", ".join(f"{field}: {name}.{field}.npy" for field in fields)
    path = folder / "run.yaml"
    stages = stages or STAGES.get(name, 3)
    schedule = schedule or ("ddp" if stages == 1 else "1f1b")
    precision = precision or ("bf16" if name.endswith("_bf16") else "float32")
    path.write_text(RUN.format(model=name, arrays=arrays, steps=steps, optimizer=optimizer, schedule=schedule, stages=stages,
                               precision=precision))
    return path


def train(weft, run, out, *flags):
    done = subprocess.run([weft, "train", run, "--out", out, *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"weft train {run.read_text()} {flags} ended with {done.returncode}: {done.stderr}")
    return trained(out)


def train_on(workers, processes, run, out):
    """Trains on so many of the workers that stay."""
    code, said = workers.train(run, out, ["--processes", str(processes)])
    if code != 0:
        sys.exit(f"weft submit {run.read_text()} on {processes} processes ended with {code}: {said}")
    return trained(out)


def trained(out):
    return tensors_in((out / "checkpoint").glob("*.safetensors")), [line["loss"] for line in lines_of(out) if "loss" in line]


def lines_of(out):
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def compare_schedules(weft, folder, workers, *flags, without=()):
    failures = []
    for name, cases in SCHEDULES.items():
        if name in without:
            continue
        wanted = train(weft, run_file(folder, name), folder / f"{name}.reference", "--reference", *flags)
        for number, (schedule, processes) in enumerate(cases):
            run = run_file(folder, name, schedule=schedule)
            made = train_on(workers, processes, run, folder / f"{name}.{number}")
            same = made == wanted and len(made[0]) > 0
            print(f"{name}, {schedule}, {processes} processes: {'equal' if same else 'DIFFERENT'}")
            failures += [] if same else [f"{name}, {schedule}"]
    return failures


def compare_on_device(weft, folder, workers, device):
    """Every schedule on the device; the tests' own has the bits of the CPU, where LibTorch takes its kernels."""
    # LibTorch computes an LSTM on devices by a fused cell, which the tests' own does not have; some functions give
    # outputs of another size to the kernels of the CPU there, and are not carried out.
    without = ["lstm", "functions"] if device == "testgpu" else []
    failures = compare_schedules(weft, folder, workers, "--device", device, without=without)
    if device == "testgpu":
        # Group norms and the backward of SiLU are put together of other operations there.
        composed = ("cnn", "mlp", "known_llama", "known_mixtral", "known_efficientnet", "known_ddpm")
        for name in SCHEDULES.keys() - {*without, *composed}:
            there = tensors_in((folder / f"{name}.reference" / "checkpoint").glob("*.safetensors"))
            here = train(weft, run_file(folder, name), folder / f"{name}.cpu", "--reference")[0]
            failures += [] if there == here else [f"{name}: other bits on {device} than on the CPU"]
    return failures


def compare_groups(weft, folder, workers):
    """Parameters that do not decay, among those that do and running averages: the same bits under every schedule."""
    wanted = train(weft, run_file(folder, "cnn_norms", optimizer=GROUPS), folder / "groups.reference", "--reference")
    every = train(weft, run_file(folder, "cnn_norms", optimizer=GROUPS.split(", no_decay")[0] + "}}"), folder / "groups.none", "--reference")
    failures = [] if wanted != every else ["no_decay changes nothing"]
    for number, (schedule, processes) in enumerate([("1f1b", 2), ("{fsdp: {shard: width}}", 2), ("ddp", 1)]):
        run = run_file(folder, "cnn_norms", schedule=schedule, optimizer=GROUPS)
        if train_on(workers, processes, run, folder / f"groups.{number}") != wanted:
            failures.append(f"no_decay, {schedule}")
    print(f"no_decay under 3 schedules: {len(failures)} failures")
    return failures


TIED = """
model: {{gpt: {{layers: 2, width: 16, heads: 2, context: 8, tied: true, dropout: 0.1}}}}
data: {{text: {{path: text.txt}}}}
train: {{steps: 3, batch: 8, microbatches: 4, optimizer: {{adamw: {{lr: 0.01}}}}, clip_norm: 1.0}}
stages: 4
schedule: {schedule}
"""


def plain_or_on(weft, workers, processes, run, out):
    """Trains on the workers, or by the plain loop if `processes` is 0."""
    return train(weft, run, out, "--reference") if processes == 0 else train_on(workers, processes, run, out)


def compare_tied(weft, folder, workers):
    """The built-in gpt with a tied embedding: the same bits under every schedule and precision; it can be evaluated and it writes."""
    (folder / "text.txt").write_text("to be or not to be, that is the question: " * 20)
    run, failures, wanted = folder / "run.yaml", [], None
    for number, (schedule, processes) in enumerate([("1f1b", 0), ("1f1b", 2), ("ddp", 1), ("{zb_h1: , activations: recompute}", 1),
                                                    ("{fsdp: {shard: width}, activations: offload}", 2),
                                                    ("{lpp: {groups: 2, ranks: 2}}", 1)]):
        run.write_text(TIED.format(schedule=schedule))
        made = plain_or_on(weft, workers, processes, run, folder / f"tied.{number}")
        wanted = wanted or made
        failures += [] if made == wanted else [f"a tied gpt, {schedule}"]
    if wanted[1][-1] >= wanted[1][0]:
        failures.append("a tied gpt does not learn")
    narrow = None
    for number, (schedule, processes) in enumerate([("1f1b", 0), ("1f1b", 2), ("{zb_h1: , activations: recompute}", 1),
                                                    ("{fsdp: {shard: width}, activations: offload}", 2), ("ddp", 1)]):
        run.write_text(TIED.format(schedule=schedule) + "precision: bf16\n")
        made = plain_or_on(weft, workers, processes, run, folder / f"tied.narrow{number}")
        narrow = narrow or made
        failures += [] if made == narrow else [f"a tied gpt in bf16, {schedule}"]
    if narrow[0] == wanted[0] or narrow[1][-1] >= narrow[1][0]:
        failures.append("a tied gpt in bf16 has the bits of float32, or does not learn")
    # A stage for the tied layer alone takes a rank, with the same bits, and is warned of.
    run.write_text(TIED.format(schedule="1f1b").replace("stages: 4", "stages: [1, 1, 2, 1]"))
    done = subprocess.run([weft, "train", run, "--out", folder / "tied.apart"], capture_output=True, text=True, check=False)
    if "stage 0 is a tied parameter alone (token)" not in done.stderr or "with stages: [2, 2, 1]" not in done.stderr:
        failures.append(f"a rank for a tied parameter is not warned of: {done.stderr}")
    summary = [json.loads((folder / out / "summary.json").read_text())["ranks"] for out in ("tied.1", "tied.apart")]
    failures += [] if summary == [4, 4] else [f"a tied gpt has {summary} ranks"]
    out = folder / "tied.1"
    for command in (["eval", run, "--checkpoint", out / "checkpoint"], ["generate", out, "--prompt", "to be"]):
        done = subprocess.run([weft, *command], capture_output=True, check=False)  # bytes: what it writes may be no text
        failures += [] if done.returncode == 0 and done.stdout else [f"a tied gpt, {command[0]}: exit {done.returncode}, {done.stderr}"]
    print(f"a tied gpt under 5 schedules: {len(failures)} failures")
    return failures


def compare_old_weights(weft, folder, workers):
    """A tied parameter is read as old as the stage behind it is, also where its state goes from rank to rank with that stage's."""
    failures = []
    schedules = ("{fsdp: {residency: migrating}, rule: cdp_v1}", "{fsdp: {residency: migrating}, rule: cdp_v2}", "{ddp: , rule: cdp_v2}",
                 "pipedream")
    for number, schedule in enumerate(schedules):
        run = run_file(folder, "gpt_tied", schedule=schedule, stages=4)
        if schedule == "pipedream":  # a step of it is a micro-batch
            run.write_text(run.read_text().replace("batch: 12, microbatches: 4", "batch: 3, microbatches: 1").replace("steps: 3", "steps: 9"))
        wanted = train(weft, run, folder / f"old.{number}.reference", "--reference")
        made = train_on(workers, 2, run, folder / f"old.{number}")
        ranks = json.loads((folder / f"old.{number}" / "summary.json").read_text())["ranks"]
        same = made == wanted and len(made[0]) > 0 and ranks == 4
        print(f"gpt_tied, {schedule}, 2 processes: {'equal' if same else 'DIFFERENT'}")
        failures += [] if same else [f"gpt_tied, {schedule}, {ranks} ranks"]
    return failures


def generated(weft, source, prompt, *flags):
    return subprocess.run([weft, "generate", source, "--prompt", prompt, "--temperature", "0", "--tokens", "16", "-o", "json", *flags],
                          capture_output=True, text=True, check=False)


def compare_generated(weft, folder, _):
    """Language models that were exported to be trained write what they have learned, past the end of their context."""
    failures, around = [], [1, 2, 3, 4, 5, 6, 7] * 3
    for name, tokens, labels, shift in (("gpt_scored", "tokens", "targets", 1), ("known_gpt2", "input_ids", "labels", 0),
                                        ("known_llama", "input_ids", "labels", 0)):
        write_array(folder / f"{name}.{tokens}.npy", "q", [around[i % 7:i % 7 + 8] for i in range(24)])
        write_array(folder / f"{name}.{labels}.npy", "q", [around[i % 7 + shift:i % 7 + shift + 8] for i in range(24)])
        run, out = run_file(folder, name, stages=2, steps=60, optimizer="{adamw: {lr: 0.02}}"), folder / f"{name}.wrote"
        train(weft, run, out, "--reference")
        done = generated(weft, out, "3 4 5")
        wrote = json.loads(done.stdout)["tokens"] if done.returncode == 0 else done.stderr
        print(f"{name} writes {wrote}")
        failures += [] if wrote == (around * 2)[5:21] else [f"{name} writes {wrote}"]
    unknown = generated(weft, folder / "gpt_scored.wrote", "3 99")
    refused = generated(weft, run_file(folder, "classifier", stages=1), "1")
    # The same model, but that attention sees all tokens where it is evaluated.
    path = folder / "gpt_scored.weft" / "model.json"
    model = json.loads(path.read_text())
    for operation in model["evaluation"]["operations"]:
        if operation["op"] == "aten::scaled_dot_product_attention":
            operation["arguments"][3] = None
    path.write_text(json.dumps(model))
    run = run_file(folder, "gpt_scored", stages=2)
    seeing = generated(weft, run, "3 4 5", "--checkpoint", folder / "gpt_scored.wrote" / "checkpoint")
    for done, words in ((unknown, "token 99 is not in the model's vocabulary"), (refused, "its scores depend on x, and not on one field of tokens"),
                        (seeing, "only a causal model writes text")):
        failures += [] if done.returncode != 0 and words in done.stderr else [f"generate: exit {done.returncode}, {done.stderr}, not {words}"]
    return failures


# ---- data

def write_array(path, type_, samples):
    """Writes rows of whole numbers as numpy.save does. `type_`: a letter of struct."""
    name = {"H": "<u2", "q": "<i8"}[type_]
    header = repr({"descr": name, "fortran_order": False, "shape": (len(samples), len(samples[0]))}).ljust(117) + "\n"
    numbers = [number for sample in samples for number in sample]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(numbers)}{type_}", *numbers))


def compare_tokens(weft, folder, workers):
    """A file of tokens, and the same samples as arrays of several files: the same training and validations, shuffled too."""
    tokens = [i * i % 29 for i in range(24 * 8 + 1)]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    samples = [tokens[8 * j:8 * j + 8] for j in range(24)]
    write_array(folder / "first.npy", "H", samples[:10])
    write_array(folder / "rest.npy", "q", samples[10:])
    write_array(folder / "next.npy", "H", [tokens[8 * j + 1:8 * j + 9] for j in range(24)])
    arrays = "arrays: {tokens: [first.npy, rest.npy], targets: next.npy}"
    text = "text: {path: tokens.bin, tokens: uint16, inputs: tokens, targets: [targets]}"
    failures, made = [], {}
    for order in ("sequential", "shuffled"):
        for number, data in enumerate((arrays, text)):
            run, out = run_file(folder, "gpt_scored", stages=2), folder / f"tokens.{order}.{number}"
            content = re.sub("data: .*", f"data: {{{data}, order: {order}}}", run.read_text())
            run.write_text(content + f"validate: {{data: {{{data}}}, every: 1}}\n")
            made[order, number] = train_on(workers, 1, run, out), validations(out)
        failures += [] if made[order, 0] == made[order, 1] else [f"tokens, {order}: other bits than arrays"]
    if made["sequential", 0][0] == made["shuffled", 0][0] or not made["shuffled", 1][1]:
        failures.append("the order of samples, or the validation, has no part in the test of tokens")
    run.write_text(run.read_text().replace(", targets: [targets]", ""))
    done = subprocess.run([weft, "train", run, "--out", folder / "refused"], capture_output=True, text=True, check=False)
    failures += [] if done.returncode == 78 and "the model's field targets gets no tokens" in done.stderr else [f"a field without tokens: {done.stderr}"]
    print(f"files of tokens: {len(failures)} failures")
    return failures


# ---- evaluation

def with_validation(run, name, every=1):
    """Adds a validation on the data of the training to the run file."""
    arrays = run.read_text().split("data: ")[1].splitlines()[0]
    run.write_text(run.read_text() + f"validate: {{data: {arrays}, every: {every}}}\n")
    return run


def evaluate(weft, run, checkpoint, *flags):
    """Returns what weft eval prints."""
    command = [weft, "eval", run, "--checkpoint", checkpoint, "-o", "json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"weft eval {run.read_text()} {flags} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def validations(out):
    return [line for line in lines_of(out) if "validation_loss" in line]


def compare_evaluations(weft, folder, workers):
    """Models with metrics: weft eval has PyTorch's figures, and validations have those of weft eval, under every schedule."""
    failures = []
    for name, schedules in (("classifier", ["1f1b", "{fsdp: {shard: width}}"]), ("gpt_scored", ["zb_h1", "ddp"])):
        wanted = json.loads((folder / f"{name}.figures.json").read_text())
        run, out = with_validation(run_file(folder, name), name), folder / f"{name}.evaluated"
        wanted_end = train(weft, run, out, "--reference")
        own = validations(out)
        made = evaluate(weft, run, out / "checkpoint-0", "--samples", "20")
        # Weights and data are those of the repository; the last bits are the machine's.
        differing = [n for n, value in wanted.items() if abs(made.get(n, -1) - value) > 1e-5]
        failures += [f"{name}: {made}, and PyTorch has {wanted}"] if differing or made["samples"] != 20 else []
        arrays = ",".join(f"{p.name.split('.')[1]}={p}" for p in folder.glob(f"{name}.*.npy"))
        last = {f"validation_{n}": own[-1][f"validation_{n}"] for n in wanted}
        for flags in (["--validation"], ["--data-arrays", arrays], []):
            made = evaluate(weft, run, out / "checkpoint", *flags)
            same = {f"validation_{n}": made[n] for n in wanted} == last
            failures += [] if same else [f"{name} {flags}: {made}, and {own[-1]} on the way"]
        if len(own) != 3 or own[0] == own[2]:
            failures.append(f"{name} was not validated after each step: {own}")
        for number, schedule in enumerate(schedules):
            other = folder / f"{name}.validated{number}"
            run = with_validation(run_file(folder, name, schedule=schedule), name)
            made = train_on(workers, 2, run, other)
            summary = json.loads((other / "summary.json").read_text())
            same = validations(other) == own and made == wanted_end and all(summary[n] == v for n, v in last.items())
            failures += [] if same else [f"{name}, {schedule}: validations {validations(other)}, and {own} by the plain loop"]
            print(f"{name}, {schedule}: validations {'equal' if same else 'DIFFERENT'}")
        table = subprocess.run([weft, "eval", run, "--checkpoint", out], capture_output=True, text=True, check=False).stdout
        failures += [] if all(f"{n} " in table for n in wanted) and "predictions" not in table else [f"{name}: {table}"]
    return failures


def check_evaluation_refusals(weft, folder, _):
    """Checks that a model that cannot be evaluated is refused in one sentence, before anything starts."""
    failures = []

    def expect(code, words, *command):
        done = subprocess.run([weft, *command], capture_output=True, text=True, check=False)
        if done.returncode != code or words not in done.stderr or done.stdout:
            failures.append(f"{command}: exit {done.returncode}, {done.stderr}")

    run = run_file(folder, "mlp")
    train(weft, run, folder / "older", "--reference")
    older = "has no graph of its evaluation: an older version exported it"
    expect(78, older, "eval", run, "--checkpoint", folder / "older")
    expect(78, older, "train", with_validation(run, "mlp"), "--out", folder / "none")
    run = run_file(folder, "classifier")
    checkpoint = ["--checkpoint", folder / "classifier.evaluated"]
    expect(78, "the model's field x has no file", "eval", run, *checkpoint, "--data-arrays", f"classes={folder}/classifier.classes.npy")
    expect(2, "takes FIELD=FILE", "eval", run, *checkpoint, "--data-arrays", "classes.npy")
    path = folder / "classifier.weft" / "model.json"
    content = path.read_text()
    model = json.loads(content)
    next(o for o in model["evaluation"]["operations"] if o["op"] == "aten::topk")["arguments"][1] = 9
    path.write_text(json.dumps(model))
    for command in (["eval", run, *checkpoint], ["eval", run, *checkpoint, "--data-arrays",
                    f"classes={folder}/classifier.classes.npy,x={folder}/classifier.x.npy"], ["train", run, "--out", folder / "none"]):
        expect(78, "layer evaluation: ", *command)
    path.write_text(content)
    path = folder / "gpt_scored.targets.npy"
    full = path.read_bytes()
    path.write_bytes(full[:-24 * 8] + bytes(24 * 8))
    expect(78, "the loss is a sum over a count of 0", "eval", run_file(folder, "gpt_scored"), "--checkpoint", folder / "gpt_scored.evaluated")
    path.write_bytes(full)
    print(f"what cannot be evaluated: {len(failures)} not refused as it should be")
    return failures


# ---- what is refused

def changed_model(folder, change):
    """Copies the mlp, with its model changed."""
    copy = folder / "mlp.weft"
    shutil.rmtree(copy)
    shutil.copytree(HERE / "models" / "mlp.weft", copy)
    model = json.loads((copy / "model.json").read_text())
    change(model)
    (copy / "model.json").write_text(json.dumps(model))


def _operation(model):
    return model["layers"][0]["operations"][1]


REFUSED = [
    ("another version", lambda m: m.update(format=1), "has the format 1, and this version reads 2 and 3"),
    ("an operation that reads files", lambda m: _operation(m).update(op="aten::from_file"), "aten::from_file"),
    ("an operation that writes", lambda m: _operation(m).update(op="aten::add_.Tensor"), "aten::add_"),
    ("an overload that is not there", lambda m: _operation(m).update(op="aten::linear.none"), "does not have the operation"),
    ("an argument too few", lambda m: _operation(m)["arguments"].pop(), "has 3 arguments, and the file 2"),
    ("an argument of another type", lambda m: _operation(m)["arguments"].__setitem__(0, {"text": "x"}), "not of the type"),
    ("a value from behind", lambda m: _operation(m)["arguments"].__setitem__(0, {"value": 99}), "is not a whole number from 0 to"),
    ("a missing field", lambda m: m["layers"][1].pop("output"), 'the field "output" is missing'),
    ("a field of the data that is not there", lambda m: m["layers"][0]["reads"]["fields"].append("z"), "does not have"),
    ("another size than the weights'", lambda m: m["layers"][0]["parameters"][0].update(sizes=[24, 13]), "mat1 and mat2 shapes"),
    ("another name than the weights'", lambda m: m["layers"][0]["parameters"][0].update(name="w"), "holds no w"),
    ("another size than the data's", lambda m: m["fields"][1].update(sizes=[13]), "of layer layers.0"),
    ("no weights", lambda m: m.update(weights=False), "export it on the CPU to train it"),
    ("an output of another size", lambda m: m["layers"][0]["output"].update(sizes=[25]), "are announced"),
]


def check_refusals(weft, folder, _):
    failures = []
    run = run_file(folder, "mlp")
    for title, change, words in REFUSED:
        changed_model(folder, change)
        done = subprocess.run([weft, "train", run, "--out", folder / "refused"], capture_output=True, text=True, check=False)
        if done.returncode != 78 or words not in done.stderr or (folder / "refused").exists():
            failures.append(f"{title}: exit {done.returncode}, {done.stderr}")
    changed_model(folder, lambda m: None)
    narrow = run_file(folder, "mlp", precision="bf16")
    done = subprocess.run([weft, "train", narrow, "--out", folder / "refused"], capture_output=True, text=True, check=False)
    if done.returncode != 78 or 'was exported for float32 alone; export it with precisions=("float32", "bf16")' not in done.stderr:
        failures.append(f"bf16 without graphs for it: exit {done.returncode}, {done.stderr}")
    print(f"{len(REFUSED) + 1} wrong models, {len(failures)} not refused as they should be")
    return failures


def check_empty_count(weft, folder, _):
    """A step whose loss counts nothing ends the run with its number."""
    path = folder / "gpt_counted.targets.npy"
    full = path.read_bytes()
    elements = 24 * 8  # of one byte each
    path.write_bytes(full[:-elements] + bytes(elements))
    done = subprocess.run([weft, "train", run_file(folder, "gpt_counted"), "--out", folder / "empty"], capture_output=True, text=True, check=False)
    path.write_bytes(full)
    said = done.returncode == 1 and "(step 0, stage 2" in done.stderr and "the loss of step 0 is a sum over a count of 0" in done.stderr
    return [] if said else [f"a step that counts nothing: exit {done.returncode}, {done.stderr}"]


# ---- PyTorch's own first step

def first_step(module, loss, data, computing=contextlib.nullcontext()):
    """Returns the loss, and the parameters and running averages after one step of plain gradient descent, with the
    arithmetic of the run. `computing`: a region in which the module computes in the run's precision."""
    import torch  # only where it is there
    norms = {n: (m, m.momentum) for n, m in module.named_modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)}
    averages = {f"{n}.{part}": (getattr(m, part), getattr(m, part).clone(), momentum, [])
                for n, (m, momentum) in norms.items() for part in ("running_mean", "running_var")}
    for norm, _ in norms.values():
        norm.momentum = 1  # the averages become the micro-batch's own
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    parts = [{n: t[3 * b:3 * b + 3].contiguous() for n, t in data.items()} for b in range(4)]
    divisor = None
    losses, sums = [], None
    with computing:
        if isinstance(loss(module, parts[0]), tuple):  # a sum and a count
            divisor = as_float32(sum(loss(module, part)[1].item() for part in parts) / 4)
        for part in parts:
            value = loss(module, part) if divisor is None else loss(module, part)[0] / divisor
            gradients = torch.autograd.grad(value, list(trained.values()), grad_outputs=torch.tensor(0.25))
            gradients = [g.float() for g in gradients]
            losses.append(value.item())
            for average, _, _, measured in averages.values():
                measured.append(average.clone())
            sums = gradients if sums is None else [s + g for s, g in zip(sums, gradients)]
    for norm, momentum in norms.values():
        norm.momentum = momentum
    stepped = {n: (p - 0.5 * g).detach() for (n, p), g in zip(trained.items(), sums)}
    for name, (_, before, momentum, measured) in averages.items():
        part = as_float32(momentum)
        stepped[name] = before * (1 - part) + sum(measured[1:], measured[0]) / 4 * part
    return sum(losses) / 4, stepped


def as_float32(number):
    """Returns the number, rounded to float32."""
    return struct.unpack("f", struct.pack("f", number))[0]


def compare_with_torch(weft, folder):
    import torch  # only where it is there
    sys.path.insert(0, str(HERE))
    import make_models
    torch.set_num_threads(1)
    failures = []
    for name in make_models.MODULES:
        if name in ("gpt_dropout", *DRAWING, *make_models.SCORED):
            continue  # their masks are Weft's own
        module, loss, data = make_models.make(folder, name)
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            wanted_loss, wanted = first_step(module, loss, data, make_models.computing(name, module))
        if name == "gpt_counted":  # the mean of the step is that of one large batch
            total, count = loss(module, {n: t[:12] for n, t in data.items()})
            failures += [] if abs(wanted_loss - (total / count).item()) < 1e-6 else ["the mean over unequal counts"]
        run = run_file(folder, name, steps=1, optimizer="{sgd: {lr: 0.5}}")
        made, losses = train(weft, run, folder / name, "--processes", "1")
        made = {key.split(".", 1)[1]: value for key, value in made.items()}
        differing = [n for n, p in wanted.items() if made.get(n) != p.numpy().tobytes()]
        same = losses == [wanted_loss] and not differing and len(made) == len(wanted)
        print(f"{name}: loss {losses[0]!r}, PyTorch's {wanted_loss!r}; {len(wanted) - len(differing)} of {len(wanted)} tensors equal")
        failures += [] if same else [name]
    return failures


def evaluate_with_torch(weft, folder):
    """Every module in evaluation mode, after a training by Weft: the bits of PyTorch, also of a last batch that is smaller."""
    import make_models  # only where torch is there
    import weft as package
    failures = []
    for name in make_models.MODULES:
        if name in DRAWING:
            continue  # it draws in evaluation mode too
        module, loss, data = make_models.make(folder, name)
        run, out = with_validation(run_file(folder, name), name, every=3), folder / f"{name}.trained"
        train(weft, run, out, "--reference")
        module.load_state_dict(package.load_checkpoint(out), strict=True)
        for samples in (24, 20):
            with make_models.computing(name, module):
                wanted = make_models.figures(module, loss, {n: t[:samples] for n, t in data.items()}, 3)
            made = evaluate(weft, run, out, "--samples", str(samples))
            differing = [n for n, value in wanted.items() if made[n] != value]
            failures += [f"{name}, {samples} samples: {made}, and PyTorch has {wanted}"] if differing else []
        print(f"{name}: {', '.join(wanted)} evaluated, {len(differing)} not as by PyTorch")
        (line,) = validations(out)
        whole = evaluate(weft, run, out)
        failures += [] if all(line[f"validation_{n}"] == whole[n] for n in wanted) else [f"{name}: validated {line}"]
    return failures


def check_without_evaluation(weft, folder):
    """A module that has no loss in evaluation mode is exported with a warning; it trains, and evaluations say why not."""
    import modules  # only where torch is there
    import numpy
    import torch
    import warnings
    import weft as package
    torch.manual_seed(1)
    fields = {"x": torch.randn(12, 6), "y": torch.randn(12, 6)}
    for name, values in fields.items():
        numpy.save(folder / f"training_only.{name}.npy", values.numpy())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        package.export(modules.Chain(), fields, modules.loss_in_training_only, path=str(folder / "training_only.weft"))
    run = run_file(folder, "training_only", stages=1)
    train(weft, run, folder / "training_only", "--reference")
    done = subprocess.run([weft, "eval", run, "--checkpoint", folder / "training_only"], capture_output=True, text=True, check=False)
    warned = any("weft can train the model and not evaluate it: " in str(w.message) for w in caught)
    good = warned and done.returncode == 78 and "has no graph of its evaluation: torch.export cannot trace the model" in done.stderr
    print(f"a loss in training mode only: {'exported and not evaluated' if good else 'WRONG'}")
    return [] if good else [f"a loss in training mode only: {[str(w.message) for w in caught]}, exit {done.returncode}, {done.stderr}"]


def compare_adamw(weft, folder):
    """Three steps, with some parameters that do not decay, against torch.optim.AdamW with two groups."""
    import make_models  # only where torch is there
    import torch
    module, loss, data = make_models.make(folder, "cnn")
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in named if (".bias" in n or "norm" in n) == still], "weight_decay": 0 if still else 0.5}
              for still in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for step in range(3):
        for b in range(4):
            begin = (12 * step + 3 * b) % 24
            (loss(module, {n: t[begin:begin + 3] for n, t in data.items()}) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    run = run_file(folder, "cnn", optimizer='{adamw: {lr: 0.01, weight_decay: 0.5, no_decay: ["*.bias", "norm*"]}}')
    train(weft, run, folder / "adamw", "--processes", "1")
    import weft as package
    made = package.load_checkpoint(folder / "adamw")
    wrong = [n for n, p in module.state_dict().items() if not torch.allclose(p, made[n], rtol=1e-4, atol=1e-5)]
    print(f"AdamW with groups: {len(wrong)} of {len(made)} tensors are not torch's")
    return [f"AdamW with groups: {wrong}"] if wrong else []


def check_outline(weft, folder):
    """A module on the meta device is exported as on the CPU, without weights: it can be planned, and not trained."""
    import numpy
    import torch
    import weft as package
    layers = [torch.nn.Linear, lambda a, b: torch.nn.Sequential(torch.nn.LayerNorm(a), torch.nn.GELU()), torch.nn.Linear]
    models = {}
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = torch.nn.Sequential(*[make(32, 32) for make in layers])
        example = {"x": torch.randn(4, 32), "y": torch.randn(4, 32)}
        package.export(model, example, lambda m, f: (m(f["x"]) - f["y"]).square().mean(), path=str(folder / f"{device}.weft"))
        models[device] = json.loads((folder / f"{device}.weft" / "model.json").read_text())
    failures = []
    if models["meta"]["layers"] != models["cpu"]["layers"]:
        failures.append("the outline has other layers, or costs, than the model")
    if {p.name for p in (folder / "meta.weft").iterdir()} != {"model.json"}:
        failures.append("the outline has more than its graphs")
    for name in ("x", "y"):
        numpy.save(folder / f"{name}.npy", numpy.zeros((24, 32), numpy.float32))
    run = folder / "outline.yaml"
    run.write_text(RUN.format(model="meta", arrays="x: x.npy, y: y.npy", steps=3, optimizer=ADAMW, stages=2, schedule="1f1b", precision="float32"))
    for command, words in (("simulate", ""), ("compare", "1f1b")):
        told = subprocess.run([weft, command, run], capture_output=True, text=True, check=False)
        if told.returncode or words not in told.stdout:
            failures.append(f"weft {command} of an outline: exit {told.returncode}, {told.stderr}")
    refused = subprocess.run([weft, "train", run, "--out", folder / "refused"], capture_output=True, text=True, check=False)
    if refused.returncode != 78 or "without weights" not in refused.stderr:
        failures.append(f"an outline is trained: exit {refused.returncode}, {refused.stderr}")
    print(f"an outline, {len(failures)} failures")
    return failures


def check_float64(folder, modules):
    """An example of float64, as NumPy makes it, is exported as one of float32."""
    import torch
    import weft
    folders = []
    for kind in (torch.float32, torch.float64):
        torch.manual_seed(1)
        fields = {n: torch.randn(4, 6, dtype=torch.float64).to(kind) for n in ("x", "y")}
        model, path = modules.Chain(), folder / f"{kind}.weft"
        weft.export(model, fields, lambda m, f: (m(f["x"]) - f["y"]).square().mean(), path=str(path))
        folders.append((path / "model.json").read_text())
    return [] if folders[0] == folders[1] else ["an example of float64 gives other graphs than one of float32"]


def check_exporter(folder):
    """Tries what weft.export must refuse, and what it must not."""
    import modules  # only where torch is there
    import torch
    import weft
    failures = []
    for title, (build, words, *own) in modules.REFUSED.items():
        loss = own[0] if own else lambda m, f: torch.nn.functional.mse_loss(m(f["x"]), f["y"])
        torch.manual_seed(1)
        path = folder / "refused.weft"
        said = None
        try:
            weft.export(build(), {"x": torch.randn(4, 6), "y": torch.randn(4, 6)}, loss, path=str(path))
        except weft.NotExportable as error:
            said = str(error)
        wrong = said is not None if words is None else said is None or words not in said or path.exists()
        failures += [f"{title}: {said}"] if wrong else []
        shutil.rmtree(path, ignore_errors=True)
    fields = {"x": torch.randn(4, 6), "y": torch.randn(4, 6)}
    for precisions in (("bf16",), "half", ("float32", "float64")):
        try:
            weft.export(modules.Chain(), fields, lambda m, f: (m(f["x"]) - f["y"]).square().mean(), path=str(folder / "refused.weft"),
                        precisions=precisions)
            failures.append(f"exported in {precisions}")
        except weft.NotExportable as error:
            failures += [] if "precisions are" in str(error) else [f"{precisions}: {error}"]
    failures += check_float64(folder, modules)
    print(f"{len(modules.REFUSED)} modules of which some cannot be exported, {len(failures)} judged wrongly")
    return failures


def compare(options, weft, folder):
    """Runs the checks that need no PyTorch. All trainings but those of the plain loop run on the same two workers."""
    shutil.copytree(HERE / "models", folder, dirs_exist_ok=True)
    with StandingWorkers(weft.parent, folder, 2, *(["--device", options.device] if options.device else [])) as workers:
        if options.device:
            return compare_on_device(weft, folder, workers, options.device)
        checks = (compare_schedules, compare_groups, compare_tied, compare_old_weights, compare_tokens, compare_evaluations,
                  check_evaluation_refusals, check_refusals, check_empty_count, compare_generated)
        return [failure for check in checks for failure in check(weft, folder, workers)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--device")
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    if options.torch and subprocess.run([sys.executable, "-c", "import numpy, torch"], capture_output=True, check=False).returncode:
        print("SKIPPED: python3 has no torch or no numpy; weft.export has not been tried")
        return 77
    weft = options.bin.resolve() / "weft"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.torch:
            checks = (compare_with_torch, evaluate_with_torch, check_without_evaluation, compare_adamw, check_outline,
                      lambda _, folder: check_exporter(folder))
            failures = [failure for check in checks for failure in check(weft, folder)]
        else:
            failures = compare(options, weft, folder)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
