"""GPUs: which of them is assigned to a worker process, what kind it is, and how processes share one.

The guardian of a run's Multi-Process Service is a process that starts the daemons and ends them when the run is gone.

Variables that CUDA reads when a process starts it let the process share its GPU through a run's Multi-Process Service
(MPS), or use it apart. NVIDIA's control program talks to the daemon of a service. That service is started for a run, or
joined where one runs, and gone with the run.

``python -m fuzz_attn.backends.gpus FOLDER GPU...`` prints an empty line when the daemons run, or why they do
not. It ends at the end of its standard input, whose other end only the run holds, so that not even a killed run leaves
a daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO, TypeAlias

DEVICES: Final = Path("/dev")

GpuFacts: TypeAlias = tuple[int, int, int]
"""The compute capability of a GPU, major and minor, and the number of its multiprocessors."""
PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable that names the folder where clients find the daemon."""
ANSWER_SECONDS: Final = 5.0
"""A daemon that does not answer so long hangs."""
START_SECONDS: Final = 30.0
"""The guardian must have started the daemons within this time."""
END_SECONDS: Final = 30.0
"""The guardian, which goes on by itself, is waited for so long."""
PARENT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
"""Where the pipes are: a folder of the user's choice may exceed the 108 bytes that a socket's name may have."""

SHARE: Final = "workers share the GPU at the same time through CUDA's Multi-Process Service (MPS), which "
TURNS: Final = "workers take turns on the GPU, without CUDA's Multi-Process Service (MPS): "


def gpu_environment(index: int, environment: Mapping[str, str] = os.environ, devices: Path = DEVICES) -> dict[str, str]:
    """Return environment variables that assign a GPU to the worker of that number; set them before torch is imported.

    Workers get one GPU each, in turn, from the caller's ``CUDA_VISIBLE_DEVICES``, else from the machine's. Without a
    choice none is named. torch must count GPUs without initialising them, so that the process can still fork.
    """
    gpus = visible_gpus(environment, devices)
    chosen = {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if len(gpus) > 1 else {}
    return {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **chosen}


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """Return CUDA's names of the GPUs that the caller may use, in order."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    nodes = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(nodes))]


def may_use_gpu(backend: str) -> bool:
    """Return whether workers with a backend use a GPU where there is one, as far as that is known without torch."""
    return backend == "cuda" or (backend == "auto" and os.environ.get("TRITON_INTERPRET") != "1")


def gpu_facts() -> GpuFacts:
    """Return what torch says of the GPU of this process; raises :class:`RuntimeError` where it cannot be used."""
    import torch  # noqa: PLC0415 - the command line starts without it

    properties = torch.cuda.get_device_properties()
    return properties.major, properties.minor, properties.multi_processor_count


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
        [sys.executable, "-P", "-m", "fuzz_attn.backends.gpus", folder, *gpus],
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


DAEMON_START_SECONDS: Final = 10.0
DAEMON_END_SECONDS: Final = 5.0
"""What has not ended so long after it was asked to is killed."""
DAEMON_PAUSE_SECONDS: Final = 0.05
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
                    timeout=DAEMON_START_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
        if _within(DAEMON_START_SECONDS, self._control.runs):
            return ""
        return " ".join(said.read_text(errors="replace").split()) or "its daemon does not answer"

    def start_server(self) -> None:
        """Start the server before the first client asks for it: those that ask meanwhile would be refused."""
        self._control.ask(f"start_server -uid {os.getuid()}", DAEMON_START_SECONDS)

    def end(self) -> None:
        """End the daemon and its servers, in the end by force."""
        processes = [*self._control.servers(), *self._daemon()]
        self._control.ask("quit -t 1", DAEMON_END_SECONDS)
        if not _within(DAEMON_END_SECONDS, lambda: not any(map(_runs, processes))):
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
        time.sleep(DAEMON_PAUSE_SECONDS)
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
