"""Free sizes: sizes of compile keys that stand in no table, so that no size of a domain is left out."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain, sizes_of
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.strategies.draws import Sample, sampled_from
from fuzz_attn.strategies.heads import value_allowed

_CHANGED: Final = sampled_from((False, True, True))
_EVENLY: Final = sampled_from((False, True, True))
STEPS: Final = 2**12


def with_free_sizes(key: CompileKey, domain: Domain, sample: Sample) -> CompileKey:
    """Return the key with a page, a head, a group, segments and values of any size of the domain; a third of each stay.

    Two in three new sizes are as likely in each octave, as small sizes have most thresholds. The others are as likely
    anywhere in the domain.
    """
    piece = FAMILIES[key.family].cache.piece(key.dtypes.kv)
    sizes: dict[str, Any] = {
        "block_size": free_size(domain.block_sizes, 1, sample),
        "head_size": free_size(domain.head_sizes, piece, sample),
        "num_queries_per_kv": free_size(domain.group_sizes, 1, sample),
    }
    chosen = {name: size for name, size in sizes.items() if sample.draw(_CHANGED) and size}
    if key.launch.num_segments:
        chosen["launch"] = replace(key.launch, num_segments=free_size(domain.segments, 1, sample))
    if key.value_size:
        head_size, size = chosen.get("head_size", key.head_size), free_size(domain.value_sizes, 1, sample)
        fitting = [each for each in (size, min(size, head_size)) if value_allowed(each, head_size, domain=domain)]
        chosen |= {"value_size": fitting[0]} if fitting else {"head_size": key.head_size}
    elif not value_allowed(0, chosen.get("head_size", key.head_size), domain=domain):
        del chosen["head_size"]
    return replace(key, **chosen)


def free_size(bounds: tuple[int, ...], step: int, sample: Sample) -> int:
    """Return a multiple of a step within the bounds of a domain; 0 where there is none.

    Two in three are as likely in each octave, the others anywhere.
    """
    sizes = sizes_of(bounds)
    if not isinstance(sizes, range):
        listed = [size for size in sizes if size % step == 0]
        return listed[sample.index(len(listed))] if listed else 0
    first, last = -(-sizes[0] // step), sizes[-1] // step
    if first > last:
        return 0
    place = sample.index(STEPS) / STEPS
    if sample.draw(_EVENLY):
        return min(last, int(first * ((last + 1) / first) ** place)) * step
    return (first + int((last + 1 - first) * place)) * step
