"""Candidates: the changes that a search for a repair tries, of values in a kernel, of its arguments and its grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch

from fuzz_attn.simulator.site_values import are_both_strides, like_constants, short_name, similar
from fuzz_attn.simulator.switches import NOWHERE, Grid, Key, Launched
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location

MOSTLY: Final = 0.95
"""A change is chance if it gives a very different number in this share of the launches that were right without it."""
MOSTLY_UNLIKELY: Final = 0.5
"""The same for an unlikely change, such as one that adds a variable."""
UNLIKE: Final = -0.5
"""The rank of the number that another kernel has under the same name."""
PADDED: Final = 0.5
"""The rank of the next power of two for a number that is below it."""
CONSTANT: Final = 1.5
"""The rank of another number for a constant, which costs a new program."""
UNLIKELY: Final = 3.0
"""The rank from which a change is unlikely."""


class OfTensor(NamedTuple):
    """A stride or a size of a tensor that is an argument."""

    tensor: str
    what: Literal["stride", "shape"]
    axis: int

    @property
    def words(self) -> str:
        """The number as host code writes it."""
        axis = f"({self.axis})" if self.what == "stride" else f"[{self.axis}]"
        return f"{self.tensor}.{self.what}{axis}"

    def of(self, tensor: Any) -> Any:
        """Return the number, as it is for a tensor; None where that has no such axis."""
        numbers = tuple(tensor.stride() if self.what == "stride" else tensor.shape)
        return numbers[self.axis] if self.axis < len(numbers) else None


class OfLaunch(NamedTuple):
    """An argument or a constant of a kernel that the same call launched before."""

    kernel: str
    name: str

    @property
    def words(self) -> str:
        """The number in words."""
        return f"that of {self.kernel}"


class RoundedUp(NamedTuple):
    """The next power of two of a constant of the same launch."""

    constant: str

    @property
    def words(self) -> str:
        """The number in words."""
        return f"{short_name(self.constant)} rounded up to a power of two"


Other: TypeAlias = str | int | OfTensor | OfLaunch
Latest: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The arguments and constants of the latest launch of each kernel."""


@dataclass(eq=False)
class Candidate:
    """A change that a search tries, in words of the source before and after, and what launches showed of it."""

    order: float
    old: str
    new: str
    values: int = 0
    """How many values the launches of all cases compute with it."""
    steps: bool = True
    """Whether loops and branches run as before. Else it may only avoid what is wrong, such as a second tile."""
    longer: float = 0.0
    """The largest change in the number of computed values, as a share, in a launch that was right without it."""
    right: int = 0
    """Launches that were right without it."""
    touched: int = 0
    """How many of these compute another value with it and stay right."""

    counts: bool = False
    """Whether it changes a number of a whole program, which loops and offsets are made of."""

    by: float = 0.0
    """The most by which it changes such a number; numbers below 0 count as 0."""

    restores: bool = False
    """Whether it adds what the same function subtracts elsewhere, so that the size of the number tells nothing."""

    @property
    def is_sweeping(self) -> bool:
        """Whether it changes such a number in every launch that was right, which shows little of it."""
        return self.counts and 0 < self.right == self.touched

    def is_detour(self, keys_are_right: bool) -> bool:
        """Whether it only leads round what is wrong, as with a larger bound of a loop, or one part for all the keys.

        Loops that read the right keys need no other bounds. What was right does not need far other ones either.
        """
        if not self.counts:
            return False
        far = self.by > 1 and not self.restores
        most = MOSTLY if self.order < UNLIKELY else MOSTLY_UNLIKELY
        if far and self.right and self.touched >= most * self.right:
            return True
        return not self.steps and (keys_are_right or (far and self.longer > 0))


@dataclass(eq=False)
class AtPlace(Candidate):
    """A change of a value at a place of the source, or with ``callers`` only where these calls lead to it."""

    key: Key = NOWHERE
    name: str = ""
    callers: tuple[Location, ...] | None = None
    called: Location = UNKNOWN_LOCATION
    """The line that tells these calls from others."""
    places: tuple[Location, ...] = ()
    element: str = ""
    """The type of the value's elements."""
    loads: bool = False
    """Whether the value is loaded, so that another one may be another element."""


