"""A session: launches of Triton kernels caught and run on the CPU, with what the sanitizers saw."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .binding import Binder, Bound, grid_of
from .cache import DiskCache, key_of
from .casts import STORAGE
from .codegen import Program, generate
from .errors import SimulatorError, UnsupportedOperation
from .findings import Finding, FindingKind
from .interpreted import front_end_takes_interpreted
from .layout import Layout
from .lowering import SCALAR_TYPES, TORCH_TYPES, garbage_left_alone, lower
from .memory import Memory
from .parser import parse_module
from .races import RaceTracker
from .rewrites import Rewrite, rewritten
from .run import Run
from .shadow import EmptyWatcher, Shadows
from .tree import Function
from .virtual import VirtualMemory, VirtualTensor


@dataclass(frozen=True, slots=True)
class Options:
    """What a session checks and records, and how it reads the IR.

    Bounds are always checked, for nothing may be read or written outside of a tensor; `out_of_bounds` says
    whether that is reported. `tf32` cuts float32 operands of dot products to tf32 where the IR allows it.
    `coverage` adds what masks show to `MASKS`. `cache_dir` keeps generated programs.
    `rewrite` changes each parsed kernel before code is made of it; what comes of it is never kept on disk.
    """

    out_of_bounds: bool = True
    uninitialised: bool = True
    races: bool = True
    overflow: bool = True
    tf32: bool = False
    coverage: bool = False
    cache_dir: Path | None = None
    rewrite: Rewrite | None = None


_REPORTED = {
    FindingKind.OUT_OF_BOUNDS_LOAD: "out_of_bounds",
    FindingKind.OUT_OF_BOUNDS_STORE: "out_of_bounds",
    FindingKind.UNINITIALISED_READ: "uninitialised",
    FindingKind.RACE: "races",
    FindingKind.INTEGER_OVERFLOW: "overflow",
}

# Programs and binders outlive sessions: a campaign opens one session for each of its cases.
_PROGRAMS: dict[object, Program] = {}
_BINDERS: dict[int, Binder] = {}


@dataclass(slots=True)
class Session:
    """The record of one `simulate` block.

    `findings` holds one finding for each defect (kind, source line and tensor), `unsupported` the operations
    that the simulator did not know, `launches` the number of launches that ran, `benign_races` the racing
    stores without effect.
    """

    options: Options
    findings: list[Finding] = field(default_factory=list)
    unsupported: list[UnsupportedOperation] = field(default_factory=list)
    launches: int = 0
    benign_races: int = 0
    parsed: list[Function] = field(default_factory=list, repr=False)
    _shadows: Shadows = field(default_factory=Shadows, repr=False)

    def watcher(self) -> EmptyWatcher | None:
        """Return the mode that watches `torch.empty`, if uninitialised reads are looked for."""
        return EmptyWatcher(self._shadows) if self.options.uninitialised else None

    def mark_uninitialised(self, tensor: torch.Tensor) -> None:
        """Treats the storage of a tensor as never written, whatever it holds (a poisoned output, for example)."""
        self._shadows.add(tensor)

    def launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        """Run one launch of a JITFunction. Raises UnsupportedOperation or another SimulatorError."""
        bound = _binder(kernel).bind(arguments, keywords)
        extents = grid_of(grid, bound.values)
        try:
            program = self._program(kernel, bound)
        except UnsupportedOperation as error:
            self.unsupported.append(error)
            raise
        run = Run(program, extents, self.options.tf32, self.options.overflow)
        values = [(name, bound.values[name]) for name, type_ in bound.signature.items() if type_ != "constexpr"]
        passed = [self._argument(name, value, bound.signature[name]) for name, value in values]
        self._watch(program, values, passed)
        self.launches += 1
        try:
            run.execute(passed)
        finally:
            self._collect(run)

    def _program(self, kernel: Any, bound: Bound) -> Program:
        if self.options.rewrite is not None:
            return self._rewritten(kernel, bound, self.options.rewrite)
        key = (_identity(kernel), bound.key, self.options.coverage)
        program = _PROGRAMS.get(key)
        if program is None:
            program = _PROGRAMS[key] = self._load_program(kernel, bound)
        return program

    def _rewritten(self, kernel: Any, bound: Bound, rewrite: Rewrite) -> Program:
        key = (kernel.cache_key, bound.key)
        parsed, program = rewritten(key, lambda: self._parse(kernel, bound), rewrite, self.options.coverage)
        self.parsed.append(parsed)
        return program

    def _load_program(self, kernel: Any, bound: Bound) -> Program:
        folder = self.options.cache_dir
        if folder is None:
            return self._generate(kernel, bound)
        disk = DiskCache(folder)
        key = key_of(
            *_identity(kernel),
            sorted(bound.signature.items()),
            sorted(bound.constants().items()),
            self.options.coverage,
        )
        program = disk.get(key)
        if program is None:
            program = self._generate(kernel, bound)
            disk.put(key, program)
        return program

    def _generate(self, kernel: Any, bound: Bound) -> Program:
        with garbage_left_alone():
            return generate(self._parse(kernel, bound), self.options.coverage)

    def _parse(self, kernel: Any, bound: Bound) -> Function:
        with front_end_takes_interpreted():
            return parse_module(lower(kernel, bound.signature, bound.constants()))

    def _argument(self, name: str, value: Any, type_: str) -> Any:
        if not type_.startswith("*"):
            dtype = SCALAR_TYPES[type_]
            array = np.array([value], dtype)
            return array.view(f"i{dtype.itemsize}") if dtype.kind == "u" else array
        if isinstance(value, VirtualTensor):
            return VirtualMemory(name, value)
        return self._memory(name, value)

    def _memory(self, name: str, value: Any) -> Memory:
        tensor = value if isinstance(value, torch.Tensor) else _reinterpreted(value)
        if tensor.device.type != "cpu":
            raise SimulatorError(f"argument {name!r} is on {tensor.device}; the simulator runs on CPU tensors")
        layout = _layout(tensor.shape, tensor.stride())
        element = TORCH_TYPES[tensor.dtype][1]
        memory = Memory(name, _flat(tensor, layout, element), element, layout)
        if self.options.uninitialised and self._shadows:
            memory.written = self._shadows.find(tensor)
        return memory

    def _watch(self, program: Program, values: list[tuple[str, Any]], passed: list[Any]) -> None:
        """Give a race tracker to the arguments in whose storage this launch stores."""
        if not self.options.races:
            return
        storages: dict[tuple[int, int], tuple[list[Memory], bool]] = {}
        for index, ((_, value), memory) in enumerate(zip(values, passed, strict=True)):
            if isinstance(memory, Memory) and not isinstance(memory, VirtualMemory):
                tensor = value if isinstance(value, torch.Tensor) else value.base
                address = (tensor.untyped_storage().data_ptr(), memory.flat.itemsize)
                memory.shift = int(tensor.storage_offset())
                memories, stored = storages.get(address, ([], False))
                storages[address] = ([*memories, memory], stored or f"A{index}" in program.stored)
        for memories, stored in storages.values():
            if stored:
                tracker = RaceTracker(max(memory.shift + memory.extent for memory in memories))
                for memory in memories:
                    memory.tracker = tracker

    def _collect(self, run: Run) -> None:
        self.benign_races += run.benign_races
        known = {finding.signature: index for index, finding in enumerate(self.findings)}
        for finding in run.findings.values():
            option = _REPORTED.get(finding.kind)
            if option is not None and not getattr(self.options, option):
                continue
            index = known.get(finding.signature)
            if index is None:
                self.findings.append(finding)
            else:
                old = self.findings[index]
                self.findings[index] = replace(old, count=old.count + finding.count)


def _identity(kernel: Any) -> tuple[str, str]:
    """Return what a kernel's program depends on: its source, and the file, which findings and coverage name."""
    return kernel.cache_key, kernel.fn.__code__.co_filename


