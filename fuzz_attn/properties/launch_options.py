"""Launch options: the options of Triton's compiler that a case chooses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from fuzz_attn.case.parts import LaunchHints

OwnOptions = dict[str, dict[str, int]]
"""For each kernel the launcher's own values of the options that a case chooses."""


def options_of(launch: LaunchHints) -> dict[str, int]:
    """Return the options that a case chooses; none where it leaves them to the launcher."""
    chosen = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return {name: number for name, number in chosen.items() if number}


def launched_with(launch: LaunchHints) -> AbstractContextManager[OwnOptions]:
    """Return a context in which each launch has the options of a case; it yields the launcher's own."""
    options = options_of(launch)
    if not options:
        return nullcontext({})
    from fuzz_attn.ttir.compiler_compat import options_chosen  # noqa: PLC0415 - imports Triton, and few need it

    return options_chosen(options)
