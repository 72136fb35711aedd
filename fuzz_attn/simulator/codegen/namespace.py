"""The names that generated code may use: each builtin, and the function that it stands for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fuzz_attn.simulator.runtime import (
    arithmetic,
    atomics,
    columns,
    float_formats,
    hints,
    lanes,
    memory,
    ranges,
    tiles,
    undefined,
)
from fuzz_attn.simulator.runtime.select import select
from fuzz_attn.simulator.sanitizers.mask_coverage import cover

NAMESPACE: Final[dict[str, Any]] = {
    "np": np,
    "ranges": ranges,
    "inf": float("inf"),
    "nan": float("nan"),
    "EVERY": np.zeros(1, np.int64),
    "DTYPES": float_formats.CONTAINER,
    # masks
    "cover": cover,
    "select": select,
    # integers
    "checked_division": undefined.checked_division,
    "checked_shift": undefined.checked_shift,
    "divide": arithmetic.divide,
    "multiply_high": arithmetic.multiply_high,
    "shift_left": arithmetic.shift_left,
    "shift_right_logical": arithmetic.shift_right_logical,
    "unsigned": arithmetic.unsigned,
    "unsigned_divide": arithmetic.unsigned_divide,
    "unsigned_pick": arithmetic.unsigned_pick,
    "unsigned_remainder": arithmetic.unsigned_remainder,
    # floats
    "bitcast": float_formats.bitcast,
    "cut_to_tf32": float_formats.cut_to_tf32,
    "error_function": arithmetic.error_function,
    "float_to_integer": float_formats.float_to_integer,
    "fused_multiply_add": arithmetic.fused_multiply_add,
    "reciprocal_root": arithmetic.reciprocal_root,
    "round_bf16": float_formats.round_bf16,
    "round_f16": float_formats.round_f16,
    "round_to": float_formats.round_to,
    "truncate_to": float_formats.truncate_to,
    # tiles
    "concatenate": tiles.concatenate,
    "dot": tiles.dot,
    "gather": tiles.gather,
    "histogram": tiles.histogram,
    "reduce_ignoring_nan": tiles.reduce_ignoring_nan,
    "reduce_maximum": tiles.reduce_maximum,
    "reduce_pairs": tiles.reduce_pairs,
    "scan": tiles.scan,
    "spread": lanes.spread,
    "stack": tiles.stack,
    # addresses and memory
    "add_wide": tiles.add_wide,
    "address_of": memory.address_of,
    "atomic": atomics.atomic,
    "columns_of": columns.columns_of,
    "hinted": hints.hinted,
    "hinted_pointer": hints.hinted_pointer,
    "prefix_length": tiles.prefix_length,
    "unit_start": tiles.unit_start,
    # lanes and control flow
    "blend": lanes.blend,
    "branch": lanes.branch,
    "check_iterations": lanes.check_iterations,
    "collect": lanes.collect,
    "extremes": lanes.extremes,
    "head": lanes.head,
    "join": lanes.join,
    "longest_first": lanes.longest_first,
    "narrow": lanes.narrow,
    "restore": lanes.restore,
    "rows": lanes.rows,
    "take": lanes.take,
    "trip_counts": lanes.trip_counts,
}
