#!/usr/bin/env python3
"""Takes half of its processor time from one of two ranks of a training with `replan`, and measures what the run makes of it.

    replanning.py BIN_DIR [--rounds 3] [--steps 80] [--slow-from 20] [--share 0.5] [--period 8000] [--width 192] [--schedule ddp|placed] [--favoured]

The training is a gpt of 8 stages with 12 micro-batches on 2 ranks, each in a process of its own: `ddp` deals the micro-batches to the ranks,
`placed` gives each rank half of the stages. Behind step --slow-from the process of rank 1 gets a quota of a control group, --share of one core.
Each round is one run. It gives the median time of a step before the quota, between, and behind the last move; how many steps lie between the
quota and the first step under another schedule; and whether the weights at the end are those of the plain loop, bit by bit.

`allowed` is what the linear program of the work allows: the best division of whole micro-batches, or whole stages, between both ranks, from the
mean times that jobs took before the quota, with what each rank does however it is divided (its sums and updates), without fill and drain. It has
one of two speeds of rank 1. By the quota, the speed is --share over the processor time that the process used before for a second of its jobs,
because the quota is that of all threads of the process. By its jobs, it is the time that the rank's jobs took before the quota over what they
took under it, before the run moved. `reached` is the part of the allowed throughput that the run has behind the move, by each speed, where the
schedule before the quota has 1: what fill, drain and everything else cost before is not counted against it.

--favoured gives the training precedence over all other processes of a busy machine, by a control group of the greatest weight. The quota stays
what it is.

Prints a markdown table. It asserts that the bits are equal and that the run moves. Needs root and control groups of the processor.
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

STAGES, MICROBATCHES = 8, 12
SCHEDULES = {"ddp": "{ddp: {ranks: 2}}", "placed": '{custom: {ranks: 2, compute: "s < 4 ? 0 : 1", order: 1f1b}}'}


def worker_of(pid, number):
    """Returns the worker process of the number, which has the rank of that number."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True)
    return next(int(row.split()[0]) for row in listed.stdout.splitlines() if f"--process {number} " in row)


class Group:
    """A control group of the greatest weight, with a quota of one core if `share` is given."""

    def __init__(self, pid, share=None, period=8000):
        old, new = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")
        is_old = (old / "cpu.shares").exists()
        if not is_old and not (new / "cgroup.controllers").exists():
            sys.exit("NO CONTROL GROUPS of the processor here: nothing is measured")
        self.above = old if is_old else new
        self.pid, self.group = pid, self.above / f"weft_bench_{pid}"
        self.group.mkdir()
        quota = int((share or 0) * period)
        (self.group / ("cpu.shares" if is_old else "cpu.weight")).write_text("262144" if is_old else "10000")
        if share and is_old:
            (self.group / "cpu.cfs_period_us").write_text(str(period))
            (self.group / "cpu.cfs_quota_us").write_text(str(quota))
        elif share:
            (self.group / "cpu.max").write_text(f"{quota} {period}")
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
replan: {{gain: 5 %}}
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
    """Returns (kind, rank, step, stage, seconds) of each job, with the time for which its rank had it in hand and did not compute it."""
    trace = json.loads((out / "trace.json").read_text())
    return [(e["cat"], e["args"]["rank"], e["args"]["step"], e["args"]["stage"], (e["dur"] + e["args"].get("delay", 0)) * 1e-6)
            for e in trace["traceEvents"] if e.get("cat") in ("forward", "backward", "reduce", "update")]


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_of(jobs, processor, args):
    """Returns the processor time of rank 1's process over the time of its jobs, both for a step before the quota."""
    before = [job for job in jobs if 2 < job[2] < args.slow_from]
    return processor / (sum(job[4] for job in before if job[1] == 1) / len({job[2] for job in before}))


def speed_by_jobs(jobs, slowed_at, moved, args):
    """Returns the time that a step's jobs took rank 1 before the quota, over what they took under it before the run moved."""
    taken = lambda steps: statistics.mean(sum(job[4] for job in jobs if job[1] == 1 and job[2] == step) for step in steps)
    return taken(range(3, args.slow_from)) / taken(range(slowed_at + 1, moved))


