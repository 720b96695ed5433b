#!/usr/bin/env python3
"""Submits a run, or watches one that is there, and prints its progress until it ends:

    submit_run.py RUN.json|NUMBER [COORDINATOR [TLS_FOLDER]]

RUN.json is a run file as JSON, with paths from the root. The stubs are made once, beside this file, from the protos that are
installed with Weft's client library:

    python3 -m grpc_tools.protoc -I /usr/include --python_out=. --grpc_python_out=. weft/v1/report.proto weft/v1/runs.proto

Exits with 0 if the run finishes, and with 1 if it does not."""
import os
import pathlib
import sys
import time
import uuid

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the errors of calls say what its log says
import grpc
from weft.v1 import runs_pb2, runs_pb2_grpc


def connect(address, tls=None):
    options = [("grpc.enable_http_proxy", 0), ("grpc.keepalive_time_ms", 10_000), ("grpc.max_receive_message_length", 16 << 20)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    ca, key, certificate = (pathlib.Path(tls, name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options)


def submit(runs, path):
    request = runs_pb2.SubmitRequest(request=f"example-{uuid.uuid4().hex}", spec=pathlib.Path(path).read_text(), file=path)
    for again in (True, True, False):
        try:
            return runs.Submit(request, timeout=120).run
        except grpc.RpcError as error:  # the same request is the same run, so it may be sent again where no answer came
            if not again or error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            time.sleep(1)


def watch(runs, number):
    for event in runs.Watch(runs_pb2.WatchRequest(run=number)):
        if event.HasField("run"):
            run = event.run
            print(runs_pb2.RunState.Name(run.state), run.reason, flush=True)
        elif event.HasField("step"):
            print(f"step {event.step.step + 1} of {run.steps}, loss {event.step.loss}", flush=True)
    return run


def main(what, address="127.0.0.1:7070", tls=None):
    with connect(address, tls) as channel:
        runs = runs_pb2_grpc.RunsStub(channel)
        run = watch(runs, int(what) if what.isdigit() else submit(runs, what))
    print(f"run {run.id} is {runs_pb2.RunState.Name(run.state)}; its results are in {run.output}")
    return 0 if run.state == runs_pb2.RUN_STATE_FINISHED else 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except grpc.RpcError as error:
        sys.exit(f"submit_run.py: {error.code().name}: {error.details()}")
