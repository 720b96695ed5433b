#!/usr/bin/env python3
"""Replaces every process of a run by one of another release while the run goes on, and compares its end with the plain loop.

    upgrade.py OLD_BIN NEW_BIN

A coordinator with a store and two workers of the old release train. Then, as in a rolling upgrade (docs/guide/operating.md),
a worker of the new release joins and an old one is drained, twice, and the coordinator is stopped and one of the new release
takes its store and its address. The order is also tried the other way round, coordinator first, and both once more from new
to old. The run must report each step once, and end with the weights of `weft train --reference`.

`ctest -R upgrade` gives the same programs for both, in the first order alone; other releases are given by hand. Exits 1 if a
run did not end so.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from chaos import weights

LIMIT = 240 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))  # seconds for a run
STEPS = 400

RUN = f"""name: upgraded
model: {{gpt: {{layers: 4, width: 48, heads: 4, context: 32}}}}
data: {{text: {{path: text.txt}}, order: shuffled}}
train: {{steps: {STEPS}, batch: 16, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}
stages: 4
schedule: {{1f1b: {{}}}}
checkpoint: {{every: 10}}
"""


class Service:
    """The daemons of one run, each of either release."""

    def __init__(self, folder):
        self.folder, self.address = folder, f"unix:{folder / 'coordinator.sock'}"
        self.workers, self.coordinator, self.joined = [], None, 0

    def start(self, name, *arguments):
        log = open(self.folder / f"{name}.log", "w")
        return subprocess.Popen([*map(str, arguments)], stderr=log, stdout=log)

    def start_coordinator(self, bins):
        self.coordinator = self.start(f"coordinator-{bins.parent.parent.parent.name}", bins / "weft-coordinator", "--listen",
                                      self.address, "--store", self.folder / "store", "--output-root", self.folder / "runs")

    def join(self, bins, *flags):
        self.joined += 1
        name = f"worker-{self.joined}"
        self.workers.append((name, self.start(name, bins / "weft-worker", "--coordinator", self.address, "--name", name, *flags)))

    def call(self, bins, *arguments):
        return subprocess.run([bins / "weft", *arguments, "--coordinator", self.address], capture_output=True, text=True)

    def describe(self, bins):
        told = self.call(bins, "describe", "1", "-o", "json")
        return json.loads(told.stdout) if told.returncode == 0 else {}

    def await_steps(self, bins, steps):
        until = time.monotonic() + LIMIT
        while self.describe(bins).get("steps_done", 0) < steps:
            if time.monotonic() > until:
                raise RuntimeError(f"no {steps} steps within {LIMIT} s: {self.describe(bins)}")
            time.sleep(0.1)

    def await_workers(self, bins, count):
        until = time.monotonic() + LIMIT
        while len(json.loads(self.call(bins, "workers", "-o", "json").stdout or "[]")) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"no {count} workers within {LIMIT} s")
            time.sleep(0.1)

    def replace_worker(self, bins):
        name, process = self.workers.pop(0)
        self.join(bins)
        self.await_workers(bins, 3)
        drained = self.call(bins, "drain", name)
        if drained.returncode != 0:
            raise RuntimeError(f"weft drain: {drained.stderr}")
        if process.wait(LIMIT) != 0:
            raise RuntimeError(f"{name} ended with {process.returncode}")

    def replace_coordinator(self, bins):
        self.coordinator.terminate()
        if self.coordinator.wait(LIMIT) != 0:
            raise RuntimeError(f"the coordinator ended with {self.coordinator.returncode}")
        self.start_coordinator(bins)

    def end(self):
        for _, process in [*self.workers, ("", self.coordinator)]:
            process.kill()
            process.wait()


def upgrade(folder, before, after, coordinator_first):
    """The run's folder when it has ended."""
    service = Service(folder)
    try:
        service.start_coordinator(before)
        for _ in range(2):
            service.join(before)
        service.await_workers(before, 2)
        submitted = service.call(before, "submit", folder / "run.yaml", "--processes", "2", "--detach")
        if submitted.returncode != 0:
            raise RuntimeError(f"weft submit: {submitted.stderr}")
        service.await_steps(before, 20)
        steps = [service.replace_worker, service.replace_worker]
        steps.insert(0 if coordinator_first else 2, service.replace_coordinator)
        for replace in steps:
            replace(after)
            done = service.describe(after).get("steps_done", 0)
            service.await_steps(after, done + 20)
        waited = service.call(after, "wait", "1", "--timeout", str(LIMIT))
        if waited.returncode != 0:
            raise RuntimeError(f"weft wait: {waited.stdout}{waited.stderr}")
        return pathlib.Path(service.describe(after)["out"])
    finally:
        service.end()


def main():
    old, new = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)

        def prepare(name):
            folder = scratch / name
            folder.mkdir()
            (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
            (folder / "run.yaml").write_text(RUN)
            return folder

        plain = prepare("plain")
        subprocess.run([new / "weft", "train", plain / "run.yaml", "--reference", "--out", plain / "out"], check=True,
                       capture_output=True)
        orders = [(old, new, False), (old, new, True), (new, old, False), (new, old, True)]
        for number, (before, after, coordinator_first) in enumerate(orders[:1] if old == new else orders):
            what = f"{before} to {after}, {'coordinator' if coordinator_first else 'workers'} first"
            try:
                out = upgrade(prepare(f"run-{number}"), before, after, coordinator_first)
                steps = [json.loads(line)["step"] for line in (out / "steps.jsonl").read_text().splitlines()]
                right = weights(out) == weights(plain / "out") and steps == list(range(STEPS))
                print(f"{what}: {'ends with the bits of the plain loop' if right else 'DIFFERS'}")
                failures += not right
            except RuntimeError as error:
                print(f"{what}: {error}")
                failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
