"""The Multi-Process Service of a run: started for the GPUs in use, or joined where one runs, and gone with the run."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fuzz_attn.backends.gpus import may_use_gpu, visible_gpus
from fuzz_attn.backends.mps.gpu_sharing import FOLDER, PIPES, PROGRAM, Control

START_SECONDS: Final = 30.0
"""The guardian must have started the daemons within this time."""
END_SECONDS: Final = 30.0
"""The guardian, which goes on by itself, is waited for so long."""
PARENT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
"""Where the pipes are: a folder of the user's choice may exceed the 108 bytes that a socket's name may have."""

SHARE: Final = "workers share the GPU at the same time through CUDA's Multi-Process Service (MPS), which "
TURNS: Final = "workers take turns on the GPU, without CUDA's Multi-Process Service (MPS): "


@contextmanager
def multi_process_service(backend: str) -> Iterator[Callable[[], str]]:
    """Start the service, if a process with this backend uses a GPU, and end it with the context.

    Yields what, called once, waits until it runs, returns a sentence for the summary, and lets processes started from
    then on share their GPUs. The sentence is empty where no process uses a GPU.
    """
    gpus = visible_gpus(os.environ)
    if not gpus or not may_use_gpu(backend):
        yield lambda: ""
        return
    joined = Control().runs() or _is_joined_blindly()
    if not joined and shutil.which(PROGRAM) is None:
        yield lambda: f"{TURNS}{PROGRAM} is not installed"
        return
    folder = tempfile.mkdtemp(prefix="fuzz-attn-mps-", dir=PARENT)
    guardian = _guardian(folder, [] if joined else gpus)

    def sentence() -> str:
        reason = _answer_of(guardian)
        if reason is not None:
            return f"{TURNS}{reason}"
        os.environ[FOLDER] = folder
        return f"{SHARE}{'was running already' if joined else 'was started for this run'}"

    try:
        yield sentence
    finally:
        os.environ.pop(FOLDER, None)
        _end(guardian)


def _is_joined_blindly() -> bool:
    """Return whether the environment names a daemon's pipes that the control program, perhaps missing, cannot reach."""
    pipes = os.environ.get(PIPES)
    return pipes is not None and (Path(pipes) / "control").exists()


def _guardian(folder: str, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the guardian, in a session of its own: what ends the run by a signal to its group must not end it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-P", "-m", "fuzz_attn.backends.mps.guardian", folder, *gpus],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def _answer_of(guardian: subprocess.Popen[bytes]) -> str | None:
    """Return why the service does not run, None if it does."""
    assert guardian.stdout is not None
    if not select.select([guardian.stdout], [], [], START_SECONDS)[0]:
        return f"its daemon was not ready within {START_SECONDS:.0f} s"
    line = guardian.stdout.readline().decode(errors="replace")
    return line.strip() or None if line else "its guardian ended"


def _end(guardian: subprocess.Popen[bytes]) -> None:
    """Let the guardian end the service, and wait until it has."""
    assert guardian.stdin is not None
    assert guardian.stdout is not None
    guardian.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        guardian.wait(END_SECONDS)
    guardian.stdout.close()
