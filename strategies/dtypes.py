"""Dtypes: element types of the queries, the caches and the output."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from fuzz_attn.case.aspects import fp8_features, is_mixed
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import FP8_DTYPES, WIDE_DTYPES, DTypeName, DTypes, is_fp8
from fuzz_attn.strategies.draws import sampled_from


@lru_cache(maxsize=64)
def plain_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain without one-byte types, float32 first."""
    return tuple(DTypes(q=q, kv=q, out=out) for q, out in _wide_pairs(domain) if q in domain.cache_dtypes)


def _wide_pairs(domain: Domain) -> list[tuple[DTypeName, DTypeName]]:
    """Return the wide types of q, float32 first, each with its type of the output: the same where the domain has it."""
    outputs = [name for name in WIDE_DTYPES if name in domain.output_dtypes]
    queries = [name for name in WIDE_DTYPES if name in domain.dtypes]
    if not domain.allows("mixed_dtypes"):
        return [(name, name) for name in queries if name in outputs]
    return [(name, name if name in outputs else outputs[0]) for name in queries] if outputs else []


@lru_cache(maxsize=64)
def fp8_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain with some one-byte type, those with one-byte queries last.

    All fp8 types of a combination are the same, as they are in serving; :func:`mixed_dtypes` are the others.
    """
    pairs = _wide_pairs(domain)
    queries = [name for name in WIDE_DTYPES if name in domain.dtypes]
    caches = _one_byte(domain.cache_dtypes, allowed=domain.allows("fp8_kv"))
    outputs = _one_byte(domain.output_dtypes, allowed=domain.allows("fp8_out"))
    chosen = [DTypes(q=q, kv=kv, out=out) for q, out in pairs for kv in caches]
    chosen += [DTypes(q=q, kv=q, out=out) for q in queries if q in domain.cache_dtypes for out in outputs]
    chosen += [DTypes(q=q, kv=kv, out=kv) for q in queries for kv in caches if kv in outputs]
    if domain.allows("fp8_q"):
        chosen += [DTypes(q=q, kv=q, out=out) for q in caches for _, out in pairs]
        chosen += [DTypes(q=q, kv=q, out=q) for q in caches if q in outputs]
    allowed = (each for each in chosen if not domain.excludes(fp8_features(each)))
    return tuple(dict.fromkeys(allowed))


@lru_cache(maxsize=64)
def mixed_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    """Return the combinations of the domain whose output has another wide type than q, or with two kinds of fp8."""
    if not domain.allows("mixed_dtypes"):
        return ()
    queries = [name for name in WIDE_DTYPES if name in domain.dtypes]
    caches = _one_byte(domain.cache_dtypes, allowed=domain.allows("fp8_kv"))
    wide = [name for name in WIDE_DTYPES if name in domain.output_dtypes]
    outputs = [*wide, *_one_byte(domain.output_dtypes, allowed=domain.allows("fp8_out"))]
    chosen = [DTypes(q=q, kv=q, out=out) for q in queries if q in domain.cache_dtypes for out in wide]
    chosen += [DTypes(q=q, kv=kv, out=out) for q in queries for kv in caches for out in outputs]
    if domain.allows("fp8_q"):
        chosen += [DTypes(q=q, kv=kv, out=out) for q in caches for kv in caches for out in outputs]
    return tuple(dtypes for dtypes in chosen if is_mixed(dtypes) and not domain.excludes(fp8_features(dtypes)))


def _one_byte(names: tuple[DTypeName, ...], *, allowed: bool) -> list[DTypeName]:
    return [name for name in FP8_DTYPES if name in names] if allowed else []


def simpler_dtypes(dtypes: DTypes, *, domain: Domain) -> tuple[DTypes, ...]:
    """Return up to four simpler combinations of the domain, the simplest first."""
    simplest = next(name for name in WIDE_DTYPES if name in domain.dtypes)
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
