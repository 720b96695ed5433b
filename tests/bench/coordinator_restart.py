#!/usr/bin/env python3
"""Kills a coordinator with a store again and again, and compares steps with and without a store.

    coordinator_restart.py BIN_DIR [--kills 40] [--steps 400] [--rounds 5] [--store DIR]

The training is a small gpt of 4 stages on 2 workers with a checkpoint of every 5 steps. The coordinator is killed (SIGKILL) and
started again at once; `next step` is the time from the kill to the line of a step that had not ended before. The run must have had
one attempt all the time: its workers came back to it, and no job was made again. Then the same run is
made with and without a store in turn, and the time per step is that of the summary (p50 of its steps). Prints the lines of a
table. `--store` is the folder of the store, by default one below the folder for temporary files: a disk, where that is one.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 120
ANY = 1000000


def steps(out):
    path = out / "steps.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def await_true(what, condition):
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > LIMIT:
            raise RuntimeError(f"{what}: not within {LIMIT} s")
        time.sleep(0.002)
    return time.monotonic()


def write_run(folder, count, checkpoint):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / f"run-{count}.yaml"
    path.write_text("name: restart\nmodel: {gpt: {layers: 6, width: 128, heads: 4, context: 64}}\n"
                    "data: {text: {path: text.txt}, order: sequential}\n"
                    f"train: {{steps: {count}, batch: 16, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
                    f"stages: 4\nschedule: 1f1b\n{checkpoint}")
    return path


class Daemons:
    def __init__(self, bin_dir, folder, store):
        self.bin, self.folder, self.store = bin_dir, folder, store
        self.address = f"unix:{folder}/coordinator.sock"
        self.start()
        self.workers = [subprocess.Popen([bin_dir / "weft-worker", "--coordinator", self.address, "--name", f"w{i}"],
                                         stderr=subprocess.DEVNULL) for i in range(2)]

    def start(self):
        store = ["--store", self.store] if self.store else []
        self.coordinator = subprocess.Popen([self.bin / "weft-coordinator", "--listen", self.address, "--output-root", self.folder,
                                             *store], stderr=subprocess.DEVNULL)

    def weft(self, *arguments):
        for _ in range(50):
            done = subprocess.run([self.bin / "weft", *arguments, "--coordinator", self.address], capture_output=True, text=True)
            if done.returncode != 69:
                break
            time.sleep(0.1)
        if done.returncode != 0:
            raise RuntimeError(f"weft {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def end(self):
        for process in [*self.workers, self.coordinator]:
            process.send_signal(signal.SIGKILL)
            process.wait(30)


def measure_kills(options, folder, store):
    out = folder / "killed"
    daemons = Daemons(options.bin_dir, folder, store)
    times = []
    try:
        daemons.weft("submit", write_run(folder, ANY, "checkpoint: {every: 5}\n"), "--processes", "2", "--out", out, "--detach")
        while len(times) < options.kills:
            least = steps(out) + 7 + len(times) % 5
            await_true("the training gets on", lambda: steps(out) >= least)
            began = time.monotonic()
            daemons.coordinator.kill()
            daemons.coordinator.wait()
            done = steps(out)
            daemons.start()
            # The file is written anew from the store; steps that the store had count as made before.
            time.sleep(0.02)
            times.append(await_true("a new step", lambda: steps(out) > done + 1) - began)
        run = json.loads(daemons.weft("describe", "1", "-o", "json"))
        if run.get("restarts") or run.get("restart_reason"):
            raise RuntimeError(f"an attempt began again: {run.get('restart_reason')}")
        made = [json.loads(line)["step"] for line in (out / "steps.jsonl").read_text().splitlines()]
        if made != list(range(len(made))):
            raise RuntimeError("a step was reported twice, out of order or not at all")
    finally:
        daemons.end()
    return times


def step_seconds(options, folder, store, name):
    out = folder / name
    daemons = Daemons(options.bin_dir, folder, store)
    try:
        run = daemons.weft("submit", write_run(folder, options.steps, ""), "--processes", "2", "--out", out, "--detach").strip()
        daemons.weft("wait", run)
        await_true("the summary", lambda: (out / "summary.json").exists())
        return json.loads((out / "summary.json").read_text())["step_seconds"]["p50"]
    finally:
        daemons.end()


def share(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=options.store) as stores:
        folder, stores = pathlib.Path(name), pathlib.Path(stores)
        if options.kills:
            times = measure_kills(options, folder, stores / "killed")
            print(f"| to the second next step | " + " | ".join(f"{share(times, part):.2f} s" for part in (0.5, 0.9, 0.99)) +
                  f" | {max(times):.2f} s |", flush=True)
        ratios = []
        for i in range(options.rounds):
            kept = step_seconds(options, folder, stores / f"kept-{i}", f"kept-{i}")
            memory = step_seconds(options, folder, None, f"memory-{i}")
            ratios.append(kept / memory)
            print(f"round {i + 1}: {kept * 1e3:.3f} ms with a store, {memory * 1e3:.3f} ms without: {ratios[-1]:.4f}", flush=True)
        if ratios:
            print(f"median of {len(ratios)} ratios: {share(ratios, 0.5):.4f}")


if __name__ == "__main__":
    sys.exit(main())
