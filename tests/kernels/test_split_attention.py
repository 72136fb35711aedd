"""The families over split caches, in the simulator and in Triton's interpreter, against a plain float64 reference.

`split_problem.py` holds the inputs, the calls and the reference.
"""

import dataclasses
import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.inputs.storage import with_large_offsets

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HALF, BRAIN = torch.float16, torch.bfloat16

EVERYTHING: dict[str, Any] = {"window": 11, "alibi": True, "sink": 0.5}
DECODES = ((1, 0), (1, 15), (0, 0), (1, 16), (1, 17), (1, 63))

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window_1": {"window": 1},
    "window_2": {"window": 2},
    "window_tile_minus_1": {"window": 15},
    "window_tile": {"window": 16},
    "window_tile_plus_1": {"window": 17},
    "window_wider_than_all": {"window": 1000},
    "window_int32_max": {"window": 2**31},
    "alibi": {"alibi": True},
    "alibi_window": {"alibi": True, "window": 9},
    "alibi_sink": {"alibi": True, "sink": -1.0},
    "sink": {"sink": 0.0},
    "sink_high": {"sink": 60.0},
    "sink_low": {"sink": -200.0},
    "sink_off": {"sink": -math.inf},
    "own_scale": {"sm_scale": 0.71},
    "negative_scale": {"sm_scale": -0.3},
    "logits_far_below_zero": {"score_shift": 6.0, "window": 9},
    "strided": {"strided": True, "padding_rows": 2},
    "one_allocation": {"layout": "one_allocation"},
    "pages_pair_up": {"layout": "pages_pair_up"},
    "sliced_caches": {"layout": "sliced"},
    "heads_outside": {"layout": "heads_outside"},
    "everything": EVERYTHING,
    "everything_strided": EVERYTHING | {"strided": True, "layout": "sliced", "padding_rows": 3},
}

SHAPES: dict[str, dict[str, Any]] = {
    "decodes": {"sequences": DECODES},
    "one_token": {"sequences": ((1, 0),)},
    "empty_first": {"sequences": ((0, 0), (1, 2))},
    "empty_last": {"sequences": ((1, 2), (0, 0))},
    "empty_between": {"sequences": ((3, 2), (0, 0), (0, 9), (1, 0), (0, 33), (4, 1))},
    "only_empty": {"sequences": ((0, 0), (0, 7))},
    "no_sequences": {"sequences": ()},
    "many_of_one": {"sequences": ((1, 0),) * 9 + ((0, 0),) + ((1, 1),) * 8},
    "padding_rows": {"sequences": ((1, 2), (1, 20)), "padding_rows": 21},
    "block_of_rows_around": {"sequences": ((15, 3), (16, 0), (17, 33), (1, 5), (33, 16)), "num_query_heads": 2},
    "blocks_of_64_rows": {"sequences": ((65, 0), (64, 5), (1, 7), (63, 2)), "num_query_heads": 1, "num_kv_heads": 1},
    "long_context": {"sequences": ((2, 95), (1, 95), (5, 96))},
    "head_size_1": {"head_size": 1, "x": 1},
    "head_size_33": {"head_size": 33, "x": 11},
    "head_size_80": {"head_size": 80, "x": 16},
    "head_size_256": {"head_size": 256, "x": 4, "sequences": ((1, 20), (2, 3))},
    "x_1": {"x": 1},
    "x_3": {"x": 3},
    "x_whole_head": {"x": 24},
    "group_3": {"num_query_heads": 6},
    "group_5": {"num_query_heads": 5, "num_kv_heads": 1},
    "group_17": {"num_query_heads": 34, "sequences": ((3, 5), (1, 30))},
    "group_64": {"num_query_heads": 64, "num_kv_heads": 1, "sequences": ((1, 17), (1, 1))},
    "page_1": {"block_size": 1},
    "page_3": {"block_size": 3},
    "page_24": {"block_size": 24},
    "page_272": {"block_size": 272},
    "page_544": {"block_size": 544},
    "tile_64": {"tile_size": 64},
    "defaults": {"tile_size": None},
}

SCALES = {"k_scale": 1.7, "v_scale": 0.3}

DTYPES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"q_dtype": HALF},
    "bf16": {"q_dtype": BRAIN},
    "bf16_to_fp32": {"q_dtype": BRAIN, "out_dtype": torch.float32},
    "fp32_to_fp16": {"out_dtype": HALF},
    "bf16_e4m3": {"q_dtype": BRAIN, "kv_dtype": E4M3} | SCALES,
    "fp16_e5m2": {"q_dtype": HALF, "kv_dtype": E5M2} | SCALES,
    "fp32_e4m3": {"kv_dtype": E4M3} | SCALES,
    "no_scales": {"q_dtype": BRAIN, "kv_dtype": E4M3, "k_scale": None, "v_scale": None},
    "bytes_fp8": {"q_dtype": BRAIN, "kv_dtype": E4M3, "bytes_named": "fp8"} | SCALES,
    "bytes_e4m3": {"q_dtype": HALF, "kv_dtype": E4M3, "bytes_named": "fp8_e4m3", "layout": "sliced"} | SCALES,
    "bytes_e5m2": {"q_dtype": BRAIN, "kv_dtype": E5M2, "bytes_named": "fp8_e5m2", "x": 12} | SCALES,
    "scales_of_an_unquantised_cache": {"k_scale": math.nan, "v_scale": math.nan},
    "fp8_output": {"out_dtype": E4M3, "output_scale": 0.01},
    "fp8_output_clamped": {"out_dtype": E4M3, "output_scale": 0.001},
    "fp8_output_e5m2": {"q_dtype": HALF, "kv_dtype": E5M2, "out_dtype": E5M2, "output_scale": 3.0},
}


