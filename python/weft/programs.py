"""Finds Weft's programs and runs them."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from weft.errors import BadRun, RunFailed, WeftError

_HERE = Path(__file__).resolve().parent
_USAGE, _BAD_CONFIGURATION = 2, 78


def program(name: str) -> str:
    """Returns the path of one of Weft's programs, as "weft".

    It is the one in $WEFT_BIN, in the installed wheel, in a build of the source that this package is in, or in $PATH.
    """
    folders = [os.environ.get("WEFT_BIN"), _HERE / "bundle" / "bin", _HERE.parents[1] / "build" / "release" / "bin"]
    for folder in folders:
        if folder and os.access(Path(folder) / name, os.X_OK):
            return str(Path(folder) / name)
    found = shutil.which(name)
    if found is None:
        raise WeftError(f"the program {name} is not here; install the wheel, or name its folder in WEFT_BIN")
    return found


def environment() -> dict[str, str]:
    """Returns the environment of a program: workers take the LibTorch that this Python would import, and this Python for plug-ins."""
    own = dict(os.environ)
    own.setdefault("WEFT_PYTHON", sys.executable)
    torch = _torch_folder()
    if "WEFT_TORCH" not in own and torch:
        own["WEFT_TORCH"] = torch
    return own


def _torch_folder() -> str | None:
    import importlib.util  # finds torch without importing it
    spec = importlib.util.find_spec("torch")
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None


def error_of(code: int, messages: str) -> WeftError:
    """Returns the exception for a program that ended with `code` and these messages."""
    lines = [line.removeprefix("weft: ") for line in messages.strip().splitlines()]
    sentence = "\n".join(lines) if lines else f"weft ended with the exit code {code} and no message"
    kind = BadRun if code in (_USAGE, _BAD_CONFIGURATION) else RunFailed
    return kind(sentence, code)


def json_of(command: str, *arguments: str) -> dict | list:
    """Runs a command that prints JSON, and returns it."""
    done = subprocess.run([program("weft"), command, *arguments, "-o", "json"], capture_output=True, text=True,
                          env=environment(), check=False)
    if done.returncode != 0:
        raise error_of(done.returncode, done.stderr)
    return json.loads(done.stdout)


def flags_of(options: dict) -> list[str]:
    """Returns keyword arguments as flags: stages=4 is --stages 4, a list is joined by commas, True is a flag alone."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif isinstance(value, (list, tuple)):
            flags += [flag, ",".join(str(v) for v in value)]
        elif value is not None and value is not False:
            flags += [flag, str(value)]
    return flags


def _run_program(name: str) -> None:
    path = program(name)
    os.execve(path, [path, *sys.argv[1:]], environment())


def weft() -> None:
    """The command `weft` of the wheel."""
    _run_program("weft")


def weft_worker() -> None:
    """The command `weft-worker` of the wheel."""
    _run_program("weft-worker")


def weft_coordinator() -> None:
    """The command `weft-coordinator` of the wheel."""
    _run_program("weft-coordinator")
