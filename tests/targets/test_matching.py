"""Matching: the roles of parameters with other names than the published ones, and what binds to nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import triton

from fuzz_attn.binding.binding import binding_of, open_in, signature_of
from fuzz_attn.binding.call import call_of
from fuzz_attn.binding.matching import Match, match_of
from fuzz_attn.binding.promises import domain_of
from fuzz_attn.binding.roles import PACKED, ROLES
from fuzz_attn.case.aspects import FEATURES
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import unpromised
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import CAUSAL
from fuzz_attn.engine.schedule import play_round
from fuzz_attn.errors import BindingError, TargetError
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.targets.loading import as_target


def function_of(parameters: str) -> Callable[..., None]:
    """Return a function with the given parameters that does nothing."""
    names: dict[str, Any] = {}
    exec(f"import torch\ndef attend({parameters}): pass", names)
    attend: Callable[..., None] = names["attend"]
    return attend


def matched(parameters: str, stated: dict[str, Any] | None = None) -> Match:
    """Return the match of a signature."""
    return match_of(signature_of(function_of(parameters)), None, binding_of(stated))


def test_every_name_belongs_to_one_role() -> None:
    names = [name for role in ROLES.values() for name in role.names]
    assert sorted(set(names)) == sorted(names)
    assert len(ROLES) >= 28
    assert len(names) >= 133


def test_tables_name_known_roles() -> None:
    used = {role for aspect in FEATURES.values() for names in aspect.roles for role in names.split()}
    used |= {role for entry in ROLES.values() for role in entry.spare} | set(PACKED) | set(PACKED.values())
    assert used <= set(ROLES)


VARLEN = (
    "output, query, key_cache, value_cache, cu_seqlens_q, max_seqlen_q, seq_lens, max_seqlen_k, block_table, "
    "causal=False, scale=None, softcap=0.0, k_scale=None, v_scale=None, strict=False"
)
DENSE = (
    "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0"
)
DECODE = "q, k_buffer, v_buffer, o, req_to_token, b_seq_len, sm_scale, page_size=1, logit_cap=0.0"
EXTEND = (
    "q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, is_causal, "
    "max_len_extend, k_scale, v_scale, sm_scale=None, sliding_window_size=-1, sinks=None"
)


def test_packed_keys_alone_are_sequences_without_a_context() -> None:
    match = matched("q, k, v, o, b_start_loc, b_seq_len, max_input_len")
    assert match.binding.family == "context"
    assert match.binding.roles["k"] == "new_keys"
    domain = domain_of(match.binding)
    assert domain.no_context
    assert domain.usual_scale
    assert not domain.features & {"stale_cache", "fp8_kv", "large_offsets"}
    case = AttentionCase(sequences=(Sequence(2),), family="context", softmax_scale=0.25)
    assert not unpromised(case, domain)
    assert unpromised(replace(case, sequences=(Sequence(2, 1),)), domain) == "a context"
    assert unpromised(replace(case, softmax_scale=1.0), domain) == "a softmax scale other than head_size**-0.5"
    drawn: list[AttentionCase] = []
    play_round(domain, 1, 30, lambda case, _: drawn.append(case))
    assert not [case for case in drawn if unpromised(case, domain)]
    assert not domain_of(matched(DECODE).binding).no_context
    assert not domain_of(matched(DECODE).binding).usual_scale


def test_latent_pages_sizes_and_types_are_arguments() -> None:
    stated = {
        "roles": {"kv": "latent_pages"},
        "sizes": {"rank": "value_size", "rope": "rope_size", "rows": "2 * num_seqs"},
        "promises": ["head_size_v"],
    }
    signature = "q, kv, out, seq_lens, block_table, rank, rope, rows, compute_type"
    match = matched(signature, stated)
    assert (match.binding.family, match.binding.layout) == ("mla_decode", "latent")
    assert not domain_of(match.binding).no_context
    heads = HeadLayout(head_size=32, value_size=24)
    case = AttentionCase(sequences=(Sequence(1, 3), Sequence(1)), family="mla_decode", heads=heads)
    tensors = materialise(case)
    given = call_of(match.binding, signature_of(function_of(signature)), tensors).arguments
    assert given["kv"].shape == (2, 16, 1, 32)
    assert (given["rank"], given["rope"], given["rows"]) == (24, 8, 4)
    assert given["compute_type"] == triton.language.float32
    with pytest.raises(BindingError, match="parameter 'rank' must be in one of roles"):
        matched(signature, stated | {"constants": {"rank": 1}})


@pytest.mark.parametrize(
    ("parameters", "family", "some_roles"),
    [
        (VARLEN, "unified", {"scale": "softmax_scale", "softcap": "softcap", "causal": "causal"}),
        (DECODE, "paged", {"k_buffer": "key_cache", "req_to_token": "slot_table", "page_size": "block_size"}),
        (EXTEND, "context", {"k_extend": "new_keys", "kv_indices": "kv_indices", "sliding_window_size": "window"}),
        ("q, k, v, cache_seqlens, page_table, softmax_scale", "paged", {"k": "key_cache", "v": "value_cache"}),
    ],
)
def test_synonyms_have_their_roles(parameters: str, family: str, some_roles: dict[str, str]) -> None:
    match = matched(parameters)
    assert match.binding.family == family
    assert some_roles.items() <= match.binding.roles.items()
    assert not match.published


def test_packed_keys_are_the_problem_of_a_signature_without_pages() -> None:
    found = matched(DENSE).binding
    assert (found.family, found.output, found.window) == ("varlen", "returned", "pair")
    assert {name: found.roles[name] for name in ("k", "v", "cu_seqlens_k", "causal")} == {
        "k": "key_cache",
        "v": "value_cache",
        "cu_seqlens_k": "key_start_loc",
        "causal": "causal",
    }
    target = as_target(function_of(DENSE), "m")
    assert target.domain.block_sizes == (1,), "prefix sums leave no row unused"
    assert {"full_mask", "lookahead", "softcap"} <= target.domain.features
    assert not {"fewer_keys", "top_left"} & target.domain.features, "what a target must declare"
    assert as_target(function_of(f"{DENSE}, seqused_k=None"), "m").domain.block_sizes != (1,)


def test_packed_keys_have_slopes_only_where_all_kernels_mean_the_same() -> None:
    function = function_of(f"{DENSE}, alibi_slopes=None, sinks=None")
    drawn: list[AttentionCase] = []
    play_round(as_target(function, "m").domain, 1, 300, lambda case, _: drawn.append(case))
    with_slopes = [case for case in drawn if case.alibi is not None]
    assert with_slopes
    assert not [case for case in with_slopes if case.mask != CAUSAL or case.sinks is not None]
    assert any(case.mask != CAUSAL for case in drawn)
    stated = as_target(function, "m", None, binding_of({"domain": {"excluded": []}}))
    assert stated.domain.excluded == ()


def test_output_is_returned_where_no_parameter_takes_it() -> None:
    assert matched("q, k, v, cache_seqlens, page_table, softmax_scale").binding.output == "returned"
    assert matched(VARLEN).binding.output == "in_place"


def test_slots_are_the_layout_of_a_list_of_slots() -> None:
    assert matched(DECODE).binding.layout == "slots"
    assert matched(VARLEN).binding.layout is None


def test_optional_parameter_that_says_the_same_is_left_out() -> None:
    match = matched("q, k, v, out, cu_seqlens_q, seqused_k, block_table, scale, cu_seqlens_k=None, q_lens=None")
    assert {"cu_seqlens_k", "q_lens"}.isdisjoint(match.binding.roles)
    assert match.reasons["cu_seqlens_k"] == "left at its default"
    required = matched("q, k, v, out, cu_seqlens_q, seqused_k, block_table, scale, cu_seqlens_k")
    assert required.binding.roles["cu_seqlens_k"] == "key_start_loc"


def test_names_of_one_interface_with_parameters_of_another_are_not_bound_to_its_layout() -> None:
    chunked = "query, key, value, output, kv_cache_dtype, key_cache, value_cache, block_table, query_start_loc, "
    chunked += "seq_lens, max_seq_len, max_query_len, k_scale, v_scale, sm_scale, sliding_window=-1"
    assert matched(chunked).binding.layout == "split"
    segmented = matched(chunked + ", softcap=0.0").binding
    assert open_in(segmented) == ("layout", "window", "scales", "scale_direction", "fp8")
    assert segmented.off["window"] == -1


@pytest.mark.parametrize(
    ("annotation", "form"),
    [
        ("k_scale: float, v_scale: float", "float"),
        ("k_scale: torch.Tensor, v_scale", "tensor"),
        ("k_scale=1.0", "float"),
    ],
)
def test_signature_tells_the_form_of_scales(annotation: str, form: str) -> None:
    assert matched(f"q, k, v, out, seq_lens, block_table, scale, *, {annotation}").binding.scales == form


@pytest.mark.parametrize(
    ("parameters", "stated", "message"),
    [
        (
            VARLEN + ", *, workspace",
            {},
            "requires parameter 'workspace', which has no role; state it in a binding file, ",
        ),
        (
            "q, k_cache, v_cache, o, b_start_loc, b_seq_len, sm_scale, where",
            {},
            "[tensors] or [sizes]. No parameter has the role block_table or kv_indices or slot_table yet",
        ),
        (
            "q, k_cache, v_cache, o, b_start_loc, b_seq_len, sm_scale, where=None",
            {},
            "state it in a binding file as [roles] where = 'block_table', of a parameter without a role: where",
        ),
        (
            "q, k_cache, v_cache, o, b_start_loc, b_seq_len, sm_scale",
            {},
            "all of its parameters have other roles, so that a binding helps only if one of those is wrong",
        ),
        (VARLEN + ", out=None", {}, "has two parameters for the role output: output and out; state one as [roles] out"),
        (
            "q, k_cache, v_cache, o, b_start_loc, b_seq_len, max_input_len, sm_scale",
            {},
            "has no parameter for block_table or kv_in",
        ),
        (
            "q, o, seq_lens, block_table",
            {},
            "has no parameter for key_cache or latent_cache or latent_pages, value_cache or",
        ),
        (
            DECODE,
            {"roles": {"q": "queries"}},
            "role 'queries' of parameter 'q' is unknown: choose among query, output,",
        ),
        (DECODE, {"roles": {"w": "window"}}, "the binding states parameter 'w', which the signature lacks"),
        (DECODE, {"constants": {"w": 1}}, "the binding states parameter 'w', which the signature lacks"),
    ],
)
def test_what_does_not_bind_is_one_line(parameters: str, stated: dict[str, Any], message: str) -> None:
    with pytest.raises(BindingError, match=re.escape(message)) as raised:
        matched(parameters, stated)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (
            {"layout": "nhd"},
            "layout='nhd' must be one of rows, heads_first, split, slots, latent, or a table of patterns",
        ),
        (
            {"layout": {"keys": "block head dim", "values": "block slot head dim"}},
            "must name block, slot, head and dim",
        ),
        (
            {"roles": {"a": "query"}, "constants": {"a": 1}},
            "parameter 'a' must be in one of roles, constants, tensors, sizes and paths",
        ),
        ({"windows": "pair"}, "binding: Object contains unknown field `windows`"),
        ({"window": "W"}, "binding: Invalid enum value 'W'"),
    ],
)
def test_wrong_statement_is_refused(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(BindingError, match=re.escape(message)):
        binding_of(stated)


def test_statement_wins_over_names() -> None:
    stated = {"roles": {"page_size": "default"}, "constants": {"logit_cap": 0.0}, "layout": "rows"}
    binding = matched(DECODE, stated).binding
    assert binding.roles["page_size"] == "default"
    assert (binding.constants, binding.layout) == ({"logit_cap": 0.0}, "rows")


def test_statement_keeps_the_rest_of_a_published_interface() -> None:
    paged = "query, output, key_cache, value_cache, block_table, seq_lens, workspace"
    match = matched(paged, {"constants": {"workspace": "None"}})
    assert (match.binding.layout, match.published) == ("split", False)
    assert match.reasons["workspace"] == "stated"


@triton.jit  # type: ignore[untyped-decorator] # Triton leaves it untyped
def kernel(pointer) -> None:  # type: ignore[no-untyped-def]
    """Do nothing."""


def test_kernel_is_no_target() -> None:
    with pytest.raises(TargetError, match=r"^target=.mine. is a Triton kernel: name the Python"):
        as_target(kernel, "mine")


def test_page_sizes_that_prefix_sums_cannot_express_are_refused() -> None:
    stated = binding_of({"domain": {"block_sizes": [4, 8]}})
    with pytest.raises(TargetError, match=r"domain\.block_sizes=\(4, 8\) must be \(1,\) without a parameter for seq_l"):
        as_target(function_of(DENSE), "m", None, stated)
