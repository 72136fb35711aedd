"""Verdict: the result of one property for one case on one target; and a launch that was refused, which has none.

Both are plain data that crosses processes and files.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from fuzz_attn.case.plain import Plain, Whole

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
    "conflicting_store",
    "unordered_load",
    "false_hint",
    "undefined_integer",
    "exception",
    "crash",
    "timeout",
]
"""``ok``, or what is wrong:

- of an element: beyond its bound (``mismatch``), ``nan`` or ``inf`` where the oracle is finite, or never written
  (``unwritten``);
- memory outside the live elements of the outputs was written (``written_outside``), or an input (``input_changed``);
- a second launch on the same input differs (``nondeterministic``), one with other poison (``poison_dependent``), or
  another one that must give the same bits (``different_bits``);
- a sanitizer found an access outside a tensor (``out_of_bounds``), a read of unwritten memory (``uninitialised``), a
  ``race``, an index that wraps (``overflow``), elements of one store that differ at one place
  (``conflicting_store``), a load of what another thread of the program stored without a barrier (``unordered_load``), a
  hint to the compiler that is not true (``false_hint``), or the use of a number that a division by 0 or a shift beyond
  the width leaves undefined (``undefined_integer``);
- the target raised (``exception``), its process died (``crash``), or the launch did not end (``timeout``)."""

OUT_OF_BOUNDS_STORE: Final = "out-of-bounds store"
"""How the message of a store outside a tensor begins. That of a load is of the same kind (``out_of_bounds``)."""

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
"""The place of the wrong elements in the output; empty if no elements are wrong."""


Place: TypeAlias = Annotated[int, Meta(ge=-1, le=2**20)]
NumberText: TypeAlias = Annotated[str, Meta(pattern=r"^-?(\d+(\.\d*)?(e[+-]?\d+)?|inf|nan)\Z", max_length=40)]
"""A number as ``repr`` writes it."""


class Element(Plain, frozen=True):
    """One output element with its actual and its expected value.

    ``sequence`` and ``query_index``, the row in that sequence, locate ``token`` for a reader. A place that the output
    does not have is -1, such as the column in a number for each row. Numbers are ``repr`` texts, because JSON has no
    NaN.
    """

    token: Place
    head: Place
    column: Place
    sequence: Whole
    query_index: Whole
    actual: NumberText
    expected: NumberText
    bound: NumberText


RowOfWeights: TypeAlias = Annotated[str, Meta(pattern=r"^(?:(?:\d+(?:\.\d+)?(?:e-?\d+)?|\?) ?)*\Z", max_length=1000)]
"""The weights of one query as text, one for each key, ``?`` where it could not be read: ``0.333 0.667 0``."""


class Weights(Plain, frozen=True):
    """The attention weights of one head of one sequence, which show what a kernel did wrong.

    ``used`` has a row for each of the ``queries``, with a number for each key from ``first_key`` on; ``right`` are the
    oracle's. ``visible`` has a text for each row, with ``1`` for each key that the row sees and ``0`` for the others.
    They are of a ``larger`` case, in words, where the case of the failure itself does not show the cause.
    """

    sequence: Whole
    head: Whole
    queries: Annotated[tuple[Whole, ...], Meta(max_length=64)]
    first_key: Whole
    used: Annotated[tuple[RowOfWeights, ...], Meta(max_length=64)]
    right: Annotated[tuple[RowOfWeights, ...], Meta(max_length=64)]
    visible: Annotated[tuple[Annotated[str, Meta(pattern=r"^[01]*\Z", max_length=200)], ...], Meta(max_length=64)]
    larger: str = ""


class Verdict(Plain, frozen=True):
    """The result of one property.

    ``ratio`` is the largest ``|error| / bound``, None if nothing was measured. ``wrong`` of ``elements`` elements are
    wrong; ``worst`` lists a few of them, non-finite ones first. ``site`` is ``file:line`` of the access that a
    sanitizer reports, or of the line that raised; empty for other failures. ``poison`` names the parts of the poison
    that reach the output, once they were looked for. ``hint`` says in sentences what else may explain the failure, and
    ``rounding`` names the rounding that may, as a binding states it.
    ``explanation`` is what the kernel did wrong, in words, once that was asked and could be told. ``cause`` is the same
    without positions and lengths, so that other cases of the bug have it too; empty where the case leaves several.
    ``weights`` show it, where attention weights could be read.
    ``output`` names the output that is wrong if the case has several.
    ``only_with`` says in words with which configurations and optional arguments it is wrong and with which right;
    the ``configurations`` are those that are wrong in the same way, its own first, where others are right.
    """

    property_name: str
    kind: Kind = "ok"
    message: str = ""
    ratio: float | None = None
    where: Where = ""
    wrong: Whole = 0
    elements: Whole = 0
    worst: tuple[Element, ...] = ()
    site: str = ""
    poison: tuple[str, ...] = ()
    hint: str = ""
    rounding: str = ""
    explanation: str = ""
    cause: str = ""
    output: str = ""
    weights: Weights | None = None
    only_with: str = ""
    configurations: tuple[Whole, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the property holds."""
        return self.kind == "ok"

    @property
    def what(self) -> str:
        """The property and the kind of its failure in words, for example ``oracle (written outside)``."""
        return f"{self.property_name} ({self.kind.replace('_', ' ')})"


OUT_OF_RESOURCES: Final = "OutOfResources"
"""What Triton raises where a kernel needs more registers, threads or shared memory than a GPU has."""
Stage: TypeAlias = Literal["host", "compile"]
Site: TypeAlias = tuple[str, str, str]
"""Where a target refuses, and how."""

NOT_REDUCED: Final = "not reduced fully"
"""Stands at the end of a combination for everything else of the case that it was found in."""


class Refusal(Plain, frozen=True):
    """Why the target or the compiler refuses a case: no kernel ran, so there is nothing to judge.

    ``stage`` is ``host`` for an exception of the target before its first launch, ``compile`` for a kernel that does not
    compile. ``error`` names the exception and ``message`` is its text. ``location`` is ``file:line`` of the refusing
    line and ``source`` its text.
    """

    stage: Stage
    error: str
    message: str
    location: str = ""
    source: str = ""

    @property
    def site(self) -> Site:
        """What refusals for one reason have in common; the message may name sizes, so it is the site without a line."""
        return (self.stage, self.error, self.location or self.message)
