"""The guardian of a run's Multi-Process Service: a process that starts the daemons and ends them when the run is gone.

``python -m fuzz_attn.backends.guardian FOLDER GPU...`` prints an empty line when the daemons run, or why they do
not. It ends at the end of its standard input, whose other end only the run holds, so that not even a killed run leaves
a daemon.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fuzz_attn.backends.gpus import NO_DAEMON, PIPES, PROGRAM, Control, pipes_of

START_SECONDS: Final = 10.0
END_SECONDS: Final = 5.0
"""What has not ended so long after it was asked to is killed."""
PAUSE_SECONDS: Final = 0.05
NAME: Final = "nvidia-cuda-mps"
"""With this begin the names of the daemon's and the servers' processes."""


class Daemon:
    """The control daemon of one GPU, and its servers."""

    def __init__(self, gpu: str, folder: Path) -> None:
        self._gpu = gpu
        self._pipes = pipes_of(gpu, folder)
        self._logs = folder / f"log-{self._pipes.name}"
        self._control = Control(self._pipes)

    def start(self) -> str:
        """Start the daemon; return why it does not run, or nothing."""
        self._pipes.mkdir()
        self._logs.mkdir()
        variables = {PIPES: self._pipes, "CUDA_MPS_LOG_DIRECTORY": self._logs, "CUDA_VISIBLE_DEVICES": self._gpu}
        said = self._logs / "start.txt"
        with said.open("wb") as output:  # not a pipe, which the daemon would keep open
            try:
                subprocess.run(  # noqa: S603 - NVIDIA's program
                    [PROGRAM, "-d"],
                    env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=START_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
        if _within(START_SECONDS, self._control.runs):
            return ""
        return " ".join(said.read_text(errors="replace").split()) or "its daemon does not answer"

    def start_server(self) -> None:
        """Start the server before the first client asks for it: those that ask meanwhile would be refused."""
        self._control.ask(f"start_server -uid {os.getuid()}", START_SECONDS)

    def end(self) -> None:
        """End the daemon and its servers, in the end by force."""
        processes = [*self._control.servers(), *self._daemon()]
        self._control.ask("quit -t 1", END_SECONDS)
        if not _within(END_SECONDS, lambda: not any(map(_runs, processes))):
            for process in filter(_runs, processes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _daemon(self) -> list[int]:
        """Return the daemon's process, from the file that it writes."""
        try:
            return [int((self._pipes / f"{PROGRAM}.pid").read_text().strip("\0\n "))]
        except (OSError, ValueError):
            return []


def guard(folder: Path, gpus: Sequence[str]) -> None:
    """Start a daemon for each GPU, and end them and delete the folder at the end of the standard input."""
    (folder / NO_DAEMON).mkdir()
    daemons = [Daemon(gpu, folder) for gpu in gpus]
    try:
        reason = next(filter(None, (daemon.start() for daemon in daemons)), "")
        print(reason, flush=True)
        if not reason:
            for daemon in daemons:
                daemon.start_server()
            sys.stdin.buffer.read()
    finally:
        for daemon in daemons:
            daemon.end()
        shutil.rmtree(folder, ignore_errors=True)


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within so many seconds."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def _runs(process: int) -> bool:
    """Return whether a process of the service runs; its number may have become another program's."""
    try:
        name, _, state = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return False
    return name.startswith(NAME) and state.split()[0] != "Z"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    guard(Path(sys.argv[1]), sys.argv[2:])
