"""Kernel arithmetic: what the IR of one kernel says of how it rounds."""

from __future__ import annotations

import msgspec

from fuzz_attn.simulator.codegen.dot_operands import Dot, dots_of
from fuzz_attn.simulator.codegen.normalisation import Normalisation, normalisation_of
from fuzz_attn.simulator.frontend.ir import Function


class KernelArithmetic(msgspec.Struct, frozen=True):
    """What the dots of a kernel multiply, and how it normalises; the default says nothing."""

    dots: tuple[Dot, ...] = ()
    normalisation: Normalisation = Normalisation()


def arithmetic_of(function: Function) -> KernelArithmetic:
    """Return the arithmetic of a kernel."""
    dots = dots_of(function)
    return KernelArithmetic(dots, normalisation_of(function, dots))
