"""Kernel coverage: which outcomes of masks, and which configurations, a target's kernels showed in a campaign.

A mask that was never mixed is an untested boundary. The simulator records the mask of each load, store and select, and
the condition of each branch and loop, in every program of every launch; see :class:`Mask`. A run writes the records of
all its shards into one file, :class:`CoverageFile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.plain import Plain, Whole
from fuzz_attn.errors import CoverageError
from fuzz_attn.foreign_files import content_of, write_new

SCHEMA: Final = 1
"""The version of the file's format."""
FILE_NAME: Final = "coverage.json"

Outcome: TypeAlias = Literal["all true", "all false", "mixed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("all true", "all false", "mixed")


class Mask(Plain, frozen=True, omit_defaults=False):
    """A mask of a kernel, and the outcomes that it showed in single programs.

    ``kernel`` is the launched function, ``file`` and ``line`` the place of ``text``, possibly in a helper that the
    kernel calls. ``kind`` is load, store, atomic_rmw, atomic_cas, select, branch or while. ``ordinal`` counts the masks
    of one kind on one line of the compiled kernel. ``several`` is true if the mask has more than one element in some
    compilation, so that it can be mixed.

    All compilations of a kernel count together. What a compilation decides at compile time (an unmasked access, a flag)
    is no mask of it. A mask that is computed but has only one possible outcome (``dim < HEAD_SIZE`` without padding) is
    recorded as all true.
    """

    file: str
    line: Whole
    kernel: str
    kind: str
    ordinal: Whole
    text: str
    several: bool
    seen: tuple[Outcome, ...]

    @property
    def place(self) -> tuple[str, int, str, str, int, str]:
        """The identity of the mask, which sorts masks in the order of the source."""
        return self.file, self.line, self.kernel, self.kind, self.ordinal, self.text

    @property
    def missing(self) -> tuple[Outcome, ...]:
        """The possible outcomes that the mask did not show."""
        return tuple(outcome for outcome in OUTCOMES[: 3 if self.several else 2] if outcome not in self.seen)


class TargetCoverage(Plain, frozen=True, omit_defaults=False):
    """The masks that the cases of one target showed.

    ``fallback`` is an operation that the simulator cannot run, so that some cases recorded no masks; empty where there
    is none.
    """

    target: str
    backend: str
    fallback: str
    cases: Whole
    masks: tuple[Mask, ...]


class CoverageFile(Plain, frozen=True, omit_defaults=False):
    """The content of a run's file ``coverage.json``."""

    schema: Annotated[int, Meta(ge=1, le=SCHEMA)]
    targets: tuple[TargetCoverage, ...]


def merged(masks: Iterable[Mask]) -> tuple[Mask, ...]:
    """Return each mask once with the outcomes of all its records, in the order of the source."""
    found: dict[tuple[str, int, str, str, int, str], Mask] = {}
    for mask in masks:
        known = found.get(mask.place)
        found[mask.place] = mask if known is None else _joined(known, mask)
    return tuple(found[place] for place in sorted(found))


def _joined(one: Mask, other: Mask) -> Mask:
    if one == other:
        return one
    seen = tuple(outcome for outcome in OUTCOMES if outcome in one.seen or outcome in other.seen)
    return msgspec.structs.replace(one, several=one.several or other.several, seen=seen)


def outcomes(masks: Iterable[Mask]) -> int:
    """Return the number of outcomes that the masks showed."""
    return sum(len(mask.seen) for mask in masks)


def missing(masks: Iterable[Mask]) -> tuple[Mask, ...]:
    """Return the masks with a missing outcome."""
    return tuple(mask for mask in merged(masks) if mask.missing)


def save(targets: Iterable[TargetCoverage], folder: Path) -> Path:
    """Write the coverage of a run into its folder and return the file's path."""
    path = folder / FILE_NAME
    found = CoverageFile(SCHEMA, tuple(targets))
    write_new(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path


def load(place: Path) -> tuple[TargetCoverage, ...]:
    """Return the coverage of a run from its folder or from the file itself.

    Raises :class:`CoverageError` if there is none or it cannot be read.
    """
    path = place / FILE_NAME if place.is_dir() else place
    try:
        return msgspec.json.decode(content_of(path), type=CoverageFile).targets
    except OSError as error:
        raise CoverageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CoverageError(f"{path}: is no coverage of a run: {error}") from error


class KernelConfigurations(Plain, frozen=True):
    """The configurations of an autotuned kernel by their places: those that pruning ``left``, and the ``launched``."""

    kernel: str
    left: tuple[Whole, ...]
    launched: tuple[Whole, ...]


def merged_configurations(found: Iterable[KernelConfigurations]) -> tuple[KernelConfigurations, ...]:
    """Return what several launches or shards have launched together, one entry for each kernel."""
    kernels: dict[str, tuple[set[int], set[int]]] = {}
    for each in found:
        left, launched = kernels.setdefault(each.kernel, (set(), set()))
        left.update(each.left)
        launched.update(each.launched)
    return tuple(
        KernelConfigurations(kernel, tuple(sorted(left)), tuple(sorted(launched)))
        for kernel, (left, launched) in sorted(kernels.items())
    )


def covered(found: Iterable[KernelConfigurations]) -> str:
    """Return how many configurations were launched: ``12 of 12``, with the kernels' names where there are several."""
    kernels = list(found)
    counts = [f"{len(each.launched)} of {len(each.left)}" for each in kernels]
    if len(kernels) < 2:
        return "".join(counts)
    return ", ".join(f"{count} of {each.kernel}" for count, each in zip(counts, kernels, strict=True))
