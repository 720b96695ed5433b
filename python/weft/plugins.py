"""Libraries of operations of the user's own (TORCH_LIBRARY), which a worker loads too."""
import json
import os
import subprocess
import sys
from typing import Iterable

import torch

from weft.errors import NotExportable

# Run in a process of its own: this one may have loaded a library before, and may have registered operations in Python.
_NEW_OPERATIONS = """
import json, sys, torch
before = set(torch._C._dispatch_get_all_op_names())
for library in sys.argv[1:]:
    torch.ops.load_library(library)
print(json.dumps(sorted(set(torch._C._dispatch_get_all_op_names()) - before)))
"""


def operations_of(libraries: Iterable[str | os.PathLike]) -> frozenset[str]:
    """Loads the libraries, and returns the names of the operations that they register, as "mynet::rope"."""
    paths = [os.path.abspath(library) for library in libraries]
    if not paths:
        return frozenset()
    found = subprocess.run([sys.executable, "-c", _NEW_OPERATIONS, *paths], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["no reason is given"])[-1]
        raise NotExportable(f"the plugins {', '.join(paths)} cannot be loaded: {last}")
    for path in paths:
        torch.ops.load_library(path)
    return frozenset(name.partition(".")[0] for name in json.loads(found.stdout))
