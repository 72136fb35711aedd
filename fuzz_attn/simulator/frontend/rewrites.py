"""Rewritten kernels: programs of kernels that were changed after parsing, for whoever asks what a change would do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from fuzz_attn.errors import SimulatorError
from fuzz_attn.simulator.codegen.program import Program, generate
from fuzz_attn.simulator.frontend.ir import Function

Rewrite: TypeAlias = Callable[[Function], Function]
"""Returns another kernel or the very same one, and changes nothing in place. Hashable, as part of a program's key."""

Kept = TypeVar("Kept")

MOST_KERNELS: Final = 512
MOST_PROGRAMS: Final = 4096
"""How many are kept, a hundred kilobytes each: all changes that live long in the kernels of a round."""

_Key: TypeAlias = tuple[object, bool, Rewrite | None]

_parsed: OrderedDict[object, Function] = OrderedDict()
_programs: OrderedDict[_Key, Program] = OrderedDict()


def rewritten(key: object, parse: Callable[[], Function], rewrite: Rewrite, coverage: bool) -> tuple[Function, Program]:
    """Return the kernel of that key as ``parse`` gives it, and the program of what ``rewrite`` makes of it."""
    function = _parsed.get(key)
    if function is None:
        function = _kept(_parsed, key, parse(), MOST_KERNELS)
    own: _Key = (key, coverage, rewrite)
    if own not in _programs:
        changed = rewrite(function)
        if changed is function:
            own = (key, coverage, None)  # all rewrites that leave a kernel as it is share one program
        if own not in _programs:
            _programs[own] = _generated(changed, coverage)
    _programs.move_to_end(own)
    program = _programs[own]
    if len(_programs) > MOST_PROGRAMS:
        _programs.popitem(last=False)[1].forget()
    return function, program


def _generated(function: Function, coverage: bool) -> Program:
    """Return the program of a rewritten kernel; raises :class:`SimulatorError` where it is none."""
    try:
        return generate(function, coverage)
    except SimulatorError:
        raise
    except Exception as error:
        raise SimulatorError(f"no program can be made of the rewritten {function.name}: {error!r}") from error


def _kept(store: OrderedDict[object, Kept], key: object, value: Kept, most: int) -> Kept:
    store[key] = value
    if len(store) > most:
        store.popitem(last=False)
    return value
