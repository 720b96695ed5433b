#!/usr/bin/env python3
"""Reads the event file of a real training with TensorBoard's own reader: tensorboard_test.py BIN_DIR

Each step of steps.jsonl must be there once, with its loss, also in a run that resumes in its folder. Needs the Python package
tensorboard; exits with 77 without it."""
import json
import pathlib
import subprocess
import sys
import tempfile

RUN = """name: events
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: 12, batch: 8, microbatches: 4, seed: 1, clip_norm: 1.0, optimizer: {adamw: {lr: 1.0e-3}}}
checkpoint: {every: 4}
stages: 2
schedule: 1f1b
"""


def check(out, accumulator):
    """Compares the events with the lines of steps.jsonl."""
    accumulator.Reload()
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    for tag, key in (("loss", "loss"), ("gradient_norm", "gradient_norm"), ("seconds_per_step", "seconds")):
        events = accumulator.Scalars(tag)
        assert [e.step for e in events] == [line["step"] for line in lines], (tag, [e.step for e in events])
        assert all(abs(e.value - line[key]) <= 1e-6 * abs(line[key]) for e, line in zip(events, lines)), tag
    for tag in ("learning_rate", "samples_per_second", "tokens_per_second"):
        assert len(accumulator.Scalars(tag)) == len(lines), tag
    return len(lines)


def main():
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("SKIPPED: event files were not read by TensorBoard: the Python package tensorboard is not there", file=sys.stderr)
        return 77
    weft = pathlib.Path(sys.argv[1]).absolute() / "weft"
    with tempfile.TemporaryDirectory(prefix="weft_events_") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)
        (folder / "run.yaml").write_text(RUN)
        for arguments in ([], ["--resume", folder / "out/checkpoint-4"]):
            subprocess.run([weft, "train", folder / "run.yaml", "--out", folder / "out", *arguments], check=True, capture_output=True)
            assert check(folder / "out", EventAccumulator(str(folder / "out"))) == 12
    return 0


if __name__ == "__main__":
    sys.exit(main())
