"""Configurations: which of those of autotuned kernels a run has launched."""

from __future__ import annotations

from collections.abc import Iterable

from fuzz_attn.case.plain import Plain, Whole


class KernelConfigurations(Plain, frozen=True):
    """The configurations of an autotuned kernel by their places: those that pruning ``left``, and the ``launched``."""

    kernel: str
    left: tuple[Whole, ...]
    launched: tuple[Whole, ...]


def merged(found: Iterable[KernelConfigurations]) -> tuple[KernelConfigurations, ...]:
    """Return what several launches or shards have launched together, one entry for each kernel."""
    kernels: dict[str, tuple[set[int], set[int]]] = {}
    for each in found:
        left, launched = kernels.setdefault(each.kernel, (set(), set()))
        left.update(each.left)
        launched.update(each.launched)
    return tuple(
        KernelConfigurations(kernel, tuple(sorted(left)), tuple(sorted(launched)))
        for kernel, (left, launched) in sorted(kernels.items())
    )


def covered(found: Iterable[KernelConfigurations]) -> str:
    """Return how many configurations were launched: ``12 of 12``, with the kernels' names where there are several."""
    kernels = list(found)
    counts = [f"{len(each.launched)} of {len(each.left)}" for each in kernels]
    if len(kernels) < 2:
        return "".join(counts)
    return ", ".join(f"{count} of {each.kernel}" for count, each in zip(counts, kernels, strict=True))
