#!/usr/bin/env python3
"""Exports small models of transformers, torchvision and our own, with random weights and their code as it is, and trains each
under several schedules.

    known_models.py BIN_DIR [--only NAME,..] [--wide] [--export-only] [--out docs/measurements/exported_models.md]

With a Python that has torch, numpy, transformers and torchvision; models of a package that is not there are left out. For each
model and both precisions: its layers, the seconds of the export, whether the first step has PyTorch's bits (dropout 0), how
many of the runs end with the bits of weft train --reference, and whether weft eval of that has PyTorch's bits; in float32, how
far ten steps of AdamW are from PyTorch's. Without --wide there are three runs of a model, with it 24. Prints one markdown
table, and writes it into a page; exits 1 if a model that should train does not.
"""
import argparse
import contextlib
import copy
import importlib.metadata
import json
import pathlib
import re
import shutil
import sys
import tempfile
import textwrap
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "python")]

import exported  # noqa: E402
import make_models  # noqa: E402
import modules  # noqa: E402
import weft  # noqa: E402
from architectures import Denoiser, denoising_loss  # noqa: E402
from weft.cutting import block_patterns  # noqa: E402
from weft.narrowing import narrowed  # noqa: E402

PAGE = """# Known models

Models as their authors wrote them, in small configurations with random weights and without dropout. Each was exported
with `weft.export`, whose check compares the loss and all gradients, and the loss in evaluation mode, with the model's
own on two examples, in float32 and in bf16. Then it trained with micro-batches of 3 samples, where it was exported
with 4.

- **First step**: the loss and all weights after one step of `sgd` have the bits of PyTorch eager. In bf16, PyTorch
  computes over narrowed weights as the exporter's check does.
- **Runs**: how many end with the bits of `weft train --reference` after 10 steps of `adamw`. There is a run for each of
  {schedules} on each of {processes} processes (or one for each rank, where the schedule has fewer), with kept, recomputed and offloaded activations in turn, so that each
  schedule meets all three. Left out are schedules that cannot have the model's stages: {cuts}. In bf16 there are three
  runs: `1f1b`, `zb_h1` with recompute, `fsdp` by width with offload, on 2 processes; of a model of one layer `ddp` in
  the place of the first two.
- **Evaluation**: the loss that `weft eval` prints for the reference's checkpoint has the bits of PyTorch eager, in
  evaluation mode without gradients.
- **AdamW**: the largest difference of a weight from the same ten steps in float64 by PyTorch with `torch.optim.AdamW`,
  divided by that of PyTorch in float32. Both come from rounding alone; the script fails above 4.
- A **refused** model says why.

{table}

Made by `tests/exported/known_models.py build/release/bin --wide --out docs/measurements/exported_models.md`, with
{versions}.
The seconds of an export are of a busy machine of 2 cores. U-Nets and LSTMs have few layers, because their long
connections leave no place to cut, and ConvNeXt is exported as one layer
([where a model is cut](../guide/your_own_model.md#where-a-model-is-cut)).
"""

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SCHEDULES = [(text, 2) for text in ("1f1b", "{zb_h1: , activations: recompute}", "{fsdp: {shard: width}, activations: offload}")]
WHOLE = [(text, 2) for text in ("ddp", "{ddp: , activations: recompute}", "{fsdp: {shard: width}, activations: offload}")]
# Text in the run file, before the activations, by the name on the page.
WIDE = {"ddp": "ddp: ", "1f1b": "1f1b: ", "lpp": "lpp: {groups: 2, ranks: 2}", "zb_h1": "zb_h1: ", "fsdp": "fsdp: ",
        "fsdp by width": "fsdp: {shard: width}", "dualpipe_v": "dualpipe_v: ", "ddp with cdp_v2": "ddp: , rule: cdp_v2"}
PROCESSES = (1, 2, 4)
WIDE_RUNS = [("{%s%s}" % (name, (", activations: recompute", "", ", activations: offload")[(i + j) % 3]), processes)
             for i, name in enumerate(WIDE.values()) for j, processes in enumerate(PROCESSES)]
STEPS = 10
WORST_ERROR = 4.0


def tokens(n):
    ids = torch.randint(1, 64, (n, 16))
    return {"input_ids": ids, "labels": ids.clone()}


def padded(n):
    fields = tokens(n)
    return {**fields, "attention_mask": torch.ones(n, 16, dtype=torch.int64).index_fill_(1, torch.tensor([15]), 0)}


def sentences(n):
    return {**padded(n), "labels": torch.randint(0, 3, (n,))}


