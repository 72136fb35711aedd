"""Paths: the words and the changes of configurations and optional arguments, which choose how a target computes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.changes import Change, with_field
from fuzz_attn.case.parts import MOST_ARGUMENTS, Argument

CONFIGURATION: Final = "configuration "
"""How the trait of another configuration than the first one begins."""
FIRST_CONFIGURATION: Final = f"{CONFIGURATION}0"
"""What a failure needs that only the first configuration shows; that is no trait of a case, which has it by default."""
ARGUMENT: Final = "argument "
"""How the trait of an optional argument begins."""


def configuration_words(case: CaseFields) -> tuple[str, ...]:
    """Return the trait of a case's configuration. A bug of one is not that of another, so each has its own."""
    return (f"{CONFIGURATION}{case.launch.configuration}",)


def argument_words(case: CaseFields) -> tuple[str, ...]:
    """Return a trait for each optional argument of a case."""
    return tuple(f"{ARGUMENT}{in_words((each,))}" for each in case.launch.arguments)


def needs_paths(trigger: Iterable[str]) -> bool:
    """Return whether a failure needs another configuration or an optional argument."""
    return any(trait.startswith((CONFIGURATION, ARGUMENT)) for trait in trigger)


def with_configuration(trigger: tuple[str, ...], configurations: tuple[int, ...]) -> tuple[str, ...]:
    """Return a trigger that names a configuration, that of the case, if only some are wrong.

    Shrinking does not name it where it is the first one, or where that shows another bug.
    """
    known = not configurations or any(trait.startswith(CONFIGURATION) for trait in trigger)
    return trigger if known else (*trigger, f"{CONFIGURATION}{configurations[0]}")


def of_any_configuration(traits: frozenset[str], configurations: Iterable[int]) -> frozenset[str]:
    """Return the traits of a case, with those of all configurations if it has one of them."""
    alike = frozenset(f"{CONFIGURATION}{number}" for number in configurations)
    return traits | alike if alike & traits else traits


def in_words(arguments: Iterable[Argument]) -> str:
    """Return arguments as a call has them: ``use_td=True, mode='b'``."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments)


def with_arguments(case: CaseFields, arguments: tuple[Argument, ...]) -> CaseFields:
    """Return the case with other optional arguments."""
    return with_field(case, path="launch.arguments", value=arguments)


def _without(case: CaseFields, place: int) -> CaseFields:
    """Return the case without one of its optional arguments."""
    arguments = case.launch.arguments
    return with_arguments(case, arguments[:place] + arguments[place + 1 :])


WITHOUT_EACH: Final[tuple[Change, ...]] = tuple(partial(_without, place=place) for place in range(MOST_ARGUMENTS))
"""Changes that each leave out one optional argument."""