def _binder(kernel: Any) -> Binder:
    binder = _BINDERS.get(id(kernel))
    if binder is None or binder.kernel is not kernel:
        binder = _BINDERS[id(kernel)] = Binder(kernel)
    return binder


@functools.lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return Layout(tuple(shape), tuple(strides))


class _Exposed:
    """Memory that numpy can take as an array: numpy asks for nothing but this attribute."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, size: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (size,), "typestr": dtype.str}


def _flat(tensor: torch.Tensor, layout: Layout, element: str) -> Any:
    """Return the storage from the tensor's first element to its last one, without a copy.

    Made from the address: torch's own views take ten times as long, and would pass through the dispatch mode
    that watches it.
    """
    storage = STORAGE[element]
    if layout.empty:
        return np.zeros(0, storage)
    return np.asarray(_Exposed(tensor.data_ptr(), layout.extent, storage))


def _reinterpreted(wrapper: Any) -> torch.Tensor:
    """Return the tensor behind `triton.reinterpret`'s wrapper, viewed as its other type."""
    name = str(wrapper.dtype)
    for dtype, (triton_name, _) in TORCH_TYPES.items():
        if triton_name == name:
            base: torch.Tensor = wrapper.base
            return base.view(dtype)
    raise SimulatorError(f"a tensor reinterpreted as {name} is not supported")
