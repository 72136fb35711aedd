"""A new process: what a fork of the server changes to be like a process that was started by itself.

It has no threads and no state of random numbers of the server. Only the seed of hashes is the same in all forks.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fuzz_attn.engine.child.fork import die_with_parent
from fuzz_attn.engine.fork_server.request import Request

_SERVER_LOST: Final = 1
_ARGUMENTS: Final = 45
"""The place of the first address of the arguments, behind the name of the process in ``/proc/PID/stat``."""


def become(request: Request, server: int, connection: int, output: int) -> None:
    """Make this fork of a server the process that is asked for, up to the call of its module.

    Its command line ends with the number of the connection. A failure ends it: it must not go on as the server.
    """
    try:
        die_with_parent()
        if os.getppid() != server:
            os._exit(_SERVER_LOST)
        os.setpgid(0, 0)
        _set_files(output)
        interpreters = [entry for entry in sys.path if entry not in _search_path(os.environ)]
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.path[:] = dict.fromkeys((*_search_path(os.environ), *interpreters))
        importlib.invalidate_caches()
        sys.argv[1:] = [str(connection)]
        _set_command_line(sys.executable, "-P", "-m", request.module, str(connection))
        _draw_new_seeds()
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
        os._exit(1)


def _set_files(output: int) -> None:
    """Read from nothing, and print to the output."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    os.close(nothing)


def _search_path(environment: Mapping[str, str]) -> list[str]:
    """Return what an environment adds to the import path of the interpreter."""
    return [os.path.abspath(entry) for entry in environment["PYTHONPATH"].split(os.pathsep)]


def _draw_new_seeds() -> None:
    """Give torch and numpy new random numbers, as they have in each process. Python's own does so in each fork."""
    torch, random = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if torch is not None:
        torch.default_generator.seed()
    if random is not None:
        random.seed()


def _set_command_line(*words: str) -> None:
    """Let ``ps`` and others show a command instead of the server's, cut where that ends: it is written over it."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return  # without /proc nobody sees it
    start, end = (int(field) for field in fields[_ARGUMENTS : _ARGUMENTS + 2])
    text = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
