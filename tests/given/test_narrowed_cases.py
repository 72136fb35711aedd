"""`fuzz_attn.cases`: values and strategies hold in every case, and a wrong name or value is an error with its bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from fuzz_attn import cases
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes
from fuzz_attn.case.recipes import AlibiRecipe
from fuzz_attn.errors import DomainError

Holds: TypeAlias = Callable[[Any], bool]

TARGETS = Path(__file__).parents[1] / "sample_targets"
KERNEL = f"{TARGETS / 'torch_attention.py'}:unified_attention"
FEW = settings(max_examples=40, deadline=None, database=None)

CHOSEN: list[tuple[dict[str, Any], Holds]] = [
    ({"window": 5}, lambda case: case.window == 5),
    ({"window": st.integers(1, 64), "head_size": 80},
     lambda case: 1 <= case.window <= 64 and case.heads.head_size == 80),
    ({"window": True, "sinks": False}, lambda case: case.window > 0 and case.sinks is None),
    ({"window": 0}, lambda case: case.window == 0),
    ({"head_size": st.integers(1, 33)}, lambda case: case.heads.head_size <= 33),
    ({"alibi": AlibiRecipe(scale=2.0)}, lambda case: case.alibi == AlibiRecipe(scale=2.0)),
    ({"softcap": st.floats(1, 50), "qq_bias": st.just(True)}, lambda case: 1 <= case.softcap <= 50 and case.qq_bias),
    ({"fp8_kv": True}, lambda case: case.dtypes.kv.startswith("float8")),
    ({"dtypes": "float16"}, lambda case: case.dtypes == DTypes("float16", "float16", "float16")),
    ({"max_sequences": 2, "max_query_len": 1, "max_seq_len": 20},
     lambda case: len(case.sequences) <= 2 and case.max_query_len <= 1 and case.max_seq_len <= 20),
    ({"block_size": 7, "num_queries_per_kv": 5, "num_kv_heads": 3},
     lambda case: (case.pages.block_size, case.heads.num_queries_per_kv, case.heads.num_kv_heads) == (7, 5, 3)),
    ({"softmax_scale": 0.3, "seed": 9}, lambda case: (case.softmax_scale, case.seed) == (0.3, 9)),
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("chosen", "holds"), CHOSEN, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_every_case_has_the_chosen_values(chosen: dict[str, Any], holds: Holds) -> None:
    drawn = []

    @FEW
    @given(cases(KERNEL, **chosen))
    def draw(case: AttentionCase) -> None:
        assert holds(case)
        drawn.append(case)

    draw()
    assert len(set(drawn)) > 20


@pytest.mark.parametrize(
    ("kernel", "chosen", "holds"),
    [
        ("extend", {"mask": "chunks"}, lambda case: case.mask.kind == "chunks"),
        ("varlen", {"head_size": 24}, lambda case: case.heads.head_size == 24),
        ("merge_states", {"head_size": 24, "padded_tokens": False},
         lambda case: (case.head_size, case.padded_tokens) == (24, 0)),
        ("cache_write", {"num_tokens": st.integers(1, 3), "skipped": True},
         lambda case: case.num_tokens <= 3 and case.skipped),
    ],
)  # fmt: skip
def test_every_family_has_its_arguments(kernel: str, chosen: dict[str, Any], holds: Holds) -> None:
    @FEW
    @given(cases(kernel, **chosen))
    def draw(case: Any) -> None:
        assert holds(case)

    draw()


@pytest.mark.parametrize("seed", range(4))
def test_the_simplest_case_with_a_token_has_one(seed: int) -> None:
    """A batch without sequences has fewer choices still, so that Hypothesis takes any such for simpler."""
    chosen = cases(KERNEL, window=st.integers(3, 64))
    simplest = find(chosen, lambda case: case.num_tokens > 0, settings=FEW, random=Random(seed))
    assert isinstance(simplest, AttentionCase)
    assert (len(simplest.sequences), simplest.num_tokens, simplest.total_keys, simplest.window) == (1, 1, 1, 3)
    assert repr(simplest) == "AttentionCase(sequences=(Sequence(query_len=1),), softmax_scale=0.25, window=3)"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"windw": 1}, r"cases\(\) has no argument 'windw': choose among alibi, block_size, .*, window$"),
    ({"head_size": 300}, r"head_size=300 must be from 1 to 256: \S+ promises no other"),
    ({"head_size": st.just(300)}, r"head_size=300 must be from 1 to 256"),
    ({"window": -1}, r"window=-1 is no value of a case: Expected `int` >= 0"),
    ({"softcap": 1e300}, r"softcap=1e\+300 is no value of a case: .* must be 0 or positive and finite"),
    ({"max_query_len": 0}, r"max_query_len=0 is no value of a case: Expected `int` >= 1"),
    ({"lse": True}, r"lse=True must be left out: \S+ does not promise log-sum-exp as a second output"),
    ({"value_size": 3}, r"value_size=3 must be left out: \S+ does not promise values of another size"),
    ({"dtypes": "int8"}, r"dtypes='int8' must be one of float32, float16, bfloat16"),
    ({"mask": "chunks"}, r"mask='chunks' must be one of causal: "),
    ({"empty_sequences": 3}, r"empty_sequences=3 must be True or False"),
]


@pytest.mark.parametrize(("chosen", "message"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_wrong_choice_names_argument_value_and_bound(chosen: dict[str, Any], message: str) -> None:
    strategy = cases(KERNEL, **chosen)  # nothing is loaded yet

    @FEW
    @given(strategy)
    def draw(case: AttentionCase) -> None:
        raise AssertionError(case)

    with pytest.raises(DomainError, match=f"^{message}"):
        draw()
