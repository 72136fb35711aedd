"""Dtypes: element types of the queries, the caches and the output."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.dtypes import FP8_DTYPES, WIDE_DTYPES, is_fp8
from fuzz_attn.case.features import is_mixed
from fuzz_attn.case.parts import DTypes
from fuzz_attn.strategies.sampling.draws import sampled_from


@lru_cache(maxsize=64)
def plain_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain without one-byte types, float32 first."""
    names = [name for name in WIDE_DTYPES if name in domain.dtypes]
    return tuple(DTypes(q=name, kv=name, out=name) for name in names)


@lru_cache(maxsize=64)
def fp8_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain with some one-byte type, those with one-byte queries last.

    All fp8 types of a combination are the same, as they are in serving; :func:`mixed_dtypes` are the others.
    """
    plain = plain_dtypes(domain)
    caches = FP8_DTYPES if domain.allows("fp8_kv") else ()
    outputs = FP8_DTYPES if domain.allows("fp8_out") else ()
    chosen = [DTypes(q=d.q, kv=kv, out=d.out) for d in plain for kv in caches]
    chosen += [DTypes(q=d.q, kv=d.kv, out=out) for d in plain for out in outputs]
    chosen += [DTypes(q=d.q, kv=kv, out=kv) for d in plain for kv in caches if kv in outputs]
    if domain.allows("fp8_q"):
        chosen += [DTypes(q=q, kv=q, out=d.out) for q in caches for d in plain]
        chosen += [DTypes(q=q, kv=q, out=q) for q in caches if q in outputs]
    return tuple(chosen)


@lru_cache(maxsize=64)
def mixed_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain whose output has another wide type than q, or with two kinds of fp8."""
    if not domain.allows("mixed_dtypes"):
        return ()
    wide = [dtypes.q for dtypes in plain_dtypes(domain)]
    caches = FP8_DTYPES if domain.allows("fp8_kv") else ()
    outputs = FP8_DTYPES if domain.allows("fp8_out") else ()
    chosen = [DTypes(q=q, kv=q, out=out) for q in wide for out in wide]
    chosen += [DTypes(q=q, kv=kv, out=out) for q in wide for kv in caches for out in (*wide, *outputs)]
    if domain.allows("fp8_q"):
        chosen += [DTypes(q=q, kv=kv, out=out) for q in caches for kv in caches for out in (*wide, *outputs)]
    return tuple(dtypes for dtypes in chosen if is_mixed(dtypes))


def simpler_dtypes(dtypes: DTypes, *, domain: Domain) -> tuple[DTypes, ...]:
    """Return up to four simpler combinations of the domain, the simplest first."""
    simplest = plain_dtypes(domain)[0].q
    wide = next((name for name in (dtypes.q, dtypes.out) if not is_fp8(name)), simplest)
    kv = dtypes.kv if is_fp8(dtypes.kv) else simplest
    candidates = (
        DTypes(q=simplest, kv=simplest, out=simplest),
        DTypes(q=wide, kv=wide, out=wide),
        DTypes(q=simplest, kv=kv, out=simplest),
        DTypes(q=simplest, kv=simplest, out=dtypes.out if is_fp8(dtypes.out) else simplest),
        DTypes(q=dtypes.q, kv=dtypes.kv, out=simplest),
    )
    allowed = {*plain_dtypes(domain), *fp8_dtypes(domain)}
    rank = candidates.index(dtypes) if dtypes in candidates else len(candidates)
    return tuple(dict.fromkeys(candidate for candidate in candidates[:rank] if candidate in allowed))


def one_byte_operands(dtypes: DTypes) -> bool:
    """Return whether a dot product of the kernel has one-byte operands, which need tiles of at least 32 keys."""
    return is_fp8(dtypes.q) or is_fp8(dtypes.kv)


def dtypes(*, domain: Domain = Domain()) -> st.SearchStrategy[DTypes]:  # noqa: B008 (frozen)
    """Return a strategy of all combinations of the domain; shrinks towards float32, and towards fewer fp8 types."""
    return sampled_from((*plain_dtypes(domain), *fp8_dtypes(domain), *mixed_dtypes(domain)))
