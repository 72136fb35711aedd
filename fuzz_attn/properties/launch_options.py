"""Launch options: the options of Triton's compiler that a case chooses, and whether a failure needs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict

if TYPE_CHECKING:
    from fuzz_attn.properties.experiment import Experiment

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
    from fuzz_attn.backends.compiler_compat import options_chosen  # noqa: PLC0415 - imports Triton, and few need it

    return options_chosen(options)


def without_options(case: AttentionCase) -> AttentionCase:
    """Return the case with the launcher's own options."""
    return replace(case, launch=msgspec.structs.replace(case.launch, num_warps=0, num_stages=0))


def with_options_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure with a hint that the launcher's own options pass, if they do: then the compiler is suspect."""
    from fuzz_attn.properties.check import all_failures  # noqa: PLC0415 - which imports experiments

    if verdict.passed or not options_of(experiment.case.launch):
        return verdict
    try:
        failures = all_failures(experiment.with_target(without_options(experiment.case), experiment.target), None)
    except FuzzAttnError:
        return verdict
    if not all(each.passed for each in failures):
        return verdict
    return msgspec.structs.replace(verdict, hint=_in_words(experiment))


def _in_words(experiment: Experiment) -> str:
    chosen = options_of(experiment.case.launch)
    own = {kernel: _listed(each) for kernel, each in experiment.first.own_options.items() if each != chosen}
    listed = ", ".join(f"{options} of {kernel}" for kernel, options in own.items())
    return (
        f"It fails with {_listed(chosen)} and passes with the launcher's own {listed or 'choice'}. Only the compiler, "
        "or a kernel that depends on its threads, tells them apart."
    )


def _listed(options: dict[str, int]) -> str:
    return " and ".join(f"{name}={number}" for name, number in options.items())
