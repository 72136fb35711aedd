"""Explanation: why a case fails, in words with a reason, and the weights that show it; plain data.

Phrases for keys, rows and numbers are here too, which several findings share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.plain import Plain


class Row(NamedTuple):
    """One query token of one query head, with its place in its sequence and the KV head that it must read."""

    token: int
    head: int
    sequence: int
    query: int
    position: int
    kv_head: int
    end: int
    """The keys up to the last that it may see."""

    @property
    def words(self) -> str:
        """The row without its head."""
        return f"query {self.query} of sequence {self.sequence}"


def rows_of_case(case: AttentionCase) -> list[Row]:
    """Return all rows that the target answers, token by token."""
    rows, token, group = [], 0, case.heads.num_queries_per_kv
    for index, (sequence, answers) in enumerate(zip(case.sequences, case.answers, strict=True)):
        for query in range(sequence.query_len):
            if answers:
                position = case.visibility.position(query, sequence.context_len)
                end = case.visibility.last(position, sequence.seq_len) + 1
                heads = range(case.heads.num_query_heads)
                rows += [Row(token, head, index, query, position, head // group, end) for head in heads]
            token += 1
    return rows


def ranges(numbers: Iterable[int]) -> str:
    """Return integers in words: ``3``, ``3 to 7``, ``1, 3 and 5 to 8``."""
    ordered = sorted(set(numbers))
    runs = [list(run) for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    parts = []
    for run in runs:
        first, last = run[0][1], run[-1][1]
        parts += [f"{first} to {last}"] if last - first > 1 else [str(number) for _, number in run]
    shown = parts if len(parts) <= 6 else [*parts[:5], f"{len(parts) - 5} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def keys(positions: Iterable[int]) -> str:
    """Return keys in words: ``key 3`` or ``keys 3 to 7``."""
    ordered = sorted(set(positions))
    return f"key{'s' * (len(ordered) != 1)} {ranges(ordered)}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


LARGEST_FACTOR: Final = 1024.0
"""A factor beyond this, or below its inverse, is none that somebody forgot: the numbers come from elsewhere."""


def is_plausible(number: float) -> bool:
    """Return whether a number may be a factor that a kernel applies too often or never.

    >>> is_plausible(-0.5), is_plausible(4e-31), is_plausible(float("inf"))
    (True, False, False)
    """
    return 1.0 / LARGEST_FACTOR <= abs(number) <= LARGEST_FACTOR


def factor(number: float) -> str:
    """Return a factor in words: as a fraction where it is one of a small integer, and never as 1 unless it is 1.

    >>> factor(0.5), factor(2.5), factor(1.00003), factor(0.9997)
    ('1/2', '2.5', '1.00003', '0.9997')
    """
    inverse = 1.0 / number if number else math.inf
    if abs(number) < 0.75 and abs(inverse) < 1000 and abs(inverse - round(inverse)) < 1e-3 * abs(inverse):
        return f"{'-' * (number < 0)}1/{abs(round(inverse))}"
    from_one = abs(number - 1.0)
    digits = 4 if from_one > 0.01 or not from_one else min(16, 2 - math.floor(math.log10(from_one)))
    return f"{number:.{digits}g}"


Reason: TypeAlias = Literal[
    "causal",
    "window",
    "mask",
    "tail",
    "page",
    "tile",
    "segment",
    "head mapping",
    "bias",
    "slope",
    "sink",
    "scale",
    "soft cap",
    "denominator",
    "foreign sequence",
    "address",
    "unwritten",
    "earlier call",
    "contract",
    "race",
    "operation",
    "arithmetic",
    "unknown",
]
"""What is wrong:

- a mask: the causal limit, the sliding ``window`` or a chunk, a custom ``mask``, or keys behind the sequence's end
  (``tail``);
- a part of the keys: a ``page``, a ``tile``, or a ``segment`` (of a launch in segments, or the context or the new
  tokens as a whole);