def images(size, classes=4):
    return lambda n: {"pixel_values": torch.rand(n, 3, size, size), "labels": torch.randint(0, classes, (n,))}


def spectra(n):
    return {"input_features": torch.randn(n, 20, 32), "labels": torch.randint(1, 64, (n, 8))}


def pairs(n):
    return {"input_ids": torch.randint(1, 63, (n, 8)), "pixel_values": torch.rand(n, 3, 16, 16),
            "attention_mask": torch.ones(n, 8, dtype=torch.int64).index_fill_(1, torch.tensor([7]), 0)}


def own_loss(model, fields):
    return model(**fields).loss


def scores_loss(model, fields):
    return F.cross_entropy(model(fields["pixel_values"]), fields["labels"])


class UNet(nn.Module):
    """Two sizes of an image, with a connection beside the smaller one."""

    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 3, 1)

    def forward(self, x):
        wide = F.gelu(self.down(x))
        small = F.gelu(self.inner(F.max_pool2d(wide, 2)))
        return self.out(torch.cat([wide, self.up(small)], 1))


def of_transformers():
    """Yields a name, a function that makes the model, samples, and loss."""
    import transformers as t
    # Without use_cache=True transformers looks for packed samples, and makes another mask while it is traced.
    no_drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    few = {"num_key_value_heads": 2}
    yield "GPT-2", lambda: t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, use_cache=False)), tokens, own_loss
    yield "Llama", lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, **few)), tokens, own_loss
    yield "Qwen3", lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, **few, head_dim=8, tie_word_embeddings=True)), tokens, own_loss
    yield "Gemma3", lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**SIZES, **few, head_dim=8)), tokens, own_loss
    yield "Mixtral", lambda: t.MixtralForCausalLM(t.MixtralConfig(
        **SIZES, **few, num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm")), tokens, own_loss
    yield "Mamba", lambda: t.MambaForCausalLM(t.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4,
                                                            use_cache=False)), tokens, own_loss
    yield "BERT", lambda: t.BertForMaskedLM(t.BertConfig(**SIZES, **no_drop, max_position_embeddings=32)), padded, own_loss
    yield "RoBERTa", lambda: t.RobertaForSequenceClassification(t.RobertaConfig(
        **SIZES, **no_drop, max_position_embeddings=32, num_labels=3)), sentences, own_loss
    yield "T5", lambda: t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0,
        use_cache=False)), padded, own_loss
    yield "ViT", lambda: t.ViTForImageClassification(t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4, **no_drop,
        num_labels=4)), images(16), own_loss
    yield "CLIP", lambda: t.CLIPModel(t.CLIPConfig(
        text_config={**SIZES, "max_position_embeddings": 8, "eos_token_id": 63}, projection_dim=16,
        vision_config={**SIZES, "image_size": 16, "patch_size": 4})), pairs, lambda m, f: m(**f, return_loss=True).loss
    yield "Whisper", lambda: t.WhisperForConditionalGeneration(t.WhisperConfig(
        vocab_size=64, num_mel_bins=20, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=16, max_target_positions=8,
        dropout=0.0, decoder_start_token_id=0, pad_token_id=0, bos_token_id=0, eos_token_id=0, suppress_tokens=None,
        begin_suppress_tokens=None, use_cache=False)), spectra, own_loss


def of_torchvision():
    import torchvision.models as v
    yield "ResNet-50", lambda: v.resnet50(num_classes=4), images(32), scores_loss
    yield "ConvNeXt", lambda: v.ConvNeXt([v.convnext.CNBlockConfig(8, 16, 1), v.convnext.CNBlockConfig(16, None, 2)],
                                         stochastic_depth_prob=0.0, num_classes=4), images(32), scores_loss
    yield "Swin", lambda: v.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], dropout=0.0, attention_dropout=0.0,
                                            stochastic_depth_prob=0.0, num_classes=4), images(32), scores_loss
    yield "EfficientNet", lambda: v.efficientnet_b0(num_classes=4, dropout=0.0, stochastic_depth_prob=0.0), images(32), scores_loss


def of_our_own():
    yield "MLP", *modules.MODULES["mlp"][0:1], modules.MODULES["mlp"][2], modules.MODULES["mlp"][1]
    yield "LSTM", *modules.MODULES["lstm"][0:1], modules.MODULES["lstm"][2], modules.MODULES["lstm"][1]
    yield "U-Net", UNet, lambda n: {"x": torch.rand(n, 3, 8, 8), "y": torch.rand(n, 3, 8, 8)}, \
        lambda m, f: F.mse_loss(m(f["x"]), f["y"])
    yield "DDPM", lambda: Denoiser(16), lambda n: {"image": torch.rand(n, 1, 8, 8)}, denoising_loss


