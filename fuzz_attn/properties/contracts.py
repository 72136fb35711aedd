"""Contracts: what a target makes of an argument in an unusual form. It gives the right output, or raises.

A failure here is silent: the target raises nothing, and its output is wrong or an access leaves its memory. It is no
failure of the contract where the same case fails with the usual form too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from fuzz_attn.case.contract_trial import NAME, REFUSED, ContractTrial, trial_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment

NOT_SILENT: Final = "it fails with the usual arguments too"

Judge: TypeAlias = Callable[[Experiment], Iterable[Verdict]]
"""Yields the verdicts on a launch."""


def of_trial(experiment: Experiment, judge: Judge) -> Verdict:
    """Return whether a target is right in a contract trial, or refuses it."""
    trial, case = trial_of(experiment.case), experiment.case
    assert trial is not None
    first = experiment.first
    if first.refusal is not None:
        return Verdict(NAME, message=f"{REFUSED}: {first.refusal.error}: {first.refusal.message}"[:300])
    failed = _failed(experiment, judge)
    if failed is None:
        return Verdict(NAME)
    if trial.form != "empty":
        usual = experiment.with_target(msgspec.structs.replace(case, contract=None), experiment.target)
        assert usual.first is not None
        experiment.learn(usual)
        if usual.first.error or _failed(usual, judge):
            return Verdict(NAME, message=NOT_SILENT)
        again = experiment.with_target(case, usual.target)  # by the bounds of how the target is now known to round
        failed = failed if again.first.refusal is not None else _failed(again, judge)
        if failed is None:
            return Verdict(NAME)
    message = f"{trial.subject}: {accepted(trial, first.unusual)}, and {failed.message}"
    return msgspec.structs.replace(failed, property_name=NAME, message=message)


def _failed(experiment: Experiment, judge: Judge) -> Verdict | None:
    return next((verdict for verdict in judge(experiment) if not verdict.passed), None)


def accepted(trial: ContractTrial, names: tuple[str, ...]) -> str:
    """Return in words which form a target accepted, with the parameters whose arguments had it."""
    of = f" as {' and '.join(names)}" if names else ""
    return f"{trial.words}{of} is accepted"
