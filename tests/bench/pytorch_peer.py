#!/usr/bin/env python3
"""Trains resnet18 or a gpt in eager PyTorch on the CPU, one thread a process, and prints the seconds of each step as JSON.

    pytorch_peer.py resnet18|gpt STEPS      (with a Python that has torch)

resnet18: batch 16 of 3 x 32 x 32, CIFAR's stem, SGD. gpt: 8 layers, width 256, context 128, batch 16 over two processes
under DistributedDataParallel (gloo), AdamW. Data are random and in memory, so reading costs the peer nothing.
"""
import json
import os
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
from torch_peer import Gpt  # noqa: E402


class BasicBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if stride == 1 and channels == width else nn.Sequential(
            nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return functional.relu(self.path(x) + self.shortcut(x))


def resnet18():
    layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for group in range(4):
        for block in range(2):
            layers.append(BasicBlock(channels, 64 << group, 2 if group > 0 and block == 0 else 1))
            channels = 64 << group
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def train(model, optimizer, inputs, targets, steps):
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def train_gpt(rank, steps, folder):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = Gpt(8, 256, 4, 128, 256)
    inputs, targets = model.data(8)
    parallel = nn.parallel.DistributedDataParallel(model)
    seconds = train(parallel, torch.optim.AdamW(model.parameters(), lr=1e-3), inputs, targets, steps)
    if rank == 0:
        print(json.dumps(seconds))
    torch.distributed.destroy_process_group()


def main():
    steps = int(sys.argv[2])
    if sys.argv[1] == "gpt":
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(train_gpt, args=(steps, folder), nprocs=2)
        return
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = resnet18()
    data = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    print(json.dumps(train(model, torch.optim.SGD(model.parameters(), lr=0.01), *data, steps)))


if __name__ == "__main__":
    main()