DRAWING = ("DDPM",)  # Weft's numbers are its own
# Its convolutions read tensors whose channels lie last, and what crosses a cut lies in the order of its dimensions, for which
# LibTorch has another kernel.
UNCUT = ("ConvNeXt",)


def known():
    for source in (of_transformers, of_torchvision, of_our_own):
        try:
            yield from source()
        except ImportError as error:
            print(f"left out: {error}", file=sys.stderr)


class Trial:
    """One model in a folder, with its data, in one precision."""

    def __init__(self, program, folder, name, module, loss, data, stages, precision):
        self.program, self.folder, self.name, self.module, self.loss, self.data = program, folder, name, module, loss, data
        self.options = {"stages": stages, "precision": precision}

    def computing(self):
        narrow = self.options["precision"] == "bf16"
        return narrowed(self.module, block_patterns(self.module)) if narrow else contextlib.nullcontext()

    def train(self, out, *flags, **options):
        run = exported.run_file(self.folder, "model", **{"steps": STEPS, **self.options, **options})
        return exported.train(self.program, run, self.folder / out, *flags)

    def train_on(self, processes, out, **options):
        """Trains on so many processes, or as many as the schedule has ranks."""
        try:
            return self.train(out, "--processes", str(processes), **options)
        except SystemExit as error:
            fewer = re.search(r"is more than the (\d+) ranks", str(error))
            if not fewer:
                raise
            return self.train(out, "--processes", fewer[1], **options)

    def first_step(self):
        """Says whether one step of sgd has PyTorch's bits."""
        if self.name in DRAWING:
            return "drawn by Weft"
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            wanted_loss, wanted = exported.first_step(self.module, self.loss, self.data, self.computing())
        made, losses = self.train("first", "--processes", "1", steps=1, optimizer="{sgd: {lr: 0.5}}")
        made = {key.split(".", 1)[1]: value for key, value in made.items()}
        same = losses == [wanted_loss] and all(made.get(n) == p.numpy().tobytes() for n, p in wanted.items())
        return "equal" if same else "**different**"

    def runs(self, runs, unfit):
        """Returns how many runs have the bits of their reference, and how many there are; adds to `unfit` what cannot be cut."""
        references, equal, tried = {}, 0, 0
        for number, (schedule, processes) in enumerate(runs):
            rule = "rule:" in schedule
            try:
                if rule not in references:
                    references[rule] = self.train(f"reference{int(rule)}", "--reference", **({"schedule": schedule} if rule else {}))
                made = self.train_on(processes, f"run{number}", schedule=schedule)
            except SystemExit as error:
                if "ended with 78" not in str(error):
                    raise
                unfit.add((self.name, next(n for n, text in WIDE.items() if schedule.split(", activations")[0].strip("{}") == text.strip("{}"))))
                continue
            tried += 1
            equal += made == references[rule]
            if made != references[rule]:
                print(f"{self.name} {self.options} {schedule} {processes} processes: DIFFERENT", file=sys.stderr)
        return equal, tried

    def evaluation(self):
        """Says whether the reference's checkpoint has PyTorch's loss in evaluation mode."""
        file = "model.bf16.json" if self.options["precision"] == "bf16" else "model.json"
        if isinstance(json.loads((self.folder / "model.weft" / file).read_text())["evaluation"], str):
            return "**none**"
        run = exported.run_file(self.folder, "model", **self.options)
        made = exported.evaluate(self.program, run, self.folder / "reference0")["loss"]
        module = copy.deepcopy(self.module)
        module.load_state_dict(weft.load_checkpoint(self.folder / "reference0"), strict=True)
        self.module, kept = module, self.module
        with self.computing():
            wanted = make_models.figures(module, self.loss, self.data, 3)["loss"]
        self.module = kept
        return "drawn by Weft" if self.name in DRAWING else "equal" if made == wanted else "**different**"

    def adamw(self):
        """Returns the largest difference of a weight from float64's, divided by that of PyTorch in float32."""
        if self.name in DRAWING:
            return "drawn by Weft"
        made = weft.load_checkpoint(self.folder / "reference0")
        exact, single = (adamw(self.module, self.loss, self.data, dtype) for dtype in (torch.float64, torch.float32))
        mine, its = (max((values[n].double() - p).abs().max().item() for n, p in exact.items()) for values in (made, single))
        ratio = mine / max(its, 1e-12)
        return f"{ratio:.2f}" if ratio <= WORST_ERROR else f"**{ratio:.2f}**"