- the KV head or query head of a row (``head mapping``), or its sequence (``foreign sequence``, also stale keys);
- a term of the score or of the denominator: query-query ``bias``, ALiBi ``slope``, ``sink``, ``scale``, ``soft cap``;
- a ``denominator`` that does not fit the weights;
- an ``address``: strides, offsets, columns;
- elements that are never written, or written that must not be (``unwritten``);
- an element that two programs, or two lanes of one, use without an order, and one of them writes (``race``);
- an ``operation`` of the kernel, or an argument, that should be another one, as a change shows that makes all right, or
  that Triton does not compile;
- something that an ``earlier call`` of the target has left;
- an argument in an unusual form that is neither read rightly nor refused (``contract``);
- only the size of the errors is wrong (``arithmetic``);
- it could not be told (``unknown``)."""

REASONS = get_args(Reason)

UNTOLD: Final = frozenset(("scale", "denominator", "address", "unwritten", "race", "arithmetic", "unknown"))
"""Reasons whose words would be those of different bugs but for their numbers."""
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:/\d+)?\b")


def without_numbers(words: str) -> str:
    """Return words in which every number, and every list of numbers with the plural before it, is one sign.

    >>> without_numbers("query 0 attends keys 3 to 7 and 9"), without_numbers("query 12 attends key 4")
    ('query # attends key #', 'query # attends key #')
    """
    lists = re.sub("#(?:(?:, | and | to )#)+(?: more)?", "#", _NUMBER.sub("#", words))
    return re.sub("s? #", " #", lists)


class Finding(Plain, frozen=True):
    """One thing that is wrong, in one sentence. A ``vague`` one could have several reasons; a longer case may tell.

    ``cause`` is what other cases of the same bug show too, where their words differ. With ``in_host`` the mistake is
    known to be in code of the host, so no change of a kernel is looked for.
    """

    reason: Reason
    words: str
    vague: bool = False
    cause: str = ""
    in_host: bool = False


OR: Final = ", or "
"""What joins several mistakes in the words of a vague finding."""


def told_apart(own: Finding, other: Finding) -> Finding | None:
    """Return a vague finding as what another case tells of it: its words, or one of the mistakes that they name.

    None where the other case tells something else.

    >>> told_apart(Finding("sink", "query 0: A, or B", vague=True), Finding("scale", "query 7: B"))
    Finding(reason='scale', words='query 0: B', vague=False, cause='', in_host=False)
    """
    subject, colon, mistakes = own.words.partition(": ")
    possible = (f"{subject}{colon}{mistake}" for mistake in mistakes.split(OR)) if colon else (own.words,)
    shared = next((words for words in possible if without_numbers(words) == without_numbers(other.words)), None)
    return None if shared is None or other.vague else Finding(other.reason, shared, cause=other.cause)


def cut_words(number: int, right: int) -> str:
    """Return that a number is another one cut to fewer bits, in words; nothing where it is not.

    >>> cut_words(-43, 213), cut_words(0, 65536), cut_words(3, 4)
    (', which is page or slot 213 cut to 8 bits', ', which is page or slot 65536 cut to 16 bits', '')
    """
    for bits in (8, 16, 32):
        size = 1 << bits
        if number != right and number in (right % size, (right + size // 2) % size - size // 2):
            return f", which is page or slot {right} cut to {bits} bits"
    return ""


class Heatmap(Plain, frozen=True):
    """The weights of one head of one sequence: a row for each query shown, a column for each key from ``first_key`` on.

    ``visible`` has a text for each row, with ``1`` for each key that the row sees and ``0`` for the others.
    Weights are -1 where they could not be read.
    """

    sequence: int
    head: int
    queries: tuple[int, ...]
    first_key: int
    seq_len: int
    actual: tuple[tuple[float, ...], ...]
    expected: tuple[tuple[float, ...], ...]
    visible: tuple[str, ...]
    uniform: bool = False
    """Whether q was set to 0 for these weights, so that the kernel should weigh all keys that it sees equally."""


class FirstOperation(Plain, frozen=True):
    """The first operation whose value is another one than in a healthy kernel, in words.

    ``site`` is its ``file:line`` and ``source`` the text of that line; both are empty where no operation could be
    named, and then ``words`` say why. ``where`` is the kernel and its program. ``own_lines`` are lines that the value
    comes from and that the healthy kernel does not have, each as ``file:line: text``; ``healthy_lines`` are those that
    it has instead. ``notes`` say what differs outside of the kernels.
    """

    words: str
    site: str = ""
    source: str = ""
    where: str = ""
    own_lines: tuple[str, ...] = ()
    healthy_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


FEWEST_RIGHT: Final = 4
"""Launches that a change must leave right, for it to be more than one way to hide a mistake."""


class Repair(Plain, frozen=True):
    """One change of the kernel, or of what it is launched with, after which all launches that were tried are right.

    ``site`` is its ``file:line`` and ``source`` the text of that line. ``old`` is what stands there and ``new`` what
    should, both in words of the source. ``launches`` counts those that were tried, ``failed`` those of them that were
    wrong before. ``alternatives`` are changes elsewhere that do the same. With ``avoids`` loops or branches run in
    another way, so that the mistake may be elsewhere and only does not show. ``called_at`` is the call for which the
    change is made, where it is made for no other.
    """

    site: str
    source: str
    old: str
    new: str
    launches: int
    failed: int
    alternatives: tuple[str, ...] = ()
    avoids: bool = False
    called_at: str = ""

    @property
    def is_confirmed(self) -> bool:
        """Whether launches that were right were tried too: else nonsense may hold, such as another mask of zeros."""
        return self.launches - self.failed >= FEWEST_RIGHT

    @property
    def place(self) -> str:
        """The site without the folders of its file."""
        return self.site.rpartition("/")[2]

    @property
    def change(self) -> str:
        """The change in words."""
        called = f" where {self.called_at} calls it" if self.called_at else ""
        return f"`{self.old}` to `{self.new}`{called}"

    @property
    def sentence(self) -> str:
        """The change with its place, and how many launches it makes right."""
        other = f", or {self.alternatives[0]}" if self.alternatives else ""
        tried = f"{self.launches} of {self.launches} launches right, {self.failed} of which were wrong"
        avoids = "A change that avoids it, though the mistake may be elsewhere"
        what = avoids if self.avoids else "A change that makes it right"
        return f"{what}: {self.place}, {self.change}{other} ({tried})"


class Explanation(Plain, frozen=True):
    """Why a case fails: the findings, the most telling first, and the weights that show it where there are any.

    ``launches`` counts the calls that it took. ``longer`` is the larger case that the first finding is about, in words,
    where the case itself did not tell. ``operation`` is what a comparison with a healthy kernel found, if one was
    asked. ``only_with`` says with which configurations and optional arguments the case is wrong. ``repair`` is a change
    that makes the case and others near it right. ``keys_are_right`` says that with equal scores every row attends the
    keys that it sees, each of them, and no other.
    """

    findings: tuple[Finding, ...]
    heatmap: Heatmap | None = None
    launches: int = 0
    longer: str = ""
    operation: FirstOperation | None = None
    only_with: str = ""
    repair: Repair | None = None
    keys_are_right: bool = False

    @property
    def reason(self) -> Reason:
        """The reason of the first finding."""
        return self.findings[0].reason

    @property
    def words(self) -> str:
        """The first finding in words."""
        return self.findings[0].words

    @property
    def cause(self) -> str:
        """The first finding as every case of the same bug shows it; empty if it may be that of several bugs."""
        first = self.findings[0]
        if first.cause:
            return first.cause
        return "" if first.vague or first.reason in UNTOLD else f"{first.reason}: {without_numbers(first.words)}"

    @property
    def sentence(self) -> str:
        """The first finding with its reason, and the larger case that it is about, if it is one."""
        longer = " (in a larger case)" if self.longer else ""
        return f"{self.reason}: {self.words}{longer}"
