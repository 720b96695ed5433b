#!/usr/bin/env python3
"""Runs the Python of the guides as a user would: in an empty folder, from the first block of a page to the last.

    tutorial.py BIN_DIR          with a Python that has torch and numpy; pages that need transformers only where that is too

A block that begins with ```python fragment or ```yaml fragment is left out: it is a part, or takes too long.

Exits 77, with one line, where python3 has no torch or no numpy. With the wheel installed, BIN_DIR may be "-".
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"python.md": [], "your_own_model.md": [], "tutorial.md": ["transformers"]}  # and what each needs


def run_page(name, folder, environment, weft):
    """Runs the page's Python as one program, and, where it has one, trains its run file; returns what went wrong."""
    page = (SOURCE / "docs" / "guide" / name).read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"{name}: {done.stderr}"
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.S)):
        (folder / f"run{number}.yaml").write_text(text)
        done = subprocess.run([weft, "train", f"run{number}.yaml"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{name}, run {number}: {done.stderr}"
    return None


def main():
    if any(importlib.util.find_spec(module) is None for module in ("torch", "numpy")):
        print("SKIPPED: python3 has no torch or no numpy; the guides' Python has not been tried")
        return 77
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    weft = "weft"
    if sys.argv[1] != "-":
        weft = pathlib.Path(sys.argv[1]).resolve() / "weft"
        environment.update(PYTHONPATH=str(SOURCE / "python"), WEFT_BIN=str(weft.parent))
    failures = []
    for name, needs in PAGES.items():
        if any(importlib.util.find_spec(module) is None for module in needs):
            print(f"{name}: left out, python3 has no {', '.join(needs)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            failure = run_page(name, pathlib.Path(folder), environment, weft)
        print(f"{name}: {'good' if failure is None else 'FAILED'}", flush=True)
        failures += [failure] if failure else []
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
