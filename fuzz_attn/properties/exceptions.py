"""Exceptions of a target: which refuse a case, and which are failures.

A target refuses a case where its own host code raises before the first launch, or where a kernel does not compile for a
reason that the compiler states, such as an option that only another GPU's compiler has. A refusal depends on the shape
and the features of a case only: where the same shape with other data runs, the exception is a failure.
"""

from __future__ import annotations

import linecache
import traceback
from typing import Final

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.owners import Owner, owner_of
from fuzz_attn.properties.refusal import Refusal, Stage
from fuzz_attn.targets import target

REFUSING: Final = (AssertionError, ValueError, NotImplementedError, TypeError)
"""Exceptions with which host code refuses its arguments. Others, such as an IndexError, are failures."""


def refusal_by(raised: BaseException, text: str, *, launched: bool) -> Refusal | None:
    """Return the refusal that an exception of a target is, None where it is a failure.

    ``text`` is the exception's text. ``launched`` says whether the target had tried a launch or written its output.
    """
    # Not at the top, because these import Triton: a fork server imports this module, and no Triton.
    from fuzz_attn.ttir.lowering import rejection_of  # noqa: PLC0415
    from fuzz_attn.ttir.triton_compat import is_unknown_option  # noqa: PLC0415

    rejection = rejection_of(raised)
    if rejection is not None:
        message = rejection.reason or rejection.source
        compiled = Refusal("compile", rejection.error, message, rejection.location, rejection.source)
        return compiled if rejection.stated else None
    if is_unknown_option(raised):
        return _refused_option(raised, text)
    place = None if launched or not isinstance(raised, REFUSING) else place_of(raised)
    if place is None:
        return None
    return _refused_at(place, "host", raised, text)


def _refused_option(raised: BaseException, text: str) -> Refusal:
    """Return the refusal of an option, which the compiler raises for a launch that a backend may have taken over."""
    place = next((frame for frame in reversed(_called(raised)) if _owner(frame) == "target"), None)
    if place is None:
        return Refusal("compile", type(raised).__name__, text)
    return _refused_at(place, "compile", raised, text)


def _refused_at(place: traceback.FrameSummary, stage: Stage, raised: BaseException, text: str) -> Refusal:
    source = linecache.getline(place.filename, place.lineno or 0).strip()
    return Refusal(stage, type(raised).__name__, text, f"{place.filename}:{place.lineno}", source)


def place_of(raised: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the target's own code, None where the exception comes from the harness."""
    own = next((frame for frame in reversed(_called(raised)) if _owner(frame) != "library"), None)
    return None if own is None or _owner(own) == "harness" else own


def _called(raised: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames below the call of the target, the innermost last."""
    frames = traceback.extract_tb(raised.__traceback__)
    calls = [index for index, frame in enumerate(frames) if frame.filename == target.__file__]
    return frames[calls[-1] + 1 :] if calls else []


def with_other_data(case: AttentionCase) -> tuple[AttentionCase, ...]:
    """Return cases of the same shape and features with other data: another seed, and plain numbers and poison."""
    plain = {field.name: field.default for field in msgspec.structs.fields(CaseFields) if field.name in _DATA}
    return (replace(case, seed=case.seed ^ 1), replace(case, seed=case.seed ^ 2, **plain))


_DATA: Final = ("scores", "values", "near_uniform", "equal_heads", "key_marks", "overrides", "poison")
"""The fields of a case that change numbers only."""


def _owner(frame: traceback.FrameSummary) -> Owner:
    return owner_of(frame.filename, frame.name)
