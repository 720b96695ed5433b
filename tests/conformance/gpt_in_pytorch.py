#!/usr/bin/env python3
"""A trained gpt, rebuilt in PyTorch from its checkpoint: prints the mean loss that `weft eval` prints.

    gpt_in_pytorch.py CHECKPOINT TEXT HEADS      (with a Python that has torch and safetensors)

docs/guide/models.md describes the model and shows this script. rebuilt_gpt.py compares the two losses.
"""
import json
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

folder, text, heads = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(f"{folder}/model.safetensors.index.json") as file:
    files = sorted(set(json.load(file)["weight_map"].values()))
# Without the stage in front, "stage01.block0.norm1.weight": how the model was cut does not matter.
p = {name.split(".", 1)[1]: tensor for f in files for name, tensor in load_file(f"{folder}/{f}").items()}


def norm(x, name):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps=1e-5)


def linear(x, name):
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def block(x, name):
    samples, tokens, width = x.shape
    q, k, v = (part.view(samples, tokens, heads, width // heads).transpose(1, 2)
               for part in linear(norm(x, f"{name}.norm1"), f"{name}.attention.qkv").split(width, dim=-1))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
    x = x + linear(attended, f"{name}.attention.projection")
    return x + linear(F.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.mlp.expand")), f"{name}.mlp.contract")


def gpt(tokens):
    x = p["embedding.token.weight"][tokens] + p["embedding.position.weight"]
    for i in range(sum(name.endswith(".norm1.weight") for name in p)):
        x = block(x, f"block{i}")
    return F.linear(norm(x, "head.norm"), p["head.projection.weight"])


with open(text, "rb") as file:
    data = torch.tensor(list(file.read()))
context = len(p["embedding.position.weight"])
samples = data[:(len(data) - 1) // context * context + 1].unfold(0, context + 1, context)
with torch.no_grad():
    print(F.cross_entropy(gpt(samples[:, :-1]).flatten(0, 1), samples[:, 1:].flatten()).item())
