"""Autotuned: how many configurations the kernels have that a callable may launch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType

from fuzz_attn.case.parts import MOST_CONFIGURATIONS


def configurations_of(call: Callable[..., object]) -> int:
    """Return the most configurations of an autotuner that a callable names, or a function that it calls; 1 without any.

    Only functions of the callable's own package, or file, are followed. A kernel that is found in another way, for
    example in a table, is not seen.
    """
    if "triton" not in sys.modules:
        return 1
    from fuzz_attn.ttir.triton_compat import configurations_in  # noqa: PLC0415 - imports Triton

    return min(MOST_CONFIGURATIONS, max((1, *map(configurations_in, _reached(call)))))


def _reached(call: Callable[..., object]) -> Iterator[object]:
    """Yield what the functions name that a callable leads to, each once."""
    seen: set[int] = set()
    waiting: list[object] = [call]
    own = str(getattr(call, "__module__", "")).partition(".")[0]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        function = found.__func__ if isinstance(found, MethodType) else getattr(found, "__wrapped__", found)
        function = function if isinstance(function, FunctionType) else _called(found)
        if function is not None and str(function.__module__).partition(".")[0] == own:
            waiting += _named_in(function)


def _called(found: object) -> FunctionType | None:
    """Return the function of an object that is called as one, such as a module of torch or an instance of a class."""
    kind = found if isinstance(found, type) else type(found)
    for name in ("forward", "__call__"):
        function = vars(kind).get(name)
        if isinstance(function, FunctionType):
            return function
    return None


def _named_in(function: FunctionType) -> Iterator[object]:
    """Yield the globals, variables of outer functions and attributes of modules that a function names."""
    names = {name for code in _codes_of(function.__code__) for name in code.co_names}
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in names if name in vars(module))


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)
