"""What several folders of tests share: Hypothesis' profile, sample targets, and how to set up a campaign."""

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from fuzz_attn.case.attention_case import AttentionCase, HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.engine.campaign import Campaign, Outcome, Plan
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.messages import Answer, Order, Setup

# A busy machine is no defect: Hypothesis looks at no clock.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TARGETS = Path(__file__).parent / "sample_targets"
Judge = Callable[[Order], Answer]


def spec_of_target(name: str) -> str:
    """Return how the command line names a function of tests/sample_targets."""
    for path in (TARGETS / "torch_attention.py", TARGETS / "breaking.py"):
        if re.search(rf"^(def )?{name}\b", path.read_text(), re.MULTILINE):
            return f"{path}:{name}"
    return f"{TARGETS / 'misbehaving.py'}:{name}"


@pytest.fixture(scope="session")
def spec() -> Callable[[str], str]:
    """Return a function from the name of a target in tests/sample_targets to its full specification."""
    return spec_of_target


@lru_cache(maxsize=32)
def _judge(name: str) -> Judge:
    case_judge = load(Setup(spec_of_target(name), backend="interpreter"))  # as this process was started for
    case_judge.ready()
    return case_judge.judge


@pytest.fixture(scope="session")
def judge_of() -> Callable[[str], Judge]:
    """Return a function from the name of a target to what judges orders on it, in this process."""
    return _judge


@pytest.fixture(scope="session")
def case() -> AttentionCase:
    """Return a case that has a bit of everything that the properties look at."""
    return AttentionCase(
        sequences=(Sequence(3, 9), Sequence(0, 2), Sequence(1, 20)),
        heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=8),
        pages=PageLayout(block_size=4, spare_blocks=1, extra_columns=2),
        strides=Strides(out_token=3, out_head=1, block_table=2),
        padded_tokens=2,
    )


@pytest.fixture
def campaign(tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that runs one shard on a target, its budget in keywords, below the test's folder."""

    def run(name: str, *, worker: IsolatedWorker | None = None, **changes: Any) -> Outcome:
        fields: dict[str, Any] = {
            "setup": Setup(spec_of_target(name)),
            "shard": 0,
            "shards": 1,
            "seed": 1,
            "max_time": None,
            "max_cases": None,
            "run_folder": tmp_path / "run",
            "fixtures": tmp_path / "counterexamples",
        }
        return Campaign(Plan(**(fields | changes)), worker).run()

    return run
