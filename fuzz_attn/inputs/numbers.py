"""Numbers: queries, keys, values and biases of a case in float32, before they are rounded and laid out.

``queries`` are ``[num_tokens, num_query_heads, head_size]``, ``keys`` and ``values``
``[total_keys, num_kv_heads, head_size]``, sequence after sequence. They come from raw seeded bits, integer arithmetic
and single IEEE operations, so they are the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Final

import numpy as np

from fuzz_attn.case import recipes
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTYPES, is_fp8
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.inputs.batch_rows import Rows, rows_of
from fuzz_attn.inputs.random_bits import Floats, Integers, Stream

_EQUAL = 31
_SLOPES, _BIAS, _TREE, _SINKS, _UNIFORM_SLOPES = 21, 22, 23, 24, 25


def equal_heads(case: AttentionCase) -> np.typing.NDArray[np.bool_]:
    """Return which query heads have queries, slopes and sinks of 0: about three in four of few heads, at least one.

    Of many heads all but one in sixteen have them: few rows with other weights show what only those show, and hide most
    of their keys.
    """
    num_heads = case.heads.num_query_heads
    chosen: np.typing.NDArray[np.bool_] = Stream(case.seed, _EQUAL).below(4, num_heads) > 0
    chosen[case.seed % num_heads] = True
    others = np.roll(np.flatnonzero(~chosen), case.seed % num_heads)
    chosen[others[max(1, num_heads // 16) :]] = True
    return chosen & case.equal_heads


_QUERIES, _KEYS, _VALUES, _NEEDLES, _OUTLIERS, _NEAR_UNIFORM, _HEAVY, _PAIRS, _ALONE = range(11, 20)

LIMIT = np.float32(4096.0)
"""No number made here is larger, so products and scaled fp8 values stay finite in float16."""

NEAR_UNIFORM = np.float32(2.0**-6)
"""What multiplies the queries of near-uniform rows: logits of hundreds become a few."""

MARK = np.float32(64.0)
"""The size of key marks in units of the output's scale: far above each type's smallest number even where one key in
thousands has a mark, and within its range where one key has all the weight."""

SHORT_MARK, LARGEST_SHIFT = 10.0, 5
"""What a one-byte cache stores as mark, times a power of two up to 2**5, where sums must be exact. Ten times each scale
that is drawn has few bits in every type, so that the sum of marks is exact for a hundred thousand keys too."""

_IRRELEVANT: Final = ("poison", "strides", "form")
"""Fields of a case on which no number depends."""
_RELEVANT: Final = tuple(name for name in AttentionCase.__struct_fields__ if name not in _IRRELEVANT)


@dataclass(frozen=True)
class Numbers:
    """The float32 numbers of a case; shapes as the module says."""

    queries: Floats
    keys: Floats
    values: Floats


def numbers_of(case: AttentionCase) -> Numbers:
    """Return queries, keys and values of the case with overrides, clipped to ``LIMIT``; callers must not change them.

    Relations launch the same case with other poison and strides, which no number depends on. So the cache ignores them.
    """
    return _numbers_of(_Key(case))


class _Key:
    """A case as the key of its numbers: equal to each case with the same ones.

    To hash or to change a whole case instead takes 1 % of the time of a case of a campaign.
    """

    def __init__(self, case: AttentionCase) -> None:
        self.case = case

    def __hash__(self) -> int:
        return hash(self.case.seed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key):
            return NotImplemented
        return all(getattr(self.case, name) == getattr(other.case, name) for name in _RELEVANT)


@lru_cache(maxsize=1)
def _numbers_of(key: _Key) -> Numbers:
    case = key.case
    rows = rows_of(case)
    queries, keys = _scores(case.scores, case, rows)
    values = _values(case.values, case, rows)
    if case.near_uniform:
        queries *= _near_uniform_factors(case)
    if case.equal_heads:
        queries = np.where(equal_heads(case)[:, None], np.float32(0.0), queries)
    if case.key_marks:
        _mark(values, case, rows)
    for array in (queries, keys, values):
        np.clip(array, -LIMIT, LIMIT, out=array)
    if FAMILIES[case.family].cache.is_latent:
        values = _latent(queries, keys, values, case)
    numbers = Numbers(queries, keys, values)
    for override in case.overrides:
        _apply(override, case, numbers)
    for array in (queries, keys, values):
        array.setflags(write=False)
    return numbers


_SHAPELESS: Final = (recipes.NormalScores, recipes.UniformScores)
"""Recipes of scores that say nothing of single keys."""


_ALIKE: Final = (recipes.LevelScores, recipes.HeavyScores)
"""Recipes of scores whose keys are all alike, or nearly: as values they would hide each other."""


def _latent(queries: Floats, keys: Floats, values: Floats, case: AttentionCase) -> Floats:
    """Return the first elements of the keys as values, a view of the keys.

    They are what the recipe of values says, or what that of scores does where it shapes the scores of single keys.
    Where that makes all values alike, the elements behind the value shape the scores alone, or the last one of all:
    with equal heads, and else in three of four cases.
    """
    size, head_size = values.shape[-1], keys.shape[-1]
    found = keys[..., :size]
    if isinstance(case.scores, _ALIKE) and head_size > 1:
        if case.equal_heads or Stream(case.seed, _ALONE).below(4, 1)[0]:
            first = min(size, head_size - 1)
            queries[..., :first] = 0.0
            queries[..., first:] *= np.float32(head_size / (head_size - first))
            np.clip(queries, -LIMIT, LIMIT, out=queries)
            found[..., :first] = values[..., :first]
    elif case.equal_heads or isinstance(case.scores, _SHAPELESS):
        found[...] = values
    return found


def _apply(override: recipes.Override, case: AttentionCase, numbers: Numbers) -> None:
    """Set one element. An override outside of the tensors, as shrinking may leave it, changes nothing."""
    if override.sequence >= len(case.sequences):
        return
    lengths = [s.query_len if override.tensor == "q" else s.seq_len for s in case.sequences]
    array = {"q": numbers.queries, "k": numbers.keys, "v": numbers.values}[override.tensor]
    if override.position < lengths[override.sequence]:
        flat = sum(lengths[: override.sequence]) + override.position
        if override.head < array.shape[1] and override.column < array.shape[2]:
            array[flat, override.head, override.column] = np.clip(np.float32(override.value), -LIMIT, LIMIT)


def _near_uniform_factors(case: AttentionCase) -> Floats:
    """Return what multiplies the queries ``[num_tokens, num_query_heads, 1]``: 1 for about one row in eight."""
    unchanged = Stream(case.seed, _NEAR_UNIFORM).below(8, *_query_shape(case)[:2], 1) == 0
    return np.where(unchanged, np.float32(1.0), NEAR_UNIFORM)


def _mark(values: Floats, case: AttentionCase, rows: Rows) -> None:
    """Put the key marks into the odd columns. Each key has a mark in one that it shares with few keys, and 0 elsewhere.

    Keys that share a column alternate in sign. With equal weights the column averages to nearly 0, whichever part of
    the sequence a row sees, and each key moves it by far more than its rounding. Where equal heads have only one
    column, it has the marks.
    """
    columns = values[..., 1::2]
    if case.equal_heads and case.heads.head_size_v == 1:
        values[...] = _pairs(case, rows) * _mark_size(case)
    if not columns.shape[-1]:
        return
    keys = rows.key_position + 5 * rows.key_sequence
    lap, column = np.divmod(keys[:, None] + 3 * np.arange(case.heads.num_kv_heads), columns.shape[-1])
    size = _mark_size(case)
    columns[...] = 0.0
    columns[np.arange(len(column))[:, None], np.arange(column.shape[1]), column] = np.where(lap % 2, -size, size)


def _pairs(case: AttentionCase, rows: Rows) -> Floats:
    """Return signs ``[total_keys, num_kv_heads, 1]``: random for each even position, the opposite for the one after."""
    odd = rows.key_position % 2
    signs: Floats = Stream(case.seed, _PAIRS).signs(*_value_shape(case))[np.arange(case.total_keys) - odd]
    signs *= (1 - 2 * odd)[:, None, None].astype(np.float32)
    return signs


def _mark_size(case: AttentionCase) -> np.float32:
    """Return the size of the marks, of equal heads in a one-byte cache a power of two times ``SHORT_MARK`` as stored.

    That is the largest one up to ``MARK``.
    """
    size, scale = MARK * _factor(case.scales.out), np.float32(abs(case.scales.v))
    if not (case.equal_heads and is_fp8(case.dtypes.kv) and scale):
        return size
    _, exponent = math.frexp(float(size) / (SHORT_MARK * float(scale)))
    return np.float32(math.ldexp(SHORT_MARK, min(exponent - 1, LARGEST_SHIFT)) * float(scale))


def _query_shape(case: AttentionCase) -> tuple[int, int, int]:
    return case.num_tokens, case.heads.num_query_heads, case.heads.head_size


def _key_shape(case: AttentionCase) -> tuple[int, int, int]:
    return case.total_keys, case.heads.num_kv_heads, case.heads.head_size


def _value_shape(case: AttentionCase) -> tuple[int, int, int]:
    return case.total_keys, case.heads.num_kv_heads, case.heads.head_size_v


def _dot_gain(case: AttentionCase) -> float:
    """Return the logit of two all-ones vectors, never 0, so that recipes can divide by it."""
    return (case.softmax_scale or 1.0) * case.heads.head_size


def _factor(size: float) -> np.float32:
    """Return a factor so far inside of float32's range that no product with it overflows before it is clipped."""
    return np.float32(min(max(size, -1e30), 1e30))


