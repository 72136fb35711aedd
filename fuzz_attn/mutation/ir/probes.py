"""Probes: operations that count, while a mutant runs, whether its change makes any difference.

A mutant whose operation ran and never gave another value cannot be killed by any case like these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.mutation.ir.rewriting import PROBE
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.expressions import call
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.codegen.statements import Do
from fuzz_attn.ttir.ir import Operation

_BUILTIN = "audit_probe"


@dataclass
class Tally:
    """How often the changed operation ran, and how often it gave another value than before."""

    reached: int = 0
    differed: int = 0

    def count(self, *values: npt.NDArray[Any]) -> None:
        """Count one run with the values before and after the change; without values, every run differs."""
        self.reached += 1
        self.differed += len(values) != 2 or _differ(*values)


def _differ(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> bool:
    before, after = np.broadcast_arrays(before, after)
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124 - NaN is what differs from itself
    return not same.all()


@dataclass
class Probes:
    """The probes of one simulator, and what they counted."""

    tally: Tally = field(default_factory=Tally)

    @property
    def extension(self) -> Extension:
        """What a simulator needs to run probed kernels."""
        return Extension({PROBE: _emit}, {_BUILTIN: self._count})

    def reset(self) -> None:
        """Count from 0."""
        self.tally = Tally()

    def _count(self, *values: npt.NDArray[Any]) -> None:
        self.tally.count(*values)


def _emit(emitter: Emitter, operation: Operation) -> None:
    terms = [emitter.array(emitter.single(emitter.val(value))) for value in operation.operands]
    emitter.add(Do(call(_BUILTIN, *map(emitter.read, terms))))
