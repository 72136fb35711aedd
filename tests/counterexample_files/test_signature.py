"""Signatures: failures of one bug have the same name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from fuzz_attn.case.aspects import features_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, LaunchHints, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.counterexamples import signature_of
from fuzz_attn.errors import CaseError
from fuzz_attn.oracle.verdict import Element, Verdict
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
PLAIN = AttentionCase((Sequence(1),))
EVERYTHING: dict[str, Any] = {
    "window": 4,
    "softcap": 2.0,
    "alibi": AlibiRecipe(),
    "qq_bias": QQBiasRecipe(),
    "sinks": SinkRecipe(),
    "dtypes": DTypes("float16", "float8_e5m2", "float8_e5m2"),
}
MISMATCH = Verdict("oracle", "mismatch", where="tail_rows", ratio=30.0)


@pytest.mark.parametrize(
    ("changes", "features"),
    [
        ({}, ()),
        ({"window": 1}, ("window",)),
        ({"softcap": 0.5}, ("softcap",)),
        ({"alibi": AlibiRecipe("zero")}, ("alibi",)),
        ({"qq_bias": QQBiasRecipe()}, ("qq_bias",)),
        ({"sinks": SinkRecipe()}, ("sinks",)),
        ({"dtypes": DTypes("float16", "float8_e5m2", "float16")}, ("fp8_kv",)),
        ({"dtypes": DTypes("float8_e5m2", "float8_e5m2", "float16")}, ("fp8_q",)),
        ({"dtypes": DTypes("float16", "float16", "float8_e4m3fn")}, ("fp8_out",)),
        ({"padded_tokens": 2, "seed": 3}, ()),
        (EVERYTHING, ("window", "softcap", "alibi", "qq_bias", "sinks", "fp8_kv", "fp8_out")),
    ],
)
def test_features(changes: dict[str, Any], features: tuple[str, ...]) -> None:
    assert features_of(replace(PLAIN, **changes)) == features


@pytest.mark.parametrize(
    ("changes", "verdict", "signature"),
    [
        ({}, MISMATCH, "oracle-mismatch-auto-plain-tail_rows-1e1"),
        ({"launch": LaunchHints("3d")}, MISMATCH, "oracle-mismatch-3d-plain-tail_rows-1e1"),
        ({"window": 3, "sinks": SinkRecipe()}, MISMATCH, "oracle-mismatch-auto-window+sinks-tail_rows-1e1"),
        ({}, Verdict("oracle", "nan", where="everywhere", ratio=30.0), "oracle-nan-auto-plain-everywhere"),
        ({}, Verdict("oracle", "crash"), "oracle-crash-auto-plain"),
        ({}, Verdict("determinism", "nondeterministic"), "determinism-nondeterministic-auto-plain"),
        (
            EVERYTHING,
            MISMATCH,
            "oracle-mismatch-auto-window+softcap+alibi+qq_bias+sinks+fp8_kv+fp8_out-tail_rows-1e1",
        ),
    ],
)
def test_signatures(changes: dict[str, Any], verdict: Verdict, signature: str) -> None:
    assert signature_of(replace(PLAIN, **changes), verdict) == signature


@pytest.mark.parametrize(
    ("ratio", "ending"),
    [
        (1.0000001, "-1e0"),
        (9.99, "-1e0"),
        (10.0, "-1e1"),
        (1000.0, "-1e3"),
        (999.0, "-1e2"),
        (1e300, "-1e300"),
        (0.5, "-1e0"),
        (None, "-tail_rows"),
        (float("inf"), "-tail_rows"),
        (float("nan"), "-tail_rows"),
    ],
)
def test_decades_of_a_mismatch(ratio: float | None, ending: str) -> None:
    verdict = Verdict("oracle", "mismatch", where="tail_rows", ratio=ratio)
    assert signature_of(PLAIN, verdict).endswith(ending)


@QUIET
@given(cases(Domain()), st.sampled_from(("mismatch", "inf", "input_changed")), st.floats(1, 1e300))
def test_signature_is_a_valid_file_name(case: AttentionCase, kind: Any, ratio: float) -> None:
    verdict = Verdict("nothing_else_written", kind, where="padded_head", ratio=ratio)
    signature = signature_of(case, verdict)
    assert re.fullmatch(r"[a-z0-9_+-]+", signature)
    assert len(signature) < 200


@QUIET
@given(cases(Domain()), cases(Domain()))
def test_size_and_numbers_do_not_change_the_signature(left: AttentionCase, right: AttentionCase) -> None:
    # The features and what is drawn with them stay, everything else changes: shrinking must not rename the bug.
    features = ("dtypes", "window", "softcap", "alibi", "qq_bias", "sinks", "lse", "mask")
    kept = (*features, "launch", "scales", "pages", "heads", "strides")
    try:
        changed = replace(right, **{name: getattr(left, name) for name in kept})
    except CaseError:  # some sizes are too large for far axes
        reject()
    element = Element(0, 0, 0, 0, 0, "1.0", "2.0", "0.1")
    verdict = Verdict("oracle", "mismatch", "far off", 12.0, "tail_rows", 1, 9, (element,))
    assert signature_of(changed, MISMATCH) == signature_of(left, verdict)
