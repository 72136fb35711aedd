"""Sharing: which environment lets a process share its GPU through a run's Multi-Process Service, or use it apart.

CUDA reads these variables when a process starts it. NVIDIA's control program talks to the daemon of a service.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from fuzz_attn.backends.gpus import visible_gpus

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable that names the folder where clients find the daemon."""
ANSWER_SECONDS: Final = 5.0
"""A daemon that does not answer so long hangs."""


@dataclass(frozen=True)
class Control:
    """The daemon with these pipes; None is the one that the environment names, or the machine's own."""

    pipes: Path | None = None

    def ask(self, command: str, seconds: float = ANSWER_SECONDS) -> str | None:
        """Return what the daemon answers to a command, None where there is none or it does not answer."""
        pipes = {} if self.pipes is None else {PIPES: str(self.pipes)}
        try:
            done = subprocess.run(  # noqa: S603 - NVIDIA's program
                [PROGRAM],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                env={**os.environ, **pipes},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode or "Cannot find" in done.stdout + done.stderr else done.stdout

    def runs(self) -> bool:
        """Return whether the daemon answers."""
        return self.ask("get_server_list") is not None

    def servers(self) -> list[int]:
        """Return the processes of its servers."""
        return _numbers(self.ask("get_server_list"))

    def end_work_of(self, group: int) -> None:
        """Let the servers end the GPU work of a process group that is about to be killed.

        NVIDIA asks for this: a client that is killed while its kernel runs may take its server and all others along.
        """
        for server in self.servers():
            for client in _numbers(self.ask(f"get_client_list {server}")):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(client) == group:
                        self.ask(f"terminate_client {server} {client}")


def _numbers(answer: str | None) -> list[int]:
    """Return the numbers that have a line of their own in an answer."""
    return [int(number) for number in re.findall(r"^\s*(\d+)\s*$", answer or "", re.MULTILINE)]


FOLDER: Final = "FUZZ_ATTN_MPS"
"""The variable with the folder of a run's service: in it each GPU's daemon has a folder for its pipes.

There is none where the run has joined a service that the environment names.
"""
APART: Final = "FUZZ_ATTN_MPS_APART"
"""The variable with the number of orders that a worker judges apart from the service before it shares the GPU."""
NO_DAEMON: Final = "apart"
"""A folder without a daemon: with its name for the pipes, CUDA runs without the service."""
LONGEST_START: Final = 5.0
"""A process waits so many seconds for others that start their GPU, and then starts it beside them."""
PAUSE_SECONDS: Final = 0.01


def pipes_of(gpu: str, folder: Path) -> Path:
    """Return the folder for the pipes of a GPU's daemon. Old names of parts of a GPU contain slashes."""
    return folder / f"gpu-{gpu.replace('/', '-')}"


def variables(environment: Mapping[str, str], *, shared: bool) -> dict[str, str]:
    """Return the variables for a process that shares its GPU, or is apart from the service of its run.

    Each GPU has a daemon of its own: after a fatal fault a server takes no new client, on any of its GPUs, until all
    clients of the broken GPU have ended. A daemon that was started for one GPU calls it 0, whatever its name outside.
    """
    folder = Path(environment[FOLDER])
    if not shared:
        return {PIPES: str(folder / NO_DAEMON)}
    pipes = _own_pipes(environment)
    return {} if pipes is None else {PIPES: str(pipes), "CUDA_VISIBLE_DEVICES": "0"}


def control_of(environment: Mapping[str, str]) -> Control:
    """Return the control of the daemon that a process with this environment shares its GPU through."""
    return Control(_own_pipes(environment))


def broken_mark(environment: Mapping[str, str]) -> Path:
    """Return the file whose time says when the GPU of a process with this environment was last broken for all."""
    return Path(environment[FOLDER]) / f"broken-{','.join(visible_gpus(environment)[:1]).replace('/', '-')}"


def _own_pipes(environment: Mapping[str, str]) -> Path | None:
    """Return the pipes of the daemon that was started for the first visible GPU; None if there is none."""
    gpus = visible_gpus(environment)
    pipes = pipes_of(gpus[0], Path(environment[FOLDER])) if gpus else None
    return pipes if pipes is not None and pipes.is_dir() else None


@contextmanager
def start_in_turn(environment: Mapping[str, str]) -> Iterator[None]:
    """Let the processes of a run start their GPU one after the other, where they share it.

    Alone that takes a tenth of a second. Of 16 at once, each takes as long as all of them.
    """
    if FOLDER not in environment:
        yield
        return
    gpu = f"{Path(environment.get(PIPES, '')).name}-{environment.get('CUDA_VISIBLE_DEVICES', '')}"
    with ExitStack() as stack:
        with suppress(OSError):  # the folder goes with the service
            lock = (Path(environment[FOLDER]) / f"start-{gpu.replace('/', '-')}").open("w")
            _wait_for(stack.enter_context(lock))  # closing it lets the next one start
        yield


def _wait_for(lock: TextIO) -> None:
    """Lock a file, or give up when that takes too long."""
    limit = time.monotonic() + LONGEST_START
    while time.monotonic() < limit:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(PAUSE_SECONDS)
