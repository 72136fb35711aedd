"""The seeded recipes of a case: what its tensors hold, said in a few words instead of in numbers."""

from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**20)]
Finite: TypeAlias = Annotated[float, Meta(ge=-1e30, le=1e30)]


class Plain(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Frozen, hashable, strict about unknown fields; defaults are left out of the JSON, so that a file stays short.

    Equal values have equal JSON: -0.0 where the default is 0.0 becomes the default, and so does 1 for 1.0.
    """

    def __post_init__(self) -> None:
        """Hold the very default where a field equals it, since msgspec leaves out that object alone."""
        for name, default in _defaults_of(type(self)):
            value = getattr(self, name)
            if value is not default and value == default:
                force_setattr(self, name, default)


@cache
def _defaults_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the names of the fields that have a default, and these."""
    defaults = kind.__struct_defaults__
    return tuple(zip(kind.__struct_fields__[-len(defaults) :], defaults, strict=True)) if defaults else ()


Place = Literal["own", "first", "outside_left", "outside_right", "boundary", "random"]
"""Which key of a row: its own (the causal diagonal), the first it sees (the window's edge), the key just before the
window, the key just after the diagonal, a seeded one on the edge of a page or tile, a seeded visible one."""


class NormalScores(Plain, frozen=True, tag="normal"):
    """Independent normal queries and keys; the logits have a standard deviation of about ``spread``."""

    spread: Finite = 1.0


class UniformScores(Plain, frozen=True, tag="uniform"):
    """All-zero queries: every visible key weighs the same, so integer values give exact outputs."""


class NeedleScores(Plain, frozen=True, tag="needle"):
    """Each row's logit peaks at ``strength`` on one chosen key; the keys are +-1 codes, so small heads have ties."""

    place: Place = "own"
    strength: Finite = 8.0


class LevelScores(Plain, frozen=True, tag="level"):
    """All logits near ``level`` (far below 0, or far above), with normal jitter of standard deviation ``jitter``."""

    level: Finite = -20.0
    jitter: Finite = 0.5


class RampScores(Plain, frozen=True, tag="ramp"):
    """Logits that change by ``step`` from one key to the next, so that the running maximum rises all the time."""

    step: Finite = 0.25


class OutlierScores(Plain, frozen=True, tag="outlier"):
    """Normal, but about one key in sixteen is ``factor`` times larger."""

    factor: Finite = 8.0


class DenormalScores(Plain, frozen=True, tag="denormal"):
    """Queries and keys stored around the smallest normal number of their types, on both sides of it."""


class NormalValues(Plain, frozen=True, tag="normal"):
    """Independent normal values, distinct for each head, key and column."""


class ConstantValues(Plain, frozen=True, tag="constant"):
    """Every value is ``value``: so must be every output (0 joins with a sink)."""

    value: Finite = 1.0


class PositionValues(Plain, frozen=True, tag="position"):
    """Values code the position of their key modulo 31, differently in each column: the output tells what was read."""


class OneHotValues(Plain, frozen=True, tag="one_hot"):
    """1 at keys on the edge of a page or tile and at the ends of the sequence, 0 elsewhere."""


class IntegerValues(Plain, frozen=True, tag="integer"):
    """Integers in [-8, 8]: exact in every type, where its scale is a power of two not far from 1."""


class OutlierValues(Plain, frozen=True, tag="outlier"):
    """Normal, but about one element in sixteen is ``factor`` times larger."""

    factor: Finite = 64.0


class DenormalValues(Plain, frozen=True, tag="denormal"):
    """Values stored around the smallest normal number of their type, on both sides of it."""


ScoreRecipe: TypeAlias = (
    NormalScores | UniformScores | NeedleScores | LevelScores | RampScores | OutlierScores | DenormalScores
)
ValueRecipe: TypeAlias = (
    NormalValues | ConstantValues | PositionValues | OneHotValues | IntegerValues | OutlierValues | DenormalValues
)


class Override(Plain, frozen=True):
    """One element set by hand after the recipes: ``position`` counts the sequence's keys (``q``: its query tokens).

    ``head`` counts the tensor's own heads. Values are clamped to +-4096, as all numbers are, and to the type's range.
    """

    tensor: Literal["q", "k", "v"]
    sequence: Count = 0
    position: Count = 0
    head: Count = 0
    column: Count = 0
    value: Finite = 0.0


class AlibiRecipe(Plain, frozen=True):
    """Slopes, one for each query head.

    ``standard`` are the published geometric ones (Press et al. 2022), ``negative`` their negatives, ``arbitrary``
    seeded ones in [-1, 1], ``zero`` zeros; all are multiplied by ``scale``.
    """

    kind: Literal["standard", "arbitrary", "zero", "negative"] = "standard"
    scale: Finite = 1.0


class QQBiasRecipe(Plain, frozen=True):
    """Bias between the new tokens, shared by all sequences: ``[max_query_len + extra_rows, columns]``, float32.

    ``kind``: ``tree`` holds 0 on a random ancestor path and -inf elsewhere, ``alone`` on the diagonal only (no token
    sees another one), ``dense`` seeded normals, ``zero`` zeros.
    The matrix has ``max_query_len + extra_columns`` columns (negative is narrower, at least 1 remains) and is a slice
    of a matrix that is ``row_padding`` columns wider, poisoned there. The diagonal is finite always.
    """

    kind: Literal["dense", "tree", "zero", "alone"] = "dense"
    extra_rows: Count = 0
    extra_columns: Annotated[int, Meta(ge=-(2**20), le=2**20)] = 0
    row_padding: Count = 0
    scale: Finite = 1.0


class SinkRecipe(Plain, frozen=True):
    """One logit for each query head that joins the denominator only: ``level`` plus seeded normals of ``spread``."""

    level: Finite = 0.0
    spread: Finite = 1.0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"


SlotPoison = Literal["nan", "inf", "negative_inf", "huge"]
TablePoison = Literal["zero", "negative", "one_past", "huge"]


class PoisonRecipe(Plain, frozen=True):
    """What stands where nobody may read: dead cache slots, stride padding, table entries past the last page.

    Types without infinities (e4m3fn) take NaN in their place. ``table`` is 0 (a valid page, the dullest), -1, the
    number of blocks, or the largest int32. ``out`` distinguishes two bit patterns for elements not yet written.
    """

    keys: SlotPoison = "nan"
    values: SlotPoison = "nan"
    table: TablePoison = "one_past"
    out: Literal[0, 1] = 0
