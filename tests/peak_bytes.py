"""Compares the most bytes of each rank and class that runs measure with what `weft simulate RUN.yaml` predicts: every
schedule on six models, and with three options on one. Used by peaks.py.
"""

import json
import sys

import bits

CLASSES = ["weights", "gradients", "optimizer", "activations"]
# Further options, each with every schedule on the first model: name, and how it changes schedule and run file.
OPTIONS = [("activations: recompute", ", activations: recompute", ""), ("activations: offload", ", activations: offload", ""),
           ("precision: bf16", "", "precision: bf16\n")]


def models(folder):
    small = bits.models(folder, True)
    vit = [model for model in bits.models(folder, False) if model[0].startswith("vit")]
    skipping = [model for model in small if "skipped" in model[0]]
    return [model for model in small if model not in skipping] + vit + skipping


def schedules(weft):
    """Name and text without the closing brace."""
    cases = [(name, text, 8) for name, text in bits.schedules(weft) if "activations" not in text]
    cases += [(name, text, microbatches) for name, text, microbatches, _ in bits.OLD_WEIGHTS]
    return [(name, text if text.startswith("{") else f"{{{text}: }}", microbatches) for name, text, microbatches in cases]


def runs(folder, weft, small):
    """Row of the table, schedule, run file."""
    some = schedules(weft)[::6] if small else schedules(weft)
    for number, (title, text) in enumerate(models(folder)[:1 if small else None]):
        row = title.split(", 4 stages")[0]
        for name, schedule, microbatches in some:
            changed = text.replace("microbatches: 8", f"microbatches: {microbatches}")
            yield row, name, changed + f"schedule: {schedule}\n"
            for option, of_schedule, of_run in OPTIONS if number == 0 else []:
                yield f"{row}; {option}", name, changed + of_run + f"schedule: {schedule[:-1]}{of_schedule}}}\n"


class Count:
    """Runs of one row: how many are equal in every rank, by class."""

    def __init__(self):
        self.runs, self.beyond = 0, 0
        self.equal = {of_class: 0 for of_class in [*CLASSES, "all four"]}

    def add(self, measured, predicted):
        self.runs += 1
        same = {c: all(m[c] == p.get(c) for m, p in zip(measured, predicted, strict=True)) for c in CLASSES}
        for of_class in CLASSES:
            self.equal[of_class] += same[of_class]
        self.equal["all four"] += all(same.values())
        beyond = any(m[c] > p.get(c, m[c]) for m, p in zip(measured, predicted, strict=True) for c in [*CLASSES, "buffers"])
        self.beyond += beyond
        return same, beyond


def predicted(rank):
    """The prediction of a rank. Before classes were predicted there was one of activations alone."""
    return rank.get("peak_bytes", {"activations": rank["peak_activation_bytes"]})


def compare(weft, folder, small, weft_json):
    """The figures by row; runs that a schedule refuses are left out."""
    rows, file, out = {}, folder / "run.yaml", folder / "out"
    for row, name, text in runs(folder, weft, small):
        file.write_text(text)
        try:
            simulated = weft_json([weft, "simulate", str(file), "--backward", "2", "-o", "json"])["rank_stats"]
        except RuntimeError as refused:
            print(f"{row}, {name}: {refused}", file=sys.stderr)
            continue
        code, error = bits.train(weft, file, out, ["--processes", str(min(2, len(simulated)))])
        if code != 0:
            raise RuntimeError(f"{row}, {name}: {error[0]}")
        measured = json.loads((out / "summary.json").read_text())["peak_bytes"]
        prediction = [predicted(rank) for rank in simulated]
        same, beyond = rows.setdefault(row, Count()).add(measured, prediction)
        for rank, (m, p) in enumerate(zip(measured, prediction)):
            for of_class in [*CLASSES, "buffers"]:
                if (of_class in CLASSES and not same[of_class] or beyond) and m[of_class] != p.get(of_class):
                    print(f"{row}, {name}, rank {rank}: {of_class} {m[of_class]}, predicted {p.get(of_class)}", file=sys.stderr)
    return rows


def section(rows, before):
    count = Count()
    lines = ["| runs | of which equal: weights | gradients | optimizer | activations | all four | beyond the prediction |",
             "| --- | --- | --- | --- | --- | --- | --- |"]

    def line(row, of_row):
        return f"| {row}: {of_row.runs} | {' | '.join(str(n) for n in of_row.equal.values())} | {of_row.beyond} |"

    for row, of_row in rows.items():
        lines.append(line(row, of_row))
        count.runs += of_row.runs
        count.beyond += of_row.beyond
        for of_class in count.equal:
            count.equal[of_class] += of_row.equal[of_class]
    lines.append(line("**all**", count))
    return ("\n## Bytes of each class\n\nEach run is a schedule with a model and an option, on two processes. It is equal in a "
            "class if every rank measured, to the byte, the peak that `weft simulate RUN.yaml -o json` gives before the run "
            "(`peak_bytes`); a greedy run may take another order, and then measures its own: the last column counts the runs that measured more than was "
            "predicted. In the order that really was, none does (`ctest -R predicted_bytes`). Buffers are what LibTorch takes while "
            "a job runs: they are predicted from above. [Memory](../design/memory.md#what-is-predicted) says when a class is exact. "
            f"{before}\n\n" + "\n".join(lines) + "\n")
