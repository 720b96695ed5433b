#!/usr/bin/env python3
"""Mixes the processes of two releases in one service, and compares the end of its runs with an undisturbed run.

    upgrade.py OLD_BIN NEW_BIN

1. Mixed: a coordinator of one release trains on one worker of each, as told by the other release's `weft`; both ways round.
2. Upgraded and rolled back: a coordinator with a store and two workers train. Then, as in a rolling upgrade
   (docs/guide/upgrades.md), a worker of the other release joins and one is drained, by `weft drain` and then by SIGTERM, and
   the coordinator is stopped and one of the other release takes its store and its address. The same way leads back while the
   run goes on. Both orders, workers or coordinator first, from each release.

Each run must report each step once, have no restart but for drained workers, and leave the weights and losses of
`weft train`.

`ctest -R upgrade` gives the same programs for both, in one order; other releases are given by hand. Exits 1 if a run did not
end so.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from chaos import losses, weights

LIMIT = 240 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))  # seconds for a run
MIXED_STEPS, STEPS = 60, 600

RUN = """name: upgraded
model: {gpt: {layers: 4, width: 48, heads: 4, context: 32}}
data: {text: {path: text.txt}, order: shuffled}
train: {steps: STEPS, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: {1f1b: {}}
checkpoint: {every: 10}
"""


class Service:
    """The daemons of one run, each of either release."""

    def __init__(self, folder):
        self.folder, self.address = folder, f"unix:{folder / 'coordinator.sock'}"
        self.workers, self.coordinator, self.joined, self.started = [], None, 0, 0

    def start(self, name, *arguments):
        log = open(self.folder / f"{name}.log", "w")
        return subprocess.Popen([*map(str, arguments)], stderr=log, stdout=log)

    def start_coordinator(self, bins):
        self.started += 1
        self.coordinator = self.start(f"coordinator-{self.started}", bins / "weft-coordinator", "--listen",
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
        """Waits for so many steps of the run; returns how many it has then."""
        until = time.monotonic() + LIMIT
        while (done := self.describe(bins).get("steps_done", 0)) < steps:
            if time.monotonic() > until:
                raise RuntimeError(f"no {steps} steps within {LIMIT} s: {self.describe(bins)}")
            time.sleep(0.1)
        return done

    def await_workers(self, bins, count):
        until = time.monotonic() + LIMIT
        while len(json.loads(self.call(bins, "workers", "-o", "json").stdout or "[]")) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"no {count} workers within {LIMIT} s")
            time.sleep(0.1)

    def submit(self, bins):
        self.await_workers(bins, 2)
        submitted = self.call(bins, "submit", self.folder / "run.yaml", "--processes", "2", "--detach")
        if submitted.returncode != 0:
            raise RuntimeError(f"weft submit: {submitted.stderr}")

    def wait(self, bins, drained):
        """Waits for the run's end, with no restart but one for each drained worker; returns its folder."""
        waited = self.call(bins, "wait", "1", "--timeout", str(LIMIT))
        if waited.returncode != 0:
            raise RuntimeError(f"weft wait: {waited.stdout}{waited.stderr}")
        run = self.describe(bins)
        restarts, skipped = run.get("restarts", 0), run.get("non_finite_steps", 0)
        if restarts != drained or skipped:
            raise RuntimeError(f"{restarts} restarts and {skipped} steps given up, and {drained} workers were drained")
        return pathlib.Path(run["out"])

    def replace_worker(self, bins, by_signal):
        name, process = self.workers.pop(0)
        self.join(bins)
        self.await_workers(bins, 3)
        if by_signal:
            process.terminate()
        elif (drained := self.call(bins, "drain", name)).returncode != 0:
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


def train_mixed(folder, coordinator, other):
    """Trains on a worker of each release, as told by the other one's commands."""
    service = Service(folder)
    try:
        service.start_coordinator(coordinator)
        service.join(coordinator)
        service.join(other)
        service.submit(other)
        service.wait(other, drained=0)
        return service.wait(coordinator, drained=0)
    finally:
        service.end()


def upgrade_and_roll_back(folder, before, after, coordinator_first):
    """Replaces every process of a run, and then each of these again by one of the release before."""
    service = Service(folder)
    try:
        service.start_coordinator(before)
        service.join(before)
        service.join(before)
        service.submit(before)
        done = service.await_steps(before, 20)
        for there, here in ((after, before), (before, after)):
            replacements = [lambda: service.replace_worker(there, False), lambda: service.replace_worker(there, True)]
            replacements.insert(0 if coordinator_first else 2, lambda: service.replace_coordinator(there))
            for replace in replacements:
                replace()
                # Commands of either release are understood by either coordinator. The first answer is of what was done
                # while a process was replaced; further steps are made after that.
                done = service.await_steps(there, done + 1)
                done = service.await_steps(here, done + 20)
        if service.describe(before)["state"] in ("finished", "failed"):
            raise RuntimeError("the run ended before every process was replaced")
        return service.wait(before, drained=4)
    finally:
        service.end()


def prepare(scratch, name, steps):
    folder = scratch / name
    folder.mkdir()
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    (folder / "run.yaml").write_text(RUN.replace("STEPS", str(steps)))
    return folder


def result(out):
    return weights(out), losses(out)


def train_undisturbed(scratch, bins, steps):
    """The weights and losses of a run of `weft train`; the same for each release."""
    results = []
    for number, each in enumerate(bins):
        folder = prepare(scratch, f"undisturbed-{steps}-{number}", steps)
        subprocess.run([each / "weft", "train", folder / "run.yaml", "--processes", "2", "--out", folder / "out"], check=True,
                       capture_output=True)
        results.append(result(folder / "out"))
    if results[0] != results[-1]:
        sys.exit("the releases compute different bits, also where they are not mixed")
    return results[0]


def main():
    old, new = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    bins = [old] if old == new else [old, new]
    ways = [(old, new)] if old == new else [(old, new), (new, old)]
    orders = [False] if old == new else [False, True]
    runs = [(f"coordinator of {here}, workers of both, commands of {there}", MIXED_STEPS, train_mixed, (here, there))
            for here, there in ways]
    runs += [(f"{here} to {there} and back, {'coordinator' if first else 'workers'} first", STEPS, upgrade_and_roll_back,
              (here, there, first)) for here, there in ways for first in orders]
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        undisturbed = {steps: train_undisturbed(scratch, bins, steps) for steps in (MIXED_STEPS, STEPS)}
        for number, (what, steps, train, arguments) in enumerate(runs):
            begun = time.monotonic()
            try:
                right = result(train(prepare(scratch, f"run-{number}", steps), *arguments)) == undisturbed[steps]
                said = "the bits of an undisturbed run" if right else "DIFFERS"
            except RuntimeError as error:
                right, said = False, str(error)
            print(f"{what}: {said}, {time.monotonic() - begun:.0f} s", flush=True)
            failures += not right
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
