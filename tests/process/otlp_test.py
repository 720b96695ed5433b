#!/usr/bin/env python3
"""Exports the trace of a real training as OpenTelemetry spans and checks them: otlp_test.py BIN_DIR

It always checks the structure: the spans are the trace's jobs, transfers and steps; ids are unique, each parent and link is
there, and times lie within those of the parent. It also parses them with the official protobuf, if python3 has the package
opentelemetry-proto."""
import base64
import json
import pathlib
import re
import subprocess
import sys
import tempfile

RUN = """name: spans
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: 4, batch: 8, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: SCHEDULE
"""


def spans_of(traces):
    """Returns all spans by id; an id that comes twice is an error."""
    spans = {}
    for resource in traces["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"]), span
                assert span["spanId"] not in spans, span
                assert isinstance(span["startTimeUnixNano"], str) and isinstance(span["endTimeUnixNano"], str), span
                spans[span["spanId"]] = span
    return spans


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def times(span):
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


def check_structure(spans, trace):
    """Compares the spans with the Chrome trace from which they were made."""
    kinds = ("forward", "backward", "backward_input", "backward_weight", "reduce", "update")
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    jobs = [s for s in spans.values() if "weft.kind" in attributes(s)]
    transfers = [s for s in spans.values() if "weft.from_rank" in attributes(s)]
    assert len(jobs) == sum(e["cat"] in kinds for e in events), (len(jobs), len(events))
    assert len(transfers) == sum(e["cat"] == "transfer" for e in events) > 0, len(transfers)
    steps = {e["args"]["step"] for e in events if e["cat"] in kinds}
    assert len(spans) == len(jobs) + len(transfers) + len(steps) + 1
    assert len({s["traceId"] for s in spans.values()}) == 1
    roots = [s for s in spans.values() if "parentSpanId" not in s]
    assert len(roots) == 1, roots
    assert times(roots[0])[0] == trace["begin_unix_ns"], (times(roots[0]), trace["begin_unix_ns"])
    for span in spans.values():
        start, end = times(span)
        assert start <= end, span
        if span is not roots[0]:
            parent = times(spans[span["parentSpanId"]])
            assert parent[0] <= start and end <= parent[1], (span, parent)
        for link in span.get("links", []):
            assert link["traceId"] == span["traceId"] and link["spanId"] in spans, link
            assert times(spans[link["spanId"]])[0] <= end, (span, link)
    assert all(len(t.get("links", [])) > 0 for t in transfers), "a transfer links to the job that made its tensor"
    # A forward behind the first stage waits for the one before it, maybe through a transfer.
    for span in jobs:
        of = attributes(span)
        if of["weft.kind"] != "forward" or of["weft.stage"] == "0":
            continue
        linked = [spans[link["spanId"]] for link in span["links"]]
        linked += [spans[link["spanId"]] for t in linked if "weft.from_rank" in attributes(t) for link in t["links"]]
        before = {**of, "weft.stage": str(int(of["weft.stage"]) - 1)}
        before.pop("weft.rank")
        assert any(before.items() <= attributes(s).items() for s in linked), (span, linked)


def check_protobuf(traces):
    """Parses the spans as the official messages. Returns False where they are not installed."""
    try:
        from google.protobuf import json_format
        from opentelemetry.proto.trace.v1 import trace_pb2
    except ImportError:
        return False
    # OTLP writes ids in hex, where protobuf's JSON has base64.
    copy = json.loads(json.dumps(traces))
    for resource in copy["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for holder in [span, *span.get("links", [])]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in holder:
                            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
    message = json_format.ParseDict(copy, trace_pb2.TracesData())  # refuses unknown fields
    parsed = [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert len(parsed) == len(spans_of(traces))
    assert all(len(s.trace_id) == 16 and len(s.span_id) == 8 and s.start_time_unix_nano > 0 for s in parsed)
    assert sum(len(s.links) for s in parsed) == sum(len(s.get("links", [])) for s in spans_of(traces).values()) > 0
    return True


def main():
    weft = pathlib.Path(sys.argv[1]).absolute() / "weft"
    official = True
    with tempfile.TemporaryDirectory(prefix="weft_spans_") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)
        for schedule in ("1f1b", "{ddp: {}, rule: cdp_v2}"):
            (folder / "run.yaml").write_text(RUN.replace("SCHEDULE", schedule))
            out, file = folder / "out", folder / "spans.json"
            subprocess.run([weft, "train", folder / "run.yaml", "--out", out, "--overwrite"], check=True, capture_output=True)
            told = subprocess.run([weft, "trace", out, "--otlp", file, "-o", "json"], check=True, capture_output=True, text=True)
            assert told.stderr == "", told.stderr
            traces = json.loads(file.read_text())
            assert file.read_text().count("\n") == 1, "one line, as the collector's file receiver reads it"
            spans = spans_of(traces)
            check_structure(spans, json.loads((out / "trace.json").read_text()))
            counts = json.loads(told.stdout)["otlp"]
            assert counts["spans"] == len(spans) and counts["links"] == sum(len(s.get("links", [])) for s in spans.values())
            official = check_protobuf(traces) and official
    if not official:
        print("SKIPPED: the spans were not parsed as the official messages: python3 has no opentelemetry-proto", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
