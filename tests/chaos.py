#!/usr/bin/env python3
"""Disturbs real trainings on real daemons, and checks that each ends with the bits of an undisturbed one.

    chaos.py BIN_DIR [--minutes 10] [--every 3] [--seed 1] [--schedule NAME ..] [--out docs/measurements/chaos.md]

A coordinator and three workers run as daemons; each of them that ends is started again, as systemd would. Trainings follow
one another, each with another schedule, with AdamW and clipping. Every few seconds something befalls a process that is drawn
from the seed: it is killed, it is stopped for a while, or, where root may make network namespaces, its machine is cut off
from the network for a while. Each run must reach its last step, report each step once with the loss of the undisturbed loop,
and leave its weights. Prints a markdown page; exits 1 if any run did not.
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
import time

WORKERS, PROCESSES, STEPS = 3, 2, 500
DISTURBED = 90  # seconds after which a run is left in peace
LIMIT = 240 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))  # seconds in which a run in peace must end
SCHEDULES = ["{1f1b: {}}", "{lpp: {groups: 2, ranks: 2}}", "{zb_h1: {}}", "{fsdp: {}}", "{fsdp: {shard: width}}",
             "{dualpipe_v: {}}", "{ddp: {}, rule: cdp_v2}", "{fsdp: {}, rule: cdp_v2}", "{1f1b: {}, rule: cdp_v2}"]


def write_run(folder, schedule):
    (folder / "text.txt").write_text("".join(f"the {i} of {i * i} is {i % 7}; " for i in range(4000)))
    path = folder / "run.yaml"
    path.write_text("name: chaos\nmodel: {gpt: {layers: 4, width: 48, heads: 4, context: 32}}\n"
                    "data: {text: {path: text.txt}, order: shuffled}\n"
                    f"train: {{steps: {STEPS}, batch: 16, microbatches: 4, seed: 1, clip_norm: 1.0, "
                    "optimizer: {adamw: {lr: 1.0e-3}}}\n"
                    f"stages: 4\nschedule: {schedule}\ncheckpoint: {{every: 10}}\nrestarts: 20\n")
    return path


def tensors(folder):
    """The tensors of a checkpoint by name, as bytes, without the cut into stages."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + length])
        for name, tensor in header.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                found[name] = raw[8 + length + begin:8 + length + end]
    return found


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
    def __init__(self, bins, folder, network):
        self.bins, self.folder, self.network = bins, folder, network
        self.socket = f"unix:{folder / 'coordinator.sock'}"
        port = random.SystemRandom().randrange(20000, 60000)
        self.address = f"{network.subnet}.254:{port}" if network.works else self.socket
        self.log = open(folder / "daemons.log", "w")
        self.stopped, self.cut, self.workers = {}, {}, [None] * WORKERS
        self.has_store = "--store" in subprocess.run([bins / "weft-coordinator", "--help"], capture_output=True, text=True).stdout
        self.coordinator = None
        self.supervise()

    def start_coordinator(self):
        listen = ["--listen", self.socket] + (["--listen", self.address, "--insecure"] if self.network.works else [])
        store = ["--store", str(self.folder / "store")] if self.has_store else []
        self.coordinator = self.start([self.bins / "weft-coordinator", *listen, *store, "--output-root", self.folder])
        until = time.monotonic() + 30
        while self.weft("ls").returncode != 0 and time.monotonic() < until:
            time.sleep(0.1)

    def start(self, command, **environment):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**os.environ, **environment})

    def start_worker(self, number):
        # Machines that can be cut off have no memory in common.
        apart = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "weft0", "WEFT_IN_PLACE": "0"} if self.network.works else {}
        self.workers[number] = self.start(self.network.within(number) + [
            self.bins / "weft-worker", "--coordinator", self.address, "--name", f"w{number}", "--link-timeout", "10"], **apart)

    def weft(self, *arguments, limit=60):
        return subprocess.run([self.bins / "weft", *arguments, "--coordinator", self.socket], capture_output=True, text=True, timeout=limit)

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

    def kill(self, number, _):
        self.stopped.pop(number, None)
        self.signal(number, signal.SIGKILL)
        return f"worker {number} killed"

    def stop(self, number, seconds):
        self.signal(number, signal.SIGSTOP)
        self.stopped[number] = time.monotonic() + seconds
        return f"worker {number} stopped for {seconds:.0f} s"

    def cut_off(self, number, seconds):
        self.network.cut(number, True)
        self.cut[number] = time.monotonic() + seconds
        return f"worker {number} cut off for {seconds:.0f} s"

    def kill_coordinator(self, *_):
        self.coordinator.kill()
        self.coordinator.wait()
        return "coordinator killed"

    def faults(self):
        kinds = {"worker killed": self.kill, "worker stopped": self.stop}
        if self.network.works:
            kinds["machine cut off"] = self.cut_off
        if self.has_store:
            kinds["coordinator killed"] = self.kill_coordinator
        return kinds

    def close(self):
        for process in self.workers + [self.coordinator]:
            if process is not None:
                process.kill()
                process.wait()


