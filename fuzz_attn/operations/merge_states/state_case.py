"""State case: the input of one merge of attention states as plain data, the domain of a target, and all aspects.

A *row* is one (token, head). A *state* is what attention over a part of the keys gave a row: the output, and the
natural logarithm of the sum of the exponentials of its logits (LSE). A state that saw no key has an LSE of -inf, and
whatever its output holds is not read.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from fuzz_attn.case.aspect_table import AspectTable
from fuzz_attn.case.aspects import CONTRACT, SIMPLEST_SIZE
from fuzz_attn.case.case_fields import Seed
from fuzz_attn.case.contract_trial import ContractTrial, lines_of
from fuzz_attn.case.domain import sizes_of, within
from fuzz_attn.case.plain import Count, Plain, counted, shortest
from fuzz_attn.case.recipes import LogSumExp, SlotPoison
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.small_operation import (
    FAR_AXES,
    Fields,
    SmallDomain,
    far_aspect,
    far_words,
    fitting,
    when,
)

NAME: Final = "merge_states"
"""The operation, and its only family."""

ROLES: Final = {
    "partial_outputs": "outputs of the states, [num_states, num_tokens, num_heads, head_size]",
    "partial_lses": "their LSEs, float32 [num_states, num_tokens, num_heads], -inf without keys",
    "out": "merged output, written, [num_tokens or more, num_heads, head_size]",
    "lse": "merged LSE, written, float32 [num_tokens or more, num_heads]",
    "token_outputs": "outputs of the states of each token, [num_tokens, num_states, num_heads, head_size]",
    "token_lses": "their LSEs, float32 [num_tokens, num_states, num_heads]",
    "state_indptr": "prefix sums of the states of each token, which then lie one after the other",
    "first_output": "output of the first of two states, [num_tokens, num_heads, head_size]",
    "first_lse": "its LSE, float32 [num_tokens, num_heads] or the transpose",
    "second_output": "output of the second of two states",
    "second_lse": "its LSE",
    "first_to_out": "output of the first of two states, in whose place the merged one is written",
    "first_to_lse": "its LSE, likewise",
}
"""The parameters that a target may have, in words. The first four are those of this project's own."""
NAMES: Final = {
    "token_outputs": ("v",),
    "token_lses": ("s",),
    "state_indptr": ("indptr",),
    "first_output": ("prefix_output", "v_a"),
    "first_lse": ("prefix_lse", "s_a"),
    "second_output": ("suffix_output", "v_b", "v_other"),
    "second_lse": ("suffix_lse", "s_b", "s_other"),
    "out": ("output",),
    "lse": ("output_lse",),
}
"""What published launchers call them."""
NEEDED: Final = (
    ("partial_outputs", "partial_lses", "out", "lse"),
    ("first_output", "first_lse", "second_output", "second_lse"),
    ("first_to_out", "first_to_lse", "second_output", "second_lse"),
    ("token_outputs", "token_lses"),
)
"""Sets of roles, of which a target needs one."""

StateType: TypeAlias = Literal["float32", "float16", "bfloat16"]
StateAxis: TypeAlias = Literal[
    "partial_outputs_state",
    "partial_outputs_token",
    "partial_outputs_head",
    "partial_lses_state",
    "partial_lses_token",
    "partial_lses_head",
    "out_token",
    "out_head",
    "lse_token",
    "lse_head",
]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
LARGEST: Final = {"num_states": 1024, "num_tokens": 2**17 + 1, "num_heads": 1024, "head_size": 256}
MOST_ELEMENTS: Final = 2**22
"""Elements of all states' outputs together."""


class StateKey(Plain, frozen=True):
    """What a kernel is compiled for."""

    dtype: StateType = "float32"
    head_size: Size = SIMPLEST_SIZE

    @property
    def number(self) -> int:
        """A number for the key, the same in every process."""
        return zlib.crc32(msgspec.json.encode((NAME, self.dtype, self.head_size)))


