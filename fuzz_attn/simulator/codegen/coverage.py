"""Records of masks for the coverage of kernel semantics."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.codegen.tree.expressions import Binary, Name, call, constant, index
from fuzz_attn.simulator.codegen.tree.statements import Do, If
from fuzz_attn.simulator.sanitizers.mask_coverage import COMPLETE, COMPLETE_SINGLE

_SEEN, _SLOTS = Name("seen"), Name("slots")


def cover(emitter: Emitter, kind: str, *factors: Term) -> None:
    """Emit the record of a mask, if coverage is on, to run while the mask is not yet complete.

    The mask is the conjunction of factors that do not share an axis. The record stands where the mask is used: a mask
    that is known before a loop says nothing if the loop never runs. What is decided when the kernel is compiled is no
    mask.
    """
    if not emitter.coverage or all(factor.literal is not None for factor in factors):
        return
    slot = index(_SLOTS, constant(len(emitter.coverage_sites)))
    several = not all(factor.scalar for factor in factors)
    emitter.coverage_sites.append((kind, emitter.origin.location, several))
    complete = constant(COMPLETE if several else COMPLETE_SINGLE)
    outcomes = [emitter.read(emitter.array(factor)) for factor in factors]
    missing = Binary("!=", Binary("&", index(_SEEN, slot), complete), complete)
    emitter.add(If(missing, [Do(call("cover", _SEEN, slot, *outcomes))]))


def factors_of(emitter: Emitter, mask: Val) -> list[Term]:
    """Return a conjunction as factors that do not share an axis: the whole of it is larger than they are together."""
    groups: list[list[Term]] = []
    for term in mask.terms:
        sharing = [group for group in groups if any(_share_an_axis(term, other) for other in group)]
        groups = [group for group in groups if group not in sharing]
        groups.append([*(other for group in sharing for other in group), term])
    if len(groups) == 1:
        return [emitter.single(mask)]
    return [emitter.single(Val(mask.type, tuple(group))) for group in groups]


def _share_an_axis(left: Term, right: Term) -> bool:
    return any(one != 1 != other for one, other in zip(left.shape, right.shape, strict=True))
