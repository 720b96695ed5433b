#!/usr/bin/env python3
"""Takes half of its processor time from one of two ranks of a training with `replan`, and measures what the run makes of it.

    replanning.py BIN_DIR [--rounds 3] [--steps 60] [--slow-from 20] [--share 0.5] [--width 192] [--schedule ddp|placed]

The training is a gpt of 8 stages with 12 micro-batches on 2 ranks, each in a process of its own: `ddp` deals the micro-batches to the ranks,
`placed` gives each rank half of the stages. Behind step --slow-from one process gets a quota of a control group, --share of one core. Of each
round, all in one run: the median time of a step before that, and behind the move; how many steps lie between the quota and the first step under
the other schedule; and whether the weights at the end are those of the plain loop, bit by bit.

`allowed` is what the work split allows, from the mean times of the jobs before the quota: the best division of whole micro-batches, or whole
stages, between ranks of speed 1 and --share, without fill and drain. `reached` is the part of the allowed throughput that the run has behind
the move, where the schedule before the quota has 1: what fill, drain and everything else cost before is not counted against it.

Prints a markdown table. It asserts only that the bits are equal. Needs root and a control group with a quota of the processor.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PERIOD_US = 8000
STAGES, MICROBATCHES = 8, 12
SCHEDULES = {"ddp": "{ddp: {ranks: 2}}", "placed": '{custom: {ranks: 2, compute: "s < 4 ? 0 : 1", order: 1f1b}}'}


def workers_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(row[0]) for row in rows if "weft-worker" in row[1]]


class Quota:
    """Leaves the process a share of one core."""

    def __init__(self, pid, share):
        quota = int(share * PERIOD_US)
        old, new = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")
        self.above = old if (old / "cgroup.procs").exists() else new
        self.pid, self.group = pid, self.above / f"weft_bench_{pid}"
        self.group.mkdir()
        if self.above == old:
            (self.group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (self.group / "cgroup.procs").write_text(str(pid))

    def end(self):
        try:
            (self.above / "cgroup.procs").write_text(str(self.pid))
        except OSError:
            pass  # the process has ended
        for _ in range(100):
            try:
                return self.group.rmdir()
            except OSError:
                time.sleep(0.05)


def write_run(folder, args):
    (folder / "text.txt").write_text("".join("abcdefgh \n"[i * 7 % 10] for i in range(200000)))
    (folder / "run.yaml").write_text(
        f"""name: replanning
model: {{gpt: {{layers: {STAGES - 2}, width: {args.width}, heads: 4, context: 64}}}}
data: {{text: {{path: text.txt}}}}
train: {{steps: {args.steps}, batch: {2 * MICROBATCHES}, microbatches: {MICROBATCHES}, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}
stages: {STAGES}
schedule: {SCHEDULES[args.schedule]}
replan: {{gain: 5 %, steps: 1000}}
""")


def steps_of(out):
    try:
        lines = (out / "steps.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def weights_of(out):
    return {p.name: p.read_bytes() for p in sorted((out / "checkpoint").glob("*.safetensors"))}


def jobs_of(out):
    """Returns (kind, rank, step, stage, seconds) of each compute job."""
    trace = json.loads((out / "trace.json").read_text())
    return [(e["cat"], e["args"]["rank"], e["args"]["step"], e["args"]["stage"], e["dur"] * 1e-6)
            for e in trace["traceEvents"] if e.get("cat") in ("forward", "backward")]


def allowed_slowdown(jobs, args):
    """Returns by how much the slowest rank of the best division takes longer than that of the schedule before."""
    costs = {}
    for kind, _, step, stage, seconds in jobs:
        if 2 < step < args.slow_from:
            costs.setdefault((stage, kind), []).append(seconds)
    stage = [sum(statistics.mean(costs[s, kind]) for kind in ("forward", "backward")) for s in range(STAGES)]
    if args.schedule == "ddp":
        best = min(max(n, (MICROBATCHES - n) / args.share) for n in range(1, MICROBATCHES))
        return best / (MICROBATCHES / 2)
    before = max(sum(stage[:STAGES // 2]), sum(stage[STAGES // 2:]))
    best = min(max(sum(c for c, r in zip(stage, ranks) if r == 0), sum(c for c, r in zip(stage, ranks) if r == 1) / args.share)
               for ranks in itertools.product((0, 1), repeat=STAGES))
    return best / before


def one_round(args, folder, reference):
    out = folder / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    train = subprocess.Popen([args.weft, "train", str(folder / "run.yaml"), "--processes", "2", "--out", str(out)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(steps_of(out)) <= args.slow_from and train.poll() is None:
        time.sleep(0.005)
    quota = Quota(workers_of(train.pid)[0], args.share)
    slowed_at = len(steps_of(out))
    _, said = train.communicate()
    quota.end()
    if train.returncode != 0:
        sys.exit(said)
    if weights_of(out) != reference:
        sys.exit("the weights are not those of the plain loop")
    moves = [json.loads(line) for line in (out / "replans.jsonl").read_text().splitlines()] if (out / "replans.jsonl").exists() else []
    seconds = {s["step"]: s["seconds"] for s in steps_of(out) if "seconds" in s}
    if not moves:
        sys.exit("the run did not move:\n" + said)
    moved = moves[0]["step"]
    before = statistics.median(t for s, t in seconds.items() if 2 < s < args.slow_from)
    slowed = statistics.median(t for s, t in seconds.items() if slowed_at < s < moved)
    after = statistics.median(t for s, t in seconds.items() if s > moved + 1)
    allowed = allowed_slowdown(jobs_of(out), args)
    print(f"  {moves[0]['reason']}", file=sys.stderr)
    return {"before": before, "slowed": slowed, "after": after, "steps": moved - slowed_at, "move": seconds[moved], "allowed": 1 / allowed,
            "has": before / after, "reached": before / after * allowed, "schedule": moves[0]["schedule"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow-from", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--schedule", choices=SCHEDULES, default="ddp")
    args = parser.parse_args()
    args.weft = os.path.abspath(os.path.join(args.bin, "weft"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_run(folder, args)
        subprocess.run([args.weft, "train", str(folder / "run.yaml"), "--reference", "--out", str(folder / "reference")], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        reference = weights_of(folder / "reference")
        print("| step before | slowed | behind the move | the move's step | steps until it | allowed | has | reached |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        rounds = []
        for _ in range(args.rounds):
            r = one_round(args, folder, reference)
            rounds.append(r)
            print(f"| {r['before']:.3f} s | {r['slowed']:.3f} s | {r['after']:.3f} s | {r['move']:.3f} s | {r['steps']} | {r['allowed']:.3f} | "
                  f"{r['has']:.3f} | {r['reached']:.3f} |", flush=True)
        print(f"\nMedian of `reached`: {statistics.median(r['reached'] for r in rounds):.3f}; most steps until the move: "
              f"{max(r['steps'] for r in rounds)}; the last schedule: `{rounds[-1]['schedule']}`. The bits are those of the plain loop in each round.")


if __name__ == "__main__":
    main()
