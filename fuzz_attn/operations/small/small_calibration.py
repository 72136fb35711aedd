"""Small calibration: easy cases that tell how a target of a small operation is called, and what it refuses."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fuzz_attn.backends.backend import Backend
from fuzz_attn.errors import BindingError, CaseError
from fuzz_attn.operations.small.small_operation import SmallOperation
from fuzz_attn.operations.small.small_target import SmallTarget
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.targets.target import Target


def calibrated(operation: SmallOperation, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
    """Return a target once it is known how it is called, and what was learned in sentences.

    Raises :class:`BindingError` where it is wrong in whatever way it is called, or right in two.
    """
    assert isinstance(target, SmallTarget)
    if target.match.published or target.match.binding.whole:
        return target, ()
    notes: tuple[str, ...] = ()
    if variants := list(target.variants()):
        tried = [(each, words, _why_wrong(operation, each, backend)) for each, words in variants]
        fitting = [(each, words) for each, words, why in tried if not why]
        if len(fitting) != 1:
            first = tried[0][-1] or "right"
            found = " and where ".join(words for _, words in fitting) or f"nothing that was tried (first: {first})"
            raise BindingError(f"target={target.name!r} is right on an easy case where {found}: state what is true")
        target, words = fitting[0]
        notes = (f"{words} (calibrated).",)
    refused = [name for name in sorted(target.domain.features) if _refuses(operation, target, backend, name)]
    notes += tuple(f"The target refuses an easy case with {name}, which is not drawn." for name in refused)
    return target.with_domain(replace(target.domain, features=target.domain.features - {*refused})).settled(), notes


def _why_wrong(operation: SmallOperation, target: SmallTarget, backend: Backend) -> str:
    """Return why a target is not right on the easy case; an empty string where it is."""
    experiment = operation.experiment(operation.plain_case(target.domain), target, backend)
    with backend.unrecorded():
        first = experiment.first
    if first.error:
        return " ".join(first.error.split())[:300]
    return "" if judge(first.tensors, experiment.reference).passed else "it gives wrong elements"


def _refuses(operation: SmallOperation, target: SmallTarget, backend: Backend, name: str) -> bool:
    """Return whether a target refuses the easy case with a feature in its simplest form."""
    feature: Any = operation.features[name]
    if not feature.has_form:
        return False
    try:
        case = feature.having(operation.plain_case(target.domain), True)
    except CaseError:
        return False
    with backend.unrecorded():
        return operation.experiment(case, target, backend, strict=False).refusal is not None
