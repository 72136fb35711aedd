"""Aspects: everything that varies in a case, one row of a table for each.

A *feature* is an aspect that a target may lack: it has a name in domains and bindings. A *trait* is a way in which a
case is more than the simplest one, which is one key of one float32 head of 16. A failure's *trigger* is the traits that
it needs: a case that has them may show the failure again. A target may *refuse* a case for an aspect, and the shrinker
makes a failing case smaller along it.

To add an aspect, add a row. Statistics, domains, refusals, shrinking, triggers and reports follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import msgspec

from fuzz_attn.case import changes, contract_trial, paths
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.changes import C, Change, replace, replace_layout, with_field, with_fields, with_head_size
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import (
    FAR_AXES,
    INNER_STRIDES,
    CallForm,
    DTypeName,
    DTypes,
    LaunchHints,
    Sequence,
    Strides,
    is_fp8,
    without_far,
)
from fuzz_attn.case.recipes import (
    CAUSAL,
    SIMPLEST,
    AlibiRecipe,
    Chunks,
    Custom,
    Full,
    Lookahead,
    Mask,
    MaskKind,
    QQBiasRecipe,
    SinkRecipe,
    TopLeft,
)

Feature: TypeAlias = Literal[
    "window",
    "softcap",
    "alibi",
    "qq_bias",
    "sinks",
    "fp8_q",
    "fp8_kv",
    "fp8_out",
    "filter_by_query_len",
    "uint8_cache",
    "stale_cache",
    "ragged_splits",
    "lse",
    "head_size_v",
    "large_offsets",
    "far_axes",
    "strides",
    "empty_sequences",
    "empty_decodes",
    "padded_tokens",
    "scale_signs",
    "mixed_dtypes",
    "bias_dtypes",
    "inner_strides",
    "call_forms",
    "full_mask",
    "top_left",
    "lookahead",
    "chunks",
    "custom_mask",
    "empty_rows",
    "hidden_poison",
    "fewer_keys",
]
"""What a case may have beyond plain paged attention, as domains, bindings and signatures of failures name it."""

FP8_OUTPUT: Final = "fp8 output"
SIMPLEST_SIZE: Final = 16
"""The simplest size of a head and of a page: one block of a dot product."""


class Aspect(NamedTuple):
    """One thing that varies in a case. ``words`` name it in reports and, where it is a ``trait``, in saved triggers.

    ``value`` is its value in a case, for most only whether the case has it. ``changed`` returns a case with another
    value; raises :class:`fuzz_attn.errors.CaseError` where the rest of the case does not allow it. ``has_form`` says
    whether true means one simplest form; else types or the domain decide. ``smaller`` are changes that the shrinker
    tries, the simplest first. Being above one of the ``levels`` is a trait too, which ``above`` names. ``named``
    returns other words of the trait where each of many values shows failures of its own. ``instead`` returns
    a case that keeps another trait of the same size, which it names, or has the other trait where one of two is needed.

    ``refused`` says whether a target may refuse a case for it, under another name where it is a text; a ``growing`` one
    is a size that a target may limit. ``key`` is the field of the compile key that holds its value, and ``bounds`` that
    of a domain which bounds it. ``stated`` is the field of a domain that states its only value beside the simplest.
    ``name`` is the argument of :func:`fuzz_attn.cases` that sets it.

    A ``feature`` needs the ``roles`` of a binding, of several sets one, and exists in some ``families``. One that
    ``identifies`` belongs to signatures of failures and to statistics. What is not ``published`` no published signature
    promises: a target must declare it. A ``virtual`` one is of addresses that mostly have no memory. In a
    description, ``line`` names that of its recipe, if not its words.
    """

    words: str
    value: Callable[[CaseFields], Any]
    changed: Callable[[CaseFields, Any], CaseFields]
    simplest: Any = False
    has_form: bool = False
    smaller: tuple[Callable[[Any], Any], ...] = ()
    trait: bool = True
    named: Callable[[CaseFields], tuple[str, ...]] | None = None
    above: str = ""
    levels: tuple[int, ...] = ()
    refused: bool | str = False
    growing: bool = False
    key: str = ""
    bounds: str = ""
    stated: str = ""
    feature: Feature | None = None
    families: tuple[Family, ...] = get_args(Family)
    identifies: bool = True
    published: bool = True
    virtual: bool = False
    roles: tuple[str, ...] = ()
    line: str = ""
    name: str = ""
    instead: tuple[str, Change] | None = None

    def present(self, case: CaseFields) -> bool:
        """Return whether a case is more than the simplest one here."""
        return bool(self.value(case) != self.simplest)

    def words_in(self, case: CaseFields) -> tuple[str, ...]:
        """Return the words of a trait that a case has: one text, or one for each value of several."""
        return self.named(case) if self.named is not None else (self.words,)

    def having(self, case: C, value: Any) -> C:
        """Return the case with a value; raises :class:`fuzz_attn.errors.CaseError` where the rest does not allow it."""
        return case if self.value(case) == value else cast("C", self.changed(case, value))

    def without(self, case: C) -> C:
        """Return the case with the simplest value; raises like :meth:`having`."""
        return self.having(case, self.simplest)

    @property
    def refused_as(self) -> str:
        """What a refusal calls it."""
        return self.refused if isinstance(self.refused, str) else self.words

    def levels_of(self, case: CaseFields) -> tuple[int, ...]:
        """Return the levels that a case is above."""
        value = self.value(case) if self.levels else 0
        return tuple(level for level in self.levels if value > level)


Rest: TypeAlias = Change | Mapping[str, Any]
"""A change of a case, or the fields that it sets."""


def _change(rest: Rest) -> Change:
    return partial(with_fields, changes=rest) if isinstance(rest, Mapping) else rest


def _each(values: Iterable[Any], *paths: str) -> tuple[Change, ...]:
    """Return the changes of each field to each value, with all other fields as they are."""
    return tuple(partial(with_field, path=path, value=value) for path in paths for value in values)


def _when(
    words: str, value: Callable[[CaseFields], Any], without: Rest, form: Rest | None = None, **more: Any
) -> Aspect:
    """Return an aspect that a case has or not, with the changes to a case without it and with its simplest form."""
    added, removed = form and _change(form), _change(without)

    def changed(case: CaseFields, on: Any) -> CaseFields:
        return added(case) if on and added else removed(case)

    return Aspect(words, value, changed, has_form=form is not None, **more)


_PLAIN: Final = CaseFields(sequences=())


def _fields(words: str, *paths: str, form: Any = None, tried: Iterable[Any] = (), **more: Any) -> Aspect:
    """Return an aspect that a case has where some fields differ from their defaults.

    ``form`` is the value of the first field in its simplest form, ``tried`` are values that the shrinker tries.
    """
    plain = {path: attrgetter(path)(_PLAIN) for path in paths}
    (first, default), *others = ((attrgetter(path), usual) for path, usual in plain.items())

    def value(case: CaseFields) -> bool:
        return bool(first(case) != default) or any(get(case) != usual for get, usual in others)

    more.setdefault("smaller", _each(tried, *paths))
    return _when(words, value, plain, None if form is None else {paths[0]: form}, **more)


def _feature(name: Feature, words: str, *, compiled: bool = False, **more: Any) -> Aspect:
    """Return a feature that is a field of the case, and that a target may refuse."""
    return _fields(words, name, feature=name, key=name if compiled else "", refused=True, **more)


def _size(
    words: str,
    path: str,
    resized: Callable[..., CaseFields] | None = None,
    *,
    tried: Iterable[int] = (),
    also: Callable[..., CaseFields] | None = None,
    **more: Any,
) -> Aspect:
    """Return an aspect whose value is that of a field; its default is the simplest value.

    ``resized`` returns a case with another value. The shrinker tries some values in this way and ``also`` in another.
    """
    set_value = resized or (lambda case, value: with_fields(case, {path: value}))
    ways = [way for way in (set_value, also) if way]
    smaller = tuple((lambda case, way=way, size=size: way(case, size)) for size in tried for way in ways)
    return Aspect(words, attrgetter(path), set_value, attrgetter(path)(_PLAIN), smaller=smaller, **more)


def _length(words: str, value: Callable[[CaseFields], int], changed: Callable[..., CaseFields], **more: Any) -> Aspect:
    """Return a length of the batch, which is a trait by its levels only."""
    return Aspect(words, value, changed, simplest=1, trait=False, **more)


def _page_size(case: CaseFields) -> int:
    """Return the slots of a page, the simplest number of packed keys, which have no pages."""
    return SIMPLEST_SIZE if FAMILIES[case.family].cache.is_packed else case.pages.block_size


def _pages_of_a_sequence(case: CaseFields) -> int:
    return 1 if FAMILIES[case.family].cache.is_packed else -(-case.max_seq_len // case.pages.block_size)


def _block_traits(
    noun: str,
    get: Callable[[CaseFields], int],
    resized: Callable[..., CaseFields],
    scaled: Callable[..., CaseFields],
) -> tuple[Aspect, ...]:
    """Return the traits of a size of heads or pages, which one block of a dot product makes simple.

    ``scaled`` returns a case with another size in which the rest is as large beside it.
    """
    to_block = partial(resized, size=SIMPLEST_SIZE)

    def rounded(case: CaseFields) -> int:
        return 1 << (get(case) - 1).bit_length()

    odd = f"{noun} size no power of two"
    larger, smaller = partial(scaled, size=_LARGER), partial(scaled, size=_SMALLER)
    return (
        _when(odd, lambda case: get(case) != rounded(case), lambda case: resized(case, size=rounded(case))),
        _when(f"small {noun}s", lambda case: get(case) < SIMPLEST_SIZE, to_block, instead=(odd, larger)),
        _when(f"large {noun}s", lambda case: get(case) > SIMPLEST_SIZE, to_block, instead=(odd, smaller)),
    )


_SMALLER, _LARGER = 12, 24
"""Sizes of a block that are no power of two."""


def _uses(*names: DTypeName) -> Callable[[CaseFields], bool]:
    return lambda case: not {case.dtypes.q, case.dtypes.kv, case.dtypes.out}.isdisjoint(names)


@cache
def fp8_features(dtypes: DTypes) -> frozenset[Feature]:
    """Return the features that types of a case have."""
    q, kv, out = is_fp8(dtypes.q), is_fp8(dtypes.kv), is_fp8(dtypes.out)
    found: dict[Feature, bool] = {"fp8_q": q, "fp8_kv": kv and not q, "fp8_out": out}
    return frozenset(name for name, present in found.items() if present)


def is_mixed(dtypes: DTypes) -> bool:
    """Return whether the output has another wide type than q, or two tensors have different kinds of fp8."""
    wide = {name for name in (dtypes.q, dtypes.out) if not is_fp8(name)}
    return len(wide) > 1 or len({name for name in (dtypes.q, dtypes.kv, dtypes.out) if is_fp8(name)}) > 1


def has_other_signs(case: CaseFields) -> bool:
    """Return whether some scale is 0 or negative."""
    scales = case.scales
    return min(case.softmax_scale, scales.q, scales.k, scales.v, scales.out) <= 0.0


def has_bias_dtypes(case: CaseFields) -> bool:
    """Return whether slopes or biases are not float32, or sinks float64."""
    return (
        (case.alibi is not None and case.alibi.dtype != "float32")
        or (case.qq_bias is not None and case.qq_bias.dtype != "float32")
        or (case.sinks is not None and case.sinks.dtype == "float64")
    )


def has_inner_strides(case: CaseFields) -> bool:
    """Return whether there are strides that published kernels assume to be dense."""
    bias, strides = case.qq_bias, case.strides
    if bias is not None and (bias.order != "rows" or bias.step != 1):
        return True
    far_caches = any(name.startswith("cache_") for name in strides.far)
    if "bias_column" in strides.far or (far_caches and FAMILIES[case.family].cache.is_split):
        return True
    return strides.key_piece > 0 or any(getattr(strides, name) for name in INNER_STRIDES)


def _has_empty_sequences(case: CaseFields) -> bool:
    return not case.sequences or any(not sequence.query_len for sequence in case.sequences)


def _has_few_keys(case: CaseFields, *, any_lengths: bool) -> bool:
    """Return whether a sequence has fewer keys than query tokens, in a family that allows any lengths or in another."""
    return FAMILIES[case.family].any_lengths == any_lengths and any(s.context_len < 0 for s in case.sequences)


def _has_unusual_scale(case: CaseFields) -> bool:
    return bool(case.softmax_scale != case.heads.head_size**-0.5)


def _nearer(case: CaseFields, place: int) -> CaseFields:
    """Return the case with one of its far axes near."""
    return replace(case, strides=without_far(case.strides, *case.strides.far[place : place + 1]))


def _masked(recipe: Mask, words: str, **more: Any) -> Aspect:
    """Return the feature of a mask of the type of ``recipe``, its simplest form."""
    kind = type(recipe)
    without = partial(with_fields, changes={"mask": CAUSAL})
    return _when(words, lambda case: isinstance(case.mask, kind), without, {"mask": recipe}, **more)


def _custom(case: CaseFields, field: str, value: bool) -> CaseFields:
    """Return the case with a field of its custom mask changed; one with any other mask gets a custom one."""
    mask = case.mask if isinstance(case.mask, Custom) else Custom()
    return replace(case, mask=msgspec.structs.replace(mask, **{field: value}))


def _of_custom(field: str, words: str, **more: Any) -> Aspect:
    """Return the feature of a field of custom masks that is false in the simplest one."""
    return _when(
        words,
        lambda case: getattr(case.mask, field, False),
        partial(_custom, field=field, value=False),
        partial(_custom, field=field, value=True),
        roles=("custom_mask", "replacing_mask"),
        published=False,
        **_MASKED,
        **more,
    )


def _masks(recipe: Any, values: Iterable[Any]) -> tuple[Change, ...]:
    """Return changes that set the first field of a mask of this type; cases with other masks stay as they are."""

    def changed(case: CaseFields, value: Any) -> CaseFields:
        field = recipe.__struct_fields__[0]
        own = isinstance(case.mask, recipe)
        return replace(case, mask=msgspec.structs.replace(case.mask, **{field: value})) if own else case

    return tuple(partial(changed, value=value) for value in values)


def _with_kind(case: CaseFields, kind: MaskKind) -> CaseFields:
    return replace(case, mask=SIMPLEST[kind])


def _without_full_mask(case: CaseFields) -> CaseFields:
    return _custom(case, "causal", value=True) if isinstance(case.mask, Custom) else replace(case, mask=CAUSAL)


def _launch_of(case: CaseFields) -> LaunchHints:
    return LaunchHints(path=case.launch.path, num_segments=case.launch.num_segments)


def _with_launch(case: CaseFields, launch: LaunchHints) -> CaseFields:
    return with_fields(case, {"launch.path": launch.path, "launch.num_segments": launch.num_segments})


_IN_2D: Final = partial(with_fields, changes={"launch.path": "2d", "launch.num_segments": 0})
"""The change to the other path, for targets that no case lets choose."""
_WINDOWS: Final = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65)
_GROUPS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32)
_SIZES: Final = (16, 8, 32, 24, 4, 17, 15, 2, 1, 3, 33, 40, 48, 64, 63, 65, 72, 80, 96, 112, 120, 128, 160, 192)
_VALUE_SIZES: Final = (16, 8, 4, 2, 1, 3, 15, 17, 32, 64)
_UNIFIED: Final[tuple[Family, ...]] = ("unified",)
_OWN_VALUES: Final[tuple[Family, ...]] = ("unified", "paged", "context", "chunked", "extend", "token_decode")
_DECODES: Final[tuple[Family, ...]] = ("paged", "mla_decode", "token_decode")
_FILTERED: Final[tuple[Family, ...]] = ("paged", "context")
_SPLIT: Final[tuple[Family, ...]] = ("paged", "context", "chunked")
_PACKED: Final[tuple[Family, ...]] = ("context", "chunked", "extend")
_BLOCKS: Final[tuple[Family, ...]] = ("unified", "paged", "context", "chunked")
"""The families that read a block table."""
_OWN_ROWS: Final[tuple[Family, ...]] = (*_OWN_VALUES, "varlen")
_MASKED: Final[dict[str, Any]] = {"families": ("extend",), "refused": True}
_PLACED: Final[dict[str, Any]] = {"families": ("extend", "varlen"), "refused": True}
"""Masks that follow from positions without chunks."""
_DECLARED: Final[dict[str, Any]] = {"published": False, "identifies": False}

CONTRACT: Final = Aspect(
    "a contract trial",
    attrgetter("contract"),
    lambda case, value: msgspec.structs.replace(case, contract=value),
    None,
    named=contract_trial.trait_of,
)
"""An argument in an unusual form, in a case of any operation."""

ODDITIES: Final = (
    CONTRACT,
    _feature("window", "sliding window", form=8, tried=_WINDOWS, compiled=True,
             families=_OWN_ROWS, roles=("window", "window_left window_right")),
    _feature("softcap", "soft cap", form=1.0, tried=(1.0,), compiled=True,
             families=("unified", "extend", "token_decode", "varlen"), roles=("softcap",)),
    _feature("alibi", "ALiBi slopes", form=AlibiRecipe(), compiled=True, families=(*_BLOCKS, "varlen"),
             roles=("alibi_slopes",), line="ALiBi"),
    _when("unusual slopes", lambda case: case.alibi not in (None, AlibiRecipe()), {"alibi": AlibiRecipe()}),
    _feature("qq_bias", "bias between new tokens", form=QQBiasRecipe(), compiled=True, families=_UNIFIED,
             roles=("qq_bias",), line="qq-bias"),
    _when("unusual bias", lambda case: case.qq_bias not in (None, QQBiasRecipe()), {"qq_bias": QQBiasRecipe()}),
    _feature("sinks", "sinks", form=SinkRecipe(), compiled=True, families=_OWN_ROWS, roles=("sinks",)),
    _when("unusual sinks", lambda case: case.sinks not in (None, SinkRecipe()), {"sinks": SinkRecipe()}),
    _when("fp8 queries", lambda case: is_fp8(case.dtypes.q), changes.without_fp8_queries,
          feature="fp8_q", families=_UNIFIED, roles=("q_scale k_scale v_scale",)),
    _when("fp8 cache", lambda case: is_fp8(case.dtypes.kv), changes.without_fp8_cache),
    _when("fp8 cache of wider queries", lambda case: "fp8_kv" in fp8_features(case.dtypes), changes.without_fp8_cache,
          feature="fp8_kv", families=_OWN_VALUES, roles=("k_scale v_scale",), trait=False),
    _when(FP8_OUTPUT, lambda case: is_fp8(case.dtypes.out), changes.without_fp8_output,
          feature="fp8_out", families=_OWN_VALUES, roles=("out_scale",)),
    _when("fp8 of type e5m2", _uses("float8_e5m2"), changes.with_type("float8_e4m3fn", "float8_e5m2")),
    _fields("scales other than 1", "scales", smaller=_each((1.0,), "scales.q", "scales.k", "scales.v", "scales.out")),
    _feature("filter_by_query_len", "skips the sequences of the other family", form=True, compiled=True,
             families=_FILTERED, roles=("query_start_loc skips_others",)),
    _feature("uint8_cache", "fp8 cache passed as bytes", form=True, families=_SPLIT, roles=("kv_cache_dtype",)),
    _feature("stale_cache", "cache without the new tokens", form=True, families=_PACKED),
    _feature("ragged_splits", "splits for each sequence", form=True, families=("token_decode",), roles=("seq_splits",)),
    _feature("lse", "log-sum-exp as a second output", compiled=True, published=False, roles=("lse",),
             line="log-sum-exp", stated="lse"),
    _size("values of another size than keys", "heads.value_size", changes.with_value_size, tried=_VALUE_SIZES,
          refused="value size", key="value_size", bounds="value_sizes", feature="head_size_v", published=False,
          name="value_size"),
    # Caches of many gigabytes, of which only the pages of the case have memory: not for a target that copies them.
    _fields("pages far into the caches", "pages.first_block",
            feature="large_offsets", families=(*_BLOCKS, "extend", "mla_decode", "token_decode"), virtual=True,
            refused="large offsets"),
    # Tokens, heads, slots or dimensions of a tensor lie 2^31 elements from the first one.
    _fields("elements far apart", "strides.far",
            smaller=tuple(partial(_nearer, place=place) for place in range(len(FAR_AXES))),
            feature="far_axes", virtual=True, published=False),
    _fields("strided tensors", "strides", form=Strides(q_token=16, out_token=16),
            feature="strides", identifies=False, trait=False),
    _when("padding between rows", lambda case: msgspec.structs.replace(case.strides, cache="separate") != Strides(),
          lambda case: replace_layout(case, strides=Strides(cache=case.strides.cache)), refused=True, trait=False),
    _size("K and V in one order of memory", "strides.cache", refused="caches arranged as"),
    _fields("padding in q", "strides.q_token", "strides.q_head", tried=(0, 1)),
    _fields("padding in the output", "strides.out_token", "strides.out_head", tried=(0, 1)),
    _fields("padding in the caches", "strides.cache_slot", "strides.value_slot", tried=(0, 1)),
    _fields("padding in the block table", "strides.block_table", tried=(0, 1)),
    _fields("padding in the new keys", "strides.new_token", "strides.new_head", tried=(0, 1)),
    _when("sequences without query tokens", _has_empty_sequences, changes.without_empty_sequences,
          changes.with_empty_sequences, feature="empty_sequences", identifies=False, refused=True),
    # Where token i belongs to sequence i: the target leaves the rows of such sequences alone.
    _when("decodes of length 0", partial(_has_few_keys, any_lengths=False),
          changes.without_empty_decodes, {"sequences": (Sequence(1, 4), Sequence(1, -1))}, refused=True,
          feature="empty_decodes", families=_DECODES, roles=("seq_lens", "kv_indptr"), **_DECLARED),
    # Without a length of its own, the rows of q are the sequences.
    _feature("padded_tokens", "padded rows of q and out", form=1, tried=(1,), identifies=False, families=_OWN_ROWS,
             roles=("query_start_loc", "query_lens", "kv_indptr")),
    _when("scales of 0 or below", has_other_signs, changes.with_positive_scales, {"softmax_scale": -0.125},
          feature="scale_signs", **_DECLARED),
    _when("mixed types", lambda case: is_mixed(case.dtypes), changes.with_matching_types,
          feature="mixed_dtypes", **_DECLARED),
    _when("slopes or biases of other types", has_bias_dtypes, changes.with_float32_biases,
          feature="bias_dtypes", families=_OWN_ROWS, **_DECLARED),
    _when("strides inside rows and pages", has_inner_strides, changes.with_dense_rows_and_pages,
          smaller=_each((0, 1), *(f"strides.{name}" for name in (*INNER_STRIDES, "key_piece"))),
          feature="inner_strides", families=(*_BLOCKS, "extend"), **_DECLARED),
    _fields("arguments in other forms", "form", form=CallForm(extra_table_rows=1, extra_output_rows=1),
            feature="call_forms", **_DECLARED),
    _when("keys behind a row's own seen", lambda case: case.visibility.sees_all_behind, _without_full_mask,
          {"mask": Full()}, feature="full_mask", roles=("causal",), **_PLACED),
    _masked(TopLeft(), "causal from the top left", feature="top_left", roles=("top_left",), published=False, **_PLACED),
    _masked(Lookahead(), "a window of two sides", feature="lookahead", roles=("causal window",),
            smaller=_masks(Lookahead, (0, 1, 2, 4)), **_PLACED),
    _masked(Chunks(), "chunks of keys", feature="chunks", roles=("chunk_size",), smaller=_masks(Chunks, (16, 4, 1, 2)),
            **_MASKED),
    _masked(Custom(), "custom mask", feature="custom_mask",
            roles=("custom_mask mask_indptr", "replacing_mask mask_indptr"),
            smaller=_masks(Custom, ("bottom_right", "tree", "blocks")), **_MASKED),
    _of_custom("empty_rows", "rows that see nothing", feature="empty_rows"),
    _of_custom("poisoned", "poison in keys that a custom mask hides", feature="hidden_poison"),
    _when("fewer keys than query tokens", partial(_has_few_keys, any_lengths=True), changes.with_enough_keys,
          {"sequences": (Sequence(2, -1),)}, refused=True, feature="fewer_keys", families=("varlen",),
          published=False),
    Aspect("mask", lambda case: case.mask.kind, _with_kind, CAUSAL.kind, refused="masks of the kind", trait=False,
           key="mask", name="mask"),
    Aspect("path", _launch_of, _with_launch, LaunchHints(), refused=True, trait=False, key="launch"),
    _when("2D path", lambda case: case.launch.path == "2d", {"launch.path": "auto"},
          instead=("", partial(with_fields, changes={"launch.path": "3d", "launch.num_segments": 2}))),
    _when("3D path", lambda case: case.launch.path == "3d", {"launch.path": "auto", "launch.num_segments": 0},
          smaller=(_IN_2D, *_each((2, 3, 4), "launch.num_segments")), instead=("", _IN_2D)),
    _size("another num_warps", "launch.num_warps", refused="num_warps", key="num_warps"),
    _size("another num_stages", "launch.num_stages", refused="num_stages", key="num_stages"),
    _size("tile size", "launch.tile_size", tried=(16, 32), refused=True, key="tile_size"),
    _size("another configuration", "launch.configuration", refused="configuration", key="configuration",
          named=paths.configuration_words),
    Aspect("other optional arguments", attrgetter("launch.arguments"), paths.with_arguments, (), refused="arguments",
           smaller=paths.WITHOUT_EACH, key="arguments", named=paths.argument_words),
    _fields("pages in a random order", "pages.permuted"),
    _fields("shared pages", "pages.shared_prefix", tried=(1,)),
    _fields("repeated pages", "pages.repeated"),
    _fields("pages permuted, shared or repeated", "pages.permuted", "pages.shared_prefix", "pages.repeated",
            refused=True, trait=False),
    _fields("spare pages", "pages.spare_blocks", tried=(1,)),
    _fields("a wider block table", "pages.extra_columns", tried=(1,)),
    _fields("spare pages or a wider block table", "pages.spare_blocks", "pages.extra_columns",
            refused=True, trait=False),
    _fields("scales other than 1", "scales", refused=True, trait=False),  # in the order of a refusal
    _fields("dead keys without NaN", "poison.keys"),
    _fields("dead values without NaN", "poison.values"),
    _fields("dead table entries other than num_blocks", "poison.table"),
    _fields("the second NaN in the output", "poison.out"),
    _fields("scores not normal", "scores"),
    _fields("values not normal", "values"),
    _fields("single elements set", "overrides"),
    _fields("near-uniform weights", "near_uniform"),
    _fields("equal weights in most heads", "equal_heads"),
    _fields("marked keys", "key_marks"),
    _when("unusual softmax scale", _has_unusual_scale, changes.with_usual_scale,
          refused="a softmax scale other than head_size**-0.5", name="softmax_scale"),
    _when("a bias of another shape than the longest query",
          lambda case: case.qq_bias is not None and bool(case.qq_bias.extra_rows or case.qq_bias.extra_columns),
          {"qq_bias": QQBiasRecipe()}, refused=True, trait=False),
    Aspect("type of sinks", lambda case: case.sinks.dtype if case.sinks else "float32",
           lambda case, dtype: replace(case, sinks=SinkRecipe(dtype=dtype)), "float32", refused=True, trait=False),
    _fields("seed", "seed", tried=(0,), trait=False, name="seed"),
)  # fmt: skip
"""Features and oddities, in the order in which a report names them."""

KINDS: Final = (
    _when("bfloat16", lambda case: "bfloat16" in (case.dtypes.q, case.dtypes.out),
          changes.with_type("float16", "bfloat16")),
    _when("16-bit types", _uses("float16", "bfloat16"), changes.with_type("float32", "float16", "bfloat16")),
    _size("several KV heads", "heads.num_kv_heads", tried=(1, 2, 3, 4), refused="KV heads", growing=True,
          name="num_kv_heads"),
    _length("sequences", lambda case: len(case.sequences), changes.with_sequences,
            above="more than {} sequences", levels=(1, 4, 16), refused=True, growing=True, name="max_sequences"),
    _length("query tokens of a sequence", lambda case: case.max_query_len, changes.with_query_tokens,
            above="more than {} query tokens", levels=(1, 16), refused=True, growing=True, name="max_query_len"),
    _length("keys of a sequence", lambda case: case.max_seq_len, changes.with_keys,
            above="more than {} keys", levels=(1, 4, 16, 64, 256, 1024), refused=True, growing=True,
            name="max_seq_len"),
    _length("pages of a sequence", _pages_of_a_sequence, changes.with_one_page,
            above="more than {} pages", levels=(1,)),
    _size("grouped heads", "heads.num_queries_per_kv", tried=_GROUPS, refused="query heads for each KV head",
          above="more than {} query heads for each KV head", levels=(16,),
          key="num_queries_per_kv", bounds="group_sizes", name="num_queries_per_kv"),
    _size("head size", "heads.head_size", with_head_size, tried=_SIZES, refused=True,
          above="heads larger than {}", levels=(64, 128), key="head_size", bounds="head_sizes", trait=False,
          name="head_size"),
    *_block_traits("head", attrgetter("heads.head_size"), with_head_size, with_head_size),
    _size("page size", "pages.block_size", tried=_SIZES, also=changes.with_page_size, refused=True,
          above="pages larger than {}", levels=(64,), key="block_size", bounds="block_sizes", trait=False,
          name="block_size"),
    *_block_traits("page", _page_size, changes.with_block_size, changes.with_page_size),
    Aspect("type", lambda case: case.dtypes, changes.with_dtypes, DTypes(), refused=True, trait=False, key="dtypes",
           name="dtypes"),
)  # fmt: skip
"""Types, batch, heads and pages."""

POISONS: Final = {
    "NaN or Inf in dead keys": "keys",
    "NaN or Inf in dead values": "values",
    "large numbers in dead keys": "keys",
    "large numbers in dead values": "values",
    "invalid dead table entries": "table",
}
"""Traits of poison that spreads through a weight of 0 or a masked load, and the fields of the recipe."""


def _poisoned(words: str, harmless: str, *others: str) -> Aspect:
    """Return one of ``POISONS``, which a case lacks where its field is one of some words."""
    field = f"poison.{POISONS[words]}"
    get = attrgetter(field)
    return _when(words, lambda case: get(case) not in (harmless, *others), {field: harmless})


NUANCES: Final = (
    _when("partly filled pages", lambda case: any(s.seq_len % case.pages.block_size for s in case.sequences),
          changes.with_full_pages),
    _when("a context", lambda case: any(s.context_len > 0 and s.query_len for s in case.sequences),
          changes.without_context),
    _poisoned("NaN or Inf in dead keys", "huge", "zero"),
    _poisoned("NaN or Inf in dead values", "huge", "zero"),
    _poisoned("large numbers in dead keys", "zero"),
    _poisoned("large numbers in dead values", "zero"),
    _poisoned("invalid dead table entries", "zero"),
)  # fmt: skip
"""Traits of simple cases too: a failure needs one if its simplest case passes without it. NaN counts as large."""

ASPECTS: Final = (*ODDITIES, *KINDS, *NUANCES)
"""Every aspect."""

FEATURES: Final[dict[Feature, Aspect]] = {aspect.feature: aspect for aspect in ASPECTS if aspect.feature}
"""Every feature by its name, in the order in which signatures name them."""

ALL_FEATURES: Final = frozenset(FEATURES)

UNPUBLISHED_FEATURES: Final = frozenset(name for name, aspect in FEATURES.items() if not aspect.published)
"""Features that no published signature promises: a target must declare them."""

VIRTUAL_FEATURES: Final = frozenset(name for name, aspect in FEATURES.items() if aspect.virtual)
"""Features of addresses that mostly have no memory, which only the simulator can reach."""

MASK_FEATURES: Final[dict[MaskKind, frozenset[Feature]]] = {
    "causal": frozenset(),
    "top_left": frozenset(("top_left",)),
    "full": frozenset(("full_mask",)),
    "lookahead": frozenset(("lookahead",)),
    "chunks": frozenset(("chunks",)),
    "custom": frozenset(("custom_mask",)),
    "custom_alone": frozenset(("custom_mask", "full_mask")),
}
"""The features that a kind of mask needs."""

FEATURES_OF: Final = {
    family: frozenset(name for name, aspect in FEATURES.items() if family in aspect.families) for family in FAMILIES
}
"""The features that the interface of each family can express."""

COMPILED_FEATURES: Final = tuple(name for name, aspect in FEATURES.items() if aspect.key == name)
"""The features that kernels are compiled for, in the order in which a compile key names them."""

RECIPES: Final = tuple(name for name in FEATURES if getattr(_PLAIN, name, False) is None)
"""The features that are recipes of a case."""

STATED: Final[dict[Feature, str]] = {name: aspect.stated for name, aspect in FEATURES.items() if aspect.stated}
"""The recipes that the domain of a target states, and its fields."""

FLAGS: Final = tuple(name for name in FEATURES if getattr(_PLAIN, name, None) is False)
"""The features that a case has or not, with nothing else to say about them."""

_IDENTIFYING: Final = tuple((name, aspect.value) for name, aspect in FEATURES.items() if aspect.identifies)
_VALUES: Final = tuple((name, aspect.value) for name, aspect in FEATURES.items())
_BEYOND: Final = {
    family: tuple(aspect for name, aspect in FEATURES.items() if name not in known)
    for family, known in FEATURES_OF.items()
}


def words_of(names: Collection[Feature]) -> list[str]:
    """Return the words of some features, in the order of signatures."""
    return [aspect.words for name, aspect in FEATURES.items() if name in names]


def features_of(case: CaseFields) -> tuple[Feature, ...]:
    """Return the names of the features that identify a failure of the case, in a fixed order."""
    return tuple(name for name, present in _IDENTIFYING if present(case))


def all_features_of(case: CaseFields) -> frozenset[Feature]:
    """Return the names of all features of the case."""
    return frozenset(name for name, present in _VALUES if present(case))


def compiled_features(case: CaseFields) -> tuple[Feature, ...]:
    """Return the names of the features of the case that kernels are compiled for."""
    return tuple(name for name in COMPILED_FEATURES if FEATURES[name].value(case))


def first_feature_beyond(case: CaseFields, family: Family) -> Aspect | None:
    """Return the first feature of a case that the family's interface cannot express, None where it has none."""
    return next((aspect for aspect in _BEYOND[family] if aspect.value(case)), None)


def with_feature(case: C, name: Feature) -> C:
    """Return the case with the simplest form of a feature, which must have one that is the same for every target."""
    return cast("C", FEATURES[name].changed(case, True))
