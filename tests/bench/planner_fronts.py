#!/usr/bin/env python3
"""Prints fronts of memory and period: the least period that weft plan finds under each limit of memory, for ResNets on
4 and 8 ranks, with contiguous stages and with any placement. Each plan is simulated, too. The last plan that fits of each
of the first --train rows is trained in two processes, for a step of two micro-batches more than it has stages; the bytes
that its ranks counted stand beside the planned ones.

    tests/bench/planner_fronts.py build/release/bin --folder DIR [--nets resnet18,resnet34,resnet50] [--size 224]
        [--ranks 4,8] [--batch 8] [--seconds 20] [--train ROWS]

The profile of a net is measured once and stays in DIR, so that a second call plans the same. A measurement wants the
machine for itself.
"""
import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys

SEARCHES = (("contiguous", "periodic,k=1,contiguous"), ("any placement", "periodic,k=1"),
            ("any, window of 2", "periodic,k=2"))
LIMITS = 6  # of memory, in equal ratios from the least that fits to what the fastest plan takes


class Weft:
    def __init__(self, folder):
        self.program = os.path.join(folder, "weft")

    def run(self, *words):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, check=False)

    def result(self, *words):
        done = self.run(*words)
        if done.returncode:
            sys.exit(f"weft {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout


def write_run(folder, net, size, batch, schedule="stages: 1\nschedule: {lpp: {groups: 1, ranks: 1}}", microbatches=1,
              steps=3):
    """Writes a run file of random images, whose values do not matter here, and returns its path. `batch` is a
    micro-batch's."""
    chance, count = random.Random(1), 2 * batch
    with open(f"{folder}/images.idx", "wb") as file:
        file.write(struct.pack(">BBBBIII", 0, 0, 8, 3, count, size, size) + chance.randbytes(count * size * size))
    with open(f"{folder}/labels.idx", "wb") as file:
        file.write(struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(chance.randrange(10) for _ in range(count)))
    path = f"{folder}/{net}.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"name: {net}\nmodel: {{{net}: {{classes: 10, channels: 1, size: {size}}}}}\n"
                   f"data: {{idx: {{images: images.idx, labels: labels.idx}}}}\n"
                   f"train: {{steps: {steps}, batch: {batch * microbatches}, microbatches: {microbatches}, "
                   f"optimizer: {{sgd: {{lr: 0.01, momentum: 0.9}}}}}}\n{schedule}\n")
    return path


def plan(weft, profile, ranks, schedule, limit, seconds):
    """Returns the plan, or the least bytes that would do."""
    words = ["plan", profile, "--workers", ranks, "--schedule", schedule, "--time-limit", seconds, "-o", "json"]
    done = weft.run(*words, *([] if limit is None else ["--memory", int(limit)]))
    if done.returncode == 0:
        return json.loads(done.stdout), None
    least = re.search(r"\((\d+) bytes\) would do", done.stderr)
    if least is None:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return None, int(least[1])


def trained(weft, folder, net, planned, options):
    """Trains the plan in plan.yaml for one step. Returns the activations that its ranks counted over the planned ones: the
    least and the largest ratio."""
    run = write_run(folder, net, options.size, options.batch, "schedule: {file: plan.yaml}",
                    microbatches=len(planned["stages"]) + 2, steps=1)
    out = f"{folder}/out"
    weft.result("train", run, "--out", out, "--overwrite", "--processes", 2)
    with open(f"{out}/summary.json", encoding="utf-8") as file:
        counted = [rank["activations"] for rank in json.load(file)["peak_bytes"]]
    ratios = [have / rank["activations"] for have, rank in zip(counted, planned["rank_bytes"]) if rank["activations"] > 0]
    return f"{min(ratios):.3f} to {max(ratios):.3f}"


def simulated_period(weft, folder, profile):
    """Returns the time of a micro-batch in steady state when the simulator carries the plan out."""
    makespans = [json.loads(weft.result("simulate", f"{folder}/plan.yaml", "--profile", profile, "--microbatches", count,
                                        "-o", "json"))["makespan"] for count in (400, 800)]
    return (makespans[1] - makespans[0]) / 400


def limits(weft, profile, ranks, seconds):
    least = min(plan(weft, profile, ranks, schedule, 1, seconds)[1] for _, schedule in SEARCHES)
    fastest = min((plan(weft, profile, ranks, schedule, None, seconds)[0] for _, schedule in SEARCHES),
                  key=lambda p: (p["period"], max(p["peak_bytes"])))
    ratio = (max(fastest["peak_bytes"]) / least) ** (1 / (LIMITS - 1))
    return [least * ratio**i + 1 for i in range(LIMITS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--nets", default="resnet18,resnet34,resnet50")
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="of search for each plan")
    parser.add_argument("--train", type=int, default=0, help="rows of each table whose plan is trained")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    weft = Weft(options.bin)
    for net in options.nets.split(","):
        profile = f"{options.folder}/{net}.json"
        if not os.path.exists(profile):
            run = write_run(options.folder, net, options.size, options.batch)
            weft.result("profile", run, "--steps", 4, "-o", profile)
        for ranks in map(int, options.ranks.split(",")):
            print(f"\n### {net}, {ranks} ranks\n")
            print("| memory of a rank | " + " | ".join(name for name, _ in SEARCHES) + " | lower bound |" +
                  (" counted / planned |" if options.train else ""))
            print("| ---: |" + " ---: |" * (len(SEARCHES) + 1 + bool(options.train)))
            for row, limit in enumerate(limits(weft, profile, ranks, options.seconds)):
                cells, bound, last = [], 0, None
                for _, schedule in SEARCHES:
                    planned, _ = plan(weft, profile, ranks, schedule, limit, options.seconds)
                    if planned is None:
                        cells.append("does not fit")
                        continue
                    last = planned
                    bound = planned["lower_bound"] if "contiguous" not in schedule else bound
                    with open(f"{options.folder}/plan.yaml", "w", encoding="utf-8") as file:
                        json.dump(planned["run"], file)  # which is YAML, too
                    simulated = simulated_period(weft, options.folder, profile)
                    same = abs(simulated - planned["period"]) < 1e-3 * planned["period"]
                    cells.append(f"{planned['period']:.3f}" + ("" if planned["optimal"] else " ?") +
                                 ("" if same else f" (simulated: {simulated:.3f})"))
                if options.train:
                    trains = last is not None and row < options.train
                    ratio = trained(weft, options.folder, net, last, options) if trains else "-"
                print(f"| {limit / 2**20:.0f} MiB | " + " | ".join(cells) + f" | {bound:.3f} |" +
                      (f" {ratio} |" if options.train else ""), flush=True)


if __name__ == "__main__":
    main()
