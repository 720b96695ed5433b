#!/usr/bin/env python3
"""Trains one of Weft's models in plain PyTorch on one device, as its users do, and prints one line of JSON: what Weft is
measured against.

    torch_peer.py MODEL [--batch N] [--steps T] [--precision float32|bf16] [--compile] [--device cuda]

MODEL: gpt2 (124M; head not tied to the embedding, as Weft's), resnet50, vit_b16; with --small a size for a CPU. The data
are random and stay on the device, so reading costs the peer nothing. bf16 is autocast over float32 weights, the optimizer
PyTorch's fused one; --compile takes model and loss as one. Convolutions have channels last on a GPU, and cuDNN searches for
the fastest. float32 is float32 everywhere: no TF32. The first --warmup steps are not counted, and then the GPU is waited for
once, at the end: a loop that looks at each loss would leave the GPU idle at the start of each step.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = (t.view(n, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.context, self.vocabulary = context, vocabulary
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)

    def data(self, batch):
        tokens = torch.randint(256, (batch, self.context + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten().contiguous()


class Vit(nn.Module):
    def __init__(self, layers, width, heads, patch, size, classes):
        super().__init__()
        self.size, self.classes = size, classes
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros((size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if stride == 1 and channels == out else nn.Sequential(
            nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return functional.relu(self.path(x) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self, width, size, classes):
        super().__init__()
        self.size, self.classes = size, classes
        layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = width
        for group, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, width << group, 2 if group > 0 and block == 0 else 1))
                channels = 4 * (width << group)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.layers(images).mean((2, 3)))


def images(model, batch):
    return torch.randn(batch, 3, model.size, model.size), torch.randint(model.classes, (batch,))


def build(name, small):
    if name == "gpt2":
        return Gpt(2, 64, 2, 32, 256) if small else Gpt(12, 768, 12, 1024, 50257)
    if name == "vit_b16":
        return Vit(2, 64, 2, 16, 32, 10) if small else Vit(12, 768, 12, 16, 224, 10)
    return ResNet50(8, 32, 10) if small else ResNet50(64, 224, 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["gpt2", "resnet50", "vit_b16"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    model = build(options.model, options.small).to(device)
    inputs, targets = model.data(options.batch) if options.model == "gpt2" else images(model, options.batch)
    inputs, targets = inputs.to(device), targets.to(device)
    if on_gpu and options.model == "resnet50":
        model, inputs = model.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
    if options.model == "gpt2":
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=on_gpu)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=on_gpu)

    def forward(inputs, targets):
        return functional.cross_entropy(model(inputs).float(), targets)

    run = torch.compile(forward) if options.compile else forward

    def step():
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = run(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def steps(count):
        begin = time.perf_counter()
        for _ in range(count):
            loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        return loss.item(), time.perf_counter() - begin

    first, _ = steps(1)
    if options.warmup > 1:
        steps(options.warmup - 1)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    last, seconds = steps(options.steps)
    typical = seconds / options.steps
    result = {"model": options.model, "compiled": options.compile, "precision": options.precision, "batch": options.batch,
              "parameters": sum(p.numel() for p in model.parameters()), "step_seconds": typical,
              "samples_per_second": options.batch / typical, "first_loss": first, "loss": last}
    if on_gpu:
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