@dataclass(eq=False)
class OfArguments(Candidate):
    """Other arguments of a kernel: for each name that of another one, a number to add, or that of a tensor.

    Kernels that only other cases launch get them too: the same code of the host may pass them. With ``kernels`` all
    these get them, because the launcher may pass one wrong number to several.
    """

    kernel: str = ""
    kernels: tuple[str, ...] = ()
    others: tuple[tuple[str, Other], ...] = ()
    place: Location = UNKNOWN_LOCATION

    @property
    def is_of_stages(self) -> bool:
        """Whether it lets a kernel agree with one that is launched before it."""
        return any(isinstance(other, OfLaunch) for _, other in self.others)


@dataclass(eq=False)
class OfGrid(Candidate):
    """Other programs of a kernel along an axis of its grid: some times as many and more, or the size of a tensor.

    Programs that are not needed return at once, so that only a grid which is too small becomes right with more. With
    ``fewer`` it is the size of a tensor, which right launches bear only if the other programs answer no row.
    """

    kernel: str = ""
    axis: int = 0
    times: int = 1
    more: int = 0
    size: OfTensor | None = None
    fewer: bool = False
    shared: bool = False
    """Whether kernels that only other cases launch have the same number of programs along the axis."""
    before: Grid = (1, 1, 1)
    place: Location = UNKNOWN_LOCATION

    def grid(self, grid: Grid, arguments: dict[str, Any]) -> Grid:
        """Return the grid of a launch with more programs, or with fewer."""
        number: Any = grid[self.axis] * self.times + self.more
        if self.size is not None:
            tensor = arguments.get(self.size.tensor)
            number = self.size.of(tensor) if isinstance(tensor, torch.Tensor) else None
        if number is None:
            return grid
        if self.fewer:
            return along(grid, self.axis, min(max(int(number), 1), grid[self.axis]))
        return along(grid, self.axis, max(int(number), grid[self.axis]))


NO_NUMBER: Final = OfTensor("", "shape", 0)


@dataclass(eq=False)
class OfConstant(Candidate):
    """Another number for a constant of a kernel: a stride or a size of a tensor that it is launched with."""

    kernel: str = ""
    name: str = ""
    number: OfTensor | OfLaunch | RoundedUp = NO_NUMBER
    place: Location = UNKNOWN_LOCATION
    everywhere: bool = False
    """Whether all kernels with a constant of this name get the number, as the launcher may make it once for all."""

    def of(self, given: Mapping[str, Any], latest: Latest) -> int | None:
        """Return the number for a launch with some arguments and constants; None where these do not tell it."""
        if isinstance(self.number, OfLaunch):
            return _number(latest.get(self.number.kernel, {}).get(self.number.name))
        if isinstance(self.number, RoundedUp):
            number = _number(given.get(self.number.constant))
            return None if number is None else _power_of_two(number)
        tensor = given.get(self.number.tensor)
        return self.number.of(tensor) if isinstance(tensor, torch.Tensor) else None


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << max(number - 1, 0).bit_length()


def _number(value: Any) -> int | None:
    return value if value.__class__ is int else None


def in_all_kernels(constant: OfConstant) -> OfConstant:
    """Return the same number for the constants of this name of all kernels."""
    return replace(constant, everywhere=True)


def of_unlike_numbers(launches: Sequence[Launched]) -> Iterator[OfArguments | OfConstant]:
    """Yield the number of a kernel that was launched before, for a constant or an argument of the same name.

    Stages of one computation that disagree in it, such as in the size of a tile, divide their work in unlike ways.
    """
    seen = set[tuple[str, str, str]]()
    for index, launched in enumerate(launches):
        for before in launches[:index]:
            numbers = _numbers_by_name(before)
            for name, value in _numbers_of(launched):
                other = numbers.get(short_name(name).lower())
                pair = (launched.kernel, name, before.kernel)
                if other is None or other[1] == value or launched.kernel == before.kernel or pair in seen:
                    continue
                seen.add(pair)
                number = OfLaunch(before.kernel, other[0])
                yield _of_number(launched, name, number, UNLIKE)


def of_padded_constants(launched: Launched) -> Iterator[OfConstant]:
    """Yield the next power of two of a constant for a like one that is smaller, as a tile of all its elements is."""
    for name, value in launched.constants.items():
        for other, least in launched.constants.items():
            if value < least and like_constants(name, other) and _power_of_two(value) == value > 0:
                yield _of_constant(launched, name, RoundedUp(other), PADDED)


