"""AspectTable: all aspects of an operation's cases, the traits that a case has, and the features that no case has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from fuzz_attn.case.aspects import FEATURES, KINDS, NUANCES, ODDITIES, Aspect, Feature, words_of


def named(relation: str) -> str:
    """Return the trait of a case that is checked for a metamorphic relation."""
    return f"relation {relation}"


ANY_RELATION: Final = "any relation"
"""The trait of every case that is checked for some relation."""


class AspectTable:
    """All aspects of an operation's cases.

    ``oddities`` are features and what else is unusual, ``kinds`` are types and sizes, ``nuances`` are traits of simple
    cases too. ``traits`` are those that the shrinker drops; a failure needs none of the others but nuances.
    """

    def __init__(self, oddities: tuple[Aspect, ...], kinds: tuple[Aspect, ...], nuances: tuple[Aspect, ...]) -> None:
        self.oddities, self.kinds, self.nuances = oddities, kinds, nuances
        self.traits = tuple(aspect for aspect in (*oddities, *kinds) if aspect.trait)
        self.levelled = tuple(aspect for aspect in (*oddities, *kinds, *nuances) if aspect.levels)
        self._nuances = frozenset(aspect.words for aspect in nuances)
        self._size_of = {
            aspect.above.format(level): aspect.above for aspect in self.levelled for level in aspect.levels
        }

    def traits_of(self, case: Any, relation: str | None = None, added: Aspect | None = None) -> tuple[str, ...]:
        """Return the traits of a case, in a fixed order; a case above a level is above all lower ones too.

        ``added`` is what the second launch of its relation has beside those of the case.
        """
        all_traits = (*self.traits, *self.nuances)
        present = (aspect for aspect in all_traits if aspect is added or aspect.present(case))
        own = (words for aspect in present for words in aspect.words_in(case))
        related = (named(relation), ANY_RELATION) if relation else ()
        sizes = (aspect.above.format(level) for aspect in self.levelled for level in aspect.levels_of(case))
        return (*own, *sizes, *related)

    def needed_by(self, case: Any, relation: str | None) -> tuple[str, ...]:
        """Return all that a case may need to fail: its traits without nuances, of each size the highest level."""
        own = [words for aspect in self.traits if aspect.present(case) for words in aspect.words_in(case)]
        sizes = [aspect.above.format(levels[-1]) for aspect in self.levelled if (levels := aspect.levels_of(case))]
        return (*own, *sizes, *((named(relation),) if relation else ()))

    def core(self, trigger: Iterable[str]) -> frozenset[str]:
        """Return a trigger without what depends on where shrinking ended: nuances, and the levels of sizes."""
        return frozenset(self._size_of.get(trait, trait) for trait in trigger if trait not in self._nuances)


TABLE: Final = AspectTable(ODDITIES, KINDS, NUANCES)
"""All aspects of attention."""


Reason: TypeAlias = Literal["no parameter", "layout", "not promised", "left out", "refused", "backend"]

NotDrawn: TypeAlias = dict[Feature, Reason]

WORDS: Final[dict[Reason, str]] = {
    "no parameter": "no parameter",
    "layout": "not in this layout of the caches",
    "not promised": "no signature promises that; `promises` of a binding can (docs/targets.md)",
    "left out": "left out by its domain",
    "refused": "refused",
    "backend": "only in the simulator",
}
"""Each reason, in the order in which they are listed."""

FEATURE_OF_WORDS: Final[dict[str, Feature]] = {aspect.words: name for name, aspect in FEATURES.items()}


def sentences(found: Mapping[Feature, Reason]) -> Iterator[str]:
    """Yield the features that are not drawn for each reason: ``soft cap, sinks: no parameter``."""
    for reason, words in WORDS.items():
        features = words_of([name for name, why in found.items() if why == reason])
        if features:
            yield f"{', '.join(features)}: {words}"
