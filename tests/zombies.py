#!/usr/bin/env python3
"""Stops processes beyond their lease, lets them go on, and checks that they change nothing.

    zombies.py BIN_DIR worker|leader [--rounds 200] [--seed 1] [--log FILE]

worker: a coordinator and three workers run as daemons. In each round a worker that has ranks of the run is stopped until its
ranks are elsewhere, and goes on. It must leave its run, and register anew or end; the run goes on without a fault meanwhile.

leader: two coordinators share an etcd. In each round the one that leads is stopped until the other one leads and its run makes
steps again, and goes on. It must end with code 75.

The run of at most ten rounds at a time is stopped with a checkpoint. Its weights, its steps and its losses must be those of
the plain loop up to there. The daemons must have counted refusals (weft_fenced_total); their number is printed. Exits 1 if
anything is not so. 200 rounds take about an hour; `ctest -R zombie` makes a few.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import chaos
from free_ports import free_ports

LEASE = 5  # seconds, the least that a coordinator takes
ROUNDS_OF_A_RUN = 10
STEPS = 1_000_000  # more than any run gets
LIMIT = chaos.LIMIT


def eventually(what, done, limit=LIMIT):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        answer = done()
        if answer:
            return answer
        time.sleep(0.1)
    raise RuntimeError(f"this never was so: {what}")


class Daemons:
    """Processes by name, which end with this program; and the metrics that they serve."""

    def __init__(self, bins, folder):
        self.bins, self.folder, self.processes, self.commands = bins, folder, {}, {}
        self.counted, self.metrics = {}, {}  # refusals of lives that are over; addresses
        self.log = open(folder / "daemons.log", "w")

    def start(self, name, command, metrics=None):
        self.commands[name], self.metrics[name] = command, metrics
        self.processes[name] = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL,
                                                stdout=self.log, stderr=self.log)

    def supervise(self):
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self.start(name, self.commands[name], self.metrics[name])

    def signal(self, name, what):
        self.processes[name].send_signal(what)

    def fenced(self):
        """The refusals that all of them have counted, with those of former lives as far as they were asked."""
        for name, port in self.metrics.items():
            if port is None:
                continue
            try:
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            except OSError:
                continue
            count = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("weft_fenced_total"))
            life = (name, self.processes[name].pid)
            self.counted[life] = max(self.counted.get(life, 0), count)
        return int(sum(self.counted.values()))

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


class Zombies:
    def __init__(self, options, folder):
        self.options, self.folder, self.rng = options, folder, random.Random(options.seed)
        self.daemons = Daemons(options.bin_dir, folder)
        self.rows, self.trained = [], 0
        self.begin()
        for number in range(3):
            metrics = free_ports(1)
            self.daemons.start(f"w{number}", [options.bin_dir / "weft-worker", "--coordinator", self.address, "--name", f"w{number}",
                                              "--metrics", f"127.0.0.1:{metrics}"], metrics)

    def weft(self, *arguments):
        return subprocess.run([self.options.bin_dir / "weft", *arguments, "--coordinator", self.address], capture_output=True, text=True)

    def asked(self, *arguments):
        """Returns the answer to a question, or None while nobody answers."""
        done = self.weft(*arguments, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def steps(self):
        return (self.asked("describe", self.run) or {}).get("steps_done", 0)

    def await_steps(self, count):
        goal = self.steps() + count
        eventually(f"step {goal}", lambda: self.steps() >= goal)

    def submit(self):
        self.out = self.folder / f"out{self.trained}"
        self.trained += 1
        self.file = chaos.write_run(self.folder, "{1f1b: {}}", STEPS, redundancy=False)
        answer = eventually("two free workers", lambda: self.asked("submit", str(self.file), "--processes", "2", "--out", str(self.out),
                                                                   "--detach"))
        self.run = str(answer["run"])
        eventually("a first step", lambda: self.steps() > 3)

    def check(self):
        """Ends the run behind a checkpoint, and compares all that it has made."""
        eventually("a stop", lambda: self.weft("cancel", self.run, "--save").returncode == 0)
        eventually("its end", lambda: (self.asked("describe", self.run) or {}).get("state") == "cancelled")
        state = self.asked("describe", self.run)
        # An attempt that is over may have left a partial one, checkpoint-250.1a2b3c4d-7.partial.
        whole = (path for path in self.out.glob("checkpoint-*") if path.suffix == "")
        checkpoint = max(whole, key=lambda path: int(path.name.split("-")[1]))
        step = int(checkpoint.name.split("-")[1])
        reference = self.folder / "reference"
        shutil.rmtree(reference, ignore_errors=True)
        subprocess.run([self.options.bin_dir / "weft", "train", str(self.file), "--reference", "--until", str(step), "--out", reference],
                       check=True, capture_output=True)
        weights = chaos.bits.tensors_in(checkpoint.glob("*.safetensors"))
        if weights != chaos.weights(reference):
            raise RuntimeError(f"other weights after step {step}")
        if chaos.losses(self.out) != chaos.losses(reference):
            raise RuntimeError("other steps or losses")
        shutil.rmtree(self.out)
        return step, state.get("restarts", 0)

    def go(self):
        left = self.options.rounds
        while left > 0:
            self.submit()
            rounds = min(left, ROUNDS_OF_A_RUN)
            for _ in range(rounds):
                self.round()
            left -= rounds
            step, restarts = self.check()
            self.rows.append((rounds, step, restarts, self.daemons.fenced()))
            if self.rows[-1][3] == 0:
                raise RuntimeError("no process has counted a refusal (weft_fenced_total)")
            print(f"{rounds} rounds, {step} steps, {restarts} restarts, {self.rows[-1][3]} refusals so far: right", file=sys.stderr)


class ZombieWorkers(Zombies):
    def begin(self):
        self.address = f"unix:{self.folder / 'coordinator.sock'}"
        metrics = free_ports(1)
        self.daemons.start("coordinator", [self.options.bin_dir / "weft-coordinator", "--listen", self.address, "--output-root", self.folder,
                                           "--lease", str(LEASE), "--metrics", f"127.0.0.1:{metrics}"], metrics)
        eventually("a coordinator", lambda: self.asked("ls") is not None)

    def round(self):
        before = self.asked("describe", self.run)
        member = self.rng.choice(before["members"])
        name = member[member.index("(") + 1:member.index(",")]
        pid = self.daemons.processes[name].pid
        self.daemons.signal(name, signal.SIGSTOP)
        eventually(f"ranks of {name} elsewhere", lambda: self.moved_on(before, member))
        self.await_steps(5)
        self.daemons.fenced()
        self.daemons.signal(name, signal.SIGCONT)

        def is_back():
            self.daemons.supervise()
            there = {w["name"]: w for w in self.asked("workers") or []}
            return len(there) == 3 and there[name]["state"] in ("free", "busy")
        eventually(f"{name} (pid {pid}) is back", is_back)
        self.await_steps(5)
        if self.asked("describe", self.run)["state"] != "running":
            raise RuntimeError(f"the run does not go on: {self.asked('describe', self.run)}")

    def moved_on(self, before, member):
        now = self.asked("describe", self.run)
        return now["state"] == "running" and now.get("restarts", 0) > before.get("restarts", 0) and member not in now["members"]


class ZombieLeaders(Zombies):
    def begin(self):
        first = free_ports(6)
        etcd = f"http://127.0.0.1:{first}"
        peers = f"http://127.0.0.1:{first + 1}"
        self.daemons.start("etcd", ["/usr/bin/etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", etcd, "--advertise-client-urls",
                                    etcd, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster",
                                    f"default={peers}"])
        self.addresses = {"a": f"127.0.0.1:{first + 2}", "b": f"127.0.0.1:{first + 3}"}
        self.address = ",".join(self.addresses.values())  # the workers'; each question goes to the leader alone
        for number, (name, address) in enumerate(self.addresses.items()):
            metrics = first + 4 + number
            self.daemons.start(name, [self.options.bin_dir / "weft-coordinator", "--listen", address, "--output-root", self.folder, "--store",
                                      f"etcd://127.0.0.1:{first}/zombies", "--metrics", f"127.0.0.1:{metrics}"], metrics)
        eventually("a leader", self.leader)

    def weft(self, *arguments):
        return subprocess.run([self.options.bin_dir / "weft", *arguments, "--coordinator", self.addresses[self.leading]], capture_output=True,
                              text=True)

    def leader(self):
        """Returns the coordinator that answers at its own address, or None."""
        self.daemons.supervise()
        for name, address in self.addresses.items():
            done = subprocess.run([self.options.bin_dir / "weft", "ls", "--coordinator", address], capture_output=True, timeout=60)
            if done.returncode == 0:
                self.leading = name
                return name
        return None

    def round(self):
        leader = eventually("a leader", self.leader)
        other = "b" if leader == "a" else "a"
        process = self.daemons.processes[leader]
        self.daemons.signal(leader, signal.SIGSTOP)
        ask = [self.options.bin_dir / "weft", "ls", "--coordinator", self.addresses[other]]
        eventually(f"{other} leads", lambda: subprocess.run(ask, capture_output=True).returncode == 0)
        self.leading = other
        self.await_steps(5)
        self.daemons.fenced()
        self.daemons.signal(leader, signal.SIGCONT)
        code = process.wait(timeout=LIMIT)
        if code != 75:
            raise RuntimeError(f"the former leader ended with code {code}")
        self.daemons.supervise()
        self.await_steps(5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("kind", choices=["worker", "leader"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=pathlib.Path, help="keep the log of the daemons here")
    options = parser.parse_args()
    options.bin_dir = options.bin_dir.absolute()
    if options.kind == "leader" and not os.path.exists("/usr/bin/etcd"):
        print("etcd does not start; Debian has it in the package etcd-server", file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weft_zombies_") as folder:
        zombies = None
        try:
            zombies = (ZombieWorkers if options.kind == "worker" else ZombieLeaders)(options, pathlib.Path(folder))
            zombies.go()
        finally:
            if zombies is not None:
                zombies.daemons.close()
            if options.log:
                shutil.copy(pathlib.Path(folder) / "daemons.log", options.log)
    rounds, steps, restarts = (sum(row[i] for row in zombies.rows) for i in range(3))
    print(f"{rounds} rounds of a {options.kind} that was stopped beyond its lease, in {(time.monotonic() - began) / 60:.0f} minutes: "
          f"{steps} steps, {restarts} restarts, weights and losses of the plain loop; {zombies.rows[-1][3]} refusals were counted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
