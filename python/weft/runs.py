"""Runs as Python has them: a run file, or a dictionary with the same keys."""
import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Iterator

from weft.errors import BadRun, WeftError
from weft.programs import flags_of, json_of

Run = str | os.PathLike | dict[str, Any]


@contextlib.contextmanager
def run_file(run: Run, overrides: dict[str, Any]) -> Iterator[str]:
    """Gives the path of a run file that says what `run` says, with the overrides.

    A dictionary among the overrides changes single keys, as train={"steps": 5}; everything else takes the place of what
    was there. Relative paths begin at the folder of the run file, or, of a dictionary, at the current one.
    """
    if not isinstance(run, dict) and not overrides:
        yield os.fspath(run)
        return
    folder = Path.cwd() if isinstance(run, dict) else Path(run).resolve().parent
    content = _merged(dict(run) if isinstance(run, dict) else _read(Path(run)), overrides)
    content.setdefault("name", "run" if isinstance(run, dict) else _name_of(Path(run)))
    # The file lies beside the run file, because relative paths begin there. JSON is YAML.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix=".weft-", dir=folder, delete=False) as file:
        json.dump(content, file, indent=1, default=os.fspath)
    try:
        yield file.name
    except WeftError as error:
        raise _without_place(error, file.name) from None
    finally:
        os.unlink(file.name)


def _without_place(error: WeftError, path: str) -> WeftError:
    """Returns the error without the places in a file that nobody has written."""
    return type(error)(re.sub(rf"{re.escape(path)}(:[0-9]+)?: ", "", str(error)), error.code)


def _read(path: Path) -> dict[str, Any]:
    import yaml  # only to change a run file
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader(yaml))
    except (OSError, yaml.YAMLError) as error:
        raise BadRun(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise BadRun(f"{path} holds no run")
    return content


def _loader(yaml):
    """Reads numbers as Weft does: 1e-3 too, and on, off, yes and no are text."""
    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag.rsplit(":")[-1] in ("null", "merge")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for tag, pattern, first in (("bool", r"true|false", "tf"), ("int", r"[-+]?[0-9]+", "-+0123456789"),
                                ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+0123456789.")):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
    Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))
    return Loader


def _name_of(path: Path) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "-" for c in path.stem) or "run"


def _merged(content: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def simulate(schedule: Run, **options) -> dict[str, Any]:
    """Returns the simulation of a schedule: `simulate("1f1b", stages=4, microbatches=8)`; or of a run, as its file or as a dictionary.

    The options are the flags of `weft simulate`, with underscores; a list gives one value a stage. Keys of the result:
    makespan, period, bubble_ratio, rank_stats, ...
    """
    if isinstance(schedule, str):
        return json_of("simulate", schedule, *flags_of(options))
    with run_file(schedule, {}) as file:
        return json_of("simulate", file, *flags_of(options))


def evaluate(run: Run, *, checkpoint: str | os.PathLike | None = None, options: dict[str, Any] | None = None,
             **overrides) -> dict[str, Any]:
    """Returns the loss and the metrics of a checkpoint: `evaluate("run.yaml", checkpoint="out/run")["accuracy"]`.

    checkpoint: a checkpoint, or the folder of a run that has some; without it out/NAME in the current folder.
    options: flags of `weft eval`, as {"validation": True} or {"samples": 1000}.
    """
    flags = flags_of({"checkpoint": checkpoint, **(options or {})})
    with run_file(run, overrides) as path:
        return json_of("eval", path, *flags)


def compare(run: Run, *, options: dict[str, Any] | None = None, **overrides) -> dict[str, Any] | list:
    """Returns what `weft compare` predicts for each schedule of a run; `options` are its flags."""
    with run_file(run, overrides) as path:
        return json_of("compare", path, *flags_of(options or {}))


def plan(run: Run, *, options: dict[str, Any] | None = None, **overrides) -> dict[str, Any]:
    """Returns the plan that `weft plan` finds: `plan("run.yaml", options={"workers": 4, "memory": "2GiB"})`."""
    with run_file(run, overrides) as path:
        return json_of("plan", path, *flags_of(options or {}))
