"""Operations of the user's own, which a worker loads too: libraries (TORCH_LIBRARY), and Python (torch.library) in files of the name *.py."""
import json
import os
import runpy
import subprocess
import sys
from typing import Iterable

import torch

from weft.errors import NotExportable

# Run in a process of its own: this one may have loaded a library before, and may have registered operations in Python.
_NEW_OPERATIONS = """
import json, runpy, sys, torch
before = set(torch._C._dispatch_get_all_op_names())
for plugin in sys.argv[1:]:
    runpy.run_path(plugin) if plugin.endswith(".py") else torch.ops.load_library(plugin)
print(json.dumps(sorted(set(torch._C._dispatch_get_all_op_names()) - before)))
"""


def operations_of(plugins: Iterable[str | os.PathLike]) -> frozenset[str]:
    """Loads the plug-ins, and returns the names of the operations that they register, as "mynet::rope"."""
    paths = [os.path.abspath(plugin) for plugin in plugins]
    if not paths:
        return frozenset()
    found = subprocess.run([sys.executable, "-c", _NEW_OPERATIONS, *paths], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["no reason is given"])[-1]
        raise NotExportable(f"the plugins {', '.join(paths)} cannot be loaded: {last}")
    names = json.loads(found.stdout.splitlines()[-1])
    missing = set(names) - set(torch._C._dispatch_get_all_op_names())  # what a module here has registered is there
    for path in paths:
        if not path.endswith(".py"):
            torch.ops.load_library(path)
        elif missing:
            runpy.run_path(path)
    return frozenset(name.partition(".")[0] for name in names)
