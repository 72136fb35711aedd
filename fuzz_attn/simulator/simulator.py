"""The simulator: the programs of all kernels that were launched, and the outcomes of their masks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from fuzz_attn.errors import SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.codegen.generator import NO_EXTENSION, Extension, generate
from fuzz_attn.simulator.codegen.program import Masks, Program
from fuzz_attn.simulator.disk_cache import DiskCache, key_of
from fuzz_attn.simulator.execution import collection_paused, with_room
from fuzz_attn.ttir.ir import Function, Location, parse_module
from fuzz_attn.ttir.lowering import Binder, Bound, Lowering, text_of, translations
from fuzz_attn.ttir.triton_compat import python_function, source_digest, source_of

Rewrite: TypeAlias = Callable[[Function], Function]
"""Returns another kernel or the very same one, and changes nothing in place. Hashable, as part of a program's key."""

MOST_PROGRAMS: Final = 512
"""Programs kept in memory, half a megabyte each: a campaign goes on to new compile keys all night."""

MOST_REWRITTEN: Final = 4096
"""Programs of rewritten kernels kept in memory, 0.1 megabyte each: every change that an audit compares in a round."""

MOST_FAILURES: Final = 4096
"""Reasons why a kernel has no program that are kept in memory: lowering it again would give the same reason."""

Kept = TypeVar("Kept")


class Recent(Generic[Kept]):
    """A mapping that keeps the `most` entries that were used last, and calls `drop` with what it removes."""

    def __init__(self, most: int, drop: Callable[[Kept], None] = lambda kept: None) -> None:
        self._entries: OrderedDict[object, Kept] = OrderedDict()
        self._most = most
        self._drop = drop

    def find(self, key: object) -> Kept | None:
        """Return the entry of a key, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def get(self, key: object, make: Callable[[], Kept]) -> Kept:
        """Return the entry of a key; `make` it if there is none."""
        entry = self.find(key)
        if entry is None:
            entry = self._entries[key] = make()
            if len(self._entries) > self._most:
                self._drop(self._entries.popitem(last=False)[1])
        return entry


class Simulator:
    """Finds the program of a launch: in memory, on disk, or by lowering the kernel.

    With `coverage`, `masks` records the outcomes of masks. `cache_dir` is a folder of generated programs. `rewrite`
    changes each parsed kernel before code is made of it. `extension` has operations that are not Triton's. Programs of
    rewritten kernels, or with an extension, never go to the disk. `coverage` and `rewrite` may be set between sessions.
    """

    def __init__(
        self,
        *,
        coverage: bool = False,
        cache_dir: Path | None = None,
        rewrite: Rewrite | None = None,
        extension: Extension = NO_EXTENSION,
        most_programs: int = MOST_PROGRAMS,
    ) -> None:
        self.coverage = coverage
        self.rewrite = rewrite
        self.masks = Masks()
        self.translations = translations()
        self.lowering = Lowering(self.translations)
        self._extension = extension
        self._disk = DiskCache(cache_dir) if cache_dir is not None and extension is NO_EXTENSION else None
        self._binders: dict[Callable[..., Any], Binder] = {}
        self._programs: Recent[Program] = Recent(most_programs, Program.forget)
        self._failures: Recent[SimulatorError] = Recent(MOST_FAILURES)
        self._parsed: Recent[Function] = Recent(most_programs)
        self._rewritten: Recent[Program] = Recent(MOST_REWRITTEN, Program.forget)

    @property
    def cache_obstacle(self) -> str:
        """Why the folder of generated programs is not used; empty if it is, or if there is none."""
        return "" if self._disk is None else self._disk.obstacle

    def bind(
        self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, constant_ones: bool = False
    ) -> Bound:
        """Return the arguments of a launch of a JITFunction, bound to its parameters; see :meth:`Binder.bind`."""
        function = python_function(kernel)
        binder = self._binders.get(function)
        if binder is None or binder.kernel is not kernel:
            binder = self._binders[function] = Binder(kernel)
        return binder.bind(arguments, keywords, constant_ones=constant_ones)

    def grid(self, kernel: Any, bound: Bound, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the grid of a launch: the one that the target asks for, unless a search for changes tries another."""
        del self, kernel, bound
        return grid

    def program(self, kernel: Any, bound: Bound) -> Program:
        """Return the program of a launch. Raises UnsupportedOperation or LoweringError."""
        # What the kernel calls is compared only for the disk: that takes milliseconds.
        key = (python_function(kernel), source_of(kernel), bound.form.key, self.coverage)
        known = self._failures.find(key)
        if known is not None:
            raise _without_frames(known)
        try:
            return self._programs.get(key, lambda: self._loaded(kernel, bound))
        except SimulatorError as error:
            copy = _without_frames(error)
            self._failures.get(key, lambda: copy)
            raise

    def rewritten(self, kernel: Any, bound: Bound, rewrite: Rewrite) -> tuple[Function, Program]:
        """Return the parsed kernel of a launch, and the program of what `rewrite` makes of it."""
        key = (source_digest(kernel), bound.form.key)
        function = self._parsed.get(key, lambda: self._parse(kernel, bound))
        own: tuple[object, bool, Rewrite | None] = (key, self.coverage, rewrite)
        program = self._rewritten.find(own)
        if program is None:
            changed = rewrite(function)
            if changed is function:  # all rewrites that leave a kernel as it is share one program
                own = (key, self.coverage, None)
            program = self._rewritten.get(own, lambda: self._generate_changed(changed))
        return function, program

    def _generate_changed(self, function: Function) -> Program:
        """Return the program of a rewritten kernel; raises SimulatorError where it is none."""
        try:
            return generate(function, self.coverage, self._extension)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(f"no program can be made of the rewritten {function.name}: {error!r}") from error

    def _loaded(self, kernel: Any, bound: Bound) -> Program:
        """Return the program of a launch from the disk, or a new one."""
        if self._disk is None:
            return self._generate(kernel, bound)
        key = key_of(
            source_digest(kernel),
            python_function(kernel).__code__.co_filename,  # findings and coverage name it
            sorted(bound.signature.items()),
            [(path, text_of(value)) for path, value in bound.constants().items()],
            self.coverage,
        )
        program = self._disk.get(key)
        if program is None:
            program = self._generate(kernel, bound)
            self._disk.put(key, program)
        return program

    def _generate(self, kernel: Any, bound: Bound) -> Program:
        """Return a new program. Raises UnsupportedOperation whatever goes wrong with a kernel that compiles."""
        try:
            with collection_paused():
                return with_room(lambda: generate(self._parse(kernel, bound), self.coverage, self._extension))
        except SimulatorError:
            raise
        except Exception as error:
            what = f"kernel {python_function(kernel).__name__} ({type(error).__name__}: {error})"
            raise UnsupportedOperation(what, definition_of(kernel)) from error

    def _parse(self, kernel: Any, bound: Bound) -> Function:
        return parse_module(self.lowering.lower(kernel, bound.signature, bound.constants()))


def definition_of(kernel: Any) -> Location:
    """Return where a JITFunction is defined."""
    code = python_function(kernel).__code__
    return Location(code.co_filename, code.co_firstlineno)


def _without_frames(error: SimulatorError) -> SimulatorError:
    """Return a copy of an error that keeps no frame, and so no tensor, alive."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(vars(error))
    return copy
