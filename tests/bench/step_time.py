#!/usr/bin/env python3
"""Step time of real runs: against the schedule's ideal, against the simulator's prediction, and against the plain loop.

    step_time.py BIN_DIR [--only ratio|prediction|profiled|turns|speedup|overhead] [--rounds N] [--width N] [--schedules NAME,..]
                 [--other BIN_DIR] [--peer pipelining.py] [--peer-python PYTHON]

Makes its own data. Each line of output is one JSON object; every figure is from `summary.json` and `trace.json` of a run made here.
  ratio       step time over the schedule's ideal, 2 ranks, 16 micro-batches: `ratio` with the simulated step from the same run's typical job
              durations, `own_ratio` with each job's own duration
  prediction  the same for `gpt`, with the difference in per cent
  profiled    step time of `gpt` under several schedules, predicted before the run from `weft profile --ranks 2`, and measured; and the time
              before a job for which a rank has work and computes nothing, in the run and in the profile
  turns       step time of `gpt` under the same schedules with the build in --other and with this one, in turn; nothing without --other
  speedup     `ddp` on 2 processes against `weft train --reference`
  overhead    median gap between the end of a job and the start of the next on a rank that has no reason to wait: one rank alone, and two processes
              of which each job receives a tensor from the other or sends it one
With --peer, torch.distributed.pipelining runs the same sizes in turn with ours.
"""
import argparse, json, os, random, statistics, struct, subprocess, sys, tempfile


JOBS = {"forward", "backward", "backward_input", "backward_weight", "reduce", "update"}


def write_idx(folder, count=2048, side=16, classes=256):
    rnd = random.Random(1)
    images, labels = os.path.join(folder, "images.idx"), os.path.join(folder, "labels.idx")
    with open(images, "wb") as f:
        f.write(struct.pack(">IIII", 0x00000803, count, side, side) + rnd.randbytes(count * side * side))
    with open(labels, "wb") as f:
        f.write(struct.pack(">II", 0x00000801, count) + bytes(rnd.randrange(classes) for _ in range(count)))
    return images, labels


def write_text(folder, size=400_000):
    rnd = random.Random(1)
    words = ["warp", "weft", "loom", "thread", "shuttle", "reed", "heddle", "cloth"]
    path = os.path.join(folder, "text.txt")
    with open(path, "w") as f:
        while f.tell() < size:
            f.write(rnd.choice(words) + " ")
    return path


def spans_of(out):
    """Returns the jobs, transfers and idle spans of a run's trace; none of a run without one."""
    path = os.path.join(out, "trace.json")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        t = json.load(f)
    return [e for e in (t["traceEvents"] if isinstance(t, dict) else t) if e.get("ph") == "X"]