def allowed_slowdown(jobs, speed, args):
    """Returns by how much the rank that takes longest takes longer under the best division than under the schedule before."""
    costs = {}
    for kind, _, step, stage, seconds in jobs:
        if 2 < step < args.slow_from:
            costs.setdefault((stage, kind), []).append(seconds)
    mean = {key: statistics.mean(values) for key, values in costs.items()}
    microbatch = [mean[s, "forward"] + mean[s, "backward"] for s in range(STAGES)]
    rest = [mean.get((s, "reduce"), 0) + mean.get((s, "update"), 0) for s in range(STAGES)]
    if args.schedule == "ddp":  # each rank sums and updates all stages
        work = lambda n: n * sum(microbatch) + sum(rest)
        divisions = [(work(n), work(MICROBATCHES - n)) for n in range(1, MICROBATCHES)]
        before = work(MICROBATCHES / 2)
    else:
        stage = [MICROBATCHES * m + r for m, r in zip(microbatch, rest)]
        divisions = [tuple(sum(c for c, r in zip(stage, ranks) if r == rank) for rank in (0, 1)) for ranks in itertools.product((0, 1), repeat=STAGES)]
        before = max(sum(stage[:STAGES // 2]), sum(stage[STAGES // 2:]))
    return min(max(fast, slow / speed) for fast, slow in divisions) / before


def one_round(args, folder, reference):
    out = folder / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    train = subprocess.Popen([args.weft, "train", str(folder / "run.yaml"), "--processes", "2", "--out", str(out)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    groups, used = [], None
    while len(steps_of(out)) <= args.slow_from and train.poll() is None:
        time.sleep(0.005)
        if used is None and len(steps_of(out)) > 3:
            used = (len(steps_of(out)), processor_seconds(worker_of(train.pid, 1)))
        if args.favoured and not groups and steps_of(out):
            groups = [Group(train.pid), Group(worker_of(train.pid, 0)), Group(worker_of(train.pid, 1))]
    slow = worker_of(train.pid, 1)
    processor = (processor_seconds(slow) - used[1]) / (len(steps_of(out)) - used[0])
    if groups:
        groups.pop().end()
    groups.append(Group(slow, args.share, args.period))
    slowed_at = len(steps_of(out))
    _, said = train.communicate()
    for group in groups:
        group.end()
    if train.returncode != 0:
        sys.exit(said)
    if weights_of(out) != reference:
        sys.exit("the weights are not those of the plain loop")
    moves = [json.loads(line) for line in (out / "replans.jsonl").read_text().splitlines()] if (out / "replans.jsonl").exists() else []
    seconds = {s["step"]: s["seconds"] for s in steps_of(out) if "seconds" in s}
    if not moves:
        sys.exit(f"the run did not move:\n{said}")
    for move in moves:
        print(f"  step {move['step']}: {move['reason']}", file=sys.stderr)
    if moves[0]["step"] <= slowed_at + 1:
        print("  it moved before the quota: others slowed a rank, and the round is not counted", file=sys.stderr)
        return None
    moved, last = moves[0]["step"], moves[-1]["step"]
    before = statistics.median(t for s, t in seconds.items() if 2 < s < args.slow_from)
    slowed = statistics.median(t for s, t in seconds.items() if slowed_at < s < moved)
    after = statistics.median(t for s, t in seconds.items() if s > last + 1)
    jobs = jobs_of(out)
    threads = threads_of(jobs, processor, args)
    has = before / after
    result = {"before": before, "slowed": slowed, "after": after, "steps": moved - slowed_at, "moves": len(moves), "move": seconds[moved],
              "threads": threads, "has": has, "schedule": moves[-1]["schedule"]}
    for name, speed in (("quota", args.share / threads), ("jobs", speed_by_jobs(jobs, slowed_at, moved, args))):
        allowed = 1 / allowed_slowdown(jobs, speed, args)
        result[name] = {"speed": speed, "allowed": allowed, "reached": has / allowed}
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--slow-from", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--period", type=int, default=8000, help="of the quota, in microseconds: the process stands still for a part of each")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--schedule", choices=SCHEDULES, default="ddp")
    parser.add_argument("--favoured", action="store_true")
    args = parser.parse_args()
    args.weft = os.path.abspath(os.path.join(args.bin, "weft"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_run(folder, args)
        subprocess.run([args.weft, "train", str(folder / "run.yaml"), "--reference", "--out", str(folder / "reference")], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        reference = weights_of(folder / "reference")
        print("| step before | slowed | behind the move | the move's step | steps until it | moves | has | by the quota: speed | allowed | reached |"
              " by its jobs: speed | allowed | reached |")
        print("|" + " ---: |" * 13)
        rounds = []
        for _ in range(args.rounds):
            r = one_round(args, folder, reference)
            if r is None:
                continue
            rounds.append(r)
            by = [f"{r[name]['speed']:.2f} | {r[name]['allowed']:.3f} | {r[name]['reached']:.3f}" for name in ("quota", "jobs")]
            print(f"| {r['before']:.3f} s | {r['slowed']:.3f} s | {r['after']:.3f} s | {r['move']:.3f} s | {r['steps']} | {r['moves']} | "
                  f"{r['has']:.3f} | {by[0]} | {by[1]} |", flush=True)
        if not rounds:
            sys.exit("no round was undisturbed")
        by = [statistics.median(r[name]["reached"] for r in rounds) for name in ("quota", "jobs")]
        print(f"\nMedian of `reached`: {by[0]:.3f} by the quota, {by[1]:.3f} by its jobs; most steps until the move: {max(r['steps'] for r in rounds)}; "
              f"the last schedule: `{rounds[-1]['schedule']}`. The bits are those of the plain loop in each round.")


if __name__ == "__main__":
    main()
