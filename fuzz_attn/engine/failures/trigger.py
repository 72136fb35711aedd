"""Trigger: the traits that a shrunk failure needs.

A trait is needed if the case passes without it. Where it fails without it, but another known failure may be the cause,
nothing is known, and the trait does not count. So a failure that had to be shrunk around a frequent one is recognised
in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from fuzz_attn.case import traits
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.traits import ANY_RELATION, FEATURES, KINDS, NUANCES, SIZES, Size, Trait
from fuzz_attn.engine.failures.simplification import allowed, changed
from fuzz_attn.engine.messages import Order
from fuzz_attn.properties.relations import relations_of

Shown: TypeAlias = Literal["passes", "fails", "other"]
"""An order passes, shows the failure, or shows one that another known failure may have caused."""
Judge: TypeAlias = Callable[[Order], Shown]

SMALL_PAGES: Final = (2, 1, 4)
OTHER_RELATIONS: Final = 3


def trigger_of(order: Order, judge: Judge, domain: Domain) -> tuple[str, ...]:
    """Return the traits that a shrunk order of a domain needs to fail.

    Traits of the simplest case too, such as a partly filled page, count if the order passes without them. The number of
    keys counts only as far as the number of pages does not explain it.
    """
    return _Trigger(order, judge, domain).traits()


class _Trigger:
    def __init__(self, order: Order, judge: Judge, domain: Domain) -> None:
        self._order = order
        self._judge = judge
        self._domain = domain

    def traits(self) -> tuple[str, ...]:
        case = self._order.case
        own = [trait.name for trait in (*FEATURES, *KINDS) if trait.present(case) and self._needs(trait, unless=True)]
        nuances = [trait.name for trait in NUANCES if trait.present(case) and self._needs(trait, unless=False)]
        smaller = self._on_small_pages()
        sizes = [level for size in SIZES for level in self._level(size, smaller or self._order)]
        return (*own, *nuances, *sizes, *self._relation())

    def _needs(self, trait: Trait, *, unless: bool) -> bool:
        """Return whether the order passes without a trait; ``unless`` there is no such case."""
        without = self._allowed(changed(self._order, trait.without))
        return unless if without is None else self._judge(without) == "passes"

    def _allowed(self, order: Order | None) -> Order | None:
        return order if order is not None and allowed(order, self._domain) else None

    def _level(self, size: Size, order: Order) -> Iterator[str]:
        """Yield the highest threshold of a size below which the order passes, if there is one."""
        for level in reversed(size.levels(order.case)):
            lower = self._allowed(changed(order, partial(_limited, size=size, level=level)))
            if lower is None or self._judge(lower) == "passes":
                yield size.words.format(level)
                return

    def _on_small_pages(self) -> Order | None:
        """Return the order with as many smaller pages if it fails, None if it has one page only or passes."""
        pages = self._order.case.pages.block_size
        if self._order.case.max_seq_len <= pages:
            return None
        for size in SMALL_PAGES:
            smaller = self._allowed(changed(self._order, partial(traits.with_page_size, size=size)))
            if size < pages and smaller is not None and self._judge(smaller) == "fails":
                return smaller
        return None

    def _relation(self) -> Iterator[str]:
        """Yield the relation if the order passes without it: any one, if others show the failure too."""
        order = self._order
        if order.relation is None or self._judge(Order(order.case)) != "passes":
            return
        others = [name for name in relations_of(order.case, self._domain) if name != order.relation]
        orders = (msgspec.structs.replace(order, relation=name) for name in others[:OTHER_RELATIONS])
        any_shows = any(self._judge(other) == "fails" for other in orders)
        yield ANY_RELATION if any_shows else traits.named(order.relation)


def _limited(case: AttentionCase, size: Size, level: int) -> AttentionCase:
    return size.limited(case, level)
