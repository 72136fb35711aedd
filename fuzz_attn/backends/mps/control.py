"""Control: talks to the daemon of a Multi-Process Service through NVIDIA's control program."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
