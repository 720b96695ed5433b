#!/usr/bin/env python3
"""Real trainings with faults: whatever happens to a run, no earlier checkpoint is lost, and it ends as documented.

    faulted_runs.py RUNS [--bin build/release/bin] [--seed S] [--out docs/measurements/faults.md]

Each run is drawn from the seed: what its output folder holds before (nothing, a finished run, a part of a run), how it is
started (plainly, --overwrite, --resume, --reference), and what befalls it. After it, three things are checked: every
complete checkpoint that was there before is there still, byte by byte, unless the run has put a complete one of its own in
its place as it was told to; the exit code is the documented one; and what was said last names the cause. A disk of its own
needs root; without it those faults are skipped, loudly. Prints one markdown page; exits 1 if any run went wrong.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

STEPS, UNTIL, LONG = 12, 6, 1_000_000
FACTOR = int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))
LIMIT = 120 * FACTOR  # seconds, for hangs only


def write_data(folder):
    rng = random.Random(5)
    text = bytes(rng.choice(b"abcdefgh \n") for _ in range(6000))
    (folder / "text.txt").write_bytes(text)
    tokens = [rng.randrange(300) for _ in range(6000)]
    (folder / "tokens.bin").write_bytes(struct.pack("<6000H", *tokens))
    tokens[4321] = 300
    (folder / "bad_tokens.bin").write_bytes(struct.pack("<6000H", *tokens))
    (folder / "odd_tokens.bin").write_bytes(struct.pack("<6000H", *tokens) + b"x")


def run_file(folder, name, steps=STEPS, data="text: {path: text.txt}", vocabulary=256, optimizer="adamw: {lr: 1.0e-3}",
             restarts=3):
    path = folder / name
    path.write_text(f"name: faulted\nmodel: {{gpt: {{layers: 2, width: 16, heads: 2, context: 16, vocabulary: {vocabulary}}}}}\n"
                    f"data: {{{data}}}\n"
                    f"train: {{steps: {steps}, batch: 8, microbatches: 2, seed: 1, optimizer: {{{optimizer}}}}}\n"
                    f"stages: 2\nschedule: 1f1b\nrestarts: {restarts}\n")
    return path


def checkpoints(folder):
    """The complete checkpoints below a folder: digest of each by its path."""
    found = {}
    for index in folder.rglob("model.safetensors.index.json"):
        place = index.parent
        if place.name == "checkpoint-0" or ".partial" in place.name:
            continue
        files = sorted(path for path in place.rglob("*") if path.is_file())
        named = json.loads(index.read_text())
        if not all((place / name).is_file() for name in named["weight_map"].values()):
            raise RuntimeError(f"{place} has an index and not all its files")
        digest = hashlib.sha256()
        for path in files:
            digest.update(str(path.relative_to(place)).encode() + b"\0" + path.read_bytes())
        found[place] = digest.hexdigest()
    return found


class Fault:
    """A fault of a run. `codes`: the documented exit codes; `causes`: one of these is in the last lines of standard error."""

    def __init__(self, name, codes, causes):
        self.name, self.codes, self.causes = name, codes, causes
        self.runs = self.bad = 0
        self.seen, self.example = {}, ""


FAULTS = [
    Fault("worker killed (SIGKILL, SEGV)", [0], ["goes on from", "begins again"]),
    Fault("worker killed, `restarts: 0`", [1], ["SIGKILL", "SIGSEGV"]),
    Fault("weft killed (SIGKILL)", [-9], [""]),
    Fault("Ctrl-C, SIGTERM", [130], ["stopped by SIG"]),
    Fault("disk full while it runs", [0, 1], ["No space left on device"]),
    Fault("data cut off before", [78], ["odd_tokens.bin"]),
    Fault("data cut off while it runs", [1], ["moving.bin"]),
    Fault("loss no longer finite", [1], ["finite"]),
    Fault("second training in the folder", [75], ["another run is writing in"]),
    Fault("wrong run file, same name", [78], ["bad_tokens.bin"]),
    Fault("same run file again", [78], ["--overwrite"]),
    Fault("folder removed while it runs", [1], ["was removed while the run went on"]),
]


class Campaign:
    def __init__(self, bins, seed, folder):
        self.weft, self.rng, self.folder = str(bins / "weft"), random.Random(seed), folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", self.disk], capture_output=True, text=True)
        self.mounted = mounted.returncode == 0
        self.problems, self.count = [], 0
        write_data(folder)
        self.good, self.long = run_file(folder, "good.yaml"), run_file(folder, "long.yaml", LONG)
        self.prepare("finished", [])
        self.prepare("part", ["--until", str(UNTIL)])

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.disk], check=False)

    def prepare(self, name, flags):
        done = subprocess.run([self.weft, "train", self.good, "--reference", "--out", self.folder / name] + flags, capture_output=True,
                              text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"a plain training failed: {done.stderr}")

    def begin(self, file, out, flags):
        log = open(self.folder / "log", "w+")
        processes = str(self.rng.choice([1, 2]))  # drawn for the reference too, so that a seed means the same faults
        flags = flags if "--reference" in flags else ["--processes", processes] + flags
        return subprocess.Popen([self.weft, "train", file, "--out", out] + flags,
                                stdout=subprocess.DEVNULL, stderr=log), log

    def await_steps(self, run, out, more_than):
        """Until a step was made that was not there before."""
        until = time.time() + LIMIT
        while time.time() < until and run.poll() is None:
            for live in (out / "replacement", out):
                steps = live / "steps.jsonl"
                if steps.exists() and steps.stat().st_size > 0 and steps.read_text().count("\n") > more_than[live.name == "replacement"]:
                    time.sleep(self.rng.choice([0, 0, 0.05, 0.2]))
                    return True
        return False

    def start(self, before, file, out):
        """Begins a run in a folder that holds `before`."""
        flags = {"nothing": [], "finished": ["--overwrite"], "part": self.rng.choice([["--overwrite"], ["--resume", str(out / "checkpoint")]])}[before]
        steps = out / "steps.jsonl"
        there = steps.read_text().count("\n") if steps.exists() else 0
        run, log = self.begin(file, out, flags)
        # A resumed run cuts the lines of its own steps first, so there are at most UNTIL.
        return run, log, [there if "--overwrite" not in flags else 1 << 30, 0], flags

    def one(self, fault):
        self.count += 1
        before = self.rng.choice(["nothing", "finished", "part"])
        root = self.disk if fault.name.startswith("disk") else self.folder
        out = root / f"out{self.count}"
        if before != "nothing":
            shutil.copytree(self.folder / before, out)
        held = checkpoints(out) if out.exists() else {}
        code, said, replaced = getattr(self, "do_" + KINDS[fault.name])(before, out)
        fault.runs += 1
        fault.seen[code] = fault.seen.get(code, 0) + 1
        wrong = []
        if code not in fault.codes:
            wrong.append(f"exit code {code}, not {fault.codes}")
        last = "\n".join(said.strip().splitlines()[-4:])
        if code != 0 and not any(cause in last for cause in fault.causes):
            wrong.append("the cause is not named")
        now = checkpoints(out) if out.exists() else {}
        lost = [place for place, digest in held.items() if digest not in now.values()]
        own = [place for place, digest in now.items() if digest not in held.values()]
        if lost and not (replaced and own):
            wrong.append(f"lost {', '.join(place.name for place in lost)}")
        if wrong:
            fault.bad += 1
            self.problems.append(f"run {self.count}, {fault.name}, in a folder with {before}: {'; '.join(wrong)}\n{said[-1500:]}")
        elif said.strip() and not fault.example:
            fault.example = said.strip().splitlines()[-1]
        shutil.rmtree(out, ignore_errors=True)

    def end(self, run, log):
        try:
            code = run.wait(LIMIT)
        except subprocess.TimeoutExpired:
            run.kill()
            code = "hangs"
            run.wait()
        log.seek(0)
        said = log.read()
        log.close()
        return code, said

    def workers(self, run):
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(run.pid)], capture_output=True, text=True)
        return [int(line.split()[0]) for line in listed.stdout.splitlines() if "weft-worker" in line]

    def do_worker(self, before, out):
        return self.kill_worker(before, out, run_file(self.folder, "killed.yaml", 200))

    def do_once(self, before, out):
        return self.kill_worker(before, out, run_file(self.folder, "once.yaml", LONG, restarts=0))

    def kill_worker(self, before, out, file):
        run, log, there, _ = self.start(before, file, out)
        self.await_steps(run, out, there)
        victims = self.workers(run)
        if victims:
            os.kill(self.rng.choice(victims), self.rng.choice([signal.SIGKILL, signal.SIGSEGV]))
        return *self.end(run, log), True

    def do_weft(self, before, out):
        run, log, there, _ = self.start(before, self.long, out)
        self.await_steps(run, out, there)
        run.kill()
        return *self.end(run, log), False

    def do_signal(self, before, out):
        run, log, there, _ = self.start(before, self.long, out)
        self.await_steps(run, out, there)
        run.send_signal(self.rng.choice([signal.SIGINT, signal.SIGTERM]))
        return *self.end(run, log), True

    def do_disk(self, before, out):
        file = run_file(self.folder, "disk.yaml", self.rng.choice([60, 200]))
        run, log, there, _ = self.start(before, file, out)
        self.await_steps(run, out, there)
        free = os.statvfs(self.disk)
        with open(self.disk / "filler", "wb") as filler:
            try:
                os.posix_fallocate(filler.fileno(), 0, max(4096, free.f_bavail * free.f_frsize - self.rng.choice([0, 20_000, 100_000])))
            except OSError:
                pass  # the run was faster
        code, said = self.end(run, log)
        (self.disk / "filler").unlink()
        return code, said, True

    def do_odd(self, before, out):
        file = run_file(self.folder, "odd.yaml", data="text: {path: odd_tokens.bin, tokens: uint16}", vocabulary=400)
        return *self.refused(file, before, out), False

    def do_bad(self, before, out):
        file = run_file(self.folder, "bad.yaml", data="text: {path: bad_tokens.bin, tokens: uint16}", vocabulary=300)
        return *self.refused(file, before, out), False

    def refused(self, file, before, out):
        flags = [["--overwrite"], ["--overwrite", "--reference"]]
        run, log = self.begin(file, out, self.rng.choice(flags))
        return self.end(run, log)

    def do_cut(self, before, out):
        shutil.copy(self.folder / "tokens.bin", self.folder / "moving.bin")
        file = run_file(self.folder, "cut.yaml", LONG, data="text: {path: moving.bin, tokens: uint16}", vocabulary=300)
        if before == "part":
            before = "finished"  # its model is another
        run, log, there, _ = self.start(before, file, out)
        self.await_steps(run, out, there)
        os.truncate(self.folder / "moving.bin", self.rng.choice([0, 1001, 6000]))
        return *self.end(run, log), True

    def do_nan(self, before, out):
        file = run_file(self.folder, "nan.yaml", 200, optimizer="sgd: {lr: 1000}")
        if before == "part":
            before = "finished"
        run, log, _, _ = self.start(before, file, out)
        return *self.end(run, log), True

    def do_second(self, before, out):
        run, log, there, _ = self.start(before, self.long, out)
        self.await_steps(run, out, there)
        second = subprocess.run([self.weft, "train", self.good, "--out", out] + self.rng.choice([["--overwrite"], ["--resume", str(out)]]),
                                capture_output=True, text=True, timeout=LIMIT)
        run.send_signal(signal.SIGINT)
        code, said = self.end(run, log)
        if code != 130:
            return f"the first: {code}", said, True
        return second.returncode, second.stderr, True

    def do_again(self, before, out):
        if before == "nothing":
            shutil.copytree(self.folder / "finished", out)
        run, log = self.begin(self.good, out, self.rng.choice([[], ["--reference"]]))
        return *self.end(run, log), False

    def do_removed(self, before, out):
        if before != "nothing":
            shutil.rmtree(out)
            # Files that a person removes are not lost by Weft.
            shutil.copytree(self.folder / before, out.with_name("kept" + out.name))
        file = run_file(self.folder, "removed.yaml", 1500)
        run, log, there, _ = self.start("nothing", file, out)
        self.await_steps(run, out, there)
        shutil.rmtree(out, ignore_errors=True)
        code, said = self.end(run, log)
        shutil.rmtree(out, ignore_errors=True)
        kept = out.with_name("kept" + out.name)
        if kept.exists():
            kept.rename(out)
        return code, said, False


KINDS = dict(zip([fault.name for fault in FAULTS],
                 ["worker", "once", "weft", "signal", "disk", "odd", "cut", "nan", "second", "bad", "again", "removed"]))


def page(campaign, arguments, skipped):
    kinds = "".join(f" --only {kind}" for kind in arguments.only or []) + "".join(f" --without {kind}" for kind in arguments.without)
    lines = [
        "# Faulted runs", "",
        f"`tests/faulted_runs.py {arguments.runs}{kinds} --seed {arguments.seed}` on a 2-core machine without a GPU: {campaign.count} real trainings, each",
        "with a fault. The output folder held nothing, a finished run or a part of a run before; the training was started",
        "plainly, with `--overwrite` or with `--resume`. A run is counted as wrong if a complete checkpoint that was there",
        "before is gone or changed without a complete one of the run's own in its place, if the exit code is not the",
        "documented one, or if the last words do not name the cause.", "",
        "| fault | runs | exit codes (runs) | wrong |", "| --- | --- | --- | --- |"]
    for fault in FAULTS:
        codes = ", ".join(f"{code} ({n})" for code, n in sorted(fault.seen.items(), key=str))
        lines.append(f"| {fault.name} | {fault.runs} | {codes or '-'} | {fault.bad if fault.runs else 'not run' if fault.name in skipped else '-'} |")
    lines += ["", "Exit code -9 is that of a process that SIGKILL ended. A full disk ends with 0 where checkpoint and summary are whole",
              "and only the traces or some steps are missing, which is said.", "", "What was said last, one example each:"]
    for fault in FAULTS:
        if fault.example:
            said = textwrap.wrap(fault.example.replace(str(campaign.folder), ".."), 110, break_long_words=False, break_on_hyphens=False)
            lines += ["", f"{fault.name}:", "", *("    " + line for line in said)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=sorted(KINDS.values()), help="faults of this kind; may be repeated")
    parser.add_argument("--without", action="append", default=[], choices=sorted(KINDS.values()), help="no faults of this kind")
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.absolute()
    with tempfile.TemporaryDirectory(prefix="weft_faults_") as name:
        campaign = Campaign(arguments.bin, arguments.seed, pathlib.Path(name))
        wanted = [f for f in FAULTS if KINDS[f.name] in (arguments.only or KINDS.values()) and KINDS[f.name] not in arguments.without]
        faults = [f for f in wanted if campaign.mounted or not f.name.startswith("disk")]
        skipped = [f.name for f in FAULTS if f not in faults]
        if len(faults) < len(wanted):
            print("NOT RUN: only root can mount a small disk, so no disk was filled", file=sys.stderr)
        try:
            # Each fault about equally often, in a drawn order.
            drawn = [faults[i % len(faults)] for i in range(arguments.runs)]
            campaign.rng.shuffle(drawn)
            for fault in drawn:
                campaign.one(fault)
        finally:
            campaign.close()
        text = page(campaign, arguments, skipped)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
    for problem in campaign.problems:
        print(problem, file=sys.stderr)
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
