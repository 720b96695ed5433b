#!/usr/bin/env python3
"""Action tables, there and back: what `weft simulate -o csv` writes is valid for torch.distributed.pipelining, and what it dumps runs here.

    torch_tables.py BIN_DIR      (with a Python that has torch; not part of `make test`, which needs none)

Ours: each cell is parsed by torch's _Action, the table checked by its _validate_schedule. Theirs: the tables of its schedules are dumped, simulated by
`weft` and written again, and must name the same actions in the same order. Exit code 1 if anything differs.
"""
import csv, inspect, os, subprocess, sys, tempfile
import torch
import torch.distributed.pipelining.schedules as schedules

OURS = [("gpipe", 4, 8), ("1f1b", 4, 8), ("interleaved,ranks=2", 4, 8), ("zb_h1", 4, 8), ("zb_h2", 4, 10), ("zb_v", 8, 8), ("v_half", 8, 8), ("v_min", 8, 8),
        ("dualpipe_v", 8, 8), ("lpp,groups=1,ranks=2", 4, 4), ("breadth_first,ranks=2", 4, 4), ("depth_first,ranks=2", 4, 4)]
THEIRS = [("ScheduleInterleaved1F1B", 2, 2, 8), ("ScheduleInterleaved1F1B", 4, 3, 8), ("ScheduleLoopedBFS", 2, 2, 4), ("ScheduleInterleavedZeroBubble", 2, 2, 8),
          ("ScheduleInterleavedZeroBubble", 4, 2, 8), ("ScheduleZBVZeroBubble", 4, 2, 8), ("ScheduleDualPipeV", 4, 2, 8)]


class Stage:
    """The part of a pipeline stage that a schedule's table needs."""
    has_backward, device, submod = True, "cpu", torch.nn.Linear(1, 1)

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, ranks, 0
        self.is_first, self.is_last = index == 0, index == stages - 1

    def __getattr__(self, name):
        return None


def simulate(weft, schedule, stages, microbatches):
    p = subprocess.run([weft, "simulate", schedule, "--stages", str(stages), "--microbatches", str(microbatches), "-o", "csv"], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(p.stderr.strip())
    return list(csv.reader(p.stdout.splitlines()))


def check_ours(weft, schedule, stages, microbatches):
    rows = simulate(weft, schedule, stages, microbatches)
    actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    schedules._validate_schedule(actions, len(actions), stages, microbatches)


def check_theirs(weft, name, ranks, stages_a_rank, microbatches, folder):
    stages, cls = ranks * stages_a_rank, getattr(schedules, name)
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = [0, stages - 1] if v_shaped else [ranks * i for i in range(stages_a_rank)]
    schedule = cls([Stage(i, stages, ranks) for i in mine], microbatches, loss_fn=lambda output, target: output)
    path = os.path.join(folder, f"{name}.csv")
    compute_only = {"format": "compute_only"} if "format" in inspect.signature(schedule._dump_csv).parameters else {}
    schedule._dump_csv(path, **compute_only)
    cells = lambda rows: [[cell for cell in row if cell] for row in rows]
    with open(path) as f:
        dumped = cells(csv.reader(f))
    if cells(simulate(weft, path, stages, microbatches)) != dumped:
        raise RuntimeError("the actions differ")


def main():
    weft, failed = os.path.join(sys.argv[1], "weft"), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, check, case in [(c[0], check_ours, c) for c in OURS] + [(c[0], lambda w, *a: check_theirs(w, *a, folder), c) for c in THEIRS]:
            try:
                check(weft, *case)
                print(f"ok    {name} {case[1:]}")
            except Exception as e:
                failed += 1
                print(f"WRONG {name} {case[1:]}: {type(e).__name__}: {str(e)[:300]}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