def _numbers_of(launched: Launched) -> Iterator[tuple[str, int]]:
    """Yield the constants and the whole numbers that a kernel is launched with; those of memory differ rightly."""
    passed = ((name, value) for (name, type_), value in launched.arguments.items() if type_ in ("i32", "i64"))
    for name, value in (*launched.constants.items(), *passed):
        if "stride" not in name and value.__class__ is int:
            yield name, value


def _numbers_by_name(launched: Launched) -> dict[str, tuple[str, int]]:
    return {short_name(name).lower(): (name, value) for name, value in _numbers_of(launched)}


def _of_number(launched: Launched, name: str, number: OfLaunch, order: float) -> OfArguments | OfConstant:
    if name in launched.constants:
        return _of_constant(launched, name, number, order)
    found = OfArguments(order, name, number.words, kernel=launched.kernel, others=((name, number),))
    found.place, found.counts = launched.location, True
    return found


def _of_constant(launched: Launched, name: str, number: OfTensor | OfLaunch | RoundedUp, order: float) -> OfConstant:
    found = OfConstant(order, short_name(name), number.words, kernel=launched.kernel)
    found.name, found.number, found.place = name, number, launched.location
    return found


def telling_call(callers: tuple[Location, ...] | None, others: Iterable[tuple[Location, ...]]) -> Location:
    """Return the innermost of some calls in which ``others`` that lead to the same place differ."""
    differ = (
        call for depth, call in enumerate(callers or ()) if any(each[depth : depth + 1] != (call,) for each in others)
    )
    return next(differ, UNKNOWN_LOCATION)


def of_constants(launched: Launched) -> Iterator[OfConstant]:
    """Yield other numbers for each constant of a launch that may be a size, those with a like name first."""
    for (tensor, _), given in launched.arguments.items():
        for axis in range(given.dim() if isinstance(given, torch.Tensor) else 0):
            number = OfTensor(tensor, "shape", axis)
            for constant, value in launched.constants.items():
                if value > 1 and number.of(given) not in (0, value):
                    yield _of_constant(launched, constant, number, CONSTANT + (not similar(constant, tensor)))


def along(grid: Grid, axis: int, number: int) -> Grid:
    """Return a grid with another number of programs along an axis."""
    x, y, z = (number if place == axis else extent for place, extent in enumerate(grid))
    return x, y, z


def programs(grid: Grid) -> str:
    """Return a grid in words.

    >>> programs((2, 1, 4))
    '2 x 1 x 4 programs'
    """
    return f"{' x '.join(map(str, grid))} programs"


def of_arguments(launched: Launched) -> Iterator[OfArguments]:
    """Yield other arguments of a launch: another one of the type, two exchanged, one more or less."""
    arguments, types = launched.arguments, dict(launched.arguments.keys())

    def candidate(order: float, old: str, new: str, *others: tuple[str, Other]) -> OfArguments:
        found = OfArguments(order, old, new, kernel=launched.kernel, others=others, place=launched.location)
        found.counts = types[others[0][0]] in ("i32", "i64")
        return found

    for ((name, type_), value), ((other, other_type), other_value) in combinations(arguments.items(), 2):
        if type_ != other_type or _same(value, other_value) or (type_[0] == "*" and not similar(name, other)):
            continue
        alike = similar(name, other) and are_both_strides(name, other)
        rank = 1.5 if alike else 5.5
        if alike:
            pair = ((name, other), (other, name))
            yield candidate(rank, f"{name} and {other}", f"{other} and {name}", *pair)
        for one, new in ((name, other), (other, name)):
            if "stride" in one or "stride" not in new:  # a size may be passed for a stride, and hardly the reverse
                yield candidate(rank, one, new, (one, new))
    for tensor, names in _strides_by_tensor(launched).items():
        own = tuple((name, OfTensor(tensor, "stride", axis)) for axis, name in enumerate(names))
        given = {name: value for (name, _), value in arguments.items()}
        wrong = [(name, stride) for name, stride in own if stride.of(given[tensor]) not in (None, given[name])]
        if wrong and len(own) > 1:
            # One that is wrong here may be one of several, which agree by chance in a small case.
            named, order = (wrong, 1.4) if len(wrong) > 1 else (own, 1.6)
            old, new = (
                " and ".join(words) for words in zip(*((name, each.words) for name, each in named), strict=True)
            )
            yield candidate(order, old, new, *own)
    for (name, type_), value in arguments.items():
        if type_ in ("i32", "i64"):
            for number in _numbers_of_tensors(name, value, launched):
                yield candidate(1.5, name, number.words, (name, number))
            for step in (1, -1):
                yield candidate(2.5, name, f"{name} {'+' if step > 0 else '-'} 1", (name, step))