class StateCase(Plain, frozen=True, tag_field="operation", tag=NAME):
    """The input of one merge; raises ``CaseError`` for sizes that are too large.

    LSEs are ``lse_offset`` and normal numbers times ``lse_spread``, logarithms of ``base``. With ``empty_states`` a
    quarter of the states of all rows saw no key, but one of each row did; with ``empty_rows`` some rows have only such
    states, the first among them. Their outputs are ``poison``, which is zero in a case without any. ``gap`` elements of
    poison lie between heads of the outputs of the states and of the merged one; ``padded_tokens`` rows of that belong
    to no token. Along ``far_axes``, at most one of each tensor, the last indices lie 2^31 elements behind the first; an
    axis of more than 256 indices, or one that would take much memory, is not far.
    """

    num_states: Size = 1
    num_tokens: Size = 1
    num_heads: Size = 1
    head_size: Size = SIMPLEST_SIZE
    dtype: StateType = "float32"
    lse_offset: float = 0.0
    lse_spread: float = 1.0
    empty_states: bool = False
    empty_rows: bool = False
    poison: SlotPoison = "zero"
    gap: Count = 0
    padded_tokens: Count = 0
    seed: Seed = 0
    base: Literal["e", "2"] = "e"
    far_axes: tuple[StateAxis, ...] = ()
    contract: ContractTrial | None = None

    def __post_init__(self) -> None:
        """Check the sizes; msgspec turns the error into one that names the place in the file."""
        if not (self.empty_states or self.empty_rows):
            force_setattr(self, "poison", "zero")
        super().__post_init__()
        for name, largest in LARGEST.items():
            if getattr(self, name) > largest:
                raise CaseError(f"{name}={getattr(self, name)} must be at most {largest}")
        if self.num_elements > MOST_ELEMENTS:
            raise CaseError(f"the outputs of all states have {self.num_elements} elements, must be {MOST_ELEMENTS}")
        if not abs(self.lse_offset) <= 1e4 or not 0.0 <= self.lse_spread <= 1e3:
            raise CaseError(f"lse_offset={self.lse_offset} must be within 1e4, {self.lse_spread=} from 0 to 1e3")
        force_setattr(self, "far_axes", fitting(self.far_axes, self.far_lengths, self.far_lengths, self.num_elements))

    @property
    def num_elements(self) -> int:
        """Elements of all states' outputs."""
        return self.num_states * self.num_tokens * self.num_heads * (self.head_size + self.gap)

    @property
    def is_far(self) -> bool:
        """Whether some addresses of the tensors have no memory."""
        return bool(self.far_axes)

    @property
    def far_lengths(self) -> dict[str, int]:
        """How many indices each axis has that may be far, without padded rows."""
        lengths = {"state": self.num_states, "token": self.num_tokens, "head": self.num_heads}
        return {name: lengths[name.rpartition("_")[2]] for name in get_args(StateAxis)}

    @property
    def compile_key(self) -> StateKey:
        """The part of the case that decides whether another kernel must be compiled."""
        return StateKey(self.dtype, self.head_size)


class StateDomain(SmallDomain, frozen=True, forbid_unknown_fields=True, tag_field="operation", tag=NAME):
    """The cases that a target promises to merge; sizes are inclusive ranges, as in attention's domain.

    ``lse`` is the form of the LSEs. ``empty_outputs`` is what the output of a state without a key may hold: many
    kernels multiply it with a weight of 0, which NaN and Inf survive.
    """

    dtypes: tuple[StateType, ...] = ("float32", "float16", "bfloat16")
    head_sizes: tuple[int, ...] = (1, 256)
    num_states: tuple[int, ...] = (1, 1024)
    lse: LogSumExp = LogSumExp()
    empty_outputs: tuple[SlotPoison, ...] = get_args(SlotPoison)
    features: frozenset[str] = frozenset(("empty_states", "empty_rows", "strides", "padded_tokens", "far_axes"))

    def __post_init__(self) -> None:
        """Raise :class:`DomainError` for a domain without cases or with an unknown feature."""
        self.require(FEATURES, self.dtypes, self.head_sizes, self.num_states)

    def in_memory(self) -> StateDomain:
        """Return the domain without tensors whose addresses mostly take no memory."""
        return msgspec.structs.replace(self, features=self.features - {FAR_AXES})


def key_pool(domain: StateDomain) -> tuple[StateKey, ...]:
    """Return the compile keys that cases are drawn from, the simplest first."""
    known = (16, 64, 128, 80, 96, 32, 256, 1, 24, 8, 72, 2, 40, 192, 33, 112)
    sizes = [size for size in known if within(size, domain.head_sizes)] or list(sizes_of(domain.head_sizes))[:1]
    return tuple(StateKey(dtype, size) for size in sizes for dtype in domain.dtypes)


