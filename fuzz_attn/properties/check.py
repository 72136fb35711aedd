"""The check of one case: every launch property, and at most one metamorphic relation.

A contract trial is checked for its contract instead: what the target makes of an argument in an unusual form. It gives
the right output, or raises. A failure here is silent: the target raises nothing, and its output is wrong or an access
leaves its memory. It is no failure of the contract where the same case fails with the usual form too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.contract_trial import NAME, REFUSED, ContractTrial, trial_of
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties import launch_properties, relation_launches
from fuzz_attn.properties.comparisons import Comparison, compared
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.few_values import few_values
from fuzz_attn.properties.launch_properties import value_range
from fuzz_attn.properties.relations import RELATIONS

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


LAUNCH_PROPERTIES: Final = (
    "sanitizers",
    "inputs_unchanged",
    "oracle",
    "value_range",
    "few_values",
    "nothing_else_written",
)
"""The properties of the first launch, in the order of checking."""

Second: TypeAlias = Callable[[str, Experiment], Comparison]
"""Returns the second launch of a relation, and what it must give."""
Extra: TypeAlias = tuple[Callable[[Experiment], Verdict], ...]
"""Properties of the outputs that an operation has beside its oracle, in the order of checking."""


def check(experiment: Experiment, relation: str | None = None) -> Verdict:
    """Return the first failed verdict of the launch properties and one relation, else the oracle's.

    Raises :class:`FuzzAttnError` for a relation that is unknown or does not hold for the case.
    """
    if experiment.case.contract is not None:
        return _of_trial(experiment, comparison_of)
    if relation:
        _require_holding(relation, experiment.case)
    return next(_verdicts(experiment, relation, comparison_of, (value_range, few_values)))


def all_failures(experiment: Experiment, relation: str | None = None) -> tuple[Verdict, ...]:
    """Return every failed verdict of the launch properties and one relation, else only the oracle's.

    Judging goes on after a sanitizer's finding, because the simulator skips a wrong access. It ends where a later
    verdict would follow from an earlier one: after an exception, a hang or a changed input, and after a wrong output
    only writes outside of the output are checked. Raises as :func:`check` does.
    """
    if relation and experiment.case.contract is None:
        _require_holding(relation, experiment.case)
    return failures_of_call(experiment, relation, comparison_of, (value_range, few_values))


def failures_of_call(
    experiment: Experiment, relation: str | None, second: Second, extra: Extra = ()
) -> tuple[Verdict, ...]:
    """Return what :func:`all_failures` does, for any operation: ``second`` knows its relations.

    A contract trial has one verdict of its own.
    """
    if experiment.case.contract is not None:
        return (_of_trial(experiment, second),)
    return tuple(_verdicts(experiment, relation, second, extra))


def _of_trial(experiment: Experiment, second: Second) -> Verdict:
    return of_trial(experiment, lambda launched: _verdicts(launched, None, second, ()))


def _verdicts(experiment: Experiment, relation: str | None, second: Second, extra: Extra) -> Iterator[Verdict]:
    first = experiment.first
    if first.error:
        yield Verdict("oracle", "exception", f"the target {first.error}", site=first.error_site)
    findings = launch_properties.findings(experiment)
    others = _after_findings(findings, experiment, relation, second, extra)
    if findings and all(finding.kind == "race" for finding in findings):
        # Programs that write the same number to a row race only once one of them makes NaN of it. That is the bug then;
        # a race beside it shows in cases without NaN.
        rest = list(others)
        yield from rest if rest and rest[0].kind == "nan" else [*findings, *rest]
    else:
        yield from findings
        yield from others


def _after_findings(
    findings: Sequence[Verdict], experiment: Experiment, relation: str | None, second: Second, extra: Extra
) -> Iterator[Verdict]:
    if experiment.first.error or any(finding.kind in ("timeout", "exception") for finding in findings):
        return
    changed = launch_properties.inputs_unchanged(experiment)
    if not changed.passed:
        yield changed  # the oracle reads the inputs as the launch left them
        return
    judged = list(_of_output(experiment, relation, second, extra))
    failed = [verdict for verdict in judged if not verdict.passed]
    if failed or not findings:
        yield from failed or judged[:1]


def _of_output(experiment: Experiment, relation: str | None, second: Second, extra: Extra) -> Iterator[Verdict]:
    """Yield the oracle's verdict, then others on the output and its memory."""
    verdict = launch_properties.oracle(experiment)
    yield verdict
    for more in extra:
        if verdict.passed:
            verdict = more(experiment)
            yield verdict
    outside = launch_properties.nothing_else_written(experiment)
    yield outside
    if relation and verdict.passed and outside.passed:
        yield compared(second(relation, experiment), experiment, relation)


def check_relation(name: str, experiment: Experiment) -> Verdict:
    """Return the verdict of one relation, which must hold for the experiment's case."""
    return compared(comparison_of(name, experiment), experiment, name)


def comparison_of(name: str, experiment: Experiment) -> Comparison:
    """Return the second launch of one relation, and what it must give."""
    comparison: Comparison = getattr(relation_launches, name)(experiment)
    return comparison


def _require_holding(relation: str, case: AttentionCase) -> None:
    """Refuse a relation that does not hold for a case on any target."""
    if relation not in RELATIONS:
        raise FuzzAttnError(f"relation={relation!r} must be one of: {', '.join(RELATIONS)}")
    everything = Domain(family=case.family, paths=FAMILIES[case.family].paths, configurations=2)
    if not RELATIONS[relation].holds(case, everything):
        raise FuzzAttnError(f"relation={relation!r} does not hold for the case")
