"""Calls: caches in other layouts, indices of slots, forms of scales, scratch, constants and returned outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fuzz_attn.backends import backend_named
from fuzz_attn.binding.binding import Binding, Layout, binding_of
from fuzz_attn.binding.matching import match_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import Causal, Chunks, Custom, Full, Lookahead, Mask, TopLeft
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import InProcess
from fuzz_attn.errors import BindingError, ReturnedOutputError
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import as_target, load_target
from fuzz_attn.targets.target import Target

CASE = AttentionCase(
    sequences=(Sequence(2, 5), Sequence(1, 2), Sequence(0, 3)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=32),
    pages=PageLayout(block_size=4, permuted=True, spare_blocks=1),
    strides=Strides(cache_slot=16),
    dtypes=DTypes(q="bfloat16", kv="float8_e4m3fn", out="bfloat16"),
    scales=Scales(k=0.5, v=2.0),
)
DECODE = replace(CASE, sequences=(Sequence(1, 6), Sequence(1, 2)), family="paged")
STATED: dict[str, Any] = {"window": "keys", "scales": "tensor", "scale_direction": "multiply", "fp8": "typed"}


def recorder(parameters: str, result: object = None) -> tuple[Callable[..., object], list[dict[str, Any]]]:
    """Return a function that records its arguments, and the list of records."""
    calls: list[dict[str, Any]] = []
    names: dict[str, Any] = {"calls": calls, "result": result}
    exec(f"def attend({parameters}):\n  calls.append(dict(locals()))\n  return result", names)
    return names["attend"], calls


def arguments(parameters: str, case: AttentionCase, stated: dict[str, Any]) -> tuple[dict[str, Any], AttentionTensors]:
    """Return the arguments of a call on a case, and the tensors that they come from."""
    function, calls = recorder(parameters)
    tensors = materialise(case)
    as_target(function, "mine", case.family, binding_of(STATED | stated)).run(tensors)
    return calls[-1], tensors


NAMES = "q, k_cache, v_cache, out, seq_lens, block_table, scale"
UNIFIED = f"{NAMES}, cu_seqlens_q"


def at(cache: torch.Tensor, layout: str, block: int, slot: int, head: int) -> torch.Tensor:
    """Return one row of a cache, by hand."""
    if layout == "rows":
        return cache[block, slot, head]
    if layout == "heads_first":
        return cache[block, head, slot]
    if layout == "slots":
        return cache[block * CASE.pages.block_size + slot, head]
    return cache[block, head, :, slot].flatten()


@pytest.mark.parametrize("layout", ["rows", "heads_first", "split", "slots"])
@pytest.mark.parametrize("family", ["unified", "paged"])
@pytest.mark.parametrize("fp8", [True, False])
def test_every_layout_has_the_same_bits(layout: str, family: Family, fp8: bool) -> None:
    case = CASE if family == "unified" else DECODE
    case = case if fp8 else replace(case, dtypes=DTypes(q="float16", kv="float16", out="float16"), scales=Scales())
    given, tensors = arguments(UNIFIED if family == "unified" else NAMES, case, {"layout": layout})
    for name, slots in (("k_cache", tensors.key_slots), ("v_cache", tensors.value_slots)):
        cache = given[name]
        assert cache.dtype == slots.dtype
        assert cache.stride(-1) == 1
        for block in (0, slots.shape[0] - 1):
            for slot in range(slots.shape[1]):
                for head in range(slots.shape[2]):
                    expected = slots[block, slot, head].flatten().contiguous().view(torch.uint8)
                    assert torch.equal(at(cache, layout, block, slot, head).contiguous().view(torch.uint8), expected)


def test_layout_of_ones_own_is_a_pattern() -> None:
    pattern = "head block dim slot"
    given, tensors = arguments(UNIFIED, CASE, {"layout": {"keys": pattern, "values": pattern}})
    expected = tensors.key_cache.view(torch.uint8).permute(2, 0, 3, 1)
    assert torch.equal(given["k_cache"].view(torch.uint8), expected)


def test_native_layout_is_no_copy() -> None:
    given, tensors = arguments(UNIFIED, CASE, {"layout": "rows"})
    assert given["k_cache"] is tensors.key_cache
    given, tensors = arguments(NAMES, DECODE, {"layout": "split"})
    assert given["v_cache"] is tensors.value_cache


def test_bytes_are_the_same_memory() -> None:
    given, tensors = arguments(UNIFIED, CASE, {"layout": "rows", "fp8": "bytes"})
    assert given["k_cache"].dtype == torch.uint8
    assert given["k_cache"].data_ptr() == tensors.key_cache.data_ptr()


def test_guards_surround_a_copy_with_poison() -> None:
    given, _ = arguments(UNIFIED, CASE, {"layout": "heads_first"})
    whole = storage_bytes(given["k_cache"])
    start = given["k_cache"].storage_offset()
    assert whole[:start].eq(0xFF).all()
    assert start >= 4096
    assert whole[start + given["k_cache"].numel() :].eq(0xFF).all()


INDICES = "q, k_buffer, v_buffer, o, kv_indptr, kv_indices, sm_scale"


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_flat_indices_name_the_slots_of_each_key(index_dtype: str) -> None:
    given, tensors = arguments(INDICES, DECODE, {"index_dtype": index_dtype})
    assert given["kv_indptr"].tolist() == [0, 7, 10]
    assert str(given["kv_indices"].dtype) == f"torch.{index_dtype}"
    keys = given["k_buffer"].view(torch.uint8)[given["kv_indices"].long()]
    position = torch.arange(7)
    block = tensors.block_table[0, position // 4].long()
    assert torch.equal(keys[:7], tensors.keys_at(block, position % 4).view(torch.uint8))


def test_index_lists_of_packed_keys_count_the_context() -> None:
    parameters = f"{INDICES}, q_start_loc, k_extend, v_extend"
    given, _ = arguments(parameters, replace(CASE, family="context"), {})
    assert given["kv_indptr"].tolist() == [0, 5, 7, 10]


def test_rows_of_a_request_table_are_named_by_the_requests() -> None:
    parameters = "q, k_buffer, v_buffer, o, req_to_tokens, b_req_idx, b_seq_len, sm_scale"
    given, _ = arguments(parameters, DECODE, {})
    flat, _ = arguments(INDICES, DECODE, {})
    rows = given["b_req_idx"].tolist()
    assert sorted(rows) != rows
    for row, length, start in zip(rows, (7, 3), (0, 7), strict=True):
        assert given["req_to_tokens"][row, :length].tolist() == flat["kv_indices"][start : start + length].tolist()
    assert given["req_to_tokens"][0, 0] == 2**31 - 1


def test_lengths_in_other_words() -> None:
    parameters = "q, k_cache, v_cache, out, block_table, scale, q_lens, prefix_lens, cu_seqlens_k, k_scale"
    given, _ = arguments(parameters, CASE, {"layout": "rows"})
    assert given["q_lens"].tolist() == [2, 1, 0]
    assert given["prefix_lens"].tolist() == [5, 2, 3]
    assert given["cu_seqlens_k"].tolist() == [0, 7, 10, 13]


SCALES = f"{UNIFIED}, k_scale=None, v_scale=None, sliding_window=-1"


@pytest.mark.parametrize(
    ("scales", "direction", "k", "v"),
    [
        ("float", "multiply", 0.5, 2.0),
        ("float", "divide", 2.0, 0.5),
        ("tensor", "divide", [2.0], [0.5]),
        ("per_head", "multiply", [0.5, 0.5], [2.0, 2.0]),
    ],
)
def test_forms_of_scales(scales: str, direction: str, k: object, v: object) -> None:
    given, _ = arguments(SCALES, CASE, {"layout": "rows", "scales": scales, "scale_direction": direction})
    found = [each.tolist() if isinstance(each, torch.Tensor) else each for each in (given["k_scale"], given["v_scale"])]
    assert found == [k, v]


@pytest.mark.parametrize(("window", "given"), [("pair", (2, 0)), ("keys", 3), ("left", 2)])
def test_spellings_of_a_window(window: str, given: object) -> None:
    found, _ = arguments(SCALES, replace(CASE, window=3), {"layout": "rows", "window": window})
    assert found["sliding_window"] == given
    found, _ = arguments(SCALES, CASE, {"layout": "rows", "window": window, "off": {"window": 0}})
    assert found["sliding_window"] == 0
    found, _ = arguments(SCALES, CASE, {"layout": "rows", "window": window})
    assert found["sliding_window"] == -1


EXTEND = "q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, is_causal, window_size, chunk_size, "
EXTEND += "top_left, custom_mask=None, mask_indptr=None, k_scale=None, v_scale=None"


@pytest.mark.parametrize(
    ("mask", "window", "given"),
    [
        (Causal(), 0, (True, (-1, -1), 0, False)),
        (Causal(), 3, (True, (2, 0), 0, False)),
        (TopLeft(), 3, (True, (2, 0), 0, True)),
        (Full(), 0, (False, (-1, -1), 0, False)),
        (Full(), 3, (False, (2, -1), 0, False)),
        (Lookahead(4), 0, (False, (-1, 4), 0, False)),
        (Lookahead(0), 3, (False, (2, 0), 0, False)),
        (Chunks(5), 3, (True, (2, 0), 5, False)),
        (Custom(), 0, (True, (-1, -1), 0, False)),
        (Custom(causal=False), 3, (False, (2, -1), 0, False)),
    ],
    ids=str,
)
def test_arguments_of_masks(mask: Mask, window: int, given: tuple[object, ...]) -> None:
    found, tensors = arguments(EXTEND, replace(CASE, family="extend", mask=mask, window=window), {"window": "pair"})
    assert tuple(found[name] for name in ("is_causal", "window_size", "chunk_size", "top_left")) == given
    assert found["custom_mask"] is tensors.custom_mask
    if isinstance(mask, Custom):
        assert found["mask_indptr"].tolist() == [0, 14, 17, 17]
        assert tensors.custom_mask is not None
        assert (tensors.custom_mask.dtype, tensors.custom_mask.shape) == (torch.bool, (17,))
    else:
        assert found["mask_indptr"] is None


@pytest.mark.parametrize("mask", [Causal(), Custom(), Custom(causal=False)], ids=str)
def test_a_mask_may_stand_in_place_of_the_causal_one(mask: Mask) -> None:
    case = replace(CASE, family="extend", mask=mask)
    found, tensors = arguments(EXTEND, case, {"window": "pair", "roles": {"custom_mask": "replacing_mask"}})
    if not isinstance(mask, Custom):
        assert found["custom_mask"] is None
        return
    own = tensors.custom_mask
    assert own is not None
    columns = [*(range(7)), *(range(7)), *(range(3))]
    last = [5] * 7 + [6] * 7 + [2] * 3  # the position of each row
    hidden = [mask.causal and column > position for column, position in zip(columns, last, strict=True)]
    assert any(bit and gone for bit, gone in zip(own.tolist(), hidden, strict=True)) is mask.causal
    assert found["custom_mask"].tolist() == [bit and not gone for bit, gone in zip(own.tolist(), hidden, strict=True)]


@pytest.mark.parametrize("place", [0, 1])
def test_an_output_with_an_axis_more_is_taken(place: int) -> None:
    tensors = materialise(CASE)
    result = torch.full(tensors.query.shape, 2.0, dtype=torch.bfloat16).unsqueeze(place)
    function, _ = recorder(UNIFIED.replace(" out,", ""), result)
    as_target(function, "mine", CASE.family, binding_of(STATED | {"layout": "rows"})).run(tensors)
    assert bool((tensors.outputs["out"].elements == 2.0).all())


@pytest.mark.parametrize("shape", [(2, 16), (2, 1, 16), (1, 1, 2, 16, 1), (1, 2, 1, 16)])
def test_an_output_that_lacks_an_axis_or_has_another_order_is_refused(shape: tuple[int, ...]) -> None:
    one = replace(CASE, sequences=(Sequence(1, 4),), heads=HeadLayout(1, 2, 16))
    function, _ = recorder(UNIFIED.replace(" out,", ""), torch.full(shape, 2.0, dtype=torch.bfloat16))
    target = as_target(function, "mine", CASE.family, binding_of(STATED | {"layout": "rows"}))
    with pytest.raises(ReturnedOutputError, match=r"returned .* where the output is"):
        target.run(materialise(one))


@pytest.mark.parametrize("mask", [Lookahead(4), Full(), Causal()], ids=str)
def test_the_right_side_of_a_window_may_have_a_name_of_its_own(mask: Mask) -> None:
    parameters = EXTEND.replace("window_size", "scale, window_left, window_right")
    found, _ = arguments(parameters, replace(CASE, family="extend", mask=mask, window=3), {})
    right = {"lookahead": 4, "full": -1, "causal": 0}[mask.kind]
    assert (found["window_left"], found["window_right"]) == (2, right)


def test_a_window_of_one_number_has_no_right_side() -> None:
    function, _ = recorder(EXTEND)
    pair, one = (as_target(function, "m", "extend", binding_of({"window": each})).domain for each in ("pair", "left"))
    assert pair.features - one.features == {"lookahead"}


def test_constants_and_tensors_of_the_caller() -> None:
    stated = {
        "layout": "rows",
        "constants": {"mode": "fast", "mask": "None", "sizes": [1, 2]},
        "tensors": {
            "scratch": {"shape": ["num_seqs", "num_query_heads * 8", "head_size + 1"]},
            "splits": {"shape": ["num_seqs"], "dtype": "int32", "value": 8},
            "like": {"shape": [2, "num_kv_heads"], "dtype": "query"},
        },
    }
    given, _ = arguments(f"{UNIFIED}, mode, mask, sizes, scratch, splits, like", CASE, stated)
    assert (given["mode"], given["mask"], given["sizes"]) == ("fast", None, (1, 2))
    assert (given["scratch"].shape, given["scratch"].dtype) == ((3, 32, 33), torch.float32)
    assert given["splits"].tolist() == [8, 8, 8]
    assert (given["like"].shape, given["like"].dtype) == ((2, 2), torch.bfloat16)


def test_unknown_size_names_the_known_ones() -> None:
    stated = {"layout": "rows", "tensors": {"scratch": {"shape": ["heads"]}}}
    with pytest.raises(BindingError, match="size 'heads' of a tensor has no 'heads': choose among num_tokens"):
        arguments(f"{UNIFIED}, scratch", CASE, stated)


def experiment_on(call: Callable[..., object], stated: dict[str, Any], case: AttentionCase = CASE) -> Experiment:
    """Return an experiment on a function, in the interpreter."""
    target = as_target(call, "mine", case.family, binding_of(STATED | stated))
    return Experiment(case, target, backend_named("interpreter"), strict=True)


def test_write_into_a_copy_is_seen() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(f"def attend({UNIFIED}): v_cache.view(torch.uint8)[0, 0, 0, 0] ^= 1", names)
    verdict = check(experiment_on(names["attend"], {"layout": "heads_first"}))
    assert (verdict.property_name, verdict.kind) == ("inputs_unchanged", "input_changed")
    assert "value_cache" in verdict.message


RETURNING = "q, k_cache, v_cache, seq_lens, block_table, scale, cu_seqlens_q"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned a NoneType where its binding promises the output"),
        (torch.zeros(3, 4, 32), r"returned torch.float32 \[3, 4, 32\] where the output is torch.bfloat16 \[3, 4, 32\]"),
        (torch.zeros(2, 4, 32, dtype=torch.bfloat16), r"returned torch.bfloat16 \[2, 4, 32\] where the output is"),
    ],
)
def test_wrong_return_is_a_failure_of_the_target(result: object, message: str) -> None:
    function, _ = recorder(RETURNING, result)
    verdict = check(experiment_on(function, {"layout": "rows"}))
    assert verdict.kind == "exception"
    assert re.search(message, verdict.message)


def test_returned_output_fills_live_rows_only() -> None:
    case = replace(CASE, padded_tokens=2)
    result = torch.ones(5, 4, 32, dtype=torch.bfloat16)
    function, _ = recorder(RETURNING, (result, None))
    tensors = materialise(case)
    before = tensors.output[3:].view(torch.int16).clone()
    as_target(function, "mine", binding=Binding(layout="rows")).run(tensors)
    assert tensors.output[:3].eq(1).all()
    assert torch.equal(tensors.output[3:].view(torch.int16), before)


@pytest.mark.parametrize(
    ("others", "beyond"),
    [((), 0), ((None, 3), 0), ((torch.zeros(4, 3),), 1), ((torch.zeros(4, 3), torch.zeros(2)), 2)],
    ids=["the output", "no tensor", "an LSE", "two tensors"],
)
def test_tensors_beside_the_output_are_counted(others: tuple[object, ...], beyond: int) -> None:
    output = torch.ones(3, 4, 32, dtype=torch.bfloat16)
    function, _ = recorder(RETURNING, (output, *others))
    assert as_target(function, "mine", binding=Binding(layout="rows")).run(materialise(CASE)).beyond == beyond


def test_an_output_that_is_returned_as_it_was_given_is_no_other_tensor() -> None:
    """Nor is one without elements, whose memory has no address."""
    names: dict[str, Any] = {"torch": torch}
    exec(f"def attend({UNIFIED}): return out", names)
    stated = binding_of(STATED | {"layout": "rows", "output": "returned"})
    empty = replace(CASE, sequences=())
    for case in (CASE, empty):
        assert as_target(names["attend"], "mine", binding=stated).run(materialise(case)).beyond == 0
    function, _ = recorder(RETURNING, torch.empty(0, 4, 32, dtype=torch.bfloat16))
    assert as_target(function, "mine", binding=Binding(layout="rows")).run(materialise(empty)).beyond == 0


def test_a_sparse_tensor_beside_the_output_is_one_that_nobody_judges() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(f"def attend({UNIFIED}): return torch.eye(2).to_sparse()", names)
    target = as_target(names["attend"], "mine", binding=binding_of(STATED | {"layout": "rows"}))
    assert target.run(materialise(CASE)).beyond == 1


@pytest.mark.parametrize(
    ("result", "note"),
    [("None", ()), ("out", ()), ("(out, out[:, :, 0].float())", ("a tensor",)), ("[out, q, k_cache]", ("2 tensors",))],
    ids=["nothing", "the output", "an LSE", "two tensors"],
)
def test_what_nobody_judges_is_said(result: str, note: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "target.py"
    path.write_text(f"def attend({UNIFIED}): return {result}\n")
    stated = binding_of(STATED | {"layout": "rows"})
    with InProcess(Setup(f"{path}:attend", backend="interpreter", binding=stated)) as judge:
        notes = judge.judge(Order(CASE)).notes
    said = [each for each in notes if "beside the output" in each]
    assert len(said) == len(note)
    assert all(words in each for words, each in zip(note, said, strict=True))


def test_features_that_a_layout_cannot_express_leave_the_domain() -> None:
    function, _ = recorder(SCALES)
    mixed = Layout("head block dim slot", "head block dim slot")
    rows, heads, other = (
        as_target(function, "m", binding=Binding(layout=layout)).domain for layout in ("rows", "heads_first", mixed)
    )
    assert rows.features - other.features == {"large_offsets"}
    assert other.features < rows.features == heads.features


def test_rounding_of_a_binding_wins_over_that_of_a_target() -> None:
    function, _ = recorder(SCALES)
    stated = Binding(layout="rows", rounding={"scores": "query", "exp_units": 8, "tanh_units": "None"})
    target = Target("mine", function, rounding=RoundingModel(lse="query", tanh_units=24.0), binding=stated)
    assert target.rounding_model == RoundingModel(lse="query", scores="query", exp_units=8.0)
    assert target.match.binding.rounding == stated.rounding


@pytest.mark.parametrize(
    ("stated", "message"),
    [({"score": "query"}, "unknown field `score`"), ({"scores": "half"}, r"'half' - at `\$.scores`")],
)
def test_unknown_rounding_is_an_error(stated: dict[str, Any], message: str) -> None:
    function, _ = recorder(SCALES)
    with pytest.raises(BindingError, match=rf"^binding: rounding: .*{message}"):
        _ = Target("mine", function, binding={"rounding": stated}).rounding_model


def test_published_interface_stays_one_with_another_rounding() -> None:
    match = load_target("unified").match
    narrow = match_of(load_target("unified").signature, None, Binding(rounding={"scores": "query"}))
    assert narrow.published
    assert narrow.binding == msgspec.structs.replace(match.binding, rounding={"scores": "query"})


def test_target_states_its_binding_in_python() -> None:
    function, calls = recorder("asks, k_cache, v_cache, out, seq_lens, block_table, scale, cu_seqlens_q")
    target = as_target(Target("mine", function, binding={"roles": {"asks": "query"}, "layout": "rows"}), "mine")
    tensors = materialise(CASE)
    target.run(tensors)
    assert calls[-1]["asks"] is tensors.query


def test_method_is_called_on_an_instance(tmp_path: Path) -> None:
    path = tmp_path / "classes.py"
    path.write_text(
        "class Attention:\n    def __init__(self, scale): self.scale = scale\n"
        f"    def run(self, {UNIFIED}): out.fill_(self.scale)\n"
    )
    target = load_target(f"{path}:Attention.run", binding=Binding(layout="rows", instance={"scale": 3}))
    tensors = materialise(replace(CASE, dtypes=DTypes(), scales=Scales()))
    target.run(tensors)
    assert tensors.output.eq(3).all()
