"""Recipes: what the tensors of a case hold, as a few words and numbers instead of data.

Each says itself in words, and how many elements its tensor has where that grows with the batch.

A mask says which keys of its sequence a query token may see, beside a sliding window. A row is at the position
``context_len + i``, or with :class:`TopLeft` at ``i``. What each recipe allows, :mod:`fuzz_attn.case.visibility`
computes; the bits of a custom mask make :mod:`fuzz_attn.inputs.batch_rows`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.plain import Count, Finite, Plain, Positive, Window, counted, shortest

BiasDType = Literal["float32", "float16", "bfloat16", "float64"]
"""The type of slopes, biases and sinks. Kernels compute with them in float32."""

Place = Literal["own", "first", "outside_left", "outside_right", "boundary", "random"]
"""Which key of a row: its own (the causal diagonal), the first visible one (the window's edge), the key just before the
window, the key just after the diagonal, a random one on the edge of a page or tile, a random visible one."""

AlibiKind = Literal["standard", "positive", "arbitrary", "zero", "negative"]
MaskKind: TypeAlias = Literal["causal", "top_left", "full", "lookahead", "chunks", "custom", "custom_alone"]
"""What kernels are compiled for."""
MaskBits: TypeAlias = Literal["random", "tree", "blocks", "bottom_right"]


class Recipe(Plain, frozen=True):
    """A recipe. One that overrides nothing is described by its tag and all its fields, and has a small tensor."""

    def words(self) -> str:
        """Return the recipe as a description of a case says it."""
        tag = str(self.__struct_config__.tag or "").replace("_", "-")
        fields = ", ".join(f"{name} {_value(value)}" for name, value in msgspec.structs.asdict(self).items())
        return f"{tag} ({fields})" if tag and fields else tag or fields

    def elements(self, sequences: tuple[Sequence, ...]) -> int:
        """Return about how many elements the tensor has for a batch, 0 for one that does not grow with it."""
        return 0


def _value(value: object) -> str:
    return shortest(value) if isinstance(value, float) else str(value).replace("_", " ")


class NormalScores(Recipe, frozen=True, tag="normal"):
    """Independent normal queries and keys; the logits have a standard deviation of about ``spread``."""

    spread: Finite = 1.0


class UniformScores(Recipe, frozen=True, tag="uniform"):
    """All-zero queries: every visible key has the same weight, so integer values give exact outputs."""


class NeedleScores(Recipe, frozen=True, tag="needle"):
    """Each row's logit peaks at ``strength`` on one chosen key. Keys are codes of +-1, so small heads have ties."""

    place: Place = "own"
    strength: Finite = 8.0


class HeavyScores(Recipe, frozen=True, tag="heavy"):
    """Heavy keys have a logit of exactly 0, all others one of -``depth``, so that weights are 1 and 0.

    ``place`` is where the heavy keys are: one in each 16 keys, both ends of each page, about every second key, or one
    of each sequence. The first and the last key of a sequence are heavy too.
    """

    place: Literal["tiles", "pages", "random", "one"] = "tiles"
    depth: Finite = 256.0


class LevelScores(Recipe, frozen=True, tag="level"):
    """All logits near ``level`` (far below 0, or far above), with normal jitter of standard deviation ``jitter``."""

    level: Finite = -20.0
    jitter: Finite = 0.5


class RampScores(Recipe, frozen=True, tag="ramp"):
    """Logits that change by ``step`` from one key to the next, so that the running maximum keeps rising."""

    step: Finite = 0.25


class OutlierScores(Recipe, frozen=True, tag="outlier"):
    """Normal, but about one key in sixteen is ``factor`` times larger."""

    factor: Finite = 8.0


class DenormalScores(Recipe, frozen=True, tag="denormal"):
    """Queries and keys stored around the smallest normal number of their types, on both sides of it."""


class NormalValues(Recipe, frozen=True, tag="normal"):
    """Independent normal values, distinct for each head, key and column."""


class ConstantValues(Recipe, frozen=True, tag="constant"):
    """Every value is ``value``, and so must be every output (a sink mixes in 0)."""

    value: Finite = 1.0


class PositionValues(Recipe, frozen=True, tag="position"):
    """Values encode the position of their key modulo 31, differently in each column, so outputs show what was read."""


class OneHotValues(Recipe, frozen=True, tag="one_hot"):
    """1 at keys on the edge of a page or tile and at the ends of the sequence, 0 elsewhere."""


class IntegerValues(Recipe, frozen=True, tag="integer"):
    """Integers in [-8, 8]: exact in every type whose scale is a power of two near 1."""


class OutlierValues(Recipe, frozen=True, tag="outlier"):
    """Normal, but about one element in sixteen is ``factor`` times larger."""

    factor: Finite = 64.0


class DenormalValues(Recipe, frozen=True, tag="denormal"):
    """Values stored around the smallest normal number of their type, on both sides of it."""


ScoreRecipe: TypeAlias = (
    NormalScores
    | UniformScores
    | NeedleScores
    | HeavyScores
    | LevelScores
    | RampScores
    | OutlierScores
    | DenormalScores
)
ValueRecipe: TypeAlias = (
    NormalValues | ConstantValues | PositionValues | OneHotValues | IntegerValues | OutlierValues | DenormalValues
)


class Override(Plain, frozen=True):
    """One element set after the recipes.

    ``position`` counts the sequence's keys, or its query tokens for ``q``; ``head`` counts the tensor's own heads.
    Values are clamped to +-4096, as all numbers are, and to the type's range.
    """

    tensor: Literal["q", "k", "v"]
    sequence: Count = 0
    position: Count = 0
    head: Count = 0
    column: Count = 0
    value: Finite = 0.0


class AlibiRecipe(Recipe, frozen=True):
    """Slopes, one for each query head, multiplied by ``scale``.

    ``standard`` are the published geometric ones (Press et al. 2022), ``negative`` their negatives, ``positive``
    random ones in (0, 1], ``arbitrary`` random ones in [-1, 1], ``zero`` zeros. In float64 they are still exact in
    float32.
    """

    kind: AlibiKind = "standard"
    scale: Finite = 1.0
    dtype: BiasDType = "float32"

    def words(self) -> str:
        """Return the kind, and what is not usual."""
        return f"{self.kind} slopes{_times(self.scale)}" + f", {self.dtype}" * (self.dtype != "float32")


def _times(scale: float) -> str:
    return "" if scale == 1.0 else f" times {shortest(scale)}"


_ORDERS: Final = {
    "columns": "stored column by column",
    "one_row": "one row for all",
    "one_column": "one column for all",
}


class QQBiasRecipe(Recipe, frozen=True):
    """Bias between the new tokens, shared by all sequences: ``[max_query_len + extra_rows, columns]``.

    ``kind``: ``tree`` is 0 on a random path of ancestors and -inf elsewhere, ``diagonal`` is 0 on the diagonal and
    -inf elsewhere (no token sees another one), ``dense`` random normals, ``zero`` zeros. The diagonal is always finite.
    The matrix has ``max_query_len + extra_columns`` columns (fewer if negative, but at least 1). It is a slice of a
    matrix with ``row_padding`` more columns, which hold poison.

    ``order`` ``columns`` stores it column by column, with ``row_padding`` more rows. ``one_row`` and ``one_column``
    expand one row or one column with a stride of 0; only ``dense`` and ``zero`` may do so. ``step`` - 1 elements of
    poison follow each element of a row (or of a column, where the matrix is stored by columns).
    """

    kind: Literal["dense", "tree", "zero", "diagonal"] = "dense"
    extra_rows: Count = 0
    extra_columns: Annotated[int, Meta(ge=-(2**20), le=2**20)] = 0
    row_padding: Count = 0
    scale: Finite = 1.0
    dtype: BiasDType = "float32"
    order: Literal["rows", "columns", "one_row", "one_column"] = "rows"
    step: Annotated[int, Meta(ge=1, le=64)] = 1

    def words(self) -> str:
        """Return the kind, and what is not usual."""
        words = [f"{self.kind}{_times(self.scale)}"]
        words += [f"{counted(self.extra_rows, 'row')} more than the longest query"] * bool(self.extra_rows)
        columns, than = abs(self.extra_columns), "more" if self.extra_columns > 0 else "fewer"
        words += [f"{counted(columns, 'column')} {than} than the longest query"] * bool(columns)
        words += [f"a slice of a matrix {counted(self.row_padding, 'column')} wider"] * bool(self.row_padding)
        words += [_ORDERS[self.order]] if self.order in _ORDERS else []
        words += [f"every element followed by {self.step - 1} others"] * (self.step > 1)
        words += [self.dtype] * (self.dtype != "float32")
        return ", ".join(words)

    def elements(self, sequences: tuple[Sequence, ...]) -> int:
        """Return the elements of the matrix that it is a slice of, and room for as many columns again."""
        live = max((1, *(sequence.query_len for sequence in sequences)))
        columns = live + max(0, self.extra_columns) + self.row_padding
        return (live + self.extra_rows) * (live + columns) * self.step


class SinkRecipe(Recipe, frozen=True):
    """One logit for each query head that enters only the denominator: ``level`` plus random normals of ``spread``."""

    level: Finite = 0.0
    spread: Finite = 1.0
    dtype: BiasDType = "float32"

    def words(self) -> str:
        """Return all of it."""
        return f"{shortest(self.level)} with spread {shortest(self.spread)}, {self.dtype}"


class LogSumExp(Recipe, frozen=True):
    """A second output, float32: of each row the logarithm of the sum of ``base ** logit``, in the same base.

    ``order`` names the first axis: ``tokens`` is ``[num_tokens, num_query_heads]``, ``heads`` the transpose. The sink
    counts as one more logit if it is ``with_sinks``. ``empty`` is the number of a row that sees no key.
    """

    base: Literal["e", "2"] = "e"
    order: Literal["tokens", "heads"] = "tokens"
    with_sinks: bool = True
    empty: Literal["-inf", "inf", "0"] = "-inf"

    def words(self) -> str:
        """Return the base, the order, and what is not usual."""
        words = [f"in base {self.base}", f"{self.order} first"]
        words += ["without sinks"] * (not self.with_sinks)
        words += [f"{self.empty} for a row without keys"] * (self.empty != "-inf")
        return ", ".join(words)


SlotPoison = Literal["nan", "inf", "negative_inf", "huge", "zero"]
TablePoison = Literal["zero", "negative", "one_past", "huge"]


class PoisonRecipe(Plain, frozen=True):
    """What memory holds that no kernel may read: dead cache slots, stride padding, table entries past the last page.

    Types without infinities (e4m3fn) use NaN instead. ``zero`` is harmless: it shows whether a failure needs poison,
    and a campaign looks around such a failure with it. ``table`` is 0 (a valid page), -1, the number of blocks, or the
    largest int32. ``out`` is one of two bit patterns for elements not yet written.
    """

    keys: SlotPoison = "nan"
    values: SlotPoison = "nan"
    table: TablePoison = "one_past"
    out: Literal[0, 1] = 0


class _Mask(Recipe, frozen=True):
    @property
    def kind(self) -> MaskKind:
        """What kernels are compiled for."""
        return self.__struct_config__.tag  # type: ignore[return-value] # the tag of a mask is its kind


class Causal(_Mask, frozen=True, tag="causal"):
    """A row sees the keys up to its own. The last row of a sequence sees the last key."""


class TopLeft(_Mask, frozen=True, tag="top_left"):
    """Row ``i`` sees the keys from 0 to ``i``, however many there are: the first row sees one key."""

    def words(self) -> str:
        """Return the mask in words."""
        return "causal from the top left"


class Full(_Mask, frozen=True, tag="full"):
    """A row sees every key of its sequence."""

    def words(self) -> str:
        """Return the mask in words."""
        return "not causal"


class Lookahead(_Mask, frozen=True, tag="lookahead"):
    """The number of keys behind its own that a row sees; with a sliding window this is a two-sided window."""

    keys: Window = 1

    def words(self) -> str:
        """Return the mask in words."""
        return f"{counted(self.keys, 'key')} behind a row's own"


class Chunks(_Mask, frozen=True, tag="chunks"):
    """Keys are in chunks of a size, and a row sees those of its own chunk up to its own."""

    size: Positive = 16

    def words(self) -> str:
        """Return the mask in words."""
        return f"causal in chunks of {counted(self.size, 'key')}"


class Custom(_Mask, frozen=True, tag="custom"):
    """One boolean for each query row and key, used together with the causal mask or, if not ``causal``, instead of it.

    ``random`` hides about every second key. ``tree`` lets a new token see the context, itself and a random path of
    ancestors. ``blocks`` is a chequerboard. ``bottom_right`` equals the causal mask. Each row sees its own key,
    unless ``empty_rows``: then some see nothing, and their output is 0. With ``poisoned``, keys that no row sees hold
    poison, also between others. Bits that the causal mask hides are random.
    """

    bits: MaskBits = "random"
    causal: bool = True
    empty_rows: bool = False
    poisoned: bool = False

    @property
    def kind(self) -> MaskKind:
        """What kernels are compiled for."""
        return "custom" if self.causal else "custom_alone"

    def words(self) -> str:
        """Return the mask in words."""
        words = [f"custom ({self.bits.replace('_', ' ')}), {'also causal' if self.causal else 'not causal'}"]
        words += ["rows that see nothing"] * self.empty_rows + ["keys that no row sees are poison"] * self.poisoned
        return ", ".join(words)

    def elements(self, sequences: tuple[Sequence, ...]) -> int:
        """Return the number of booleans."""
        return sum(sequence.query_len * sequence.seq_len for sequence in sequences)


Mask: TypeAlias = Causal | TopLeft | Full | Lookahead | Chunks | Custom

CAUSAL: Final = Causal()
SIMPLEST: Final[dict[MaskKind, Mask]] = {
    "causal": CAUSAL,
    "top_left": TopLeft(),
    "full": Full(),
    "lookahead": Lookahead(),
    "chunks": Chunks(),
    "custom": Custom(),
    "custom_alone": Custom(causal=False),
}
"""The simplest mask of each kind, the simplest kind first."""
