"""The oracle of merging: right in 50 digits, and its bound holds for roundings in the worst direction, closely."""

from __future__ import annotations

import dataclasses
import math
import os
from functools import cache
from random import Random
from typing import Any, Final, get_args

import mpmath
import pytest
import torch
from msgspec.structs import replace

from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.storage import REACH, bits_of, far_axis, storage_bytes
from fuzz_attn.operations.merge_states.state_case import StateAxis, StateCase, StateDomain, key_pool
from fuzz_attn.operations.merge_states.state_draws import state_cases
from fuzz_attn.operations.merge_states.state_experiment import LOGARITHM, StateTensors, materialise, merge
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.oracle.roundings import UNIT, half_spacing
from fuzz_attn.strategies.draws import Sample

COUNT: Final = int(os.environ.get("FUZZ_ATTN_ORACLE_CASES", "120"))
DOMAIN: Final = StateDomain()
EXP: Final = 6.0
"""Units that an exponential loses, as the default rounding model allows."""


@cache
def drawn() -> tuple[StateCase, ...]:
    sample = Sample(Random(7))
    return tuple(sample.draw(state_cases(DOMAIN, key_pool(DOMAIN))) for _ in range(COUNT))


@pytest.mark.parametrize("name", get_args(StateAxis))
def test_the_last_index_of_a_far_axis_lies_beyond_32_bits_and_takes_no_memory(name: StateAxis) -> None:
    case = StateCase(4, 5, 3, gap=1, padded_tokens=1)
    near, far = (materialise(replace(case, far_axes=axes)) for axes in ((), (name,)))
    moved = 0
    for one, other in zip(tensors_of(near), tensors_of(far), strict=True):
        axis = far_axis(other)
        moved += axis is not None
        assert other.equal(one)
        assert storage_bytes(other).numel() < 2**20
        if axis is not None:
            assert (case.far_lengths[name] - 1) * other.stride(axis) >= REACH > other.stride(axis)
    assert moved == 1


def tensors_of(tensors: StateTensors) -> list[torch.Tensor]:
    """Return all tensors as integers, as poison may be NaN."""
    given = tensors.partial_outputs, tensors.partial_lses, *(output.tensor for output in tensors.outputs.values())
    return [bits_of(each) for each in given]


def test_a_case_is_not_far_along_two_axes_of_a_tensor_or_of_too_many_indices() -> None:
    with pytest.raises(CaseError, match="must name one axis of each tensor"):
        StateCase(3, 3, 3, far_axes=("out_token", "out_head"))
    assert StateCase(1, 256, far_axes=("out_token",)).is_far
    assert not StateCase(1, 300, far_axes=("out_token",)).is_far
    assert not StateCase(64, 200, 8, far_axes=("out_token",)).is_far


def rows_of(tensors: StateTensors) -> list[tuple[int, int]]:
    _, tokens, heads, _ = tensors.partial_outputs.shape
    return [(token, head) for token in range(tokens) for head in range(heads)]


def in_digits(tensors: StateTensors, token: int, head: int, column: int) -> tuple[Any, Any]:
    """Return the merged output and LSE of a row with 50 digits."""
    states = tensors.partial_outputs[:, token, head, column].tolist()
    lses = tensors.partial_lses[:, token, head].tolist()
    live = [(mpmath.mpf(lse), mpmath.mpf(state)) for lse, state in zip(lses, states, strict=True) if lse > -math.inf]
    if not live:
        return mpmath.mpf(0), mpmath.mpf("-inf")
    total = mpmath.fsum(mpmath.exp(lse) for lse, _ in live)
    return mpmath.fsum(mpmath.exp(lse) * state for lse, state in live) / total, mpmath.log(total)


@pytest.mark.parametrize("part", range(6))
def test_the_value_agrees_in_50_digits(part: int) -> None:
    random = Random(part)
    with mpmath.workdps(50):
        for case in drawn()[part::6]:
            tensors = materialise(case)
            found = merge(tensors)
            for token, head in random.sample(rows_of(tensors), min(3, case.num_tokens * case.num_heads)):
                column = random.randrange(case.head_size)
                out, lse = in_digits(tensors, token, head, column)
                error = abs(mpmath.mpf(float(found["out"].value[token, head, column])) - out)
                assert error <= 1e-8 * float(found["out"].bound[token, head, column])
                own = float(found["lse"].value[token, head])
                if mpmath.isinf(lse):
                    assert own == -math.inf
                else:
                    assert abs(mpmath.mpf(own) - lse) <= 1e-8 * float(found["lse"].bound[token, head])


