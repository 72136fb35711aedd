"""A session: launches of Triton kernels caught and run on the CPU, with what the sanitizers saw."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fuzz_attn.errors import SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.codegen.program import Program, generate
from fuzz_attn.simulator.findings import Finding
from fuzz_attn.simulator.frontend.binding import Binder, Bound, grid_of, told
from fuzz_attn.simulator.frontend.ir import Function
from fuzz_attn.simulator.frontend.lowering import SCALAR_TYPES, TORCH_TYPES, lower
from fuzz_attn.simulator.frontend.parser import parse_module
from fuzz_attn.simulator.frontend.rewrites import Rewrite, rewritten
from fuzz_attn.simulator.run import Run
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.runtime.program_cache import DiskCache, key_of
from fuzz_attn.simulator.sanitizers.layout import Layout
from fuzz_attn.simulator.sanitizers.races import RaceTracker
from fuzz_attn.simulator.sanitizers.uninitialised import EmptyWatcher, Shadows


@dataclass(frozen=True, slots=True)
class Options:
    """What a session records, where it keeps programs, and what it changes.

    `coverage` adds what masks show to `MASKS`. `cache_dir` keeps generated programs.
    `rewrite` changes each parsed kernel before code is made of it; what comes of it is never kept on disk.
    """

    coverage: bool = False
    cache_dir: Path | None = None
    rewrite: Rewrite | None = None


# Programs and binders outlive sessions: a campaign opens one session for each of its cases.
_PROGRAMS: dict[object, Program] = {}
MOST_PROGRAMS: Final = 512
"""How many are kept, half a megabyte each, those that ran last: a campaign goes on to new compile keys for a night."""

_BINDERS: dict[int, Binder] = {}


@dataclass(slots=True)
class Session:
    """The record of one `simulate` block.

    `findings` holds one finding for each defect (kind, source line and tensor), `unsupported` the operations
    that the simulator did not know.
    """

    options: Options
    findings: list[Finding] = field(default_factory=list)
    unsupported: list[UnsupportedOperation] = field(default_factory=list)
    parsed: list[Function] = field(default_factory=list, repr=False)
    _shadows: Shadows = field(default_factory=Shadows, repr=False)

    def watcher(self) -> EmptyWatcher:
        """Return the mode that watches `torch.empty`, to find uninitialised reads."""
        return EmptyWatcher(self._shadows)

    def launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        """Run one launch of a JITFunction. Raises UnsupportedOperation or another SimulatorError."""
        bound = _binder(kernel).bind(arguments, keywords)
        extents = grid_of(grid, bound.values)
        try:
            program = self._program(kernel, bound)
        except UnsupportedOperation as error:
            self.unsupported.append(error)
            raise
        run = Run(program, extents)
        plan = program.plan((extents, _scalar_key(bound)), lambda: _scalars(bound))
        with torch._C._DisableTorchDispatch():  # or each view would pass through the watcher
            passed = [
                self._memory(name, value) if scalar is None else scalar
                for (name, _), value, scalar in zip(bound.form.passed, bound.passed, plan.scalars, strict=True)
            ]
        memories = [memory for memory in passed if isinstance(memory, Memory)]
        _watch(program, passed, memories)
        try:
            run.execute(plan, passed)
        finally:
            self._collect(run)

    def _program(self, kernel: Any, bound: Bound) -> Program:
        if self.options.rewrite is not None:
            return self._rewritten(kernel, bound, self.options.rewrite)
        # Its binder keeps the kernel alive. What it calls is looked at for the disk only: that takes milliseconds.
        key = (id(kernel), kernel.src, bound.form.key, self.options.coverage)
        program = _PROGRAMS.pop(key, None) or self._load_program(kernel, bound)
        _PROGRAMS[key] = program
        if len(_PROGRAMS) > MOST_PROGRAMS:
            _PROGRAMS.pop(next(iter(_PROGRAMS))).forget()
        return program

    def _rewritten(self, kernel: Any, bound: Bound, rewrite: Rewrite) -> Program:
        key = (kernel.cache_key, bound.form.key)
        parsed, program = rewritten(key, lambda: self._parse(kernel, bound), rewrite, self.options.coverage)
        self.parsed.append(parsed)
        return program

    def _load_program(self, kernel: Any, bound: Bound) -> Program:
        folder = self.options.cache_dir
        if folder is None:
            return self._generate(kernel, bound)
        disk = DiskCache(folder)
        key = key_of(
            kernel.cache_key,
            kernel.fn.__code__.co_filename,  # findings and coverage name it
            sorted(bound.signature.items()),
            [(path, told(value)) for path, value in bound.constants().items()],
            self.options.coverage,
        )
        program = disk.get(key)
        if program is None:
            program = self._generate(kernel, bound)
            disk.put(key, program)
        return program

    def _generate(self, kernel: Any, bound: Bound) -> Program:
        return generate(self._parse(kernel, bound), self.options.coverage)

    def _parse(self, kernel: Any, bound: Bound) -> Function:
        return parse_module(lower(kernel, bound.signature, bound.constants()))

    def _memory(self, name: str, value: Any) -> Memory:
        tensor = value if isinstance(value, torch.Tensor) else _reinterpreted(value)
        memory = _memory_of(name, tensor)
        memory.written = self._shadows.find(tensor)
        return memory

    def _collect(self, run: Run) -> None:
        known = {finding.signature: index for index, finding in enumerate(self.findings)}
        for finding in run.findings.values():
            index = known.get(finding.signature)
            if index is None:
                self.findings.append(finding)
            else:
                old = self.findings[index]
                self.findings[index] = replace(old, count=old.count + finding.count)


def _binder(kernel: Any) -> Binder:
    binder = _BINDERS.get(id(kernel))
    if binder is None or binder.kernel is not kernel:
        binder = _BINDERS[id(kernel)] = Binder(kernel)
    return binder


def _scalar_key(bound: Bound) -> tuple[object, ...]:
    """Return the scalars of a launch; floats by their text, for 0.0 equals -0.0 and NaN not even itself."""
    values = [value for (_, type_), value in zip(bound.form.passed, bound.passed, strict=True) if type_[0] != "*"]
    return tuple([value if value.__class__ is int else repr(value) for value in values])


def _scalars(bound: Bound) -> list[Any]:
    """Return an array for each scalar argument and None for each tensor."""
    arguments = zip(bound.form.passed, bound.passed, strict=True)
    return [None if type_[0] == "*" else _scalar(value, type_) for (_, type_), value in arguments]


def _scalar(value: Any, type_: str) -> Any:
    dtype = SCALAR_TYPES[type_]
    array = np.array([value], dtype)
    return array.view(f"i{dtype.itemsize}") if dtype.kind == "u" else array


_SAME_SIZE: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that numpy knows too, by the bytes of an element."""


