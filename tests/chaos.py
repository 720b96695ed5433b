#!/usr/bin/env python3
"""Disturbs real trainings on real daemons, and checks that each ends with the bits of an undisturbed one.

    chaos.py BIN_DIR [--minutes 10] [--every 3] [--seed 1] [--schedule NAME ..] [--out docs/measurements/chaos.md]
    chaos.py BIN_DIR --short [--seed 1]

A coordinator and three workers run as daemons; each of them that ends is started again, as systemd would. Trainings follow
one another, each with another schedule, with AdamW and clipping; every other one keeps copies in memory (redundancy). Every
few seconds something befalls a process that is drawn from the seed: it is killed, it is stopped for a while, or, where root
may make network namespaces, its machine is cut off from the network for a while; the coordinator is among them. Ranks are
moved and workers drained, too. Each run must reach its last step, report each step once with the loss of the undisturbed
loop, and leave its weights. Prints a markdown page; exits 1 if any run did not.

Three losses in a row with one job in hand are the mark of a poison job (docs/design/recovery.md). So a third fault waits
until some steps have ended since the first.

--short disturbs six trainings for ten seconds each, with a shorter lease: about a minute and a half, and whatever a loaded
machine takes. `ctest -R chaos` runs it.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import bits

WORKERS, PROCESSES = 3, 2
LIMIT = 240 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))  # seconds in which a run in peace must end
STEPS_BETWEEN = 5  # that must end before a third fault in a row
SCHEDULES = ["{1f1b: {}}", "{lpp: {groups: 2, ranks: 2}}", "{zb_h1: {}}", "{fsdp: {}}", "{fsdp: {shard: width}}",
             "{dualpipe_v: {}}", "{ddp: {}, rule: cdp_v2}", "{fsdp: {}, rule: cdp_v2}", "{1f1b: {}, rule: cdp_v2}",
             "{fsdp: {residency: migrating}, rule: cdp_v2}"]
SHORT = [0, 9, 3, 5, 6, 4]  # numbers of the schedules of the short form


def clips(schedule):
    return "migrating" not in schedule  # clipping is not combined with states that migrate


def write_run(folder, schedule, steps, redundancy):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / "run.yaml"
    norm = "clip_norm: 1.0, " if clips(schedule) else ""
    copies = "redundancy: {peers: 1}\ncheckpoint: {every: 50}\n" if redundancy else "checkpoint: {every: 10}\n"
    path.write_text("name: chaos\nmodel: {gpt: {layers: 4, width: 48, heads: 4, context: 32}}\n"
                    "data: {text: {path: text.txt}, order: shuffled}\n"
                    f"train: {{steps: {steps}, batch: 16, microbatches: 4, seed: 1, {norm}"
                    "optimizer: {adamw: {lr: 1.0e-3}}}\n"
                    f"stages: 4\nschedule: {schedule}\n{copies}restarts: 100\n")
    return path


def weights(folder):
    return bits.tensors_in((folder / "checkpoint").glob("*.safetensors"))


def losses(folder):
    return [(line["step"], line["loss"]) for line in map(json.loads, (folder / "steps.jsonl").read_text().splitlines())]


class Network:
    """A machine of its own for each worker, as far as the network sees: namespaces on one bridge."""

    def __init__(self):
        self.bridge, self.names, self.subnet = f"wc{os.getpid() % 10000}", [], f"10.{100 + os.getpid() % 100}.7"
        self.works = os.geteuid() == 0 and self.make()

    def ip(self, *arguments):
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0

    def make(self):
        if not (self.ip("link", "add", self.bridge, "type", "bridge") and
                self.ip("addr", "add", f"{self.subnet}.254/24", "dev", self.bridge) and self.ip("link", "set", self.bridge, "up")):
            return False
        for number in range(WORKERS):
            name, outer = f"{self.bridge}-{number}", f"{self.bridge}v{number}"
            self.names.append(name)
            if not (self.ip("netns", "add", name) and
                    self.ip("link", "add", outer, "type", "veth", "peer", "name", "weft0", "netns", name) and
                    self.ip("link", "set", outer, "master", self.bridge) and self.ip("link", "set", outer, "up") and
                    self.ip("-n", name, "addr", "add", f"{self.subnet}.{number + 1}/24", "dev", "weft0") and
                    self.ip("-n", name, "link", "set", "lo", "up") and self.ip("-n", name, "link", "set", "weft0", "up")):
                return False
        return True

    def within(self, number):
        return ["ip", "netns", "exec", self.names[number]] if self.works else []

    def cut(self, number, is_cut):
        self.ip("link", "set", f"{self.bridge}v{number}", "down" if is_cut else "up")

    def close(self):
        for name in self.names:
            self.ip("netns", "del", name)
        self.ip("link", "del", self.bridge)


class Cluster:
    def __init__(self, bins, folder, network, lease):
        self.bins, self.folder, self.network, self.lease = bins, folder, network, lease
        self.socket = f"unix:{folder / 'coordinator.sock'}"
        port = random.SystemRandom().randrange(20000, 60000)
        self.address = f"{network.subnet}.254:{port}" if network.works else self.socket
        self.log = open(folder / "daemons.log", "w")
        self.stopped, self.cut, self.workers = {}, {}, [None] * WORKERS
        self.coordinator = None
        if network.works:
            subprocess.run([bins / "weft", "certs", "init", folder / "certs"], stdout=self.log, check=True)
        self.supervise()

    def tls(self, role):
        return ["--tls", self.folder / "certs" / role]

    def start_coordinator(self):
        listen = ["--listen", self.socket] + (["--listen", self.address, *self.tls("coordinator")] if self.network.works else [])
        self.coordinator = self.start([self.bins / "weft-coordinator", *listen, "--store", str(self.folder / "store"), "--lease",
                                       str(self.lease), "--output-root", self.folder])
        until = time.monotonic() + LIMIT
        while self.weft("ls").returncode != 0 and time.monotonic() < until:
            time.sleep(0.1)

    def start(self, command, **environment):
        # No daemon outlives this program, however it ends.
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                env={**os.environ, **environment})

    def start_worker(self, number):
        # Machines that can be cut off have no memory in common.
        apart = {"WEFT_SHARED_MEMORY": "0", "WEFT_IN_PLACE": "0"} if self.network.works else {}
        self.workers[number] = self.start(self.network.within(number) + [
            self.bins / "weft-worker", "--coordinator", self.address, "--name", f"w{number}", "--link-timeout", "10",
            *(self.tls("worker") if self.network.works else [])], **apart)

    def weft(self, *arguments, limit=60):
        try:
            return subprocess.run([self.bins / "weft", *arguments, "--coordinator", self.socket], capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, 124, "", "it took too long")

    def supervise(self):
        """Starts again what has ended, and ends the stops and cuts whose time is over."""
        if self.coordinator is None or self.coordinator.poll() is not None:
            self.start_coordinator()
        now = time.monotonic()
        for number in range(WORKERS):
            if number in self.stopped and now >= self.stopped[number]:
                self.go_on(number)
            if number in self.cut and now >= self.cut[number]:
                self.network.cut(number, False)
                del self.cut[number]
            if self.workers[number] is None or self.workers[number].poll() is not None:
                self.stopped.pop(number, None)
                self.start_worker(number)

    def go_on(self, number):
        del self.stopped[number]
        self.signal(number, signal.SIGCONT)

    def heal(self):
        for waits in (self.stopped, self.cut):
            for number in waits:
                waits[number] = 0
        self.supervise()

    def signal(self, number, what):
        if self.workers[number].poll() is None:
            self.workers[number].send_signal(what)

    def kill(self, number, **_):
        self.stopped.pop(number, None)
        self.signal(number, signal.SIGKILL)
        return f"worker {number} killed"

    def stop(self, number, seconds, **_):
        self.signal(number, signal.SIGSTOP)
        self.stopped[number] = time.monotonic() + seconds
        return f"worker {number} stopped for {seconds:.1f} s"

    def cut_off(self, number, seconds, **_):
        self.network.cut(number, True)
        self.cut[number] = time.monotonic() + seconds
        return f"worker {number} cut off for {seconds:.1f} s"

    def kill_coordinator(self, **_):
        self.coordinator.kill()
        self.coordinator.wait()
        return "coordinator killed"

    def stop_coordinator(self, seconds, **_):
        seconds = min(seconds, 6)
        self.coordinator.send_signal(signal.SIGSTOP)
        # A thread continues it, because callers of the coordinator wait for it meanwhile.
        threading.Timer(seconds, self.coordinator.send_signal, [signal.SIGCONT]).start()
        return f"coordinator stopped for {seconds:.1f} s"

    def move(self, run, number, rank, **_):
        answer = self.weft("move", run, "--rank", str(rank), "--to", f"w{number}", "--detach").returncode
        return f"rank {rank} moved to worker {number}: {answer}"

    def drain(self, number, **_):
        return f"worker {number} drained: {self.weft('drain', f'w{number}', '--detach').returncode}"

    def faults(self):
        kinds = {"worker killed": self.kill, "worker stopped": self.stop, "coordinator killed": self.kill_coordinator,
                 "coordinator stopped": self.stop_coordinator, "rank moved": self.move, "worker drained": self.drain}
        if self.network.works:
            kinds["machine cut off"] = self.cut_off
        return kinds

    def close(self):
        for process in self.workers + [self.coordinator]:
            if process is not None:
                process.kill()
                process.wait()


class Campaign:
    def __init__(self, options, folder, network):
        self.options, self.folder, self.rng = options, folder, random.Random(options.seed)
        self.cluster = Cluster(options.bin_dir, folder, network, options.lease)
        self.references, self.rows, self.problems, self.counts = {}, [], [], {}

    def reference(self, schedule):
        """The output of the plain loop; all schedules of a rule have the same."""
        rule = ("cdp_v2" if "cdp_v2" in schedule else "sync") + ("" if clips(schedule) else "-unclipped")
        if rule not in self.references:
            out = self.folder / f"reference-{rule}"
            done = subprocess.run([self.options.bin_dir / "weft", "train", write_run(self.folder, schedule, self.options.steps, False),
                                   "--reference", "--out", out], capture_output=True, text=True, timeout=LIMIT)
            if done.returncode:
                raise RuntimeError(f"the plain loop failed: {done.stderr}")
            self.references[rule] = (weights(out), losses(out))
        return self.references[rule]

    def disturb(self, run, said):
        kinds = self.cluster.faults()
        name = self.rng.choice(sorted(kinds))
        # Half of the pauses outlive the lease.
        what = {"run": run, "number": self.rng.randrange(WORKERS), "rank": self.rng.randrange(4),
                "seconds": self.options.lease * self.rng.choice([0.15, 0.4, 1.35, 1.7])}
        said.append(f"{time.monotonic():.1f} {kinds[name](**what)}")
        self.counts[name] = self.counts.get(name, 0) + 1

    def describe(self, run):
        done = self.cluster.weft("describe", run, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {"state": "unknown"}

    def submit(self, schedule, redundancy, out):
        submitted = self.cluster.weft("submit", str(write_run(self.folder, schedule, self.options.steps, redundancy)), "--processes",
                                      str(PROCESSES), "--out", str(out), "--detach", "-o", "json")
        if submitted.returncode:
            raise RuntimeError(f"a run was refused: {submitted.stderr}")
        return str(json.loads(submitted.stdout)["run"])

    def one(self, schedule, redundancy):
        reference = self.reference(schedule)
        out = self.folder / f"out{len(self.rows)}"
        run = self.submit(schedule, redundancy, out)
        said, began, faults = [], time.monotonic(), 0
        since = [-STEPS_BETWEEN, -STEPS_BETWEEN]  # steps done at the last two faults
        state, next_fault = self.describe(run), began + self.options.every
        while state["state"] not in ("finished", "failed", "cancelled"):
            self.cluster.supervise()
            now, steps = time.monotonic(), state.get("steps_done", 0)
            if now > began + self.options.disturbed + LIMIT:
                break
            if now > began + self.options.disturbed:
                self.cluster.heal()
            elif now >= next_fault and steps >= since[0] + STEPS_BETWEEN:
                self.disturb(run, said)
                faults += 1
                since = [since[1], steps]
                next_fault = now + self.options.every
            time.sleep(0.2)
            state = self.describe(run)
        problem = self.check(state, out, reference)
        self.rows.append((schedule, redundancy, faults, state.get("restarts", 0), time.monotonic() - began, problem))
        print(f"{schedule}{' with redundancy' if redundancy else ''}: {faults} faults, {state.get('restarts', 0)} restarts, "
              f"{time.monotonic() - began:.0f} s: {problem or 'right'}", file=sys.stderr)
        if problem:
            self.problems.append(f"{schedule}: {problem}\n" + "\n".join(said) + f"\n{json.dumps(state, indent=1)}")

    @staticmethod
    def check(state, out, reference):
        if state["state"] != "finished":
            return f"the run is {state['state']}: {state.get('reason', '')}"
        if weights(out) != reference[0]:
            return "other weights"
        if losses(out) != reference[1]:
            return "other steps or losses"
        return ""

    def run(self):
        if self.options.short:
            for i, number in enumerate(SHORT):
                self.one(SCHEDULES[number], i % 2 == 1)
            return
        until = time.monotonic() + 60 * self.options.minutes
        schedules = self.options.schedule or SCHEDULES
        while time.monotonic() < until and not self.problems:
            trained = len(self.rows)
            self.one(schedules[trained % len(schedules)], (trained + trained // len(schedules)) % 2 == 1)


def page(campaign, options):
    faults = ", ".join(f"{name} {count}" for name, count in sorted(campaign.counts.items()))
    rows = [f"| `{schedule}` | {'yes' if redundancy else 'no'} | {count} | {restarts} | {seconds:.0f} s | {problem or 'right'} |"
            for schedule, redundancy, count, restarts, seconds, problem in campaign.rows]
    return "\n".join([
        "# Disturbed trainings", "",
        f"`tests/chaos.py build/release/bin --minutes {options.minutes:g} --every {options.every:g} --seed {options.seed}` on a 2-core machine without a",
        f"GPU: {len(campaign.rows)} trainings of {options.steps} steps on {PROCESSES} of {WORKERS} worker daemons, with AdamW and clipping, and a checkpoint of every",
        "10 steps, or with copies in memory and a checkpoint of every 50. A run is right if it has reached its last step by",
        "itself, each step was reported once with the loss of the plain loop, and its weights have the bits of the plain loop.", "",
        textwrap.fill(f"Faults: {faults}.", 119), "",
        f"It is a random choice of process and fault; half of the pauses outlive the lease of {options.lease} s. Root is needed to cut a",
        "machine off. States that migrate are trained without clipping, which they do not have.", "",
        "| schedule | redundancy | faults | restarts | time | outcome |", "| --- | --- | --- | --- | --- | --- |", *rows, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--schedule", action="append")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, help="keep the log of the daemons here")
    options = parser.parse_args()
    options.bin_dir = options.bin_dir.absolute()
    # Steps of a run, seconds in which it is disturbed, and the lease.
    options.steps, options.disturbed, options.lease = (200, 10, 5) if options.short else (500, 90, 15)
    if options.short:
        options.every = 1.5
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces go
    network = Network()
    if not network.works:
        print("NOT CUT OFF: only root can make network namespaces, so no machine was cut off", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="weft_chaos_") as folder:
        campaign = Campaign(options, pathlib.Path(folder), network)
        try:
            campaign.run()
        finally:
            campaign.cluster.close()
            network.close()
            if options.log:
                options.log.write_text((pathlib.Path(folder) / "daemons.log").read_text())
    text = page(campaign, options)
    if options.out and not campaign.problems:
        options.out.write_text(text)
    print(text)
    for problem in campaign.problems:
        print(problem, file=sys.stderr)
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