def of_shared_arguments(found: Iterable[OfArguments]) -> Iterator[OfArguments]:
    """Yield each change of arguments that is one of several kernels as a change of all of them."""
    alike: dict[tuple[str, str], list[OfArguments]] = {}
    for candidate in found:
        alike.setdefault((candidate.old, candidate.new), []).append(candidate)
    for several in alike.values():
        kernels = tuple(dict.fromkeys(candidate.kernel for candidate in several))
        if len(kernels) > 1:
            yield replace(several[0], kernels=kernels)


def _strides_by_tensor(launched: Launched) -> dict[str, list[str]]:
    """Return the arguments that are the strides of each tensor, in their order, which is that of its axes."""
    found: dict[str, list[str]] = {}
    tensors = {name for (name, _), value in launched.arguments.items() if isinstance(value, torch.Tensor)}
    for name, _ in launched.arguments:
        prefix, stride, _ = name.partition("stride")
        for tensor in (f"{prefix}ptr", prefix.rstrip("._")):
            if stride and tensor in tensors:
                found.setdefault(tensor, []).append(name)
                break
    return found


def _numbers_of_tensors(name: str, value: Any, launched: Launched) -> Iterator[OfTensor]:
    """Yield the strides of tensors with a like name, and their sizes, which are other numbers than an argument."""
    for (tensor, _), given in launched.arguments.items():
        if isinstance(given, torch.Tensor) and similar(name, tensor):
            for axis in range(given.dim()):
                numbers = (OfTensor(tensor, "stride", axis), OfTensor(tensor, "shape", axis))
                yield from (number for number in numbers if number.of(given) != value)


def _same(value: Any, other: Any) -> bool:
    """Return whether two arguments are the same number or tensor."""
    if isinstance(value, torch.Tensor):
        return value is other
    return not isinstance(other, torch.Tensor) and bool(value == other)


def passed_with(passed: dict[str, Any], others: Iterable[tuple[str, Other]], latest: Latest) -> dict[str, Any]:
    """Return the arguments of a launch with others in their place."""
    changed = dict(passed)
    for name, other in others:
        if name in passed and isinstance(other, int):
            changed[name] = passed[name] + other
        elif name in passed and isinstance(other, OfTensor):
            number = other.of(passed[other.tensor]) if other.tensor in passed else None
            changed[name] = passed[name] if number is None else number
        elif name in passed and isinstance(other, OfLaunch):
            known = _number(latest.get(other.kernel, {}).get(other.name))
            changed[name] = passed[name] if known is None else known
        elif name in passed and isinstance(other, str) and other in passed:
            changed[name] = passed[other]
    return changed


GROWTHS: Final = ((2, 1), (16, 0))
"""By which factor a grid grows, and by how much more: to a number rounded up, or to that of another unit."""


def of_grids(launched: Launched, *, surplus: bool = False) -> Iterator[OfGrid]:
    """Yield more programs of a launch, along each axis; also fewer where some programs seem to be ``surplus``."""
    for axis, extent in enumerate(launched.grid):
        for (name, _), tensor in launched.arguments.items():
            sizes = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else ()
            for place, size in enumerate(sizes):
                number = OfTensor(name, "shape", place)
                if size > extent:
                    yield _other_programs(2.0, launched, axis, size=number)
                elif surplus and 0 < size < extent:
                    yield _other_programs(1.0, launched, axis, size=number, fewer=True)
        for times, more in GROWTHS:
            yield _other_programs(1.0, launched, axis, times=times, more=more)


def _other_programs(order: float, launched: Launched, axis: int, **how: Any) -> OfGrid:
    old = programs(launched.grid)
    found = OfGrid(order, old, "more", kernel=launched.kernel, axis=axis, before=launched.grid, **how)
    found.place = launched.location
    arguments = {name: value for (name, _), value in launched.arguments.items()}
    found.new = programs(found.grid(launched.grid, arguments))
    return found
