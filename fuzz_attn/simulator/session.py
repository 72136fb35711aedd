"""A session: the launches of one `simulate` block, and what the sanitizers found in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fuzz_attn.denormals import kept_denormals
from fuzz_attn.errors import LoweringError, UnsupportedOperation
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.execution import Run
from fuzz_attn.simulator.findings import Finding
from fuzz_attn.simulator.gpu_limits import grid_finding, require_shared_memory
from fuzz_attn.simulator.launch_arguments import memory_of, scalar_key, scalars, watch_races
from fuzz_attn.simulator.process_memory import keep_freed_memory
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.sanitizers.order import DEFAULT_WARPS
from fuzz_attn.simulator.sanitizers.uninitialised import EmptyWatcher, Shadows
from fuzz_attn.simulator.simulator import Simulator, definition_of
from fuzz_attn.simulator.torch_compat import modes_disabled
from fuzz_attn.simulator.undefined_probes import probe, snapshot
from fuzz_attn.ttir.argument_types import Bound, grid_of
from fuzz_attn.ttir.ir import Function
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic
from fuzz_attn.ttir.triton_compat import launches_replaced


@dataclass(slots=True)
class Session:
    """The record of one `simulate` block.

    `findings` has one finding for each defect (kind, source line and tensor), `unsupported` the operations that the
    simulator does not know, `parsed` the kernels that were rewritten, as they were before. `launches` counts those that
    were tried, and `starting` is called before each. `launching` is called before each that has a program, with the
    program, the arguments and the grid. `arithmetic` has that of each kernel.
    """

    simulator: Simulator
    findings: list[Finding] = field(default_factory=list)
    unsupported: list[UnsupportedOperation] = field(default_factory=list)
    parsed: list[Function] = field(default_factory=list, repr=False)
    launches: int = 0
    arithmetic: set[KernelArithmetic] = field(default_factory=set, repr=False)
    starting: Callable[[], None] | None = None
    launching: Callable[[Program, Bound, tuple[int, int, int]], None] | None = None
    _shadows: Shadows = field(default_factory=Shadows, repr=False)

    def watcher(self) -> EmptyWatcher:
        """Return the mode that watches `torch.empty`, to find uninitialised reads."""
        return EmptyWatcher(self._shadows)

    def forget(self, tensor: torch.Tensor) -> None:
        """Let loads of a tensor's elements be reported as reads of what nothing has written."""
        self._shadows.forget(tensor)

    def launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        """Run one launch of a decorated function. Raises UnsupportedOperation or another SimulatorError."""
        self.launches += 1
        if self.starting is not None:
            self.starting()
        try:
            with kept_denormals():
                self._launch(kernel, arguments, keywords, grid)
        except UnsupportedOperation as error:
            self.unsupported.append(error)
            raise

    def _launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        function = self.simulator.translations.translated(kernel)
        bound = self.simulator.bind(function, arguments, keywords)
        extents = grid_of(grid, bound.values)
        try:
            program = self._program(function, bound)
        except LoweringError:
            variables = bound
            bound = self.simulator.bind(function, arguments, keywords, constant_ones=True)
            if bound.form.key == variables.form.key:
                raise
            program = self._program(function, bound)
        refused = grid_finding(program.name, definition_of(function), extents)
        if refused is None:
            require_shared_memory(program.name, program.shared, definition_of(function))
            self._run(program, bound, extents, _warps(keywords))
        else:
            self._note(refused)

    def _run(self, program: Program, bound: Bound, extents: tuple[int, int, int], warps: int) -> None:
        self.arithmetic.add(program.arithmetic)
        run = Run(program, self.simulator.masks, extents, warps=warps)
        plan = program.plan((extents, scalar_key(bound)), lambda: scalars(bound))
        passed = self._passed(bound, plan.scalars)
        memories = [memory for memory in passed if isinstance(memory, Memory)]
        stored: list[Memory] = [passed[int(name[1:])] for name in program.stored]
        watch_races(memories, stored)
        before = snapshot(stored) if program.undefined and self.launching is None else None
        if self.launching is not None:
            self.launching(program, bound, extents)
        try:
            run.execute(plan, passed)
            if before is not None and run.undefined.seen:
                for finding in probe(run, plan, passed, before):
                    self._note(finding)
        finally:
            addresses = {memory.name: memory.address for memory in memories}
            for finding in run.findings.values():
                self._note(replace(finding, address=addresses.get(finding.tensor, 0)))

    def _passed(self, bound: Bound, numbers: list[Any]) -> list[Any]:
        """Return what the program is called with: an array for each number and a memory for each tensor."""
        with modes_disabled():  # the watcher need not see the views that are made here
            return [
                memory_of(name, value, self._shadows) if number is None else number
                for (name, _), value, number in zip(bound.form.passed, bound.passed, numbers, strict=True)
            ]

    def _program(self, kernel: Any, bound: Bound) -> Program:
        rewrite = self.simulator.rewrite
        if rewrite is None:
            return self.simulator.program(kernel, bound)
        parsed, program = self.simulator.rewritten(kernel, bound, rewrite)
        self.parsed.append(parsed)
        return program

    def _note(self, finding: Finding) -> None:
        """Record a finding, or count it with an equal one of another launch."""
        for index, known in enumerate(self.findings):
            if known.signature == finding.signature:
                self.findings[index] = replace(known, count=known.count + finding.count)
                return
        self.findings.append(finding)


def _warps(keywords: dict[str, Any]) -> int:
    """Return the warps of a program that a launch asks for; 1, whose accesses are ordered, where they are not known."""
    warps = keywords.get("num_warps") or DEFAULT_WARPS
    return warps if isinstance(warps, int) and (keywords.get("num_ctas") or 1) == 1 else 1


@contextlib.contextmanager
def simulate(simulator: Simulator | None = None) -> Iterator[Session]:
    """Yield a session in which every `kernel[grid](...)` runs on the CPU, in place, on torch's CPU tensors.

    Without a simulator, a new one is used, which has to lower each kernel. Kernels may be decorated with or without
    TRITON_INTERPRET, and launched through heuristics or autotuners; the latter take their first configuration. Blocks
    may be nested: the innermost one runs the launch. Nothing stays patched.
    """
    keep_freed_memory()
    session = Session(simulator or Simulator())
    with launches_replaced(session.launch), session.watcher():
        yield session
