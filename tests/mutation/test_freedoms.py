"""Bugs that show only in calls that use a certain freedom of the contract: found with it, and only with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import CallForm, DTypes, HeadLayout, LaunchHints, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    LevelScores,
    NeedleScores,
    NormalScores,
    PositionValues,
    QQBiasRecipe,
)
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation.edited_kernels import target_with
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"
PLAIN = AttentionCase(
    (Sequence(3, 40), Sequence(5, 20)),
    heads=HeadLayout(2, 1, 16),
    softmax_scale=0.25,
    scores=NormalScores(0.5),
    values=PositionValues(),
)
DECODE = replace(PLAIN, sequences=(Sequence(1, 40), Sequence(1, 20)))
FOUR: Final = (Sequence(1, 40), Sequence(1, 20), Sequence(2, 1), Sequence(1, 30))

WITH: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bias_columns_assumed_dense": (
        "unified",
        {"qq_bias": QQBiasRecipe(order="columns")},
        {"qq_bias": QQBiasRecipe()},
    ),
    "new_values_with_strides_of_new_keys": (
        "context",
        {"strides": Strides(new_head=1, new_value_token=3)},
        {"strides": Strides(new_head=1)},
    ),
    "key_chunks_assumed_dense": ("paged", {"strides": Strides(key_chunk=3)}, {"strides": Strides(value_slot=3)}),
    "key_slots_assumed_dense": ("paged", {"strides": Strides(key_slot=3)}, {"strides": Strides(value_slot=3)}),
    "value_dims_assumed_dense": ("paged", {"strides": Strides(value_dim=3)}, {"strides": Strides(value_slot=3)}),
    "heads_of_a_page_assumed_dense": ("paged", {"strides": Strides(page_head=3)}, {"strides": Strides(cache_slot=3)}),
    "pieces_of_keys_assumed_16_bytes": ("paged", {"strides": Strides(key_piece=2)}, {}),
    "slopes_read_as_float32": ("unified", {"alibi": AlibiRecipe(dtype="float16")}, {"alibi": AlibiRecipe()}),
    "scale_clamped_to_positive": (
        "unified",
        {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": Scales(v=-0.5)},
        {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": Scales(v=0.5)},
    ),
    "length_zero_answered": (
        "paged",
        {"sequences": (Sequence(1, 40), Sequence(1, -1), Sequence(1, 20))},
        {"sequences": (Sequence(1, 40), Sequence(1, 0), Sequence(1, 20))},
    ),
    "softmax_scale_of_zero_is_the_default": ("paged", {"softmax_scale": 0.0}, {"softmax_scale": 0.5}),
    "window_of_no_left_limit_is_one_key": ("unified", {"form": CallForm(window=1)}, {}),
    "sequences_counted_in_the_table": ("unified", {"form": CallForm(extra_table_rows=2)}, {}),
    "fp8_caches_read_as_the_type_of_q": (
        "unified",
        {"dtypes": DTypes(E4M3, E5M2, "float32")},
        {"dtypes": DTypes(E4M3, E4M3, "float32")},
    ),
    "scales_expanded_by_their_shape": (
        "unified",
        {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": Scales(v=0.5), "form": CallForm("expanded")},
        {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": Scales(v=0.5)},
    ),
    "tiles_of_at_most_64_keys": (
        "unified",
        {"sequences": (Sequence(1, 300),), "launch": LaunchHints(tile_size=128)},
        {"sequences": (Sequence(1, 300),), "launch": LaunchHints(tile_size=64)},
    ),
    "query_offset_in_32_bits": ("unified", {"strides": Strides(far=("q_token",))}, {"strides": Strides(q_token=16)}),
    "output_offset_in_32_bits": (
        "unified",
        {"strides": Strides(far=("out_token",))},
        {"strides": Strides(far=("q_token",))},
    ),
    "table_offset_in_32_bits": (
        "unified",
        {"sequences": FOUR, "strides": Strides(far=("block_table",))},
        {"sequences": FOUR, "strides": Strides(block_table=16)},
    ),
    "new_token_offset_in_32_bits": (
        "context",
        {"strides": Strides(far=("new_token",))},
        {"strides": Strides(far=("q_token", "out_token"))},
    ),
    "empty_segment_wins_the_merge": (
        "unified",
        {"sequences": (Sequence(20, 4),), "scores": LevelScores(-110.0), "launch": LaunchHints("3d", 2, 16)},
        {"sequences": (Sequence(20, 4),), "scores": LevelScores(-110.0), "launch": LaunchHints("3d", 1, 16)},
    ),
    "fp8_weights_in_half": (
        "unified",
        {"dtypes": DTypes(E4M3, E4M3, "float32"), "scores": NeedleScores(strength=14.0), "key_marks": True},
        {"dtypes": DTypes(E4M3, E4M3, "float32"), "scores": NormalScores(0.5), "key_marks": True},
    ),
}
"""Bug: a family, the fields of a case that shows it, and those of a similar case that hides it."""

FOLDER = Path(__file__).parents[2] / "fuzz_attn" / "mutation" / "seeded" / "tables"
BUGS = {bug.name: bug for bug in load_seeded_bugs(FOLDER) if bug.file == "freedoms.toml"}


@pytest.fixture(scope="module")
def simulator() -> SimulatorBackend:
    """Return one simulator for all bugs, which reads the sources of the healthy kernels once."""
    return SimulatorBackend()


def fails(target: Target, case: AttentionCase, simulator: SimulatorBackend) -> bool:
    """Return whether a target fails some property, or raises."""
    try:
        return not check(Experiment(case, target, simulator)).passed
    except FuzzAttnError:
        raise
    except Exception:  # noqa: BLE001 (whatever the edited kernel raises is a failure of the target)
        return True


def test_every_bug_has_a_case() -> None:
    assert set(BUGS) == set(WITH)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WITH)
def test_bug_is_found_with_its_freedom_only(name: str, tmp_path: Path, simulator: SimulatorBackend) -> None:
    family, shown, hidden = WITH[name]
    base = replace(DECODE if family == "paged" else PLAIN, family=family)
    edited, healthy = target_with(BUGS[name], family, tmp_path), load_target(family)
    assert fails(edited, replace(base, **shown), simulator)
    assert not fails(edited, replace(base, **hidden), simulator)
    assert not fails(healthy, replace(base, **shown), simulator)
