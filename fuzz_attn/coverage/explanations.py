"""Explanations: why some masks of this project's own kernels cannot show every outcome, so that what is left is news.

They lie in ``explanations.toml``, anchored by source text and not by line. A test fails where a campaign sees what one
of them says never happens. The kernels of others have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePath
from typing import Final, NamedTuple, cast, get_args

import msgspec

from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.coverage import mask_coverage
from fuzz_attn.coverage.mask_coverage import Mask, Outcome

FILE: Final = Path(__file__).with_name("explanations.toml")
_OWN: Final = frozenset(get_args(Family))
"""The built-in targets, each named like its family."""


class Explanation(Plain, frozen=True):
    """Why masks on one source line never show some outcomes.

    ``file`` lies below kernels/ and has the line ``source`` once; ``continued`` is the line below that older versions
    of Triton name instead. ``kernels`` are the launched ones it holds for, in campaigns of the ``families``; none means
    all. ``ordinals`` are as a mask's, likewise.
    """

    file: str
    source: str
    never: tuple[Outcome, ...]
    because: str
    continued: str = ""
    kernels: tuple[str, ...] = ()
    families: tuple[Family, ...] = ()
    ordinals: tuple[int, ...] = ()

    def covers(self, mask: Mask, family: str) -> bool:
        """Return whether this is about a mask, in a campaign of a family."""
        return (
            PurePath(mask.file).match(self.file)
            and mask.text in {self.source, self.continued or self.source}
            and (not self.kernels or mask.kernel in self.kernels)
            and (not self.families or family in self.families)
            and (not self.ordinals or mask.ordinal in self.ordinals)
        )


class Gap(NamedTuple):
    """A mask with outcomes that a campaign did not show; ``because`` is empty, or says why none of them can be."""

    mask: Mask
    missing: tuple[Outcome, ...]
    because: str = ""


class Explanations(Plain, frozen=True):
    """The file: the kernels that each family's launcher starts, and what explains their gaps."""

    kernels: dict[Family, tuple[str, ...]]
    explanation: tuple[Explanation, ...]


@cache
def load() -> Explanations:
    """Return what the file says."""
    return msgspec.toml.decode(FILE.read_bytes(), type=Explanations)


def gaps(masks: Iterable[Mask], target: str) -> tuple[Gap, ...]:
    """Return a gap for each mask that lacks an outcome: what nothing explains of it, or all of it and why."""
    return tuple(_gap(mask, target) for mask in mask_coverage.missing(masks))


def _gap(mask: Mask, target: str) -> Gap:
    visited = _visited(mask, target)
    if visited:
        return Gap(mask, mask.missing, visited)
    about = [entry for entry in _about(mask, target) if set(entry.never) & set(mask.missing)]
    explained = {outcome for entry in about for outcome in entry.never}
    left = tuple(outcome for outcome in mask.missing if outcome not in explained)
    return Gap(mask, left) if left else Gap(mask, mask.missing, "; ".join(entry.because for entry in about))


def _visited(mask: Mask, target: str) -> str:
    """Return why a kernel of another family may show little in a campaign of this one; empty for its own."""
    if target not in _OWN:
        return ""
    family = next((family for family, kernels in load().kernels.items() if mask.kernel in kernels), target)
    ours = mask.kernel in load().kernels[cast(Family, target)]
    return "" if ours or family == target else f"run by the relation other_family alone: {family} campaigns show it"


def _about(mask: Mask, target: str) -> list[Explanation]:
    return [entry for entry in load().explanation if entry.covers(mask, target)] if target in _OWN else []


def in_short(masks: tuple[Mask, ...], target: str) -> str:
    """Return the coverage in one line."""
    lacking = gaps(masks, target)
    left = [gap for gap in lacking if not gap.because]
    words = [f"{len(masks) - len(lacking)} of {len(masks)} masks seen all true, all false and mixed"]
    if len(lacking) > len(left):
        words.append(f"{len(lacking) - len(left)} explained")
    never_mixed = sum("mixed" in gap.missing for gap in left)
    if left:
        words.append(f"{len(left)} lacking" + f" ({never_mixed} never mixed)" * bool(never_mixed))
    return "; ".join(words)
