"""`unified_attention` in the simulator, and partly in Triton's interpreter, against a slow float64 reference.

`unified_problem.py` holds the calls and the reference.
"""

import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

EVERYTHING: dict[str, Any] = {"window": 11, "softcap": 2.0, "alibi": True, "qq_bias_cols": 6, "sink": 0.5}

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window_1": {"window": 1},
    "window_2": {"window": 2},
    "window_tile_minus_1": {"window": 15},
    "window_tile": {"window": 16},
    "window_tile_plus_1": {"window": 17},
    "window_wider_than_all": {"window": 1000},
    "window_int32_max": {"window": 2**31},
    "softcap_small": {"softcap": 0.7},
    "softcap_large": {"softcap": 3e6},
    "alibi": {"alibi": True},
    "alibi_sink": {"alibi": True, "sink": -1.0},
    "sink": {"sink": 0.0},
    "sink_high": {"sink": 60.0},
    "sink_low": {"sink": -200.0},
    "sink_off": {"sink": -math.inf},
    "qq_bias_narrow": {"qq_bias_cols": 4},
    "qq_bias_wide": {"qq_bias_cols": 14},
    "qq_bias_slice": {"qq_bias_cols": 9, "strided": True},
    "logits_far_below_zero": {"score_shift": 6.0, "window": 9},
    "fp8_e4m3": {"kv_dtype": E4M3, "k_scale": 0.25, "v_scale": 3.0},
    "fp8_e5m2": {"kv_dtype": E5M2, "k_scale": 1.5, "v_scale": 0.125},
    "strided": {"strided": True, "padding_rows": 2},
    "kv_outside": {"layout": "kv_outside"},
    "kv_inside": {"layout": "kv_inside"},
    "heads_first": {"layout": "heads_first"},
    "unlike_caches": {"layout": "unlike"},
    "everything": EVERYTHING,
    "everything_strided": EVERYTHING | {"strided": True, "layout": "unlike", "padding_rows": 3},
}

SHAPES: dict[str, dict[str, Any]] = {
    "one_token": {"sequences": ((1, 0),)},
    "decode": {"sequences": ((1, 0), (1, 15), (1, 16), (1, 17), (1, 63))},
    "block_q_exactly": {"sequences": ((8, 0), (16, 3), (8, 8))},
    "block_q_around": {"sequences": ((7, 9), (9, 7), (15, 1), (17, 0))},
    "empty_first": {"sequences": ((0, 0), (3, 2))},
    "empty_last": {"sequences": ((3, 2), (0, 0))},
    "empty_between": {"sequences": ((3, 2), (0, 0), (0, 9), (2, 0), (0, 33), (4, 1))},
    "only_empty": {"sequences": ((0, 0), (0, 7))},
    "many_of_one": {"sequences": ((1, 0),) * 9 + ((0, 0),) + ((1, 1),) * 8},
    "prefill_rows_64": {"sequences": ((40, 0), (33, 5)), "num_query_heads": 2, "num_kv_heads": 1},
    "padding_rows": {"sequences": ((3, 2), (9, 0)), "padding_rows": 21},
    "head_size_1": {"head_size": 1},
    "head_size_33": {"head_size": 33},
    "head_size_80": {"head_size": 80},
    "head_size_256": {"head_size": 256, "sequences": ((2, 20),)},
    "group_3": {"num_query_heads": 6},
    "group_5": {"num_query_heads": 5, "num_kv_heads": 1},
    "group_7": {"num_query_heads": 14},
    "group_17": {"num_query_heads": 34, "sequences": ((3, 5), (1, 30))},
    "group_64": {"num_query_heads": 64, "num_kv_heads": 1, "sequences": ((2, 17), (1, 1))},
    "page_1": {"block_size": 1},
    "page_24": {"block_size": 24},
    "page_31": {"block_size": 31},
    "page_544": {"block_size": 544},
    "tile_64": {"tile_size": 64},
    "defaults": {"tile_size": None, "num_segments": None},
    "default_decode": {"sequences": ((1, 90), (1, 3)), "tile_size": None, "num_segments": None},
}


