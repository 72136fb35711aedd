"""Needed options: whether a failure needs the options of Triton's compiler that its case chooses."""

from __future__ import annotations

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.launch_options import options_of


def without_options(case: AttentionCase) -> AttentionCase:
    """Return the case with the launcher's own options."""
    return replace(case, launch=msgspec.structs.replace(case.launch, num_warps=0, num_stages=0))


def with_options_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure with a hint that the launcher's own options pass, if they do: then the compiler is suspect."""
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
