"""Whole-grid execution of Triton kernels on a CPU, with sanitizers. Knows nothing of attention.

    with simulate(Options(coverage=True)) as session:
        target(**tensors)
    session.findings, session.unsupported, dict(MASKS.items())

A launch goes through `launch` (caught), `binding` (arguments, key), `lowering` (TTIR, by Triton's own front end),
`parser` (tree), `codegen` with the `emit_*` modules (numpy source over the whole grid), `run` (execution) and, for each
access, `memory` and `checks`.
"""

from fuzz_attn.errors import LoopLimitError, LoweringError, SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.findings import Finding, FindingKind, Location
from fuzz_attn.simulator.launch import simulate
from fuzz_attn.simulator.sanitizers.mask_coverage import MASKS, Masks
from fuzz_attn.simulator.session import Options, Session

__all__ = [
    "MASKS",
    "Finding",
    "FindingKind",
    "Location",
    "LoopLimitError",
    "LoweringError",
    "Masks",
    "Options",
    "Session",
    "SimulatorError",
    "UnsupportedOperation",
    "simulate",
]
