"""Lengths: in nearly every case that a campaign draws, the oracle finds that any one key is lost, at any length."""

from __future__ import annotations

from random import Random
from types import ModuleType

import pytest

from fuzz_attn.case.parts import DTypes, Sequence
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.built_in import built_in

COUNT = 12
TYPES = (
    DTypes(),
    DTypes("float16", "float16", "float16"),
    DTypes("bfloat16", "bfloat16", "bfloat16"),
    DTypes("bfloat16", "float8_e4m3fn", "bfloat16"),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("num_keys", [400, 3000])
@pytest.mark.parametrize("dtypes", TYPES, ids=lambda dtypes: dtypes.kv)
def test_a_lost_key_is_found(dtypes: DTypes, num_keys: int, faults: ModuleType) -> None:
    target, random, found = built_in("unified"), Random(3), 0
    assert target is not None
    pool = [key for key in key_pool(target.domain) if key.dtypes == dtypes]
    strategy = cases(target.domain, keys=pool, sequences=(Sequence(1, num_keys - 1),))
    for _ in range(COUNT):
        tensors = materialise(Sample(random).draw(strategy))
        parts = faults.parts_of(tensors, target.rounding_model)
        seen = faults.visible_positions(parts)
        lost = faults.one_key(int(seen[int(random.random() * len(seen))]))
        written = tensors.output.clone()
        written[:1] = faults.output_with(parts, lost, faults.LOST).to(written.dtype)
        found += not judge(tensors.with_outputs(out=written), attend(tensors, target.rounding_model)).passed
    assert found == COUNT
