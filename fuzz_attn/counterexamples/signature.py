"""Signature: the name of a bug. Failures with the same signature count as one bug and share one file."""

from __future__ import annotations

import math

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.features import features_of
from fuzz_attn.oracle.verdict import Verdict


def signature_of(case: AttentionCase, verdict: Verdict) -> str:
    """Return property, kind, launch path, features, place in the output, and size of the error, joined by dashes."""
    features = "+".join(features_of(case)) or "plain"
    parts = [verdict.property_name, verdict.kind, case.launch.path, features, verdict.where, _decade(verdict)]
    return "-".join(part for part in parts if part)


def _decade(verdict: Verdict) -> str:
    """Return the power of ten of a mismatch in units of the bound; an empty string for other kinds."""
    if verdict.kind != "mismatch" or verdict.ratio is None or not math.isfinite(verdict.ratio):
        return ""
    return f"1e{int(math.log10(max(verdict.ratio, 1.0)))}"
