#!/usr/bin/env python3
"""Exports small models of transformers, with random weights and their code as it is, and trains them under several schedules.

    transformers_models.py BIN_DIR      with a Python that has torch, numpy and transformers

Prints one row a model: its layers, the seconds of the export, and whether the trainings have the bits of weft train --reference
and the first step those of PyTorch.
"""
import pathlib
import sys
import tempfile
import time

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

import exported  # noqa: E402
import weft  # noqa: E402

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
UNTIED = {"tie_word_embeddings": False}
SCHEDULES = ["1f1b", "{zb_h1: , activations: recompute}", "{fsdp: }"]


def tokens(samples):
    ids = torch.randint(1, 64, (samples, 16))
    return {"input_ids": ids, "labels": ids.clone()}


def masked_tokens(samples):
    fields = tokens(samples)
    return {**fields, "attention_mask": torch.ones_like(fields["input_ids"]).index_fill_(1, torch.tensor([15]), 0)}


def images(samples):
    return {"pixel_values": torch.rand(samples, 3, 16, 16), "labels": torch.randint(0, 4, (samples,))}


def models():
    t = transformers
    none = {"attention_dropout": 0.0, "use_cache": False}
    bert = {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32, **UNTIED}
    yield "gpt2", t.GPT2LMHeadModel(t.GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=16, resid_pdrop=0.0,
                                                 embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **UNTIED)), tokens
    yield "llama", t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2, **none, **UNTIED)), tokens
    yield "qwen3", t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, **none, **UNTIED)), tokens
    untied = t.BertForMaskedLM(t.BertConfig(**bert))
    untied.cls.predictions.bias.requires_grad_(False)  # the scores have a bias of their own
    yield "bert", untied, masked_tokens
    yield "vit", t.ViTForImageClassification(t.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=4)), images


def loss_of(module, fields):
    return module(**fields).loss


def try_model(weft_program, folder, name, module, samples):
    begun = time.time()
    layers = weft.export(module, samples(4), loss_of, path=str(folder / f"{name}.weft"))
    seconds = time.time() - begun
    data = samples(24)
    for field, values in data.items():
        numpy.save(folder / f"{name}.{field}.npy", values.numpy())
    with torch.backends.mkldnn.flags(enabled=False):
        wanted_loss, wanted = exported.first_step(module, loss_of, data)
    run = exported.run_file(folder, name, steps=1, optimizer="{sgd: {lr: 0.5}}")
    made, losses = exported.train(weft_program, run, folder / f"{name}.first", "--processes", "1")
    made = {key.split(".", 1)[1]: value for key, value in made.items()}
    first = losses == [wanted_loss] and all(made.get(n) == p.numpy().tobytes() for n, p in wanted.items())
    plain = exported.train(weft_program, exported.run_file(folder, name), folder / f"{name}.reference", "--reference")
    equal = [plain == exported.train(weft_program, exported.run_file(folder, name, schedule=schedule),
                                     folder / f"{name}.{i}", "--processes", "2") for i, schedule in enumerate(SCHEDULES)]
    print(f"{name}: {len(layers)} layers, {seconds:.1f} s, first step {'equal' if first else 'DIFFERENT'}, "
          f"{sum(equal)} of {len(equal)} schedules equal", flush=True)
    return first and all(equal)


def main():
    torch.set_num_threads(1)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, module, samples in models():
            torch.manual_seed(1)
            try:
                good &= try_model(pathlib.Path(sys.argv[1]).resolve() / "weft", pathlib.Path(folder), name, module, samples)
            except weft.NotExportable as error:
                good = False
                print(f"{name}: refused: {error}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
