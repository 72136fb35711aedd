"""Workers: what the compile stage has to know of the workers of a run, from one of them or told beforehand."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final, NamedTuple

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import GpuFacts
from fuzz_attn.binding.binding import Binding
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.operations.registry import FAMILIES, AnyDomain, load_target
from fuzz_attn.workers.fork import die_with_parent

if TYPE_CHECKING:
    from fuzz_attn.targets.published.gpu_answers import Gpu
    from fuzz_attn.targets.target import Target

ANSWER_SECONDS: Final = 10.0
"""A GPU has to tell its kind within this time."""
KILL_SECONDS: Final = 1.0
"""A process that a driver holds may outlive its being killed."""


class Workers(NamedTuple):
    """The GPU of the workers, the domain that they draw from, and how they call the target."""

    gpu: GpuFacts
    domain: AnyDomain
    binding: Binding | None


def workers_of(setup: Setup, ready: Ready) -> Workers:
    """Return what a worker says when it is ready on its GPU."""
    assert ready.gpu is not None
    return Workers(ready.gpu, ready.domain, setup.binding if ready.published else ready.binding)


def ask_workers(setup: Setup) -> Callable[[], Workers | None]:
    """Return what waits for what workers on a GPU will say of a built-in target: None for others, or without a GPU.

    Others may have to be calibrated on the GPU, and their module may bear to be executed only once.
    """
    if setup.target not in FAMILIES or setup.binding is not None:
        return lambda: None
    answer = ask_gpu()

    def workers() -> Workers | None:
        gpu = answer()
        return None if gpu is None else Workers(gpu, load_for(setup, None, gpu).domain.on_gpu(), None)

    return workers


def ask_gpu() -> Callable[[], GpuFacts | None]:
    """Let a fork ask the GPU, because a process that has started CUDA cannot fork. Return what waits for the answer.

    The answer is None where there is none in time.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell_gpu, args=(sender,), daemon=True)
    process.start()
    sender.close()

    def answer() -> GpuFacts | None:
        try:
            return receiver.recv() if receiver.poll(ANSWER_SECONDS) else None
        except EOFError:
            return None
        finally:
            receiver.close()
            process.kill()
            process.join(KILL_SECONDS)

    return answer


def _tell_gpu(sender: Connection) -> None:
    """Send what the GPU is; nothing where there is none that works."""
    die_with_parent()
    with contextlib.suppress(Exception):  # a driver may raise anything, and a worker reports it
        sender.send(gpus.gpu_facts())


def load_for(setup: Setup, binding: Binding | None, gpu: GpuFacts) -> Target:
    """Return the target of a run, loaded as in a process with a GPU."""
    from fuzz_attn.targets.published.gpu_answers import gpu_answers  # noqa: PLC0415 - imports torch

    with gpu_answers(answers_of(gpu)):
        return load_target(setup.target, setup.family, binding)


def answers_of(gpu: GpuFacts) -> Gpu:
    """Return what a launcher is told about a GPU."""
    from fuzz_attn.targets.published.gpu_answers import Gpu  # noqa: PLC0415 - imports torch

    return Gpu(gpu[:2], gpu[2])
