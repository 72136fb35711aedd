"""Rewritten kernels: programs of kernels that were changed after parsing, for whoever asks what a change would do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from .codegen import Program, generate
from .errors import SimulatorError
from .tree import Function

Rewrite: TypeAlias = Callable[[Function], Function]
"""Returns another kernel or the very same one, and changes nothing in place. Hashable, as part of a program's key."""

Kept = TypeVar("Kept")

MOST_KERNELS: Final = 512
MOST_PROGRAMS: Final = 512
"""How many are kept: rewritten programs are made by the thousand, and few are asked for again."""

_parsed: OrderedDict[object, Function] = OrderedDict()
_programs: OrderedDict[object, Program] = OrderedDict()


def rewritten(key: object, parse: Callable[[], Function], rewrite: Rewrite, coverage: bool) -> tuple[Function, Program]:
    """Return the kernel of that key as ``parse`` gives it, and the program of what ``rewrite`` makes of it."""
    function = _parsed.get(key)
    if function is None:
        function = _kept(_parsed, key, parse(), MOST_KERNELS)
    own = (key, coverage, rewrite)
    program = _programs.get(own)
    if program is None:
        program = _generated(key, function, rewrite(function), own, coverage)
    _programs.move_to_end(own)
    return function, program


def _generated(key: object, function: Function, changed: Function, own: object, coverage: bool) -> Program:
    """Return the program of a kernel; all rewrites that leave it as it is share one."""
    plain = (key, coverage, None)
    if changed is function and plain in _programs:
        return _kept(_programs, own, _programs[plain], MOST_PROGRAMS)
    try:
        program = generate(changed, coverage)
    except SimulatorError:
        raise
    except Exception as error:
        raise SimulatorError(f"no program can be made of the rewritten {function.name}: {error!r}") from error
    if changed is function:
        _kept(_programs, plain, program, MOST_PROGRAMS)
    return _kept(_programs, own, program, MOST_PROGRAMS)


def _kept(store: OrderedDict[object, Kept], key: object, value: Kept, most: int) -> Kept:
    store[key] = value
    if len(store) > most:
        store.popitem(last=False)
    return value