@singledispatch
def _scores(recipe: recipes.ScoreRecipe, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    raise NotImplementedError(type(recipe))


@_scores.register
def _(recipe: recipes.NormalScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    gain = recipe.spread / (_dot_gain(case) / math.sqrt(case.heads.head_size))
    queries = Stream(case.seed, _QUERIES).normals(*_query_shape(case)) * _factor(gain)
    return queries, Stream(case.seed, _KEYS).normals(*_key_shape(case))


@_scores.register
def _(recipe: recipes.UniformScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    return np.zeros(_query_shape(case), np.float32), Stream(case.seed, _KEYS).normals(*_key_shape(case))


@_scores.register
def _(recipe: recipes.NeedleScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    codes = Stream(case.seed, _KEYS).signs(*_key_shape(case))
    if not (case.num_tokens and case.total_keys):
        return np.zeros(_query_shape(case), np.float32), codes
    needles = np.clip(_needles(recipe.place, case, rows), 0, rows.seq_len[:, None] - 1)
    kv_head = np.arange(case.heads.num_query_heads) // case.heads.num_queries_per_kv
    peaks = codes[rows.start[:, None] + needles, kv_head[None, :]]
    return peaks * _factor(recipe.strength / _dot_gain(case)), codes


@_scores.register
def _(recipe: recipes.HeavyScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    heavy = _heavy_keys(recipe, case, rows) | (rows.key_position == 0) | (rows.key_position == rows.key_seq_len - 1)
    keys = np.broadcast_to((~heavy).astype(np.float32)[:, None, None], _key_shape(case)).copy()
    return np.full(_query_shape(case), _factor(-recipe.depth / _dot_gain(case))), keys


@_scores.register
def _(recipe: recipes.LevelScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    gain = abs(_dot_gain(case))
    size = math.sqrt(max(abs(recipe.level), 1.0) / gain)
    sign = math.copysign(1.0, recipe.level) * math.copysign(1.0, _dot_gain(case))
    queries = np.full(_query_shape(case), _factor(sign * size))
    noise = Stream(case.seed, _KEYS).normals(*_key_shape(case)[:2], 1) * _factor(recipe.jitter / (gain * size))
    return queries, np.broadcast_to(noise + _factor(abs(recipe.level) / (gain * size)), _key_shape(case)).copy()


@_scores.register
def _(recipe: recipes.RampScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    heights = (rows.key_position - rows.key_context).astype(np.float32) * np.float32(recipe.step)
    heights = np.clip(heights, -200.0, 200.0)[:, None, None]
    queries = np.full(_query_shape(case), _factor(1.0 / _dot_gain(case)))
    return queries, np.broadcast_to(heights, _key_shape(case)).astype(np.float32)


@_scores.register
def _(recipe: recipes.OutlierScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    queries, keys = _scores(recipes.NormalScores(), case, rows)
    chosen = Stream(case.seed, _OUTLIERS).below(16, *_key_shape(case)[:2], 1) == 0
    return queries, np.where(chosen, keys * np.float32(recipe.factor), keys)


@_scores.register
def _(recipe: recipes.DenormalScores, case: AttentionCase, rows: Rows) -> tuple[Floats, Floats]:
    smallest_query = DTYPES[case.dtypes.q].smallest_normal * case.scales.q
    smallest_key = DTYPES[case.dtypes.kv].smallest_normal * case.scales.k
    return (
        _around(smallest_query, Stream(case.seed, _QUERIES), _query_shape(case)),
        _around(smallest_key, Stream(case.seed, _KEYS), _key_shape(case)),
    )


def _heavy_keys(recipe: recipes.HeavyScores, case: AttentionCase, rows: Rows) -> np.typing.NDArray[np.bool_]:
    """Return which keys of the batch are heavy, bool ``[total_keys]``."""
    position, stream = rows.key_position, Stream(case.seed, _HEAVY)
    chosen, place = np.zeros_like(position), position
    if recipe.place == "tiles":
        chosen, place = 7 * (position // 16) % 16, position % 16
    elif recipe.place == "pages":
        place = (position + 1) % case.pages.block_size // 2
    elif recipe.place == "random":
        place = stream.below(2, case.total_keys)
    else:
        chosen = stream.below(np.maximum(rows.total, 1), len(case.sequences)).repeat(rows.total)
    heavy: np.typing.NDArray[np.bool_] = chosen == place
    return heavy


def _around(size: float, stream: Stream, shape: tuple[int, int, int]) -> Floats:
    """Return signed numbers between an eighth and eight times ``size``."""
    sizes: Floats = np.ldexp(np.float32(size), np.arange(-3, 4)).astype(np.float32)
    exponents = stream.below(7, *shape)
    return stream.signs(*shape) * sizes[exponents]


def _needles(place: recipes.Place, case: AttentionCase, rows: Rows) -> Integers:
    """Return the position of each row's needle ``[num_tokens, num_query_heads]``, perhaps outside of the sequence."""
    shape = (case.num_tokens, case.heads.num_query_heads)
    position, first = rows.position[:, None], rows.first[:, None]
    if place == "random":
        return first + Stream(case.seed, _NEEDLES).below(position - first + 1, *shape)
    if place == "boundary":
        return _boundary_needles(case, first, position, shape)
    fixed = {"own": position, "first": first, "outside_left": first - 1, "outside_right": position + 1}[place]
    return np.broadcast_to(fixed, shape)


def _boundary_needles(case: AttentionCase, first: Integers, position: Integers, shape: tuple[int, int]) -> Integers:
    """Return needles on the last slot before, or the first slot after, an edge of a page or of 16 keys."""
    stream = Stream(case.seed, _NEEDLES)
    sizes = np.array([case.pages.block_size, 16], dtype=np.int64)[stream.below(2, *shape)]
    edges = (first + stream.below(position - first + 1, *shape)) // sizes * sizes
    needles: Integers = np.clip(edges - stream.below(2, *shape), first, position)
    return needles


@singledispatch
def _values(recipe: recipes.ValueRecipe, case: AttentionCase, rows: Rows) -> Floats:
    raise NotImplementedError(type(recipe))


@_values.register
def _(recipe: recipes.NormalValues, case: AttentionCase, rows: Rows) -> Floats:
    return Stream(case.seed, _VALUES).normals(*_value_shape(case))


@_values.register
def _(recipe: recipes.ConstantValues, case: AttentionCase, rows: Rows) -> Floats:
    return np.full(_value_shape(case), recipe.value, np.float32)


@_values.register
def _(recipe: recipes.PositionValues, case: AttentionCase, rows: Rows) -> Floats:
    heads = np.arange(case.heads.num_kv_heads)[None, :, None]
    columns = np.arange(case.heads.head_size_v)[None, None, :]
    # The codes of keys repeat, so each is computed once and copied.
    keys, place = np.unique((rows.key_position + 5 * rows.key_sequence) % 31, return_inverse=True)
    codes = (keys[:, None, None] * (columns % 30 + 1) + 3 * heads + columns) % 31 - 15
    values: Floats = (codes.astype(np.float32) * np.float32(0.125))[place]
    return values


@_values.register
def _(recipe: recipes.OneHotValues, case: AttentionCase, rows: Rows) -> Floats:
    edges = np.zeros(case.total_keys, dtype=np.bool_)
    for size in (case.pages.block_size, 16):
        edges |= (rows.key_position % size == 0) | (rows.key_position % size == size - 1)
    edges |= rows.key_position == rows.key_seq_len - 1
    return np.broadcast_to(edges[:, None, None], _value_shape(case)).astype(np.float32)


@_values.register
def _(recipe: recipes.IntegerValues, case: AttentionCase, rows: Rows) -> Floats:
    return (Stream(case.seed, _VALUES).below(17, *_value_shape(case)) - 8).astype(np.float32)


@_values.register
def _(recipe: recipes.OutlierValues, case: AttentionCase, rows: Rows) -> Floats:
    values = Stream(case.seed, _VALUES).normals(*_value_shape(case))
    chosen = Stream(case.seed, _OUTLIERS).below(16, *_value_shape(case)) == 1
    return np.where(chosen, values * np.float32(recipe.factor), values)


@_values.register
def _(recipe: recipes.DenormalValues, case: AttentionCase, rows: Rows) -> Floats:
    smallest = DTYPES[case.dtypes.kv].smallest_normal * case.scales.v
    return _around(smallest, Stream(case.seed, _VALUES), _value_shape(case))


def alibi_slopes(recipe: AlibiRecipe, case: AttentionCase) -> Floats:
    """Return the slopes ``[num_query_heads]``.

    In a near-uniform case, most slopes are divided by about the longest sequence's length. A slope of 1 would leave no
    weight to keys that are 30 tokens away. Equal heads have a slope of 0.
    """
    slopes = _recipe_slopes(recipe, case)
    if case.near_uniform:
        factor = np.float32(2.0 ** -case.max_seq_len.bit_length())
        slopes *= np.where(Stream(case.seed, _UNIFORM_SLOPES).below(16, slopes.size) == 0, np.float32(1.0), factor)
    slopes[equal_heads(case)] = 0.0
    return slopes


def _recipe_slopes(recipe: AlibiRecipe, case: AttentionCase) -> Floats:
    heads = case.heads.num_query_heads
    if recipe.kind == "zero":
        return np.zeros(heads, np.float32)
    if recipe.kind == "positive":
        numbers = Stream(case.seed, _SLOPES).below(2**16, heads) + 1
        return numbers.astype(np.float32) * np.float32(2.0**-16 * recipe.scale)
    if recipe.kind == "arbitrary":
        uniform = Stream(case.seed, _SLOPES).below(2**20 + 1, heads).astype(np.float32) * np.float32(2.0**-19) - 1
        return uniform.astype(np.float32) * np.float32(recipe.scale)
    sign = -1.0 if recipe.kind == "negative" else 1.0
    return np.array(standard_slopes(heads), np.float32) * np.float32(sign * recipe.scale)


def standard_slopes(num_heads: int) -> list[float]:
    """Return the geometric slopes of Press et al., "Train Short, Test Long" (2022), for any number of heads.

    A power of two n has the slopes ``2 ** (-8 i / n)`` for i = 1 to n; other numbers add every second slope of 2 n.
    Only square roots and products are used, which IEEE rounds the same everywhere.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = _geometric(power)
    return slopes + _geometric(2 * power)[0::2][: num_heads - power]


def _geometric(count: int) -> list[float]:
    base = 2.0**-8
    for _ in range(count.bit_length() - 1):
        base = math.sqrt(base)
    slopes = [base]
    while len(slopes) < count:
        slopes.append(slopes[-1] * base)
    return slopes


def qq_bias(recipe: QQBiasRecipe, case: AttentionCase) -> Floats:
    """Return the bias between new tokens, without the rows that no kernel may read."""
    live = max(1, case.max_query_len)
    bias = _bias(recipe, case, live, max(1, live + recipe.extra_columns))
    if recipe.order == "one_row":
        bias[:] = bias[:1].copy()
    if recipe.order == "one_column":
        bias[:] = bias[:, :1].copy()
    return bias


def _bias(recipe: QQBiasRecipe, case: AttentionCase, rows: int, columns: int) -> Floats:
    if recipe.kind == "zero":
        return np.zeros((rows, columns), np.float32)
    if recipe.kind == "dense":
        return Stream(case.seed, _BIAS).normals(rows, columns) * np.float32(recipe.scale)
    seen = _tree(case, rows, columns) if recipe.kind == "tree" else np.eye(rows, columns, dtype=np.bool_)
    return np.where(seen, np.float32(0.0), np.float32(-np.inf))


def _tree(case: AttentionCase, rows: int, columns: int) -> np.typing.NDArray[np.bool_]:
    """Return which column is the row's own token or an ancestor of it in a random tree of draft tokens."""
    parents = Stream(case.seed, _TREE).below(np.maximum(np.arange(rows), 1), rows)
    ancestors = np.eye(rows, max(rows, columns), dtype=np.bool_)
    for row in range(1, rows):
        ancestors[row] |= ancestors[parents[row]]
    return ancestors[:, :columns]


def sinks(recipe: SinkRecipe, case: AttentionCase) -> Floats:
    """Return the sink logits ``[num_query_heads]`` before they are rounded and clamped to the recipe's type.

    Those of equal heads are 0.
    """
    normals = Stream(case.seed, _SINKS).normals(case.heads.num_query_heads)
    logits = normals * np.float32(recipe.spread) + np.float32(recipe.level)
    logits[equal_heads(case)] = 0.0
    return logits