HALF_SCALES = {"q_scale": 0.5, "k_scale": 1.7, "v_scale": 0.3}

DTYPES: dict[str, dict[str, Any]] = {
    "bf16": {"q_dtype": torch.bfloat16, "kv_dtype": torch.bfloat16},
    "bf16_to_fp32": {"q_dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, "out_dtype": torch.float32},
    "bf16_fp8_cache": {"q_dtype": torch.bfloat16, "kv_dtype": E4M3} | HALF_SCALES,
    "fp32_to_fp16": {"out_dtype": torch.float16},
    "fp8_q": {"q_dtype": E4M3, "kv_dtype": E4M3, "out_dtype": torch.bfloat16, "tile_size": 32} | HALF_SCALES,
    "fp8_q_other_cache": {"q_dtype": E5M2, "kv_dtype": E4M3, "out_dtype": torch.float16, "tile_size": 32} | HALF_SCALES,
    "fp8_output": {"out_dtype": E4M3, "output_scale": 0.01},
    "fp8_output_clamped": {"out_dtype": E4M3, "output_scale": 0.001},
    "fp8_output_e5m2": {"q_dtype": torch.float16, "kv_dtype": E5M2, "out_dtype": E5M2, "output_scale": 3.0},
    "fp8_everything": {"q_dtype": E5M2, "kv_dtype": E5M2, "out_dtype": E4M3, "tile_size": 32} | HALF_SCALES,
}


TABLES = (FEATURES, SHAPES, DTYPES)


def interpreted() -> list[str]:
    """Names of which the interpreter, which is slow, gets all types and a third of the others.

    `tests/simulator/test_simulated_attention.py` compares it with the simulator on drawn cases.
    """
    return [*DTYPES, *[*FEATURES, *SHAPES][::3]]


@pytest.mark.sampled(2)
@pytest.mark.pairwise(
    name=tuple(DTYPES), num_segments={"2d": 0, "3d": 3}, features={"plain": {}, "everything": EVERYTHING}
)
def test_dtypes_agree_with_reference(
    name: str, num_segments: int, features: dict[str, Any], unified: Any, simulator: SimulatorBackend
) -> None:
    problem = unified.Problem(**(DTYPES[name] | features), num_segments=num_segments)
    unified.assert_agrees(problem, simulator)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(
    ("num_segments", "q_dtype"), [(0, torch.float16), (3, torch.float32)], ids=["2d-fp16", "3d-fp32"]
)
def test_features_agree_with_reference(
    name: str, num_segments: int, q_dtype: torch.dtype, unified: Any, simulator: SimulatorBackend
) -> None:
    changes: dict[str, Any] = {"q_dtype": q_dtype, "kv_dtype": q_dtype, "num_segments": num_segments} | FEATURES[name]
    unified.assert_agrees(unified.Problem(**changes), simulator)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("at", "name"), [*enumerate(SHAPES)])
def test_shapes_agree_with_reference(at: int, name: str, unified: Any, simulator: SimulatorBackend) -> None:
    features = EVERYTHING if at % 2 else {}
    unified.assert_agrees(unified.Problem(**(features | SHAPES[name])), simulator)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_segments", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("window", [0, 20], ids=["no_window", "window_20"])
def test_any_number_of_segments_agrees_with_reference(
    num_segments: int, window: int, unified: Any, simulator: SimulatorBackend
) -> None:
    problem = unified.Problem(
        sequences=((1, 15), (4, 60), (1, 95)),
        num_query_heads=2,
        num_kv_heads=1,
        num_segments=num_segments,
        window=window,
        sink=0.3,
    )
    unified.assert_agrees(problem, simulator)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("at", "name"), [*enumerate(interpreted())])
def test_interpreter_agrees_with_reference(at: int, name: str, unified: Any, interpreter: InterpreterBackend) -> None:
    changes = next(table[name] for table in TABLES if name in table)
    path: dict[str, Any] = {"num_segments": 3} if at % 2 else {}
    unified.assert_agrees(unified.Problem(**(path | changes)), interpreter)
