"""What kernels are compiled for beside the compile key: drawn for each case, or once for each key of a round."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from fuzz_attn.case.aspects import FEATURES_OF, UNPUBLISHED_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, CompileKey, compile_key_of
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.recipes import BiasDType
from fuzz_attn.engine import schedule
from fuzz_attn.operations.attention import drawing
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.kernel_variants import USUAL, KernelVariant, form_of, kernel_variants, variant_of
from fuzz_attn.strategies.memory_layouts import layout_pool
from fuzz_attn.targets.loading import load_target

RICH = CompileKey(compiled=("alibi", "qq_bias", "sinks"))
PAGED = CompileKey(family="paged", compiled=("alibi", "sinks"), head_size=120)  # which pieces of all sizes divide


def seen_in(case: AttentionCase) -> KernelVariant:
    assert case.alibi
    assert case.sinks
    bias = case.qq_bias.dtype if case.qq_bias else "float32"
    return KernelVariant(case.alibi.dtype, bias, case.sinks.dtype, case.form.query_starts, case.strides.key_piece)


def test_variants_shrink_towards_the_usual_one(minimal: Any) -> None:
    assert minimal(kernel_variants()) == USUAL


@pytest.mark.parametrize("name", ["slopes", "bias", "sinks"])
def test_each_type_is_reached_by_a_draw_and_by_a_seed(sample: Any, name: str) -> None:
    by_seed = {getattr(variant_of(RICH, seed), name) for seed in range(400)}
    assert {getattr(each, name) for each in sample(kernel_variants(), 400)} == by_seed == set(get_args(BiasDType))


@pytest.mark.parametrize("key", [RICH, PAGED])
def test_all_cases_of_a_key_are_of_the_variant_that_the_seed_chooses(sample: Any, key: CompileKey) -> None:
    domain = load_target(key.family).domain
    variants = set()
    for seed in range(60):
        drawn = sample(cases(domain, keys=(key,), variants=seed), 3)
        (shared,) = {seen_in(case) for case in drawn}
        expected = variant_of(key, seed).within(domain)
        assert shared == (expected if key.has("qq_bias") else expected._replace(bias="float32"))
        variants.add(shared)
    assert len(variants) > 10


def test_cases_without_a_seed_differ_in_their_variants(sample: Any) -> None:
    drawn = sample(cases(load_target("unified").domain, keys=(RICH,)), 300)
    assert len({seen_in(case) for case in drawn if case.alibi and case.sinks}) > 5


def test_all_cases_of_a_form_have_it(sample: Any) -> None:
    domain, layouts, seen = load_target("paged").domain, layout_pool(family="paged"), set()
    for seed in range(30):
        form = form_of(PAGED, layouts, seed)
        drawn = sample(cases(domain, keys=(PAGED,), form=form), 8)
        near = [case for case in drawn if not case.strides.far]
        expected = form.variant.within(domain)._replace(bias="float32")
        assert {seen_in(case) for case in drawn} == {expected}
        assert {case.heads.num_kv_heads for case in near} <= {form.num_kv_heads}
        assert {msgspec.structs.replace(case.strides, key_piece=0) for case in near} <= {form.strides}
        seen.add(form)
    assert len(seen) > 15


def test_forms_are_as_cases_that_are_drawn_one_by_one() -> None:
    layouts = layout_pool(family="paged")
    forms = [form_of(PAGED, layouts, seed) for seed in range(400)]
    assert 0.3 < sum(form.strides != Strides() for form in forms) / 400 < 0.5
    assert 0.25 < sum(form.variant == USUAL for form in forms) / 400 < 0.6, "a quarter, and what is so by chance"
    assert {form.num_kv_heads for form in forms} > {1, 2, 3, 4, 8}
    assert {form.strides for form in forms} > {Strides()}


def test_a_round_has_the_usual_variant_where_a_target_refuses_another() -> None:
    seed = next(seed for seed in range(1000) if form_of(PAGED, (Strides(),), seed).variant != USUAL)
    form = form_of(PAGED, (Strides(),), seed)
    shared = drawing.SharedRound(PAGED, form, frozenset({"determinism"}), seed, 0)
    assert shared.usual().form == form._replace(variant=USUAL)
    assert shared.usual()._replace(form=form) == shared


def row_length(case: AttentionCase) -> int:
    longest = max((sequence.seq_len for sequence in case.sequences), default=0)
    return -(-longest // case.pages.block_size) + case.pages.extra_columns + case.strides.block_table


def test_all_cases_of_a_narrow_form_have_one_of_its_windows_and_rows_of_one_class(sample: Any) -> None:
    key = CompileKey(family="chunked", compiled=("window",), head_size=32)
    domain, layouts = load_target("chunked").domain, layout_pool(family="chunked")
    forms = [form_of(key, layouts, seed).narrow(key, domain, seed) for seed in range(30)]
    for form in forms:
        drawn = [case for case in sample(cases(domain, keys=(key,), form=form), 12) if not case.strides.far]
        assert {case.window for case in drawn} <= set(form.windows)
        rows = {row_length(case) for case in drawn}
        assert rows.isdisjoint({0, 1} if not form.divisible_rows else {1})
        assert {length % 16 == 0 for length in rows} == {form.divisible_rows}
    assert {len(form.windows) for form in forms} == {2}
    assert len({window for form in forms for window in form.windows}) > 15
    assert {form.divisible_rows for form in forms} == {True, False}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_has_no_other_keys_than_its_own(family: Family) -> None:
    domain, seen = load_target(family).domain, set()
    schedule.play_round(domain, 5, 120, lambda case, _: seen.add(compile_key_of(case)))
    assert seen <= set(drawing.keys_of_round(domain, 5, schedule.ON_CPU.keys))


def test_a_domain_without_freedoms_has_only_the_types_of_published_kernels() -> None:
    drawn = KernelVariant("float64", "float16", "float64", False, 2)
    plain = Domain(features=FEATURES_OF["paged"] - UNPUBLISHED_FEATURES, family="paged")
    assert drawn.within(plain) == USUAL
    assert drawn._replace(sinks="bfloat16").within(plain).sinks == "bfloat16"
    assert drawn.within(load_target("unified").domain) == drawn._replace(key_piece=0)
    assert drawn.within(load_target("paged").domain) == drawn
