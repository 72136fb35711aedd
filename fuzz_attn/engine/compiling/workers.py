"""Workers: what the compile stage has to know of the workers of a run, from one of them or told beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fuzz_attn.bindings.binding import Binding
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.messages import Ready, Setup
from fuzz_attn.errors import FuzzAttnError

if TYPE_CHECKING:
    from fuzz_attn.backends.gpus import GpuFacts
    from fuzz_attn.targets.published.gpu_answers import Gpu
    from fuzz_attn.targets.target import Target


class Workers(NamedTuple):
    """The GPU of the workers, the domain that they draw from, and how they call the target."""

    gpu: GpuFacts
    domain: Domain
    binding: Binding | None


def workers_of(setup: Setup, ready: Ready) -> Workers:
    """Return what a worker says when it is ready on its GPU."""
    assert ready.gpu is not None
    return Workers(ready.gpu, ready.domain, setup.binding if ready.published else ready.binding)


def expected_workers(setup: Setup, gpu: GpuFacts | None) -> Workers | None:
    """Return what workers on a GPU will say; None where no GPU answers or the target has to be calibrated there."""
    if gpu is None:
        return None
    try:
        target = load_for(setup, setup.binding, gpu)
        if not target.match.published:
            return None
    except FuzzAttnError:  # the workers report it
        return None
    return Workers(gpu, target.domain.in_memory(), setup.binding)


def load_for(setup: Setup, binding: Binding | None, gpu: GpuFacts) -> Target:
    """Return the target of a run, loaded as in a process with a GPU."""
    from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - imports torch, as below
    from fuzz_attn.targets.published.gpu_answers import gpu_answers  # noqa: PLC0415 - as above

    with gpu_answers(answers_of(gpu)):
        return load_target(setup.target, setup.family, binding)


def answers_of(gpu: GpuFacts) -> Gpu:
    """Return what a launcher is told about a GPU."""
    from fuzz_attn.targets.published.gpu_answers import Gpu  # noqa: PLC0415 - imports torch

    return Gpu(gpu[:2], gpu[2])
