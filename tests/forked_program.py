"""Runs a Python file as a program in a fork of the tests' fork server, which has imported torch.

``tests/conftest.py`` starts it, and sends as JSON the program with its arguments and the files for what it prints.
"""

import atexit
import contextlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path


def status_of(program: Path) -> int:
    """Run a program and return its exit status."""
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - the interpreter would print it too
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    with open(int(sys.argv[1]), encoding="utf-8") as asked:
        order = json.load(asked)
    for number, path in enumerate(order["printed"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv[:] = order["command"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    status = status_of(Path(sys.argv[0]))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)  # the interpreter's end takes half a second where torch is imported