def _memory_of(name: str, tensor: torch.Tensor) -> Memory:
    """Return the memory of a tensor's elements, unwatched."""
    if tensor.device.type != "cpu":
        raise SimulatorError(f"argument {name!r} is on {tensor.device}; the simulator runs on CPU tensors")
    layout = _layout(tensor.shape, tensor.stride())
    element = TORCH_TYPES[tensor.dtype][1]
    memory = Memory(name, _flat(tensor, layout, element), element, layout)
    memory.shift = int(tensor.storage_offset())
    memory.storage = (tensor.untyped_storage().data_ptr(), memory.flat.itemsize)
    return memory


def _watch(program: Program, passed: list[Any], memories: list[Memory]) -> None:
    """Give a race tracker to the arguments in whose storage this launch stores."""
    stored = {passed[int(name[1:])].storage for name in program.stored} - {None}
    for storage in stored:
        sharing = [memory for memory in memories if memory.storage == storage]
        tracker = RaceTracker(max(memory.shift + memory.extent for memory in sharing))
        for memory in sharing:
            memory.tracker = tracker


@functools.lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return Layout(tuple(shape), tuple(strides))


def _flat(tensor: torch.Tensor, layout: Layout, element: str) -> Any:
    """Return the storage from a tensor's first element to its last one, without a copy."""
    if layout.empty:
        return np.zeros(0, STORAGE[element])
    line = tensor.detach().as_strided((layout.extent,), (1,))
    return line.view(_SAME_SIZE[tensor.element_size()]).numpy().view(STORAGE[element])


def _reinterpreted(wrapper: Any) -> torch.Tensor:
    """Return the tensor behind `triton.reinterpret`'s wrapper, viewed as its other type."""
    name = str(wrapper.dtype)
    for dtype, (triton_name, _) in TORCH_TYPES.items():
        if triton_name == name:
            base: torch.Tensor = wrapper.base
            return base.view(dtype)
    raise SimulatorError(f"a tensor reinterpreted as {name} is not supported")
