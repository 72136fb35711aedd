"""Verdict: what one property says of one case on one target. Plain data, so that it crosses processes and files."""

from typing import Literal, TypeAlias

from fuzz_attn.case.plain import Count, Plain

Kind: TypeAlias = Literal[
    "ok",
    "mismatch",
    "nan",
    "inf",
    "unwritten",
    "written_outside",
    "input_changed",
    "nondeterministic",
    "poison_dependent",
    "different_bits",
    "out_of_bounds",
    "uninitialised",
    "race",
    "overflow",
    "exception",
    "crash",
    "timeout",
]
"""``ok``, or what is wrong: a finite element beyond its bound, NaN or Inf where the oracle is finite, an element never
written, an element written that nobody owns, an input changed, two launches that differ, an output that depends on dead
slots, another launch that must give the same bits and does not, an access outside of a tensor's own elements, a read of
scratch never written, two programs that store different values, an index that wraps, an exception of the target, the
death of its process, a launch that does not end."""

Where: TypeAlias = Literal[
    "",
    "everywhere",
    "one_sequence",
    "tail_rows",
    "window_rows",
    "padded_head",
    "some_heads",
    "some_columns",
    "scattered",
]
"""Where in the output the wrong elements lie, in one word; empty when nothing is wrong with elements."""


class Element(Plain, frozen=True):
    """One output element, found by its token, query head and column, with what stands there and what should.

    ``sequence`` and ``query_index`` (row inside of that sequence) say the same as ``token``, for a reader; -1 for
    a token that belongs to no sequence. Numbers are ``repr`` texts, since JSON has no NaN.
    """

    token: Count
    head: Count
    column: Count
    sequence: int
    query_index: int
    actual: str
    expected: str
    bound: str


class Verdict(Plain, frozen=True):
    """The answer of one property. ``ratio`` is the largest ``err / bound``, None where none was measured.

    ``wrong`` counts the wrong elements out of ``elements``; ``worst`` lists a few, non-finite ones first.
    """

    property_name: str
    kind: Kind = "ok"
    message: str = ""
    ratio: float | None = None
    where: Where = ""
    wrong: int = 0
    elements: int = 0
    worst: tuple[Element, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the property holds."""
        return self.kind == "ok"