FAMILIES = ("decode", "filtered", "context", "skipping", "chunked")
KERNELS = (("decode", "filtered"), ("context", "skipping"), ("chunked",))
"""The families by the kernels that they launch; the last launches both."""
TABLES = (FEATURES, SHAPES, DTYPES)
HALVES: dict[str, dict[str, Any]] = {"plain": {}, "everything": EVERYTHING}


def named(split: Any, name: str, family: str, features: dict[str, Any]) -> Any:
    """The problem of that name in one of the tables, on top of `features`, for a family."""
    table = next(table for table in TABLES if name in table)
    problem = split.Problem(**(features | table[name]), family=family)
    if family != "decode":
        return problem
    # Without a filter, each sequence has one query token or none at all.
    sequences = tuple(s for s in problem.sequences if s[0] == 1 or sum(s) == 0)
    return dataclasses.replace(problem, sequences=sequences)


def features_of_kernels() -> list[tuple[str, str]]:
    """Rows of a name of FEATURES and a family, in which each name meets each kernel, in its families by turns."""
    return [(name, kernel[at % len(kernel)]) for at, name in enumerate(FEATURES) for kernel in KERNELS]


def covering() -> list[tuple[str, str, str]]:
    """Rows of a name of SHAPES or DTYPES, a family and a half of the features, in which all pairs that matter occur.

    What a family adds to its kernel is which sequences it answers. So the shapes that are about sequences meet every
    family, and the others every kernel, in its families by turns; the features alternate.
    """
    rows = []
    for at, name in enumerate((*SHAPES, *DTYPES)):
        about_sequences = name in SHAPES and SHAPES[name].keys() & {"sequences", "padding_rows"}
        families = FAMILIES if about_sequences else [kernel[at % len(kernel)] for kernel in KERNELS]
        rows += [(name, family, ("plain", "everything")[(at // 2 + i) % 2]) for i, family in enumerate(families)]
    return rows


def interpreted() -> list[tuple[str, str]]:
    """Rows of a name and a family: in the interpreter, which is slow, all types and a third of the others.

    They meet both kernels by turns. Every other row is in the simulator.
    """
    names = (*DTYPES, *[*FEATURES, *SHAPES][::3])
    return [(name, ("filtered", "context")[at % 2]) for at, name in enumerate(names)]


def table_of(name: str, family: str) -> tuple[str, str]:
    kind = "dtype" if name in DTYPES else "sequences" if "sequences" in SHAPES[name] else "shape"
    return kind, family


def test_no_name_is_in_two_tables() -> None:
    assert len(set().union(*TABLES)) == sum(len(table) for table in TABLES)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "family"), features_of_kernels())
def test_features_agree_with_reference(name: str, family: str, split: Any, simulator: SimulatorBackend) -> None:
    split.assert_agrees(named(split, name, family, {}), simulator)


def test_covering_has_every_pair() -> None:
    """Each name meets each kernel and both halves of the features, and so does each family."""
    rows = covering()
    assert len({(name, family) for name, family, _ in rows}) == len(rows)
    assert {(name, kernel) for name, family, _ in rows for kernel in KERNELS if family in kernel} == {
        (name, kernel) for name in (*SHAPES, *DTYPES) for kernel in KERNELS
    }
    assert {(name, features) for name, _, features in rows} == {
        (name, features) for name in (*SHAPES, *DTYPES) for features in HALVES
    }
    tables = {table_of(name, family) for name, family, _ in rows}
    assert tables == {(kind, family) for kind in ("sequences", "shape", "dtype") for family in FAMILIES}
    assert {(table_of(name, family), features) for name, family, features in rows} == {
        (table, features) for table in tables for features in HALVES
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "family", "features"), covering())
def test_shapes_and_dtypes_agree_with_reference(
    name: str, family: str, features: str, split: Any, simulator: SimulatorBackend
) -> None:
    split.assert_agrees(named(split, name, family, HALVES[features]), simulator)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "family"), interpreted())
def test_interpreter_agrees_with_reference(name: str, family: str, split: Any, interpreter: InterpreterBackend) -> None:
    split.assert_agrees(named(split, name, family, {} if name in FEATURES else EVERYTHING), interpreter)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bytes_e5m2"])
def test_pages_past_2_to_the_31_elements_give_the_same_bits(
    dtype: str, family: str, split: Any, simulator: SimulatorBackend
) -> None:
    problem = named(split, dtype, family, EVERYTHING)
    near, far = split.make_inputs(problem), split.make_inputs(problem)
    moved = 2**31 // near.value_cache[0].numel() + 1
    for name in ("key_cache", "value_cache"):
        cache = getattr(near, name).contiguous()
        setattr(far, name, *with_large_offsets((cache,), moved, cache[0].numel(), "cpu"))
    far.block_table += moved
    assert far.key_cache.stride(0) * moved > 2**31
    for inputs in (near, far):
        with simulator.running() as watch:
            split.CALLS[family](problem, inputs)
        assert not watch.observations
    assert torch.equal(near.out_storage.view(torch.uint8), far.out_storage.view(torch.uint8))
    assert not near.out_storage.isnan().all()
