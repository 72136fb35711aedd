"""The check of one case: every launch property, and at most one metamorphic relation."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final, TypeAlias

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties import absent_features, bounded_relations, exact_relations, launch_properties
from fuzz_attn.properties.comparisons import Comparison, compared
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import RELATIONS, RelationKind
from fuzz_attn.properties.value_range import value_range

Property: TypeAlias = Callable[[Experiment], Verdict]

LAUNCH_PROPERTIES: Final[dict[str, Property]] = {
    "sanitizers": launch_properties.sanitizers,
    "inputs_unchanged": launch_properties.inputs_unchanged,
    "oracle": launch_properties.oracle,
    "value_range": value_range,
    "nothing_else_written": launch_properties.nothing_else_written,
}
"""Properties of the first launch, in the order of checking. Changed inputs come before the oracle, because the oracle
reads the inputs as the launch left them."""

MODULES: Final[dict[RelationKind, ModuleType]] = {
    "exact": exact_relations,
    "bounded": bounded_relations,
    "absent": absent_features,
}
"""The module with the functions of each kind of relation."""


def check(experiment: Experiment, relation: str | None = None) -> Verdict:
    """Return the first failed verdict of the launch properties and one relation, else the oracle's.

    An exception of the target fails the oracle. Raises :class:`FuzzAttnError` for a relation that is unknown or does
    not hold for the case.
    """
    if relation:
        _require_holding(relation, experiment.case)
    if experiment.first.error:
        return Verdict("oracle", "exception", f"the target {experiment.first.error}")
    passed = {}
    for name, property_ in LAUNCH_PROPERTIES.items():
        passed[name] = verdict = property_(experiment)
        if not verdict.passed:
            return verdict
    if relation and not (verdict := check_relation(relation, experiment)).passed:
        return verdict
    return passed["oracle"]


def check_relation(name: str, experiment: Experiment) -> Verdict:
    """Return the verdict of one relation, which must hold for the experiment's case."""
    return compared(comparison_of(name, experiment), experiment, name)


def comparison_of(name: str, experiment: Experiment) -> Comparison:
    """Return the second launch of one relation, and what it must give."""
    comparison: Comparison = getattr(MODULES[RELATIONS[name].kind], name)(experiment)
    return comparison


def _require_holding(relation: str, case: AttentionCase) -> None:
    """Refuse a relation that does not hold for a case on any target."""
    if relation not in RELATIONS:
        raise FuzzAttnError(f"relation={relation!r} must be one of: {', '.join(RELATIONS)}")
    everything = Domain(family=case.family, paths=("auto", "2d", "3d"))
    if not RELATIONS[relation].holds(case, everything):
        raise FuzzAttnError(f"relation={relation!r} does not hold for the case")