def worst(tensors: StateTensors, place: tuple[int, int, int], average: float, side: int) -> float:
    """Return a column of a row as a kernel of one pass computes it, each rounding in the direction of ``side``."""
    token, head, column = place
    states = tensors.partial_outputs[:, token, head, column].double().tolist()
    lses = tensors.partial_lses[:, token, head].tolist()
    top, weights, total = -math.inf, 0.0, 0.0
    for lse, state in zip(lses, states, strict=True):
        if lse == -math.inf:
            continue
        new = max(top, lse)
        push = side * math.copysign(1.0, state - average)
        scale = 0.0 if top == -math.inf else math.exp(top - new)
        if 0.0 < scale < 1.0:  # both sums share it, so its error matters by how far they are from the average
            pull = side * math.copysign(1.0, total - average * weights)
            scale *= 1 + pull * UNIT * (EXP + 3 * (new - top))
        if top != new and top > -math.inf:
            weights *= scale * (1 - side * math.copysign(1.0, average) * UNIT)
            total *= scale
            total += side * UNIT * abs(total)
        else:
            weights, total = weights * scale, total * scale
        weight = math.exp(lse - new)
        if lse < new:
            weight *= 1 + push * UNIT * (EXP + 3 * (new - lse))
        first = weights == 0.0
        weights += weight
        product = weight * state
        if weight != 1.0:
            product += side * UNIT * abs(product)
        total += product
        if not first:
            weights *= 1 - side * math.copysign(1.0, average) * UNIT
            total += side * UNIT * abs(total)
        top = new
    result = total / weights
    return result + side * 4 * UNIT * abs(result)


def ratio_of(tensors: StateTensors, found: Reference, place: tuple[int, int, int]) -> float:
    expected = found["out"]
    average, bound = float(expected.value[place]), float(expected.bound[place])
    dtype = tensors.outputs["out"].tensor.dtype
    errors = []
    for side in (-1, 1):
        result = worst(tensors, place, average, side)
        if dtype != torch.float32:
            result += side * float(half_spacing(torch.tensor([abs(result)], dtype=torch.float64), dtype))
        errors.append(abs(result - average))
    return max(errors) / bound


def test_roundings_in_the_worst_direction_stay_within_the_bound_and_come_close() -> None:
    random, largest = Random(3), {"float32": 0.0, "float16": 0.0, "bfloat16": 0.0}
    for case in drawn():
        tensors = materialise(case)
        found = merge(tensors)
        for token, head in random.sample(rows_of(tensors), min(6, case.num_tokens * case.num_heads)):
            if float(found["lse"].value[token, head]) == -math.inf:
                continue
            ratio = ratio_of(tensors, found, (token, head, random.randrange(case.head_size)))
            assert ratio <= 1.0, case
            largest[case.dtype] = max(largest[case.dtype], ratio)
    print(f"largest errors of merged outputs in the worst direction, in bounds: {largest}")
    assert min(largest.values()) > 0.5, largest


def test_exponents_of_far_states_stay_within_the_bound_and_come_close() -> None:
    largest = 0.0
    for seed in range(40):
        tensors = materialise(StateCase(num_states=3, num_tokens=4, lse_spread=20.0, seed=seed))
        below = (tensors.partial_lses.amax(0) - tensors.partial_lses).clamp_max(60.0)
        grown = tensors.partial_outputs * below.exp()[..., None]  # so that all states matter as much
        tensors = dataclasses.replace(tensors, partial_outputs=grown)
        found = merge(tensors)
        for token in range(4):
            ratio = ratio_of(tensors, found, (token, 0, seed % 16))
            assert ratio <= 1.0, seed
            largest = max(largest, ratio)
    assert largest > 0.7


def test_an_lse_in_the_worst_direction_stays_within_the_bound_and_comes_close() -> None:
    largest = 0.0
    for case in drawn():
        tensors = materialise(case)
        found = merge(tensors)["lse"]
        for token, head in rows_of(tensors)[:4]:
            lses = [lse for lse in tensors.partial_lses[:, token, head].tolist() if lse > -math.inf]
            if not lses:
                continue
            for side in (-1, 1):
                top = max(lses)
                total = 0.0
                for number, lse in enumerate(lses):
                    total += math.exp(lse - top) * (1 + (lse < top) * side * UNIT * (EXP + 3 * (top - lse)))
                    total *= 1 + (number > 0) * side * UNIT
                logarithm = math.log(total)
                result = top + logarithm + side * max(LOGARITHM, 6 * UNIT * abs(logarithm))
                result += side * UNIT * abs(result)
                ratio = abs(result - float(found.value[token, head])) / float(found.bound[token, head])
                assert ratio <= 1.0, case
                largest = max(largest, ratio)
    print(f"largest error of a merged LSE in the worst direction: {largest:.3f} times the bound")
    assert largest > 0.5


def test_rows_without_a_key_are_0_and_minus_infinity() -> None:
    case = StateCase(num_states=3, num_tokens=4, num_heads=2, empty_rows=True, poison="nan")
    found = merge(materialise(case))
    nothing = found["lse"].value == -math.inf
    assert bool(nothing[0, 0])
    assert not bool(nothing.all())
    assert float(found["out"].value[nothing].abs().max()) == 0.0
    assert float(found["out"].bound[nothing].max()) < 1e-40
    assert bool(found["out"].value.isfinite().all())


def test_one_state_is_its_own_merge() -> None:
    tensors = materialise(StateCase(num_tokens=3, num_heads=2, lse_offset=12.0))
    found = merge(tensors)
    assert torch.equal(found["out"].value, tensors.partial_outputs[0].double())
    assert torch.equal(found["lse"].value, tensors.partial_lses[0].double())
