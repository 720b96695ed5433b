#!/usr/bin/env python3
"""Packs the wheel, installs it with pip into an empty environment, and uses the package and its commands from there.

    wheel_test.py BUILD      BUILD: a finished build, as build/release

The environment sees the modules of Debian's Python, for numpy and yaml. torch is a stand-in that holds the build's
LibTorch and says its version: pip and weft-worker read no more of it. tests/exported/tutorial.py uses the real one.
Exits 77, with one line, where Debian's Python has no numpy or no yaml.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
# Used in the environment, in an empty folder. The arguments are the run file and the loss that it ends with.
PROGRAM = """
import os, sys, numpy, weft
run, loss = sys.argv[1], float(sys.argv[2])
seen = []
done = weft.train(run, out="out/file", options={"processes": 2}, progress=seen.append)
assert done.summary["final_loss"] == loss, (done.summary["final_loss"], loss)
assert [step["loss"] for step in seen if "loss" in step] == done.losses and len(done.losses) == 20
other = weft.train(run, out="out/other", schedule="zb_h1", train={"steps": 5})
assert other.losses == done.losses[:5]
assert weft.evaluate(run, checkpoint=done.folder, options={"samples": 64})["loss"] < done.losses[0]
assert weft.simulate("1f1b", stages=4, microbatches=8)["makespan"] == 22
assert any(row["schedule"] == "1f1b" for row in weft.compare(run)["schedules"])
assert weft.plan(run, options={"workers": 2, "time_limit": 5})["fits"]

numbers = numpy.random.default_rng(0)
samples = ({"image": numbers.standard_normal(16).astype("float32"), "label": numpy.int64(n % 4)} for n in range(64))
data = weft.write_data(samples, "data")
assert numpy.load("data/image.npy").shape == (64, 16) and set(data["arrays"]) == {"image", "label"}
for wrong, word in (({"schedule": "no_such"}, "no_such"), ({"stages": 99}, "99"), ({"model": {"mpl": {}}}, "mpl")):
    try:
        weft.train(run, out="out/wrong", **wrong)
    except weft.BadRun as error:
        assert word in str(error), (word, str(error))
    else:
        raise AssertionError(f"{wrong} was accepted")
assert not os.path.exists("out/wrong")
"""


class Environment:
    """A virtual environment with a stand-in for torch."""

    def __init__(self, folder, libtorch):
        self.folder = folder
        run([PYTHON, "-m", "venv", "--system-site-packages", "--without-pip", folder])
        self.bin = folder / "bin"
        self.packages = next(folder.glob("lib/python3*/site-packages"))
        (self.packages / "torch").mkdir()
        (self.packages / "torch" / "__init__.py").touch()
        (self.packages / "torch" / "lib").symlink_to(libtorch / "lib")
        # Programs that run here find Python and the wheel's commands, and nothing of the source or of another build.
        self.variables = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
                          "OMP_NUM_THREADS": "1", "UCX_LOG_LEVEL": "error"}

    def set_torch(self, version):
        for old in self.packages.glob("torch-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        info = self.packages / f"torch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        (self.packages / "torch" / "version.py").write_text(f"__version__ = '{version}+cpu'\n")

    def pip(self, *words):
        return run([PYTHON, "-m", "pip", "--python", self.bin / "python", *words], env=self.variables, check=False)

    def run(self, *words, folder, check=True):
        return run(words, env=self.variables, cwd=folder, check=check)


def run(words, check=True, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    if check and done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, words[:4]))} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def expect(holds, what, shown=""):
    if not holds:
        sys.exit(f"FAILED: {what}\n{shown}")


def pack(build, folder):
    """Returns the wheel, packed twice to the same bytes."""
    run([SOURCE / "deploy" / "bundle.sh", build, folder])
    bundle = next(path for path in folder.glob("weft-*") if path.is_dir())
    wheels = []
    for name in ("once", "twice"):
        (folder / name).mkdir()
        run([sys.executable, SOURCE / "deploy" / "wheel.py", bundle, folder / name])
        wheels.append(next((folder / name).glob("*.whl")))
    expect(wheels[0].read_bytes() == wheels[1].read_bytes(), "two wheels of one bundle differ")
    return wheels[0]


def check_install(environment, wheel, torch):
    """Installs with pip, which finds another version of torch wanting, and the right one enough."""
    environment.set_torch("2.0.0")
    refused = environment.pip("install", "--no-index", wheel)
    expect(refused.returncode != 0 and f"torch=={torch}" in refused.stderr, "pip installs beside another torch", refused.stderr)
    environment.set_torch(torch)
    installed = environment.pip("install", "--no-index", wheel)
    expect(installed.returncode == 0, "pip does not install the wheel", installed.stderr)


def check_commands(environment, build, folder):
    """Runs the commands, with the right torch and with another."""
    version = run([build / "bin" / "weft", "--version"]).stdout.split()[1]
    for command in ("weft", "weft-worker", "weft-coordinator"):
        shown = environment.run(environment.bin / command, "--version", folder=folder).stdout
        expect(shown.splitlines()[0] == f"{command} {version}", f"{command} --version", shown)
    own = (environment.packages / "torch" / "version.py")
    right = own.read_text()
    own.write_text("__version__ = '2.10.0'\n")
    refused = environment.run(environment.bin / "weft-worker", "--version", folder=folder, check=False)
    own.write_text(right)
    expect(refused.returncode == 78 and "is version 2.10.0" in refused.stderr, "weft-worker runs with another torch", refused.stderr)


def main():
    if run([PYTHON, "-c", "import numpy, yaml"], check=False).returncode != 0:
        print(f"SKIPPED: the wheel was not tried: {PYTHON} has no numpy or no yaml (Debian: python3-numpy python3-yaml)")
        return 77
    build = pathlib.Path(sys.argv[1]).resolve()
    setup = (SOURCE / "deploy" / "setup.sh").read_text(encoding="utf-8")
    torch = re.search(r"wheels=\(torch==([0-9.]+)", setup).group(1)
    run_file = SOURCE / "docs" / "runs" / "tiny.yaml"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheel = pack(build, folder)
        environment = Environment(folder / "environment", (SOURCE / "build" / "deps" / "torch").resolve())
        check_install(environment, wheel, torch)
        empty = folder / "empty"
        empty.mkdir()
        check_commands(environment, build, empty)
        run([build / "bin" / "weft", "train", run_file, "--processes", "2", "--out", folder / "expected"])
        loss = json.loads((folder / "expected" / "summary.json").read_text())["final_loss"]
        environment.run(environment.bin / "python", "-c", PROGRAM, run_file, repr(loss), folder=empty)
        removed = environment.pip("uninstall", "--yes", "weft")
        expect(removed.returncode == 0, "pip does not remove the wheel", removed.stderr)
        expect(not (environment.packages / "weft" / "bundle").exists() and not (environment.bin / "weft").exists(),
               "something of the wheel stays")
    print("the wheel installs, trains with the build's bits, and goes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
