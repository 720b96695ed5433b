#!/usr/bin/env python3
"""Installs the client library and the protos, and submits trainings with the installed examples: client_test.py BUILD cpp|python

Coordinator and worker are real and speak over mutual TLS. The C++ example is built outside of the tree, by CMake and with
pkg-config, from what is installed alone. The Python one takes its stubs from the installed protos. Each must end with 0 for a run
that finishes, and say clearly what is wrong with a wrong certificate, a role that may not submit, a run that is not there and a
wrong run file. The Python example needs grpc in python3; exits with 77 without it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from daemons import SECONDS, Daemons, free_port

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


def call(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=SECONDS, **options)


def done(*command, **options):
    """Runs what must end with 0, and returns its output."""
    result = call(*command, **options)
    assert result.returncode == 0, f"{command} ended with {result.returncode}: {result.stdout}{result.stderr}"
    return result.stdout


class Service(Daemons):
    """A coordinator and a worker that take certificates of one authority; clients may have others."""

    def __init__(self, bin_dir, folder):
        super().__init__(bin_dir, folder)
        self.address = f"127.0.0.1:{free_port()}"
        weft = bin_dir / "weft"
        for authority in ("certs", "others"):
            done(weft, "certs", "init", folder / authority)
        # gRPC in other languages compares the host, so the coordinator's certificate alone names it.
        done(weft, "certs", "add", folder / "certs", "--role", "coordinator", "--name", "coordinator", "--host", "127.0.0.1")
        done(weft, "certs", "add", folder / "certs", "--role", "submitter", "--name", "alice")
        self.start("weft-coordinator", "--listen", self.address, "--tls", folder / "certs/coordinator", "--output-root", folder / "runs")
        self.start("weft-worker", "--coordinator", self.address, "--tls", folder / "certs/worker", "--name", "w0")

    def weft(self, *arguments):
        return json.loads(done(self.bin / "weft", *arguments, "-o", "json", "--coordinator", self.address, "--tls",
                               self.folder / "certs/viewer"))

    def await_worker(self):
        until = time.monotonic() + SECONDS
        while "w0, pid" not in (self.folder / "weft-coordinator.log").read_text():
            assert time.monotonic() < until and all(p.poll() is None for p in self.processes), "the worker does not join"
            time.sleep(0.1)


def install(build, folder):
    """Returns the prefix of what is installed."""
    done("cmake", "--install", build, "--component", "development", "--prefix", "/usr", "--strip",
         env={**os.environ, "DESTDIR": str(folder / "stage")})
    prefix = folder / "stage/usr"
    for path in prefix.rglob("*"):
        text = path.suffix in (".h", ".proto", ".cmake", ".pc", ".txt", ".cc", ".py")
        assert not text or str(SOURCE) not in path.read_text(), f"{path} tells of the source tree"
    return prefix


def cpp_example(prefix, folder):
    """Builds the example in both ways, and returns the command that CMake made."""
    example = folder / "cpp_client"
    shutil.copytree(prefix / "share/doc/weft-dev/examples/cpp_client", example)
    done("cmake", "-S", example, "-B", folder / "cmake_build", f"-DCMAKE_PREFIX_PATH={prefix}")
    done("cmake", "--build", folder / "cmake_build")
    flags = done("pkg-config", "--cflags", "--libs", "weft-client", env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")})
    done("g++", "-std=c++17", example / "main.cc", "-o", folder / "by_pkg_config", *flags.split())
    usage = call(folder / "by_pkg_config", env={**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib")})
    assert usage.returncode == 1 and "usage" in usage.stderr, usage
    return [folder / "cmake_build/submit_run"]


def imports(python, module):
    return bool(shutil.which(python)) and call(python, "-c", f"import {module}").returncode == 0


def python_example(prefix, folder):
    """Makes the stubs, and returns the command; None without gRPC."""
    # The first python3 may be another one than Debian's, whose packages it does not see.
    python = next((p for p in (sys.executable, "/usr/bin/python3") if imports(p, "grpc")), None)
    if python is None:
        return None
    protoc = [python, "-m", "grpc_tools.protoc", "--grpc_python_out=."]
    if not imports(python, "grpc_tools"):
        protoc = ["protoc", "--grpc_out=.", f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}"]
    example = folder / "python_client"
    shutil.copytree(prefix / "share/doc/weft-dev/examples/python_client", example)
    done(*protoc, "-I", prefix / "include", "--python_out=.", "weft/v1/report.proto", "weft/v1/runs.proto", cwd=example)
    return [python, example / "submit_run.py"]


def check(service, example):
    """Checks the example's good end and its errors."""
    folder = service.folder
    (folder / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)
    run = {"name": "example", "model": {"gpt": {"layers": 2, "width": 32, "heads": 2, "context": 32}},
           "data": {"text": {"path": str(folder / "text.txt")}}, "stages": 2, "schedule": {"lpp": {"groups": 1, "ranks": 1}},
           "train": {"steps": 20, "batch": 8, "microbatches": 4, "seed": 1, "optimizer": {"adamw": {"lr": 1e-3}}}}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "wrong.json").write_text(json.dumps({**run, "stages": 200}))

    def submit(what, role="certs/alice"):
        return call(*example, what, service.address, folder / role)

    service.await_worker()
    good = submit(folder / "run.json")
    assert good.returncode == 0, good
    assert "20 of 20" in good.stdout and "loss" in good.stdout and str(folder / "runs") in good.stdout, good.stdout
    described = service.weft("describe", "1")
    assert (described["state"], described["steps_done"], described["owner"]) == ("finished", 20, "alice"), described
    for what, role, sentences in (("99", "certs/alice", ("NOT_FOUND", "no run 99")),
                                  (folder / "run.json", "others/submitter", ("UNAVAILABLE", service.address)),
                                  (folder / "run.json", "certs/viewer", ("PERMISSION_DENIED", "viewer 'viewer'", "admin, submitter")),
                                  (folder / "wrong.json", "certs/alice", ("INVALID_ARGUMENT", "stages"))):
        wrong = submit(what, role)
        assert wrong.returncode == 1 and all(s in wrong.stderr for s in sentences), (sentences, wrong)
    assert len(service.weft("ls")) == 1, "a call that was refused has made a run"


def main():
    build, kind = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="weft_client_") as name:
        folder = pathlib.Path(name)
        prefix = install(build, folder)
        example = cpp_example(prefix, folder) if kind == "cpp" else python_example(prefix, folder)
        if example is None:
            print("SKIPPED: the Python example was not tried: python3 has no grpc (Debian: python3-grpcio)", file=sys.stderr)
            return 77
        with Service(build / "bin", folder).until_the_end() as service:
            check(service, example)
    print(f"ok  the installed {kind} example submits, watches and tells errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
