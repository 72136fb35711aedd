"""Pool: compiles kernels in forks of this process, which share its imports and what Triton has computed."""

from __future__ import annotations

import os
import select
import signal
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fuzz_attn.engine.child.fork import die_with_parent

if TYPE_CHECKING:
    from fuzz_attn.backends.compiler_compat import WantedKernel

COMPILED: Final = b"c"
FOUND: Final = b"f"
"""It was in Triton's cache already."""
FAILED: Final = b"x"
STUCK_SECONDS: Final = 120.0
"""After so long without a result the forks are killed; what is left is not compiled."""
_NUMBER_BYTES: Final = 4


def compile_all(kernels: Sequence[WantedKernel], processes: int, nice: int = 0) -> Counter[bytes]:
    """Compile kernels in so many processes and return how many were compiled, found in the cache, or failed."""
    tasks, results = _tasks(len(kernels)), os.pipe()
    forks = [_fork(kernels, tasks, results, nice) for _ in range(min(processes, len(kernels)))]
    os.close(results[1])
    os.close(tasks)
    done = _received(results[0], forks)
    os.close(results[0])
    for fork in forks:
        os.waitpid(fork, 0)
    done[FAILED] += len(kernels) - done.total()  # of forks that died
    return +done


def _tasks(count: int) -> int:
    """Return a pipe that holds the numbers of all kernels; each fork takes the next one."""
    source, sink = os.pipe()
    os.write(sink, b"".join(number.to_bytes(_NUMBER_BYTES, "little") for number in range(count)))
    os.close(sink)
    return source


def _fork(kernels: Sequence[WantedKernel], tasks: int, results: tuple[int, int], nice: int) -> int:
    fork = os.fork()
    if fork:
        return fork
    try:
        die_with_parent()
        os.close(results[0])
        os.nice(nice)
        while number := os.read(tasks, _NUMBER_BYTES):
            os.write(results[1], _compiled(kernels[int.from_bytes(number, "little")]))
    finally:
        os._exit(0)


def _compiled(kernel: WantedKernel) -> bytes:
    try:
        return COMPILED if kernel.compile() else FOUND
    except Exception:  # noqa: BLE001 - the compiler may raise anything; the worker that launches the kernel reports it
        return FAILED


def _received(results: int, forks: Sequence[int]) -> Counter[bytes]:
    """Return the results of all forks; kills those that give none for too long."""
    done: Counter[bytes] = Counter()
    while True:
        if not select.select([results], [], [], STUCK_SECONDS)[0]:
            for fork in forks:
                os.kill(fork, signal.SIGKILL)
        if not (received := os.read(results, 4096)):
            return done
        done.update(bytes([each]) for each in received)