class Campaign:
    def __init__(self, options, folder, network):
        self.options, self.folder, self.rng = options, folder, random.Random(options.seed)
        self.cluster = Cluster(options.bin_dir, folder, network)
        self.references, self.rows, self.problems, self.counts = {}, [], [], {}

    def reference(self, schedule):
        """The output of the plain loop; all schedules of a rule have the same."""
        rule = "cdp_v2" if "cdp_v2" in schedule else "sync"
        if rule not in self.references:
            out = self.folder / f"reference-{rule}"
            done = subprocess.run([self.options.bin_dir / "weft", "train", write_run(self.folder, schedule), "--reference", "--out", out],
                                  capture_output=True, text=True, timeout=LIMIT)
            if done.returncode:
                raise RuntimeError(f"the plain loop failed: {done.stderr}")
            self.references[rule] = (tensors(out / "checkpoint"), losses(out))
        return self.references[rule]

    def disturb(self, said):
        kinds = self.cluster.faults()
        name = self.rng.choice(sorted(kinds))
        # Half of the pauses outlive the lease of 15 s.
        said.append(f"{time.monotonic():.1f} {kinds[name](self.rng.randrange(WORKERS), self.rng.choice([2, 6, 20, 25]))}")
        self.counts[name] = self.counts.get(name, 0) + 1

    def describe(self, run):
        done = self.cluster.weft("describe", run, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {"state": "unknown"}

    def one(self, schedule):
        reference = self.reference(schedule)
        out = self.folder / f"out{len(self.rows)}"
        submitted = self.cluster.weft("submit", str(write_run(self.folder, schedule)), "--processes", str(PROCESSES), "--out", str(out), "--detach",
                                      "-o", "json")
        if submitted.returncode:
            raise RuntimeError(f"a run was refused: {submitted.stderr}")
        run = str(json.loads(submitted.stdout)["run"])
        said, began, faults = [], time.monotonic(), 0
        state, next_fault = self.describe(run), began + self.options.every
        while state["state"] not in ("finished", "failed", "cancelled"):
            self.cluster.supervise()
            now = time.monotonic()
            if now > began + DISTURBED + LIMIT:
                break
            if now > began + DISTURBED:
                self.cluster.heal()
            elif now >= next_fault:
                self.disturb(said)
                faults += 1
                next_fault = now + self.options.every
            time.sleep(0.2)
            state = self.describe(run)
        problem = self.check(state, out, reference)
        self.rows.append((schedule, faults, state.get("restarts", 0), time.monotonic() - began, problem))
        print(f"{schedule}: {faults} faults, {state.get('restarts', 0)} restarts, {time.monotonic() - began:.0f} s: {problem or 'right'}", file=sys.stderr)
        if problem:
            self.problems.append(f"{schedule}: {problem}\n" + "\n".join(said) + f"\n{json.dumps(state, indent=1)}")

    @staticmethod
    def check(state, out, reference):
        if state["state"] != "finished":
            return f"the run is {state['state']}: {state.get('reason', '')}"
        if tensors(out / "checkpoint") != reference[0]:
            return "other weights"
        if losses(out) != reference[1]:
            return "other steps or losses"
        return ""

    def run(self):
        until = time.monotonic() + 60 * self.options.minutes
        schedules = self.options.schedule or SCHEDULES
        while time.monotonic() < until and not self.problems:
            self.one(schedules[len(self.rows) % len(schedules)])


def page(campaign, options):
    faults = ", ".join(f"{name} {count}" for name, count in sorted(campaign.counts.items()))
    rows = [f"| `{schedule}` | {faults} | {restarts} | {seconds:.0f} s | {problem or 'right'} |"
            for schedule, faults, restarts, seconds, problem in campaign.rows]
    return "\n".join([
        "# Disturbed trainings", "",
        f"`tests/chaos.py build/release/bin --minutes {options.minutes:g} --every {options.every:g} --seed {options.seed}` on a 2-core machine without a",
        f"GPU: {len(campaign.rows)} trainings of {STEPS} steps on {PROCESSES} of {WORKERS} worker daemons, with AdamW and clipping, and a checkpoint of every",
        "10 steps. A run is right if it has reached its last step by itself, each step was reported once with the loss of the",
        "plain loop, and its weights have the bits of the plain loop.", "",
        f"Faults: {faults}.", "",
        "It is a random choice of process and fault; half of the pauses outlive the lease of 15 s. Root is needed to cut a",
        "machine off.", "",
        "| schedule | faults | restarts | time | outcome |", "| --- | --- | --- | --- | --- |", *rows, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedule", action="append")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, help="keep the log of the daemons here")
    options = parser.parse_args()
    options.bin_dir = options.bin_dir.absolute()
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
