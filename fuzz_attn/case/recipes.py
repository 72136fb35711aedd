"""Recipes: what the tensors of a case hold, as a few words and numbers instead of data."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from fuzz_attn.case.plain import Count, Finite, Plain

BiasDType = Literal["float32", "float16", "bfloat16", "float64"]
"""The type of slopes, biases and sinks. Kernels compute with them in float32."""

Place = Literal["own", "first", "outside_left", "outside_right", "boundary", "random"]
"""Which key of a row: its own (the causal diagonal), the first visible one (the window's edge), the key just before the
window, the key just after the diagonal, a random one on the edge of a page or tile, a random visible one."""


AlibiKind = Literal["standard", "positive", "arbitrary", "zero", "negative"]


class NormalScores(Plain, frozen=True, tag="normal"):
    """Independent normal queries and keys; the logits have a standard deviation of about ``spread``."""

    spread: Finite = 1.0


class UniformScores(Plain, frozen=True, tag="uniform"):
    """All-zero queries: every visible key has the same weight, so integer values give exact outputs."""


class NeedleScores(Plain, frozen=True, tag="needle"):
    """Each row's logit peaks at ``strength`` on one chosen key. Keys are codes of +-1, so small heads have ties."""

    place: Place = "own"
    strength: Finite = 8.0


class HeavyScores(Plain, frozen=True, tag="heavy"):
    """Heavy keys have a logit of exactly 0, all others one of -``depth``, so that weights are 1 and 0.

    ``place`` is where the heavy keys are: one in each 16 keys, both ends of each page, about every second key, or one
    of each sequence. The first and the last key of a sequence are heavy too.
    """

    place: Literal["tiles", "pages", "random", "one"] = "tiles"
    depth: Finite = 256.0


class LevelScores(Plain, frozen=True, tag="level"):
    """All logits near ``level`` (far below 0, or far above), with normal jitter of standard deviation ``jitter``."""

    level: Finite = -20.0
    jitter: Finite = 0.5


class RampScores(Plain, frozen=True, tag="ramp"):
    """Logits that change by ``step`` from one key to the next, so that the running maximum keeps rising."""

    step: Finite = 0.25


class OutlierScores(Plain, frozen=True, tag="outlier"):
    """Normal, but about one key in sixteen is ``factor`` times larger."""

    factor: Finite = 8.0


class DenormalScores(Plain, frozen=True, tag="denormal"):
    """Queries and keys stored around the smallest normal number of their types, on both sides of it."""


class NormalValues(Plain, frozen=True, tag="normal"):
    """Independent normal values, distinct for each head, key and column."""


class ConstantValues(Plain, frozen=True, tag="constant"):
    """Every value is ``value``, and so must be every output (a sink mixes in 0)."""

    value: Finite = 1.0


class PositionValues(Plain, frozen=True, tag="position"):
    """Values encode the position of their key modulo 31, differently in each column, so outputs show what was read."""


class OneHotValues(Plain, frozen=True, tag="one_hot"):
    """1 at keys on the edge of a page or tile and at the ends of the sequence, 0 elsewhere."""


class IntegerValues(Plain, frozen=True, tag="integer"):
    """Integers in [-8, 8]: exact in every type whose scale is a power of two near 1."""


class OutlierValues(Plain, frozen=True, tag="outlier"):
    """Normal, but about one element in sixteen is ``factor`` times larger."""

    factor: Finite = 64.0


class DenormalValues(Plain, frozen=True, tag="denormal"):
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


class AlibiRecipe(Plain, frozen=True):
    """Slopes, one for each query head, multiplied by ``scale``.

    ``standard`` are the published geometric ones (Press et al. 2022), ``negative`` their negatives, ``positive``
    random ones in (0, 1], ``arbitrary`` random ones in [-1, 1], ``zero`` zeros. In float64 they are still exact in
    float32.
    """

    kind: AlibiKind = "standard"
    scale: Finite = 1.0
    dtype: BiasDType = "float32"


class QQBiasRecipe(Plain, frozen=True):
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


class SinkRecipe(Plain, frozen=True):
    """One logit for each query head that enters only the denominator: ``level`` plus random normals of ``spread``."""

    level: Finite = 0.0
    spread: Finite = 1.0
    dtype: BiasDType = "float32"


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