def unpromised(case: StateCase, domain: StateDomain) -> str:
    """Return what of a case a target does not promise, in words; an empty string where it promises all."""
    if words := domain.lacking(case, FEATURES):
        return words
    if case.dtype not in domain.dtypes:
        return f"states of {case.dtype}"
    if not within(case.head_size, domain.head_sizes):
        return f"heads of {case.head_size}"
    if case.base != domain.lse.base:
        return f"LSEs of base {case.base}"
    if case.poison not in domain.empty_outputs:
        return f"{case.poison.replace('_', ' ')} in outputs of empty states"
    return "" if within(case.num_states, domain.num_states) else f"{case.num_states} states"


def described(case: StateCase) -> list[tuple[str, str]]:
    """Return (what, words) pairs; two different cases have different ones."""
    empty = [words for words, has in (("some states", case.empty_states), ("some rows", case.empty_rows)) if has]
    base = "base 2, " if case.base == "2" else ""
    lines = [
        ("operation", "merging of attention states"),
        ("states", f"{case.num_states} of each row, {case.dtype}"),
        ("rows", f"{counted(case.num_tokens, 'token')}, {counted(case.num_heads, 'head')} of {case.head_size}"),
        ("LSEs", f"around {shortest(case.lse_offset)}, spread {shortest(case.lse_spread)}, {base}seed {case.seed}"),
    ]
    if empty:
        lines.append(("without a key", f"all states of {empty[-1]}" if empty == ["some rows"] else " and ".join(empty)))
    if case.poison != "zero":
        lines.append(("outputs of empty states", case.poison.replace("_", " ")))
    lines += lines_of(case)
    memory = far_words(case.far_axes)
    if case.gap or case.padded_tokens:
        memory = [f"{case.gap} elements between heads", counted(case.padded_tokens, "padded row"), *memory]
    return [*lines, ("memory", ", ".join(memory))] if memory else lines


PLAIN: Final = StateCase()
_field, _flag = Fields(PLAIN).field, Fields(PLAIN).flag

FEATURES: Final = {
    "empty_states": _flag("states without a key", "empty_states"),
    "empty_rows": _flag("rows without a key", "empty_rows"),
    "strides": _flag("padding between heads", "gap", 1),
    "padded_tokens": _flag("padded rows", "padded_tokens", 1),
    FAR_AXES: far_aspect(4),
}
"""Every feature by its name, in the order in which signatures name them."""

POISONED: Final = "NaN or Inf in empty states"
_SPREADING: Final = ("nan", "inf", "negative_inf")

ODDITIES: Final = (
    CONTRACT,
    *FEATURES.values(),
    when("another poison of empty states", lambda case: case.poison not in ("zero", "nan"), poison="nan"),
    _field("LSEs around another number", "lse_offset", tried=(100.0, -100.0, 10.0)),
    _field("LSEs of another spread", "lse_spread", tried=(0.0, 10.0)),
    _field("seed", "seed", tried=(0, 1, 2, 3), trait=False),
)
KINDS: Final = (
    when("bfloat16", lambda case: case.dtype == "bfloat16", dtype="float16"),
    when("16-bit types", lambda case: case.dtype != "float32", dtype="float32"),
    _field("states", "num_states", above="more than {} states", levels=(1, 2, 4, 16), trait=False,
           tried=(1, 2, 3, 4, 5, 8)),
    _field("tokens", "num_tokens", above="more than {} tokens", levels=(1, 16), trait=False, tried=(1, 2, 3, 4, 8)),
    _field("several heads", "num_heads", tried=(1, 2, 3, 4)),
    _field("head size", "head_size", above="heads larger than {}", levels=(64, 128), trait=False,
           tried=(16, 8, 32, 24, 4, 17, 2, 1, 64, 80, 96, 128)),
    when("head size no power of two", lambda case: case.head_size & (case.head_size - 1) != 0, head_size=16),
)  # fmt: skip
NUANCES: Final = (when(POISONED, lambda case: case.poison in _SPREADING, poison="zero"),)
TABLE: Final = AspectTable(ODDITIES, KINDS, NUANCES)
"""All aspects."""
