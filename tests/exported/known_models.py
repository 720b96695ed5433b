#!/usr/bin/env python3
"""Exports small models of transformers, torchvision and our own, with random weights and their code as it is, and trains each
under several schedules.

    known_models.py BIN_DIR [--only NAME,..] [--export-only] [--out docs/measurements/exported_models.md]

With a Python that has torch, numpy, transformers and torchvision; models of a package that is not there are left out. For each
model: its layers, the seconds of the export, whether the first step has PyTorch's bits (dropout 0), how many of the schedules
end with the bits of weft train --reference, and whether weft eval of that has PyTorch's bits. Prints one markdown table, and
writes it into a page; exits 1 if a model that should train does not.
"""
import argparse
import importlib.metadata
import json
import pathlib
import sys
import tempfile
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

PAGE = """# Known models

Models as their authors wrote them, in small configurations with random weights and without dropout. Each was exported
with `weft.export`, whose check compares the loss and all gradients, and the loss in evaluation mode, with the model's
own on two examples. Then it trained with micro-batches of 3 samples, where it was exported with 4.

- **First step**: the loss and all weights after one step of `sgd` have the bits of PyTorch eager.
- **Schedules**: how many of three end with the bits of `weft train --reference` after 3 steps of `adamw`, on 2
  processes: `1f1b`, `zb_h1` with recompute, `fsdp` by width with offload; for a model of one layer `ddp`, `ddp` with
  recompute, and that `fsdp`.
- **Evaluation**: the loss that `weft eval` prints for the reference's checkpoint has the bits of PyTorch eager, in
  evaluation mode without gradients.
- A **refused** model says why.

{table}

Made by `tests/exported/known_models.py build/release/bin --out docs/measurements/exported_models.md`, with
{versions}.
The seconds of an export are of a busy machine of 2 cores. U-Nets and LSTMs have few layers, because their long
connections leave no place to cut, and ConvNeXt is exported as one layer
([where a model is cut](../guide/your_own_model.md#where-a-model-is-cut)).
"""

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SCHEDULES = ["1f1b", "{zb_h1: , activations: recompute}", "{fsdp: {shard: width}, activations: offload}"]
WHOLE = ["ddp", "{ddp: , activations: recompute}", "{fsdp: {shard: width}, activations: offload}"]  # of one stage


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


def denoising_loss(model, fields):
    """Of a diffusion model: the noise is drawn for each sample."""
    clean = fields["pixel_values"]
    noise = torch.randn_like(clean)
    part = torch.rand(clean.shape[0], 1, 1, 1)
    return F.mse_loss(model(clean * (1 - part) + noise * part), noise)


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
    yield "DDPM", UNet, lambda n: {"pixel_values": torch.rand(n, 3, 8, 8)}, denoising_loss


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


def evaluated(program, folder, run, module, loss, data, name):
    """Says whether the reference's checkpoint has PyTorch's loss in evaluation mode."""
    if isinstance(json.loads((folder / "model.weft" / "model.json").read_text())["evaluation"], str):
        return "**none**"
    made = exported.evaluate(program, run, folder / "reference")["loss"]
    module.load_state_dict(weft.load_checkpoint(folder / "reference"), strict=True)
    wanted = make_models.figures(module, loss, data, 3)["loss"]
    return "drawn by Weft" if name in DRAWING else "equal" if made == wanted else "**different**"


def try_model(program, folder, name, build, samples, loss, export_only):
    """Returns the row of a model, and whether it is good."""
    torch.manual_seed(1)
    module, begun = build(), time.time()
    try:
        layers = weft.export(module, samples(4), loss, path=str(folder / "model.weft"), layers=[] if name in UNCUT else None)
    except weft.NotExportable as error:
        return [name, "", "", "refused: " + str(error).split(";")[0], "", ""], False
    row = [name, str(len(layers)), f"{time.time() - begun:.1f}"]
    if export_only:
        return [*row, "", "", ""], True
    data = samples(24)
    for field, values in data.items():
        numpy.save(folder / f"model.{field}.npy", values.numpy())
    stages = next(s for s in (4, 3, 2, 1) if s <= len(layers))
    run = {"stages": stages}
    first = "drawn by Weft"
    if name not in DRAWING:
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            wanted_loss, wanted = exported.first_step(module, loss, data)
        made, losses = exported.train(program, exported.run_file(folder, "model", steps=1, optimizer="{sgd: {lr: 0.5}}", **run),
                                      folder / "first", "--processes", "1")
        made = {key.split(".", 1)[1]: value for key, value in made.items()}
        same = losses == [wanted_loss] and all(made.get(n) == p.numpy().tobytes() for n, p in wanted.items())
        first = "equal" if same else "**different**"
    plain = exported.train(program, exported.run_file(folder, "model", **run), folder / "reference", "--reference")
    schedules = SCHEDULES if stages > 1 else WHOLE
    equal = [plain == exported.train(program, exported.run_file(folder, "model", schedule=schedule, **run), folder / str(i),
                                     "--processes", "2") for i, schedule in enumerate(schedules)]
    evaluation = evaluated(program, folder, exported.run_file(folder, "model", **run), module, loss, data, name)
    good = "**" not in first + evaluation and all(equal)
    return [*row, first, f"{sum(equal)} of {len(equal)}", evaluation], good


def versions():
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", "torchvision") if name in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--export-only", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    only = [n for n in options.only.split(",") if n]
    rows, good = [], True
    for name, build, samples, loss in known():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                row, fine = try_model(options.bin.resolve() / "weft", pathlib.Path(folder), name, build, samples, loss, options.export_only)
            except SystemExit as error:  # a training that failed
                row, fine = [name, "", "", "failed: " + str(error).splitlines()[-1], "", ""], False
        print("  ".join(row), file=sys.stderr, flush=True)
        rows.append(row)
        good &= fine
    head = ["model", "layers", "export, s", "first step and PyTorch's", "schedules equal to `--reference`",
            "evaluation and PyTorch's"]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
    if options.out:
        options.out.write_text(PAGE.format(table=table, versions=versions()))
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
