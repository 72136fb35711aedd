"""Small calibration: easy cases that tell how a target of a small operation is called, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from fuzz_attn.backends.backend import Backend
from fuzz_attn.errors import BindingError, CaseError
from fuzz_attn.operations.operation import Operation
from fuzz_attn.operations.small.small_target import SmallTarget
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import Target

Easy: TypeAlias = Callable[[Any], Any]
"""Returns an easy case of a domain."""


def calibrated(operation: Operation, easy: Easy, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
    """Return a target once it is known how it is called, and what was learned in sentences.

    Raises :class:`BindingError` where it is wrong in whatever way it is called, or right in two.
    """
    assert isinstance(target, SmallTarget)
    if target.match.published or target.match.binding.whole:
        return target, _doubts(operation, easy(target.domain), target, backend)
    notes: tuple[str, ...] = ()
    if variants := list(target.variants()):
        tried = [(each, words, _why_wrong(operation, easy(each.domain), each, backend)) for each, words in variants]
        fitting = [(each, words) for each, words, why in tried if not why]
        if len(fitting) != 1:
            first = tried[0][-1] or "right"
            found = " and where ".join(words for _, words in fitting) or f"nothing that was tried (first: {first})"
            raise BindingError(f"target={target.name!r} is right on an easy case where {found}: state what is true")
        target, words = fitting[0]
        notes = (f"{words} (calibrated).",)
    refused = [
        name
        for name in sorted(target.domain.features)
        if _refuses(operation, easy(target.domain), target, backend, name)
    ]
    notes += tuple(f"The target refuses an easy case with {name}, which is not drawn." for name in refused)
    return target.with_domain(replace(target.domain, features=target.domain.features - {*refused})).settled(), notes


def _doubts(operation: Operation, plain: Any, target: SmallTarget, backend: Backend) -> tuple[str, ...]:
    """Return that a target whose parameters have the names of an operation gives something else on an easy case."""
    experiment = operation.experiment(plain, target, backend, strict=False)
    with backend.unrecorded():
        why = "" if experiment.refusal is not None else _what_is_wrong(experiment)
    words = f"The target is wrong on an easy case ({why}). The names of its parameters are those of {operation.name}:"
    return (f"{words} either it has a defect even there, or it does something else.",) if why else ()


def _why_wrong(operation: Operation, case: Any, target: SmallTarget, backend: Backend) -> str:
    """Return why a target is not right on the easy case; an empty string where it is."""
    with backend.unrecorded():
        return _what_is_wrong(operation.experiment(case, target, backend))


def _what_is_wrong(experiment: Experiment) -> str:
    """Return what is wrong with the first launch of an experiment; an empty string where it is right."""
    first = experiment.first
    if first.error:
        return " ".join(first.error.split())[:300]
    return "" if judge(first.tensors, experiment.reference).passed else "it gives wrong elements"


def _refuses(operation: Operation, plain: Any, target: SmallTarget, backend: Backend, name: str) -> bool:
    """Return whether a target refuses the easy case with a feature in its simplest form."""
    feature: Any = operation.features[name]
    if not feature.has_form:
        return False
    try:
        case = feature.having(plain, True)
    except CaseError:
        return False
    with backend.unrecorded():
        return operation.experiment(case, target, backend, strict=False).refusal is not None
