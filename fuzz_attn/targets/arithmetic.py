"""Arithmetic of a target, read from the IR of its kernels: what it rounds on purpose, as fields of a rounding model.

A field is read only where the IR leaves no doubt. It widens the bounds only where what is read is as exact as the types
that the kernel was given. A coarser rounding may be a mistake, so the summary names it and the bounds stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from fuzz_attn.case.parts import DTypeName, DTypes, is_fp8
from fuzz_attn.inputs.storage import TORCH_DTYPES
from fuzz_attn.oracle.rounding_model import InputPrecision, RoundingModel
from fuzz_attn.oracle.roundings import unit_roundoff
from fuzz_attn.targets.target import Target
from fuzz_attn.ttir.ir import Location
from fuzz_attn.ttir.kernel_arithmetic import Dot, KernelArithmetic, Operand

COARSEST_FIRST: Final[tuple[InputPrecision, ...]] = ("tf32", "bf16x3", "tf32x3", "bf16x6", "ieee")
NAMES: Final[dict[str, DTypeName]] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
}
"""The name of each element type of the IR."""
BYTES: Final = "i8"
"""How fp8 caches are loaded by a kernel that takes them as bytes."""


class Reading(NamedTuple):
    """A field of a rounding model that the IR says, and whether the bounds take it."""

    name: str
    value: Any
    what: str
    location: Location
    taken: bool = True


def readings(kernels: Collection[KernelArithmetic], dtypes: DTypes) -> Iterator[Reading]:
    """Yield what the IR of kernels says of their arithmetic on queries and caches of these types."""
    for kernel in kernels:
        yield from _precisions(kernel)
        if _takes(kernel, dtypes):
            for dot in _scoring(kernel):
                yield from _of_scores(dot, *_query_and_keys(dot), dtypes)
            for dot in _weighted(kernel):
                yield from _of_weights(dot, dtypes)
    yield from _normalisation(kernels, dtypes)


def _scoring(kernel: KernelArithmetic) -> list[Dot]:
    return [dot for dot in kernel.dots if not dot.left.exponential and not dot.right.exponential]


def _weighted(kernel: KernelArithmetic) -> list[Dot]:
    return [dot for dot in kernel.dots if dot.left.exponential != dot.right.exponential]


def _takes(kernel: KernelArithmetic, dtypes: DTypes) -> bool:
    """Return whether a kernel surely loads queries of the type of q."""
    return any(_loads(_query_and_keys(dot)[0], dtypes.q) for dot in _scoring(kernel))


def _normalisation(kernels: Collection[KernelArithmetic], dtypes: DTypes) -> Iterator[Reading]:
    """Yield that kernels divide by the denominator last, if the IR of each kernel says that it does so or need not.

    One that leaves its sums undivided needs one that merges them, from the same package: relations launch other
    targets' kernels too.
    """
    found = [kernel.normalisation for kernel in kernels]
    merging = {_package(each.location) for each in found if each.kind == "merging"}
    if any(not each.kind or (each.kind == "later" and _package(each.location) not in merging) for each in found):
        return
    for kernel in kernels:
        loads = any(_loads_each(_weights_and_values(dot)[1], dtypes.kv) for dot in _weighted(kernel))
        if kernel.normalisation.kind in ("last", "later") and loads and _takes(kernel, dtypes):
            what = "divide by the softmax denominator once, after all sums,"
            yield Reading("normalises_last", True, what, kernel.normalisation.location)


def _package(location: Location) -> Path:
    """Return the folder above that of a file."""
    return Path(location.file).parent.parent


def _precisions(kernel: KernelArithmetic) -> Iterator[Reading]:
    for dot in kernel.dots:
        if dot.precision in COARSEST_FIRST and dot.precision != "ieee":
            yield Reading(
                "input_precision", dot.precision, f"multiply float32 in dots as {dot.precision!r}", dot.location
            )


def _query_and_keys(dot: Dot) -> tuple[Operand, Operand]:
    """Return the operand that is loaded in fewer loops, which is q, and the other; two that say nothing if none is."""
    if dot.left.loops == dot.right.loops:
        return Operand(), Operand()
    return (dot.left, dot.right) if dot.left.loops < dot.right.loops else (dot.right, dot.left)


def _loads(operand: Operand, dtype: DTypeName) -> bool:
    """Return whether an operand surely comes from one load of a tile of this type."""
    names = {name for name, known in NAMES.items() if known == dtype} | ({BYTES} if is_fp8(dtype) else set())
    return operand.clear and len(operand.loaded) == 1 and operand.loaded[0] in names


def _loads_each(operand: Operand, dtype: DTypeName) -> bool:
    """Return whether an operand surely comes from loads of tiles of this type, from one if that is fp8."""
    one = msgspec.structs.replace(operand, loaded=tuple(set(operand.loaded)))
    return _loads(operand if is_fp8(dtype) else one, dtype)


def _of_scores(dot: Dot, query: Operand, keys: Operand, dtypes: DTypes) -> Iterator[Reading]:
    """Yield what a dot of q and K says."""
    if not _loads(query, dtypes.q) or not _loads(keys, dtypes.kv):
        return
    own = _of_query(dtypes)
    yield from _sums(dot, own)
    yield from _dequantised(keys, dot, dtypes)
    if len(query.roundings) == 1 and (name := NAMES.get(query.roundings[0].element)):
        (rounding,) = query.roundings
        what = f"round {'scaled ' * query.scaled}q to {name} before its dot with K"
        if query.scaled:
            yield Reading("scaled_query", "query" if name == own else name, what, rounding.location, name == own)
        elif _unit(name) > _unit(dtypes.q):
            yield Reading("query", "cache" if name == dtypes.kv else name, what, rounding.location, taken=False)


def _weights_and_values(dot: Dot) -> tuple[Operand, Operand]:
    return (dot.left, dot.right) if dot.left.exponential else (dot.right, dot.left)


def _of_weights(dot: Dot, dtypes: DTypes) -> Iterator[Reading]:
    """Yield what a dot of P and V says."""
    weights, values = _weights_and_values(dot)
    if not weights.clear or weights.loaded or not _loads(values, dtypes.kv):
        return
    own = _of_query(dtypes)
    yield from _sums(dot, own)
    yield from _dequantised(values, dot, dtypes)
    if len(weights.roundings) == 1 and (name := NAMES.get(weights.roundings[0].element)):
        what = f"round P to {name} before its dot with V"
        taken = is_fp8(dtypes.q) and name == dtypes.kv
        if _unit(name) > _unit(own):
            yield Reading("probability", name, what, weights.roundings[0].location, taken)


def _sums(dot: Dot, own: DTypeName) -> Iterator[Reading]:
    if dot.total == "f16":
        yield Reading("accumulate", "float16", "sum dots in float16", dot.location, own == "float16")


def _dequantised(operand: Operand, dot: Dot, dtypes: DTypes) -> Iterator[Reading]:
    """Yield that fp8 K or V is not rounded to the type of q: it is not scaled, or it is a wider operand."""
    if is_fp8(dtypes.kv) and dtypes.q in ("float16", "bfloat16") and not operand.roundings:
        yield Reading("rounds_dequantised", False, "do not round dequantised K or V", dot.location)


def _of_query(dtypes: DTypes) -> DTypeName:
    """Return the type that a rounding model calls ``query``."""
    return "bfloat16" if is_fp8(dtypes.q) else dtypes.q


def _unit(name: DTypeName) -> float:
    return unit_roundoff(TORCH_DTYPES[name])


def _coarseness(reading: Reading) -> float:
    """Return a number that is larger for a coarser rounding; a type of the case is the coarsest."""
    if reading.name == "input_precision":
        return -COARSEST_FIRST.index(reading.value)
    return _unit(reading.value) if reading.value in TORCH_DTYPES else 1.0


@dataclass
class ArithmeticReader:
    """What is read of one target, and what of that has been told."""

    target: Target
    _targets: dict[tuple[int, DTypes], Target] = field(default_factory=dict)
    _notes: dict[tuple[str, str], str] = field(default_factory=dict)
    _told: int = 0

    def target_for(self, kernels: Collection[KernelArithmetic], dtypes: DTypes) -> Target:
        """Return the target with what its kernels say, for cases of these types.

        What the target or its binding states is not read.
        """
        key = (len(kernels), dtypes)
        if key not in self._targets:
            self._targets[key] = self._read(kernels, dtypes)
        return self._targets[key]

    def new_notes(self) -> tuple[str, ...]:
        """Return in sentences what was read since the last call."""
        new = tuple(self._notes.values())[self._told :]
        self._told = len(self._notes)
        return new

    def _read(self, kernels: Collection[KernelArithmetic], dtypes: DTypes) -> Target:
        if self.target.rounding is not None:
            return self.target
        stated = self.target.match.binding.rounding
        found = [reading for reading in readings(kernels, dtypes) if reading.name not in stated]
        for reading in sorted(found, key=lambda each: str(each.location)):
            self._notes.setdefault((reading.name, str(reading.value)), in_words(reading))
        fields = {each.name: each.value for each in sorted(found, key=_coarseness) if each.taken}
        model = msgspec.structs.replace(RoundingModel(), **fields)
        return self.target if model == self.target.read else replace(self.target, read=model)


def in_words(reading: Reading) -> str:
    """Return what was read, where, and how to overrule it."""
    default = getattr(RoundingModel(), reading.name)
    where = f" at {reading.location}" if reading.location.line else ""
    text = f"Its kernels {reading.what}{where}"
    if reading.name == "normalises_last":
        return (
            f"{text} as Triton lowered them, so sums that are exact in any order must be exact; "
            "rounding.normalises_last = False in a binding overrules it."
        )
    if reading.taken:
        stated = f"rounding.{reading.name} = {default!r}"
        return f"{text}, as Triton lowered them, so the bounds allow it; {stated} in a binding forbids it."
    stated = f"rounding.{reading.name} = {reading.value!r}"
    return (
        f"{text}, which is coarser than the types that they are given, so the bounds do not allow it; "
        f"{stated} in a binding declares it."
    )