def train(bins, folder, name, spec, *extra):
    path, out = os.path.join(folder, name + ".yaml"), os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(f"name: {name}\n{spec}")
    p = subprocess.run([os.path.join(bins, "weft"), "train", path, "--overwrite", "--out", out, *extra], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{name}: exit {p.returncode}: {p.stderr[-800:]}")
    with open(os.path.join(out, "summary.json")) as f:
        summary = json.load(f)
    # Jobs alone: the trace has transfers and idle spans too.
    events = [e for e in spans_of(out) if e.get("cat") in JOBS]
    with open(os.path.join(out, "steps.jsonl")) as f:
        steps = [json.loads(line)["seconds"] for line in f]
    return summary, events, steps


def dispatch_us(out):
    """Microseconds before a job for which a rank has work and computes nothing, behind the fifth step."""
    events = spans_of(out)
    jobs = [e for e in events if e.get("cat") in JOBS and e["args"]["step"] >= 5]
    begin = min(e["ts"] for e in jobs)
    idle = [e["dur"] for e in events if e.get("cat") == "idle" and e["args"]["cause"] == "dispatch" and e["ts"] >= begin]
    return sum(idle) / len(jobs)


def mlp_run(data, width, layers, rows, microbatches, steps, schedule, stages):
    images, labels = data
    return (f"model: {{mlp: {{layers: {layers}, width: {width}, inputs: 256, classes: 256}}}}\n"
            f"data: {{idx: {{images: {images}, labels: {labels}}}, order: sequential}}\n"
            f"train: {{steps: {steps}, batch: {rows * microbatches}, microbatches: {microbatches}, seed: 1, optimizer: {{sgd: {{lr: 0.01}}}}}}\n"
            f"stages: {stages}\nschedule: {schedule}\n")


def own_ideal(events):
    """Seconds of each step if its jobs, each with the time that it took there, followed each other with nothing in between:
    a job begins when its predecessors and the job before it on its rank have ended. Pipelines only, fused backward."""
    steps = {}
    for e in sorted(events, key=lambda e: e["ts"]):
        steps.setdefault(e["args"]["step"], []).append(e)
    last = max(e["args"]["stage"] for e in events)
    ideals = []
    for jobs in steps.values():
        end, free = {}, {}
        for e in jobs:  # in order of their starts: predecessors first
            s, b, kind = e["args"]["stage"], e["args"].get("microbatch"), e["cat"]
            before = {"forward": [("forward", s - 1, b)] if s else [], "update": [],
                      "backward": [("forward", s, b)] + ([("backward", s + 1, b)] if s < last else [])}[kind]
            start = max([free.get(e["tid"], 0)] + [end[x] for x in before])
            end[kind, s, b] = free[e["tid"]] = start + e["dur"]
        ideals.append(1e-6 * max(free.values()))
    return ideals


def durations(events):
    kinds = {}
    for e in events:
        kind = e.get("args", {}).get("kind") or e.get("cat") or e["name"].split()[0]
        kinds.setdefault(kind, []).append(e["dur"])
    return {k: statistics.median(v) for k, v in kinds.items()}


# Name, width, rows of a micro-batch, linear layers of a stage: forward plus backward of a job pair take about three times the name.
SIZES = [("0.1 ms", 128, 64, 2), ("0.3 ms", 256, 64, 2), ("10 ms", 1024, 384, 2)]


def ratio(bins, folder, a):
    data = write_idx(folder)
    for name, width, rows, depth in SIZES:
        for schedule in ("1f1b", "gpipe"):
            for _ in range(a.rounds):
                steps = 60 if width < 1024 else 12
                spec = mlp_run(data, width, 2 * depth, rows, 16, steps, schedule, f"[{depth}, {depth}]")
                summary, events, seconds = train(bins, folder, "ratio", spec, "--processes", "2")
                d = durations(events)
                step = statistics.median(seconds[5:])
                ideal = summary["predicted_step_seconds"]
                own = statistics.median(own_ideal(events)[5:])
                print(json.dumps({"what": "ratio", "jobs": name, "schedule": schedule, "forward_ms": round(d.get("forward", 0) / 1e3, 3),
                                  "backward_ms": round(d.get("backward", 0) / 1e3, 3), "step_ms": round(step * 1e3, 3), "ideal_ms": round(ideal * 1e3, 3),
                                  "ratio": round(step / ideal, 3), "own_ratio": round(step / own, 3), "overhead_us_per_job": round((step - ideal) / 32 * 1e6, 1)}), flush=True)
                if a.peer:
                    p = subprocess.run([a.peer_python, a.peer, "--schedule", schedule, "--ranks", "2", "--microbatches", "16", "--width", str(width),
                                        "--rows", str(rows), "--depth", str(depth), "--steps", "30"], capture_output=True, text=True)
                    print(json.dumps({"what": "peer", "jobs": name, "torch.distributed.pipelining": json.loads(p.stdout) if p.stdout.strip() else p.stderr[-300:]}), flush=True)


def gpt_run(text, schedule, microbatches, steps, stages, width=128, batch=16, context=64):
    return (f"model: {{gpt: {{layers: 4, width: {width}, heads: 4, context: {context}}}}}\ndata: {{text: {{path: {text}}}, order: sequential}}\n"
            f"train: {{steps: {steps}, batch: {batch}, microbatches: {microbatches}, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}\n"
            f"stages: {stages}\nschedule: {schedule}\n")


def prediction(bins, folder, a):
    text = write_text(folder)
    for schedule in ("1f1b", "gpipe", "{lpp: {groups: 1, ranks: 2}}", "ddp"):
        stages, microbatches = (4, 2) if schedule == "ddp" else (4 if "lpp" in schedule else 2, 8)
        for _ in range(a.rounds):
            summary, _, seconds = train(bins, folder, "prediction", gpt_run(text, schedule, microbatches, 30, stages), "--processes", "2")
            step, predicted = statistics.median(seconds[5:]), summary["predicted_step_seconds"]
            print(json.dumps({"what": "prediction", "schedule": schedule, "step_ms": round(step * 1e3, 2), "predicted_ms": round(predicted * 1e3, 2),
                              "off_percent": round((step / predicted - 1) * 100, 1)}), flush=True)


# Name, schedule, stages, micro-batches.
PROFILED = [("1f1b", "1f1b", 2, 8), ("gpipe", "gpipe", 2, 8), ("lpp1x2", "{lpp: {groups: 1, ranks: 2}}", 4, 8),
            ("lpp2x1", "{lpp: {groups: 2, ranks: 1}}", 4, 8), ("ddp", "ddp", 4, 2), ("fsdp", "fsdp", 4, 2), ("zb_h1", "zb_h1", 2, 8)]


def weft(bins, *arguments):
    p = subprocess.run([os.path.join(bins, "weft"), *arguments], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"weft {' '.join(arguments)}: exit {p.returncode}: {p.stderr[-800:]}")
    return p.stdout


def profiled(bins, folder, a):
    """One profile a round, as a user makes it; the runs of the round follow it."""
    text = write_text(folder)
    for _ in range(a.rounds):
        run, profile, network = (os.path.join(folder, name) for name in ("profiled.yaml", "profile.json", "network.yaml"))
        with open(run, "w") as f:
            f.write("name: profiled\n" + gpt_run(text, "1f1b", 8, 30, 2, width=a.width))
        weft(bins, "profile", run, "--ranks", "2", "--steps", "20", "-o", profile, "--network", network)
        with open(profile) as f:
            dispatch = json.load(f).get("dispatch", 0)
        runs = [(*row, []) for row in PROFILED]
        plan = os.path.join(folder, "plan.yaml")
        with open(plan, "w") as f:
            f.write(weft(bins, "plan", run, "--profile", profile, "--network", network, "--workers", "2", "--schedule", "periodic", "-o", "yaml"))
        runs.append(("plan", "1f1b", 2, 8, ["--plan", plan]))
        for name, schedule, stages, microbatches, plan_flag in runs:
            if a.schedules and name not in a.schedules.split(","):
                continue
            spec = gpt_run(text, schedule, microbatches, 30, stages, width=a.width, batch=2 * microbatches)
            with open(run, "w") as f:
                f.write("name: profiled\n" + spec)
            simulated = json.loads(weft(bins, "simulate", plan if plan_flag else run, "--profile", profile, "--network", network, "-o", "json"))
            _, _, seconds = train(bins, folder, "measured", spec, "--processes", "2", *plan_flag)
            step, predicted = statistics.median(seconds[5:]), simulated["period"]
            print(json.dumps({"what": "profiled", "width": a.width, "schedule": name, "step_ms": round(step * 1e3, 2),
                              "predicted_ms": round(predicted * 1e3, 2), "off_percent": round((step / predicted - 1) * 100, 1),
                              "dispatch_us": round(dispatch_us(os.path.join(folder, "measured")), 1),
                              "dispatch_us_of_profile": round(dispatch * 1e6, 1)}), flush=True)


def turns(bins, folder, a):
    """The builds train each run one after the other, in every round."""
    if a.other is None:
        return
    text = write_text(folder)
    for name, schedule, stages, microbatches in PROFILED:
        if a.schedules and name not in a.schedules.split(","):
            continue
        spec = gpt_run(text, schedule, microbatches, 30, stages, width=a.width, batch=2 * microbatches)
        for _ in range(a.rounds):
            others, ours = (statistics.median(train(b, folder, "turn", spec, "--processes", "2")[2][5:]) for b in (a.other, bins))
            print(json.dumps({"what": "turns", "width": a.width, "schedule": name, "other_ms": round(others * 1e3, 2),
                              "step_ms": round(ours * 1e3, 2), "ratio": round(ours / others, 3)}), flush=True)


def speedup(bins, folder, a):
    text = write_text(folder)
    for _ in range(a.rounds):
        spec = gpt_run(text, "ddp", 2, 20, 2, width=256, batch=16, context=64)
        _, events, seconds = train(bins, folder, "speedup", spec, "--processes", "2")
        _, _, plain = train(bins, folder, "plain", spec, "--reference")
        step, loop = statistics.median(seconds[3:]), statistics.median(plain[3:])
        d = durations(events)
        print(json.dumps({"what": "speedup", "schedule": "ddp", "forward_ms": round(d.get("forward", 0) / 1e3, 2), "backward_ms": round(d.get("backward", 0) / 1e3, 2),
                          "step_ms": round(step * 1e3, 2), "reference_ms": round(loop * 1e3, 2), "speedup": round(loop / step, 3)}), flush=True)


def ready_gaps(events, margin_us=100):
    """Microseconds between the end of a job and the start of the next on its rank, by what the next one's remote edge is: `out` if another rank
    takes its output, `in` if another rank made its input. Only of jobs whose inputs had all been made `margin_us` before the job before them
    ended, so that they wait for nothing. Pipelines only, fused backward, no updates."""
    end, gaps, ranks = {}, {}, {}
    last = max(e["args"]["stage"] for e in events)
    for e in events:
        end[e["cat"], e["args"]["step"], e["args"]["stage"], e["args"].get("microbatch")] = e["ts"] + e["dur"]
        ranks.setdefault(e["tid"], []).append(e)
    for jobs in ranks.values():
        jobs.sort(key=lambda e: e["ts"])
        for before, job in zip(jobs, jobs[1:]):
            step, stage, b, kind = job["args"]["step"], job["args"]["stage"], job["args"].get("microbatch"), job["cat"]
            if kind not in ("forward", "backward") or before["cat"] not in ("forward", "backward"):
                continue
            forward = kind == "forward"
            edge = "in" if (stage > 0 if forward else stage < last) else "out"
            neighbour = end[kind, step, stage + (-1 if forward else 1), b] if edge == "in" else 0
            idle_from = before["ts"] + before["dur"]
            if neighbour + margin_us <= idle_from:
                gaps.setdefault(f"{kind} {edge}", []).append(job["ts"] - idle_from)
    return gaps


def quantiles(gaps):
    gaps = sorted(gaps)
    return {"jobs": len(gaps), "gap_us_median": round(statistics.median(gaps), 1), "gap_us_p90": round(gaps[int(len(gaps) * 0.9)], 1)}


def overhead(bins, folder, a):
    data = write_idx(folder)
    for _ in range(a.rounds):
        spec = mlp_run(data, 256, 4, 64, 16, 40, "{lpp: {groups: 1, ranks: 1}}", "[2, 2]")
        _, events, _ = train(bins, folder, "overhead", spec, "--processes", "1")
        events.sort(key=lambda e: e["ts"])
        gaps = [b["ts"] - (x["ts"] + x["dur"]) for x, b in zip(events, events[1:])]
        print(json.dumps({"what": "overhead", "edge": "none", **quantiles(gaps)}), flush=True)
        for name, width, rows, depth in SIZES[:2]:
            spec = mlp_run(data, width, 2 * depth, rows, 16, 60, "gpipe", f"[{depth}, {depth}]")
            _, events, _ = train(bins, folder, "remote", spec, "--processes", "2")
            d = durations(events)
            found = ready_gaps(events)
            print(json.dumps({"what": "overhead", "edge": "remote", "jobs_of": name, "forward_ms": round(d["forward"] / 1e3, 3),
                              "backward_ms": round(d["backward"] / 1e3, 3), **quantiles([gap for gaps in found.values() for gap in gaps]),
                              **{edge: quantiles(gaps) for edge, gaps in sorted(found.items())}}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("--only", choices=["ratio", "prediction", "profiled", "turns", "speedup", "overhead"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128, help="of the model of `profiled` and `turns`")
    parser.add_argument("--schedules", help="of `profiled` and `turns`: these alone, as 1f1b,lpp1x2,plan")
    parser.add_argument("--other", help="folder of the programs of another build")
    parser.add_argument("--peer")
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()
    for part in (ratio, prediction, profiled, turns, speedup, overhead):
        if args.only in (None, part.__name__):
            with tempfile.TemporaryDirectory() as scratch:
                part(args.bin_dir, scratch, args)
