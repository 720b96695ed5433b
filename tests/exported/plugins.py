#!/usr/bin/env python3
"""Trains an exported model that calls an operation of a library, and tries what must be refused.

    plugins.py BIN_DIR PLUGIN_DIR           the model of tests/exported/models, by `weft train` and by a coordinator's workers
    plugins.py BIN_DIR PLUGIN_DIR --torch   exports it anew, and one with an operation in Python, compares the first step with PyTorch, and
                                            runs the latter under schedules; exits 77, with one line, where python3 has no torch or numpy

PLUGIN_DIR has two versions of the library, as plugin/CMakeLists.txt builds them. make_models.py writes the model.
"""
import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from exported import first_step, run_file, train  # noqa: E402
from upgrade import LIMIT, Service  # noqa: E402

LIBRARY = "libweft_test_operations.so"
PYTHON = HERE / "plugin" / "scaled_tanh.py"
SCHEDULES = [("1f1b", 2), ("{zb_h1: , activations: recompute}", 1), ("{fsdp: {shard: width}, activations: offload}", 2)]


def sha256(library):
    return hashlib.sha256(library.read_bytes()).hexdigest()


def run_with(folder, library, digest=None, **options):
    """Writes a run of the model that calls the plug-in's operation; returns its path."""
    run = run_file(folder, "plugged_python" if library.suffix == ".py" else "plugged", **options)
    run.write_text(run.read_text() + f"plugins: [{{library: {library}, sha256: {digest or sha256(library)}}}]\n")
    return run


def compare_schedules(weft, folder, library):
    """The bits of the plain loop under every schedule."""
    reference = folder / f"{library.name}-reference"
    wanted = train(weft, run_with(folder, library), reference, "--reference")
    failures = []
    for number, (schedule, processes) in enumerate(SCHEDULES):
        made = train(weft, run_with(folder, library, schedule=schedule), folder / f"{library.name}-{number}", "--processes", str(processes))
        failures += [] if made == wanted else [f"{library.name}, {schedule}"]
    evaluated = subprocess.run([weft, "eval", run_with(folder, library), "--checkpoint", reference], capture_output=True,
                               text=True, check=False)
    failures += [] if evaluated.returncode == 0 else [f"weft eval: exit {evaluated.returncode}, {evaluated.stderr}"]
    print(f"{library.name} under {len(SCHEDULES)} schedules, {len(failures)} failures")
    return failures, wanted


def compare_versions(weft, folder, plugins):
    """Schedules with one version of the library, and other bits with another one."""
    failures, wanted = compare_schedules(weft, folder, plugins / "1" / LIBRARY)
    if train(weft, run_with(folder, plugins / "2" / LIBRARY), folder / "other", "--processes", "1") == wanted:
        failures.append("the second version computes what the first does")
    return failures


def check_refusals(weft, folder, plugins):
    """Each wrong plug-in is refused with one sentence, before anything starts."""
    library, failures = plugins / "1" / LIBRARY, []
    empty = folder / "libempty.so"
    empty.write_text("no library")
    other = pathlib.Path(shutil.copy(library, folder / "libchanged.so"))
    digest = sha256(other)
    with other.open("ab") as file:
        file.write(b"changed")
    (folder / "built_in.yaml").write_text("model: {mlp: {}}\ndata: {idx: {images: a, labels: b}}\nstages: 1\nschedule: ddp\n"
                                          "train: {steps: 1, batch: 1, microbatches: 1, optimizer: sgd}\nplugins: []\n")
    cases = [
        ("none named", lambda: run_file(folder, "plugged"), "calls weft_test::scaled_tanh, in modules.py:"),
        ("another hash", lambda: run_with(folder, library, "a" * 64), f"has the SHA-256 {sha256(library)}, and the run names aaaa"),
        ("a changed file", lambda: run_with(folder, other, digest), "and the run names " + digest),
        ("no library", lambda: run_with(folder, empty), "cannot be loaded"),
        ("a file that is not there", lambda: run_with(folder, folder / "none.so", "a" * 64), "none.so"),
        ("a hash that is none", lambda: run_with(folder, library, "abc"), "must be the 64 digits that sha256sum prints"),
        ("a built-in model", lambda: folder / "built_in.yaml", "plugins: are libraries of an exported model's operations"),
    ]
    for title, write, words in cases:
        done = subprocess.run([weft, "train", write(), "--out", folder / "refused"], capture_output=True, text=True, check=False)
        if done.returncode != 78 or words not in done.stderr or len(done.stderr.splitlines()) != 1 or (folder / "refused").exists():
            failures.append(f"{title}: exit {done.returncode}, {done.stderr}")
    print(f"{len(cases)} wrong plug-ins, {len(failures)} not refused as they should be")
    return failures


