"""Semantic coverage: which masks and conditions of a target's kernels showed which outcomes in a campaign.

A mask that was never mixed is a boundary that nobody tested. The simulator looks at the mask of each load, store and
select, and at the condition of each branch and loop, in every program of every launch; see :class:`Mask`. A run keeps
what its shards saw in one file, :class:`CoverageFile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import CoverageError

SCHEMA: Final = 1
"""Raised whenever an old file would no longer mean the same."""
FILE_NAME: Final = "coverage.json"

Outcome: TypeAlias = Literal["all true", "all false", "mixed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("all true", "all false", "mixed")


class Mask(Plain, frozen=True, omit_defaults=False):
    """A mask of a kernel, and the outcomes that it showed in single programs.

    ``kernel`` is the launched function, ``file`` and ``line`` the source line, maybe of a helper that the kernel calls.
    ``kind`` is load, store, atomic_rmw, atomic_cas, select, branch or while; ``ordinal`` counts those of one kind on
    one line in the compiled kernel. All compilations of a kernel count together. What one of them decides at compile
    time (an unmasked access, a flag) is no mask of that compilation and says nothing here; a mask that has to be
    computed and cannot come out otherwise (``dim < HEAD_SIZE`` without padding) is all true. ``several`` tells that it
    has more than one element in some compilation, and so can be mixed. ``text`` is the source line.
    """

    file: str
    line: int
    kernel: str
    kind: str
    ordinal: int
    text: str
    several: bool
    seen: tuple[Outcome, ...]

    @property
    def place(self) -> tuple[str, int, str, str, int, str]:
        """What makes two masks the same; in the order in which one would read them."""
        return self.file, self.line, self.kernel, self.kind, self.ordinal, self.text

    @property
    def missing(self) -> tuple[Outcome, ...]:
        """The outcomes that it could show and did not."""
        return tuple(outcome for outcome in OUTCOMES[: 3 if self.several else 2] if outcome not in self.seen)


class TargetCoverage(Plain, frozen=True, omit_defaults=False):
    """What the cases of one target showed. ``fallback`` tells why the backend that sees masks was given up, if it was.

    The masks are then those that were seen before.
    """

    target: str
    backend: str
    fallback: str
    cases: int
    masks: tuple[Mask, ...]


class CoverageFile(Plain, frozen=True, omit_defaults=False):
    """The file ``coverage.json`` of a run."""

    schema: Annotated[int, Meta(ge=1, le=SCHEMA)]
    targets: tuple[TargetCoverage, ...]


def merged(masks: Iterable[Mask]) -> tuple[Mask, ...]:
    """Return each mask once, with all outcomes that any of its records shows, in the order of the source."""
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


def missing(masks: Iterable[Mask]) -> tuple[Mask, ...]:
    """Return the masks that have not shown every outcome that they can, each naming it in ``missing``."""
    return tuple(mask for mask in merged(masks) if mask.missing)


def save(targets: Iterable[TargetCoverage], folder: Path) -> Path:
    """Write the coverage of a run into its folder; return the file's path."""
    path = folder / FILE_NAME
    found = CoverageFile(SCHEMA, tuple(targets))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path


def load(place: Path) -> tuple[TargetCoverage, ...]:
    """Return the coverage of a run from its folder, or from the file itself.

    Raises :class:`CoverageError` where there is none or it cannot be read.
    """
    path = place / FILE_NAME if place.is_dir() else place
    try:
        return msgspec.json.decode(path.read_bytes(), type=CoverageFile).targets
    except OSError as error:
        raise CoverageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CoverageError(f"{path}: is no coverage of a run: {error}") from error
