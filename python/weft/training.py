"""`weft.train`: trains a run on this machine, and shows its progress in a terminal or a notebook."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from weft.errors import WeftError
from weft.programs import environment, error_of, flags_of, program
from weft.runs import Run, run_file

_PAUSE = 0.1  # seconds between two looks at the steps


@dataclass(frozen=True)
class Training:
    """A training that has reached its end."""
    folder: Path               # everything that it left; docs/guide/outputs.md
    summary: dict[str, Any]    # of summary.json: final_loss, step_seconds, peak_bytes, ...
    steps: list[dict[str, Any]]  # of steps.jsonl: step, loss, seconds, ...

    @property
    def losses(self) -> list[float]:
        return [step["loss"] for step in self.steps if "loss" in step]

    @property
    def validations(self) -> list[dict[str, Any]]:
        """The validations: step, validation_loss and each metric, as validation_accuracy."""
        return [step for step in self.steps if "validation_loss" in step]

    def state_dict(self) -> dict:
        """Returns the trained weights, as `weft.load_checkpoint`."""
        from weft.checkpoints import load_checkpoint  # torch takes seconds to import
        return load_checkpoint(self.folder)


def train(run: Run, *, out: str | os.PathLike | None = None, options: dict[str, Any] | None = None,
          progress: bool | Callable[[dict[str, Any]], None] = True, **overrides) -> Training:
    """Trains a run on this machine and returns what it left.

    run: a run file, or a dictionary with the same keys.
    out: the folder of the results; without it out/NAME in the current folder.
    options: flags of `weft train`, as {"processes": 2, "overwrite": True, "reference": True}.
    progress: True shows a line that renews itself, in a terminal or a notebook; a function is called with each step.
    overrides: keys of the run file, as schedule="zb_h1", stages=4, train={"steps": 5}.

    Raises BadRun before anything has started, RunFailed for a training that did not reach its end. Ctrl-C stops the
    training in order, with a checkpoint, before KeyboardInterrupt is raised.
    """
    with run_file(run, overrides) as path, tempfile.TemporaryFile("w+") as messages:
        folder = Path(out) if out is not None else Path("out") / _name_in(path)
        former = _file_id(folder / "steps.jsonl")
        child = subprocess.Popen([program("weft"), "train", path, "--out", str(folder), *flags_of(options or {})],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages,
                                 env=environment(), start_new_session=True)
        watcher = _Watcher(folder / "steps.jsonl", former, progress)
        try:
            while child.poll() is None:
                watcher.look()
                time.sleep(_PAUSE)
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
        finally:
            watcher.end()
        if child.returncode != 0:
            messages.seek(0)
            raise error_of(child.returncode, messages.read())
    return _result(folder)


def _name_in(path: str) -> str:
    """Returns the name of the run in a run file, which names its folder."""
    from weft.runs import _name_of, _read
    return str(_read(Path(path)).get("name") or _name_of(Path(path)))


def _result(folder: Path) -> Training:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise WeftError(f"the results in {folder} cannot be read: {error}") from error
    return Training(folder.resolve(), summary, steps)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


class _Watcher:
    """Follows steps.jsonl while the training writes it."""

    def __init__(self, path: Path, former: tuple[int, int] | None, progress):
        self._path, self._former = path, former  # what a run that is replaced has left
        self._tell = progress if callable(progress) else self._show if progress else lambda step: None
        self._read, self._shown, self._display = 0, False, None
        self._begun = time.monotonic()

    def look(self) -> None:
        if self._former is not None and _file_id(self._path) == self._former:
            return
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        whole = new[:new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._tell(json.loads(line))

    def end(self) -> None:
        self.look()
        if self._shown and self._display is None:
            print(file=sys.stderr)

    def _show(self, step: dict[str, Any]) -> None:
        if "loss" not in step:
            return
        text = f"step {step['step'] + 1}  loss {step['loss']:.4f}  {time.monotonic() - self._begun:.0f} s"
        if _in_notebook():
            from IPython.display import display
            if self._display is None:
                self._display = display({"text/plain": text}, raw=True, display_id=True)
            else:
                self._display.update({"text/plain": text}, raw=True)
        elif sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            return
        self._shown = True


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
