"""A gpt's loss from its checkpoint with nothing but Python's own numbers, in float64.

The same model as gpt_in_pytorch.py, for machines whose Python has no torch: lists of lists, no package. Slow, so for
models of a few thousand weights. docs/guide/models.md describes the model.
"""
import json
import math
import struct


def read_safetensors(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(length)), file.read()
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        shape = about["shape"]
        rows = [values[i:i + shape[-1]] for i in range(0, len(values), shape[-1])]
        tensors[name] = rows if len(shape) == 2 else rows[0]
    return tensors


def read_checkpoint(folder):
    """The tensors by their names without the stage in front."""
    with open(f"{folder}/model.safetensors.index.json") as file:
        files = set(json.load(file)["weight_map"].values())
    return {name.split(".", 1)[1]: value for f in files for name, value in read_safetensors(f"{folder}/{f}").items()}


def norm(x, weight, bias):
    mean = math.fsum(x) / len(x)
    deviation = math.sqrt(math.fsum((value - mean)**2 for value in x) / len(x) + 1e-5)
    return [(value - mean) / deviation * w + b for value, w, b in zip(x, weight, bias)]


def product(x, rows, bias=None):
    y = [sum(map(float.__mul__, x, row)) for row in rows]
    return y if bias is None else [value + b for value, b in zip(y, bias)]


def softmax(x):
    most = max(x)
    powers = [math.exp(value - most) for value in x]
    return [power / sum(powers) for power in powers]


def attention(q, k, v, heads):
    """Causal self-attention: a row for each token."""
    size, rows = len(q[0]) // heads, []
    for t, query in enumerate(q):
        row = []
        for at in range(0, len(query), size):
            scores = [sum(map(float.__mul__, query[at:at + size], key[at:at + size])) / math.sqrt(size) for key in k[:t + 1]]
            shares = softmax(scores)
            row += [sum(share * value[at + i] for share, value in zip(shares, v)) for i in range(size)]
        rows.append(row)
    return rows


def gelu_by_erf(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_by_tanh(x):
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) / 2


class Gpt:
    def __init__(self, folder, heads, gelu=gelu_by_erf):
        self.p, self.heads, self.gelu = read_checkpoint(folder), heads, gelu
        self.blocks = sum(name.endswith(".norm1.weight") for name in self.p)
        self.context = len(self.p["embedding.position.weight"])

    def norm(self, x, name):
        return norm(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def linear(self, x, name):
        return product(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def block(self, x, name):
        width = len(x[0])
        qkv = [self.linear(self.norm(row, f"{name}.norm1"), f"{name}.attention.qkv") for row in x]
        q, k, v = ([row[i * width:(i + 1) * width] for row in qkv] for i in range(3))
        x = [[a + b for a, b in zip(row, self.linear(attended, f"{name}.attention.projection"))]
             for row, attended in zip(x, attention(q, k, v, self.heads))]
        made = []
        for row in x:
            expanded = self.linear(self.norm(row, f"{name}.norm2"), f"{name}.mlp.expand")
            expanded = [self.gelu(value) for value in expanded]
            made.append([a + b for a, b in zip(row, self.linear(expanded, f"{name}.mlp.contract"))])
        return made

    def scores(self, tokens):
        tokens_of, position_of = self.p["embedding.token.weight"], self.p["embedding.position.weight"]
        x = [[a + b for a, b in zip(tokens_of[token], place)] for token, place in zip(tokens, position_of)]
        for i in range(self.blocks):
            x = self.block(x, f"block{i}")
        return [product(self.norm(row, "head.norm"), self.p["head.projection.weight"]) for row in x]

    def loss(self, text):
        losses = []
        for first in range(0, (len(text) - 1) // self.context * self.context, self.context):
            sample = text[first:first + self.context + 1]
            for row, target in zip(self.scores(sample[:-1]), sample[1:]):
                losses.append(-math.log(softmax(row)[target]))
        return sum(losses) / len(losses)
