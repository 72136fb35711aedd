"""Signature: the name of a bug. Two failures of the same signature are one bug, and share one file."""

from __future__ import annotations

import math

from fuzz_attn.case.attention_case import AttentionCase, is_fp8
from fuzz_attn.oracle.verdict import Verdict


def signature_of(case: AttentionCase, verdict: Verdict) -> str:
    """Return property, kind, launch path, features on, where in the output, and how far off, joined by dashes."""
    features = "+".join(features_of(case)) or "plain"
    parts = [verdict.property_name, verdict.kind, case.launch.path, features, verdict.where, _decade(verdict)]
    return "-".join(part for part in parts if part)


def features_of(case: AttentionCase) -> tuple[str, ...]:
    """Return the names of the features that are on in a case, in a fixed order."""
    on = {
        "window": case.window > 0,
        "softcap": case.softcap > 0,
        "alibi": case.alibi is not None,
        "qq_bias": case.qq_bias is not None,
        "sinks": case.sinks is not None,
        "fp8_q": is_fp8(case.dtypes.q),
        "fp8_kv": is_fp8(case.dtypes.kv) and not is_fp8(case.dtypes.q),
        "fp8_out": is_fp8(case.dtypes.out),
        "filter_by_query_len": case.filter_by_query_len,
        "uint8_cache": case.uint8_cache,
        "stale_cache": case.stale_cache,
        "large_offsets": case.pages.first_block > 0,
    }
    return tuple(name for name, present in on.items() if present)


def _decade(verdict: Verdict) -> str:
    """Return the power of ten of a mismatch, from 1 times the bound on; nothing for other kinds."""
    if verdict.kind != "mismatch" or verdict.ratio is None or not math.isfinite(verdict.ratio):
        return ""
    return f"1e{int(math.log10(max(verdict.ratio, 1.0)))}"
