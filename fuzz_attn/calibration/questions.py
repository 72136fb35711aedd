"""Questions: the conventions that are asked for, and the bindings that answer them differently.

A question has *candidates*, which fill in what the binding leaves open, and *alternatives*, which contradict what it
states. Alternatives are tried only where no candidate fits, to tell a wrong binding from a defect of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.conventions import CHOICES, open_in
from fuzz_attn.case.aspects import Feature

Variants = Callable[[Binding], Iterator[Binding]]


@dataclass(frozen=True)
class Question:
    """One question. ``fields`` are the conventions that it settles, the first fitting value of the ``lenient`` ones.

    It is asked where the target's domain has the ``feature``.
    """

    name: str
    fields: tuple[str, ...]
    alternatives: Variants
    feature: Feature | None = None
    lenient: tuple[str, ...] = ()

    def candidates(self, binding: Binding) -> Iterator[Binding]:
        """Yield the binding with each combination of values for what it leaves open."""
        yield from filled(binding, [name for name in self.fields if name in open_in(binding)])


def filled(binding: Binding, names: list[str]) -> Iterator[Binding]:
    """Yield the binding with each combination of values of some conventions."""
    for values in product(*(_choices(name, binding) for name in names)):
        yield replace(binding, **dict(zip(names, values, strict=True)))


def _choices(name: str, binding: Binding) -> tuple[str, ...]:
    if name != "layout":
        return CHOICES[name]
    paged = "block_table" in binding.parameter_of
    return tuple(layout for layout in CHOICES[name] if (layout == "slots") != paged)


def _changed(name: str, binding: Binding) -> Iterator[Binding]:
    """Yield the binding with each other value of one convention."""
    own = getattr(binding, name)
    yield from (replace(binding, **{name: value}) for value in _choices(name, binding) if value != own)


def _swapped(binding: Binding, first: str, second: str) -> Iterator[Binding]:
    """Yield the binding with two roles exchanged."""
    parameters = binding.parameter_of
    if first in parameters and second in parameters:
        changes = {parameters[first]: second, parameters[second]: first}
        yield replace(binding, roles={**binding.roles, **changes})


def _renamed(binding: Binding, role: str, other: str) -> Iterator[Binding]:
    """Yield the binding with another role in place of one."""
    parameters = binding.parameter_of
    if role in parameters and other not in parameters:
        yield replace(binding, roles={**binding.roles, parameters[role]: other})


def _off(binding: Binding, role: str) -> Iterator[Binding]:
    """Yield the binding with each other value for what "off" is."""
    if role not in binding.parameter_of:
        return
    own: Any = binding.off.get(role, ())
    values = (value for value in OFF_VALUES if value != own)
    yield from (replace(binding, off={**binding.off, role: value}) for value in values)


OFF_VALUES: Final = (None, -1, 0, (-1, -1))


def _of_plain(binding: Binding) -> Iterator[Binding]:
    yield from _changed("layout", binding)
    yield from _swapped(binding, "key_cache", "value_cache")
    yield from _swapped(binding, "new_keys", "new_values")
    yield from _renamed(binding, "seq_lens", "context_lens")
    yield from _renamed(binding, "context_lens", "seq_lens")
    yield from _swapped(binding, "query_start_loc", "seq_lens")
    yield from _swapped(binding, "max_query_len", "max_seq_len")
    yield from _off(binding, "window")
    if "output" not in binding.parameter_of and binding.output == "in_place":
        yield replace(binding, output="returned")
    if "output" in binding.parameter_of and binding.output == "returned":
        yield replace(binding, output="in_place")


def _of_window(binding: Binding) -> Iterator[Binding]:
    yield from _changed("window", binding)


def _of_scales(binding: Binding) -> Iterator[Binding]:
    yield from _swapped(binding, "k_scale", "v_scale")
    for name in ("scale_direction", "fp8", "scales"):
        yield from _changed(name, binding)


def _of_sinks(binding: Binding) -> Iterator[Binding]:
    yield from _swapped(binding, "sinks", "alibi_slopes")


def _nothing(binding: Binding) -> Iterator[Binding]:
    yield from ()


QUESTIONS: Final = (
    Question("plain", ("layout",), _of_plain),
    Question("window", ("window",), _of_window, "window"),
    Question("scales", ("fp8", "scales", "scale_direction"), _of_scales, "fp8_kv", lenient=("fp8", "scales")),
    Question("sinks", (), _of_sinks, "sinks"),
    Question("alibi", (), _of_sinks, "alibi"),
    Question("softcap", (), _nothing, "softcap"),
)
"""Every question, in the order in which they are asked. Each case has one feature, so a question needs no later one."""
