"""Keeping: what a target keeps between its calls, found by a look at its modules before and after them.

Such things are dicts, lists, sets, tensors and numbers of a module, ``functools`` caches, attributes and mutable
defaults of functions, what a closure holds, and attributes of classes and instances. Each is named as the target names
it, with its kind: ``_cache (dict)``. A thing that stays as it is says nothing: many modules have constant tables.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from fuzz_attn.owners import owner_of
from fuzz_attn.targets.target import Target

MOST_MODULES: Final = 40
MOST_NAMES: Final = 4000
"""A look at more names than this, in all modules, would take milliseconds."""
_FIRST: Final = 8
"""Items of a container whose change is seen where its length stays."""
_CONTAINERS: Final = (dict, list, set, deque)
_NUMBERS: Final = (int, float, str, type(None))
_CACHE: Final[Any] = type(lru_cache(id))


class Keeper:
    """Watches what a target keeps. A look is taken after calls 1, 2, 4 and so on, so that it costs nearly nothing."""

    def __init__(self, target: Target) -> None:
        self._call: Any = target.call
        self._before = self._look()
        self._calls, self._next = 0, 1
        self._seen: set[str] = set()

    def news(self) -> tuple[str, ...]:
        """Return what was seen to change since the start and has not been told, after another call."""
        self._calls += 1
        if self._calls < self._next:
            return ()
        self._next *= 2
        now = self._look()
        changed = [name for name, value in now.items() if self._before.get(name) != value and name not in self._seen]
        self._seen.update(changed)
        return tuple(changed)

    def _look(self) -> dict[str, Hashable]:
        """Return a fingerprint of everything that the target may keep, by its name and kind."""
        found: dict[str, Hashable] = {}
        for number, (name, value) in enumerate(self._named()):
            if number > MOST_NAMES:
                break
            found[name] = value
        return found

    def _modules(self) -> list[ModuleType]:
        """Return the module of the target, and those that it takes functions and classes from, but no library."""
        code = getattr(self._call, "__func__", self._call)
        named = getattr(code, "__module__", None), getattr(code, "__globals__", {}).get("__name__")
        waiting, found = [sys.modules.get(name) for name in named if isinstance(name, str)], list[ModuleType]()
        while waiting and len(found) < MOST_MODULES:
            module = waiting.pop(0)
            if module is None or module in found or not _is_own(module):
                continue
            found.append(module)
            values = vars(module).values()
            waiting += [value if isinstance(value, ModuleType) else _module_of(value) for value in values]
        return found

    def _named(self) -> Iterator[tuple[str, Hashable]]:
        for module in self._modules():
            for name, value in [*vars(module).items()]:
                if not name.startswith("__"):
                    yield from _kept(name, value, own=_module_of(value) is module, deep=True)
        instance = getattr(self._call, "__self__", None)
        if instance is not None:
            yield from _of_instance(type(instance).__name__, instance)


def _is_own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and owner_of(file) == "target" and "site-packages/fuzz_attn/" not in file


def _module_of(value: Any) -> ModuleType | None:
    """Return the module in which a function or class is defined."""
    name = getattr(value, "__module__", None) if isinstance(value, type | FunctionType | MethodType) else None
    name = name or getattr(_attributes(value).get("__wrapped__"), "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def _kept(name: str, value: Any, *, own: bool, deep: bool) -> Iterator[tuple[str, Hashable]]:
    """Yield a name and a fingerprint of what a value may keep."""
    if isinstance(value, _CACHE):
        info = value.cache_info()
        yield f"{name} (lru_cache{' of tensors' * _holds_tensors(value)})", (info.currsize, info.misses)
    elif (mark := _fingerprint(value)) is not None:
        yield f"{name} ({_kind(value)})", mark
    elif isinstance(value, FunctionType):
        yield from _of_function(name, value) if own else ()
    elif isinstance(value, type):
        for attribute, each in [*vars(value).items()] if own and deep else ():
            if not attribute.startswith("__"):
                yield from _kept(f"{name}.{attribute}", each, own=isinstance(each, FunctionType), deep=False)
    elif deep and _is_of_target(value):
        yield from _of_instance(name, value)


def _holds_tensors(cached: Any) -> bool:
    """Return whether a ``functools`` cache has tensors among its arguments or results, or in tuples of them."""
    kept = gc.get_referents(cached)  # arguments and results, or a dict of them where the size is not bounded
    values = [*kept, *(value for each in kept if isinstance(each, dict) for pair in each.items() for value in pair)]
    return any(isinstance(each, torch.Tensor) for value in values for each in (value, *gc.get_referents(value)))


def _of_function(name: str, function: FunctionType) -> Iterator[tuple[str, Hashable]]:
    for attribute, value in [*vars(function).items()]:
        if attribute != "__wrapped__" and (mark := _fingerprint(value)) is not None:
            yield f"{name}.{attribute} ({_kind(value)})", mark
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        if isinstance(value, _CONTAINERS):
            yield f"a default of {name} ({_kind(value)})", _fingerprint(value)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, (*_CONTAINERS, torch.Tensor)):
            yield f"{name}.{variable} ({_kind(value)})", _fingerprint(value)


def _of_instance(name: str, instance: Any) -> Iterator[tuple[str, Hashable]]:
    for attribute, value in [*_attributes(instance).items()]:
        if (mark := _fingerprint(value)) is not None:
            yield f"{name}.{attribute} ({_kind(value)})", mark


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself; its ``__getattr__``, which may raise, is not called."""
    own = getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else {}


def _is_of_target(value: Any) -> bool:
    if isinstance(value, threading.local):
        return True
    module = sys.modules.get(type(value).__module__)
    return module is not None and _is_own(module)


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _fingerprint(value: Any) -> Hashable | None:
    """Return what changes with a value that may be kept; None for a value of another kind."""
    if isinstance(value, torch.Tensor):
        return id(value), value.data_ptr() if value.layout is torch.strided else 0, tuple(value.shape)
    if isinstance(value, dict):
        return len(value), *(id(each) for _, each in zip(range(_FIRST), value.values(), strict=False))
    if isinstance(value, _CONTAINERS):
        return len(value), *(id(each) for _, each in zip(range(_FIRST), value, strict=False))
    if isinstance(value, _NUMBERS):
        return type(value).__name__, str(value)
    return None
