"""Probes: does a change make any difference? Counted while a mutant runs, by comparing values before and after it.

A mutant whose operation ran and never gave another value cannot be killed by any case like these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.mutation.ir.rewriting import PROBE
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.expressions import call
from fuzz_attn.simulator.codegen.namespace import NAMESPACE
from fuzz_attn.simulator.codegen.operations.table import HANDLERS
from fuzz_attn.simulator.codegen.statements import Do
from fuzz_attn.simulator.frontend.ir import Operation


@dataclass
class Tally:
    """How often the changed operation ran, and how often it gave another value than before."""

    reached: int = 0
    differed: int = 0


TALLY = Tally()
"""What probes of this process saw since it was last set back."""


def _emit(emitter: Emitter, operation: Operation) -> None:
    terms = [emitter.array(emitter.single(emitter.val(value))) for value in operation.operands]
    emitter.add(Do(call("audit_probe", *map(emitter.read, terms))))


def _probe(*values: npt.NDArray[Any]) -> None:
    TALLY.reached += 1
    if len(values) != 2:
        TALLY.differed += 1
        return
    before, after = np.broadcast_arrays(*values)
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124 - NaN is what differs from itself
    TALLY.differed += not bool(same.all())


def install() -> None:
    """Let the simulator know the operation; without it a probed kernel is one that it cannot run."""
    HANDLERS[PROBE] = _emit
    NAMESPACE["audit_probe"] = _probe