def adamw(module, loss, data, dtype):
    """Returns the weights of the module after the run's steps in a plain loop of PyTorch."""
    module = copy.deepcopy(module).to(dtype)
    data = {n: t.to(dtype) if t.is_floating_point() else t for n, t in data.items()}
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01, weight_decay=0.01)
    for step in range(STEPS):
        for b in range(4):
            begin = (12 * step + 3 * b) % 24
            (loss(module, {n: t[begin:begin + 3].clone() for n, t in data.items()}) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def try_model(program, folder, name, build, samples, loss, options, unfit):
    """Returns the row of a model, and whether it is good."""
    torch.manual_seed(1)
    module, begun = build(), time.time()
    try:
        layers = weft.export(module, samples(4), loss, path=str(folder / "model.weft"), layers=[] if name in UNCUT else None,
                             precisions=("float32", "bf16"))
    except weft.NotExportable as error:
        return [name, "", "", "refused: " + str(error).split(";")[0], "", "", "", ""], False
    row = [name, str(len(layers)), f"{time.time() - begun:.1f}"]
    if options.export_only:
        return [*row, "", "", "", "", ""], True
    data = samples(24)
    for field, values in data.items():
        numpy.save(folder / f"model.{field}.npy", values.numpy())
    placed = sum(not layer.startswith("tied.") for layer in layers)
    stages = next(s for s in (4, 3, 2, 1) if s <= placed)
    few = SCHEDULES if stages > 1 else WHOLE
    firsts, counts, evaluations = [], [], []
    for precision in ("float32", "bf16"):
        trial = Trial(program, folder, name, module, loss, data, stages, precision)
        before = copy.deepcopy(module.state_dict())
        firsts.append(trial.first_step())
        module.load_state_dict(before)
        counts.append(trial.runs(WIDE_RUNS if options.wide and precision == "float32" else few, unfit))
        if precision == "float32":
            difference = trial.adamw()
            module.load_state_dict(before)
        evaluations.append(trial.evaluation())
        for left in folder.glob("r*[0-9]"):
            shutil.rmtree(left)
        shutil.rmtree(folder / "first", ignore_errors=True)
    row += [both(firsts), *(f"{equal} of {tried}" for equal, tried in counts), both(evaluations), difference]
    return row, "**" not in "".join(row) and all(equal == tried > 0 for equal, tried in counts)


def both(said):
    """Returns what is said of float32 and bf16, once where it is the same."""
    return said[0] if said[0] == said[1] else f"{said[0]}; bf16: {said[1]}"


def versions():
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", "torchvision") if name in found)


def page(table, unfit):
    of_schedule = {}
    for name, schedule in sorted(unfit):
        of_schedule.setdefault(schedule, []).append(name)
    cuts = "; ".join(f"{schedule} of {', '.join(names)}" for schedule, names in of_schedule.items()) or "none"
    text = PAGE.format(table="{table}", versions=versions(), schedules=", ".join(WIDE), cuts=cuts,
                       processes=", ".join(map(str, PROCESSES[:-1])) + f" and {PROCESSES[-1]}")
    return wrapped(text).replace("{table}", table)


def wrapped(text):
    """Fills the lines of each paragraph and of each item of a list."""
    parts = []
    for line in text.splitlines():
        if line and not line.startswith(("- ", "#")) and parts and parts[-1] and not parts[-1].startswith("#"):
            parts[-1] += " " + line.strip()
        else:
            parts.append(line)
    return "".join(textwrap.fill(part, 120, subsequent_indent="  " * part.startswith("- "), break_on_hyphens=False,
                                 break_long_words=False) + "\n" for part in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--export-only", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    only = [n for n in options.only.split(",") if n]
    rows, good, unfit = [], True, set()
    for name, build, samples, loss in known():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                row, fine = try_model(options.bin.resolve() / "weft", pathlib.Path(folder), name, build, samples, loss, options, unfit)
            except SystemExit as error:  # a training that failed
                row, fine = [name, "", "", "failed: " + str(error).splitlines()[-1], "", "", "", ""], False
        print("  ".join(row), file=sys.stderr, flush=True)
        rows.append(row)
        good &= fine
    head = ["model", "layers", "export, s", "first step and PyTorch's", "runs equal to `--reference`", "in bf16",
            "evaluation and PyTorch's", "AdamW"]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
    if options.out:
        options.out.write_text(page(table, unfit))
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
