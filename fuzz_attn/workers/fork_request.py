"""Requests to a fork server: what a process is started with, and which server can start it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fuzz_attn.backends.gpus import gpu_environment
from fuzz_attn.workers.messages import Message

VARIABLE: Final = "FUZZ_ATTN_FORK_SERVER"
"""The variable with the path of a server's socket. The name of that file is the kind of processes that it forks."""

_ACT_AT_START: Final = (
    *("PYTHON", "LD_", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_", "COV"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "ATEN_", "NPY_", "NUMPY_", "HYPOTHESIS_NO_"),
)
"""How the names of variables begin that the interpreter, libraries, torch and others read when they are loaded."""
_ACT_LATER: Final = ("PYTHONPATH",)
"""Among those, the ones that a fork can still follow."""


class Request(Message, frozen=True):
    """A module to run as the main program of a new process.

    ``end_signal`` ends the process's group when the process that asked for it ends.
    """

    module: str
    environment: dict[str, str]
    folder: str
    end_signal: int


def worker_environment(index: int = 0) -> dict[str, str]:
    """Return the environment of a new process, with its GPU by number and the import path of this process."""
    own = {"PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **gpu_environment(index)}


def kind_of(environment: Mapping[str, str]) -> str:
    """Return a name of what a fork cannot change: interpreter, package, and variables that act at the start."""
    variables = sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(_ACT_AT_START) and name not in _ACT_LATER
    )
    return hashlib.sha256(repr((sys.executable, Path(__file__), variables)).encode(errors="replace")).hexdigest()[:16]


def _search_path() -> str:
    """Return this process's import path, so that the new one finds the same targets."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
