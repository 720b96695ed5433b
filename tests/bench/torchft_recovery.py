#!/usr/bin/env python3
"""Kills a process of a training by torchft again and again, and measures the time until the next committed step: the peer of recovery.py.

    PYTHON torchft_recovery.py [--kills 20] [--processes 4] [--heartbeat-timeout-ms 5000] [--join-timeout-ms 10000]

PYTHON has torch and torchft (PyPI). The training is that of recovery.py as torchft does it, and as its train_ddp.py example does: the same
gpt in each process, DistributedDataParallel over gloo, an equal share of the 16 samples each, AdamW, one thread a process. The lighthouse has
the times of that example's README (a quorum is looked for every 100 ms, members are awaited for 10 s) and the default of 5 s until a silent
process counts as lost. A random process is killed (SIGKILL); the time ends with the next step that one of the others commits. Then the process
is started again and joins; so is one that ends by itself, as a launcher does it. Prints lines of a table.
"""

import argparse
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 120


def train(number, processes, folder):
    """Trains until it is killed; writes the time at which each committed step ended, and how many processes had a part in it."""
    sys.path.insert(0, str(HERE.parent / "gpu"))
    import torch
    import torch.distributed as dist
    import torchft
    from torch_peer import Gpt

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(6, 128, 4, 64, 256)
    inputs, targets = model.data(16 // processes)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state):
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": adamw.state_dict()}, replica_id=f"replica{number}",
        store_addr="localhost", store_port=store.port, rank=0, world_size=1, timeout=timedelta(seconds=30))
    parallel = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, adamw)
    with open(os.path.join(folder, f"{number}.{os.getpid()}"), "w", buffering=1, encoding="ascii") as log:
        while True:
            before = manager.current_step()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(inputs), targets).backward()
            optimizer.step()
            if manager.current_step() > before:
                log.write(f"{time.monotonic()} {manager.num_participants()}\n")


def commits(folder, since):
    """When steps were committed after `since`, and by how many."""
    found = []
    for path in pathlib.Path(folder).iterdir():
        for line in path.read_text().splitlines()[-50:]:
            words = line.split()
            if len(words) == 2 and float(words[0]) > since:
                found.append((float(words[0]), int(words[1])))
    return sorted(found)


def await_true(what, condition, meanwhile):
    began = time.monotonic()
    while not (found := condition()):
        meanwhile()
        if time.monotonic() - began > LIMIT:
            raise RuntimeError(f"{what}: not within {LIMIT} s")
        time.sleep(0.005)
    return found


def measure(options, folder):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    lighthouse = subprocess.Popen(
        [pathlib.Path(sys.executable).parent / "torchft_lighthouse", "--bind", f"[::]:{port}", "--min_replicas", "1", "--quorum_tick_ms", "100",
         "--join_timeout_ms", str(options.join_timeout_ms), "--heartbeat_timeout_ms", str(options.heartbeat_timeout_ms)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = dict(os.environ, TORCHFT_LIGHTHOUSE=f"http://localhost:{port}", OMP_NUM_THREADS="1")

    def start(number):
        command = [sys.executable, __file__, "--worker", str(number), "--processes", str(options.processes), "--folder", folder]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    workers = [start(i) for i in range(options.processes)]
    rng, times, ended = random.Random(options.seed), [], [0]

    def replace_ended(but=None):
        for i, worker in enumerate(workers):
            if i != but and worker.poll() is not None:
                ended[0] += 1
                workers[i] = start(i)

    try:
        while len(times) < options.kills:
            began = time.monotonic()
            await_true("all join", lambda: any(count == options.processes for _, count in commits(folder, began)), replace_ended)
            time.sleep(rng.uniform(0.5, 1.5))
            victim = rng.randrange(options.processes)
            killed = time.monotonic()
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait()
            # A step in which all had done their part may still be committed by the others.
            later = await_true("a step is committed", lambda: [at for at, count in commits(folder, killed) if count < options.processes],
                               lambda: replace_ended(victim))
            times.append(later[0] - killed)
            workers[victim] = start(victim)
            print(f"kill {len(times)}: {times[-1]:.2f} s", file=sys.stderr, flush=True)
    finally:
        for process in [*workers, lighthouse]:
            process.kill()
            process.wait()
    return times, ended[0]


def share(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=5000)
    parser.add_argument("--join-timeout-ms", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return train(options.worker, options.processes, options.folder)
    import importlib.metadata
    import torch
    found = [d for d in importlib.metadata.distributions() if d.metadata["Name"].startswith("torchft")]
    with tempfile.TemporaryDirectory() as folder:
        steps = os.path.join(folder, "steps")
        os.mkdir(steps)
        times, ended = measure(options, steps)
    print(f"{ended} processes ended by themselves", file=sys.stderr)
    print(f"| torchft {found[0].version} (torch {torch.__version__}), silent for {options.heartbeat_timeout_ms / 1000:g} s: to the next committed step | " +
          " | ".join(f"{share(times, part):.2f} s" for part in (0.5, 0.9, 0.99)) + f" | {max(times):.2f} s |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