def check_permission(bins, folder, plugins):
    """A coordinator's worker loads what its configuration allows, and nothing else; another version needs a new process."""
    first, second = (plugins / version / LIBRARY for version in "12")
    failures = []
    both = f"{sha256(first)},{sha256(second)}"
    # Flags of the worker, and runs one after the other: the library that each names, and what it ends with.
    cases = [([], [(first, "this worker does not allow")]),
             (["--plugins", both], [(first, ""), (first, ""), (second, "cannot load another one; start the worker again")])]
    for flags, runs in cases:
        scratch = folder / f"service-{len(flags)}"
        scratch.mkdir()
        service = Service(scratch)
        try:
            service.start_coordinator(bins)
            service.join(bins, *flags)
            service.await_workers(bins, 1)
            for number, (library, words) in enumerate(runs, start=1):
                service.call(bins, "submit", run_with(folder, library), "--processes", "1", "--detach")
                waited = service.call(bins, "wait", str(number), "--timeout", str(LIMIT))
                said = " ".join((waited.stdout + waited.stderr).split())
                if (waited.returncode == 0) != (words == "") or words not in said:
                    failures.append(f"run {number} on a worker with {flags}: exit {waited.returncode}, {said}")
        finally:
            service.end()
    print(f"permissions of workers, {len(failures)} failures")
    return failures


def compare_first_step(weft, folder, name, library):
    """Exports the model, and compares its first step with PyTorch."""
    import torch  # only where it is there
    import make_models
    torch.set_num_threads(1)
    module, loss, data = make_models.make(folder, name, plugins=[library])
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        wanted_loss, wanted = first_step(module, loss, data)
    made, losses = train(weft, run_with(folder, library, steps=1, optimizer="{sgd: {lr: 0.5}}"), folder / f"first-{name}",
                         "--processes", "1")
    made = {key.split(".", 1)[1]: value for key, value in made.items()}
    same = losses == [wanted_loss] and all(made.get(n) == p.numpy().tobytes() for n, p in wanted.items())
    return [] if same else [f"{name}: the first step has not PyTorch's bits"]


def check_python(weft, folder):
    """Python that cannot run is refused with one sentence; what it raises later is the reason for which the run failed."""
    failing = folder / "failing.py"
    failing.write_text("import torch\n\nraise ValueError('it is\\nwrong')\n")
    bare = folder / "bare-python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
    bare.chmod(0o755)
    cases = [({}, failing, f"{failing}: ValueError: it is wrong, line 3"),
             ({"WEFT_PYTHON": str(folder / "no-python")}, PYTHON, "cannot run: "),
             ({"WEFT_PYTHON": str(bare)}, PYTHON, "needs a Python with PyTorch 2.")]
    failures = []
    for variables, plugin, words in cases:
        done = subprocess.run([weft, "train", run_with(folder, plugin), "--out", folder / "refused"], capture_output=True, text=True, check=False,
                              env={**os.environ, "WEFT_PYTHON": sys.executable, **variables})
        if done.returncode != 78 or words not in done.stderr or len(done.stderr.splitlines()) != 1 or (folder / "refused").exists():
            failures.append(f"{plugin.name} with {variables}: exit {done.returncode}, {done.stderr}")
    raising = folder / "raising.py"
    raising.write_text(PYTHON.read_text().replace("return (x * scale).tanh()", 'raise RuntimeError("no kernel")'))
    done = subprocess.run([weft, "train", run_with(folder, raising), "--out", folder / "raised"], capture_output=True, text=True, check=False)
    if done.returncode != 1 or "RuntimeError: no kernel" not in done.stderr:
        failures.append(f"an operation that raises: exit {done.returncode}, {done.stderr}")
    print(f"{len(cases) + 1} plug-ins in Python that cannot run, {len(failures)} do not end as they should")
    return failures


def compare_with_torch(weft, folder, plugins):
    import torch  # only where it is there
    library = plugins / "1" / LIBRARY
    torch.ops.load_library(str(library))
    import make_models
    os.environ["WEFT_PYTHON"] = sys.executable
    failures = compare_first_step(weft, folder, "plugged", library)
    failures += compare_first_step(weft, folder, "plugged_python", PYTHON)
    failures += compare_schedules(weft, folder, PYTHON)[0] + check_python(weft, folder)
    import weft as package
    for plugged, words in (([], "one of a library is named by plugins=[..]"), ([folder / "none.so"], "cannot be loaded")):
        try:
            make_models.make(folder, "plugged", plugins=plugged)
            failures.append(f"exported with the plug-ins {plugged}")
        except package.NotExportable as error:
            failures += [] if words in str(error) else [f"the plug-ins {plugged}: {error}"]
    print(f"plugged and PyTorch, {len(failures)} failures")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("plugins", type=pathlib.Path)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    if options.torch and subprocess.run([sys.executable, "-c", "import numpy, torch"], capture_output=True, check=False).returncode:
        print("SKIPPED: python3 has no torch or no numpy; weft.export has not been tried")
        return 77
    bins, plugins = options.bin.resolve(), options.plugins.resolve()
    weft = bins / "weft"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.torch:
            failures = compare_with_torch(weft, folder, plugins)
        else:
            shutil.copytree(HERE / "models", folder, dirs_exist_ok=True)
            failures = compare_versions(weft, folder, plugins) + check_refusals(weft, folder, plugins)
            failures += check_permission(bins, folder, plugins)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
