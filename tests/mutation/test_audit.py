"""Audits find mutants, report survivors and survive crashes and hangs; also a fixed part of the project's own."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation import report
from fuzz_attn.mutation.audit import Request, audit, combined, sampled
from fuzz_attn.mutation.ir.mutants import Rewrite
from fuzz_attn.mutation.mutant import Mutant
from fuzz_attn.mutation.results import Audit, Evidence, Outcome, State, load, own_score, score
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.report.plain_text import text_of
from fuzz_attn.targets.loading import load_target

ROOT = Path(__file__).parents[2]

SEEDED_BUG = """
[{name}]
families = ["unified"]
wrong = "{name}"
shown_by = "any case"
edits = [{{ file = "unified_attention.py", anchor = "    plan = plan_launch(", replacement = '''{code}
    plan = plan_launch(''' }}]
"""


def request(folder: Path, **changes: Any) -> Request:
    options: dict[str, Any] = {
        "target": "unified",
        "family": None,
        "seeded_bugs": None,
        "only": (),
        "sample": None,
        "max_cases": 60,
        "enough": 0,
        "rules": False,
        "seed": 1,
        "workers": 1,
        "folder": folder,
    }
    return Request(**options | changes)


def bugs_that_run(folder: Path, **codes: str) -> Path:
    """Return a folder of seeded bugs, named by keyword, whose launchers first run that code."""
    folder.mkdir()
    for name, code in codes.items():
        (folder / f"{name}.toml").write_text(SEEDED_BUG.format(name=name, code=code))
    return folder


def test_a_sample_of_the_seeded_bugs_is_found(tmp_path: Path, seeded_bugs: Path) -> None:
    done = audit(request(tmp_path, seeded_bugs=seeded_bugs, sample=16, max_cases=150), Console(quiet=True))
    assert [outcome.mutant.name for outcome in done.outcomes if outcome.state != "killed"] == []
    assert done.false_alarms == {}
    assert load(tmp_path / "audit.json") == done


def test_most_of_a_sample_of_changed_kernels_is_found(tmp_path: Path) -> None:
    done = audit(request(tmp_path, sample=60), Console(quiet=True))
    found = own_score(done.outcomes)
    assert found.of >= 55, "hardly any change may make something that is no kernel"
    assert found.percent >= 75, "in 60 cases: the whole audit gives a change 400"
    assert done.false_alarms == {}


def test_only_requested_mutants_are_judged(tmp_path: Path) -> None:
    parts = ("reduce_segments/common/outputs.py", "reduce_segments/unified/segments.py")
    done = audit(request(tmp_path, only=parts, max_cases=3), Console(quiet=True))
    names = [outcome.mutant.name for outcome in done.outcomes]
    assert all(any(name.startswith(part) for name in names) for part in parts)
    assert all(name.startswith(parts) for name in names)


def test_a_part_of_no_name_is_refused(tmp_path: Path, seeded_bugs: Path) -> None:
    with pytest.raises(FuzzAttnError, match="only='unknown' is in no mutant's name"):
        audit(request(tmp_path, seeded_bugs=seeded_bugs, only=("unknown",)), Console(quiet=True))


def test_mutants_that_break_their_process_are_found_and_the_others_judged(tmp_path: Path) -> None:
    bugs = bugs_that_run(
        tmp_path / "bugs",
        ends="    import os; os._exit(3)",
        hangs="    while True: pass",
        raises="    raise ValueError('no')",
        nothing="    pass",
    )
    done = audit(request(tmp_path, seeded_bugs=bugs, max_cases=3, rules=True), Console(quiet=True))
    states = {outcome.mutant.name: (outcome.state, outcome.kind, outcome.case) for outcome in done.outcomes}
    assert states["ends"] == ("killed", "crash", 1)
    assert states["hangs"] == ("killed", "timeout", 1)
    assert states["raises"] == ("killed", "exception", 1)
    assert states["nothing"][0] == "survived"
    assert done.outcomes[0].rules == {"vllm": 1, "flash_attention": 1}
    assert "1 survivor" in text_of(report.render(done))


def test_kernels_of_both_launches_of_a_relation_are_changed() -> None:
    backend, target = SimulatorBackend(), load_target("unified")
    backend.rewrite(Rewrite())
    case = AttentionCase((Sequence(1, 20),), launch=LaunchHints("3d", num_segments=2))
    assert check(Experiment(case, target, backend), "segments").passed
    kernels = ["kernel_unified_attention_3d", "reduce_segments", "kernel_unified_attention_2d"]
    assert [function.name for function in backend.parsed] == kernels
    backend.rewrite(Rewrite())
    assert backend.parsed == []


def test_a_users_own_target_is_audited(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from fuzz_attn.kernels.unified_attention import unified_attention as mine\n")
    done = audit(request(tmp_path, target=f"{tmp_path / 'mine.py'}:mine", sample=6, max_cases=40), Console(quiet=True))
    assert len(done.outcomes) == 6
    assert own_score(done.outcomes).found >= 2


def test_a_target_without_a_kernel_has_no_mutant(tmp_path: Path) -> None:
    target = f"{ROOT / 'tests' / 'sample_targets' / 'torch_attention.py'}:unified_attention"
    with pytest.raises(FuzzAttnError, match="has no mutant"):
        audit(request(tmp_path, target=target), Console(quiet=True))


def outcome(**changes: Any) -> Outcome:
    return Outcome(Mutant("one"), "survived", **changes)


@pytest.mark.parametrize(
    ("reached", "changed", "state"), [(100, 0, "equivalent"), (99, 0, "survived"), (100, 1, "survived")]
)
def test_a_mutant_that_ran_often_with_the_same_bits_is_equivalent(reached: int, changed: int, state: State) -> None:
    seen = Evidence(cases=200, reached=reached, changed=changed)
    assert combined(outcome(rules={"vllm": 3}), outcome(evidence=seen), 100) == Outcome(
        Mutant("one"),
        state,
        rules={"vllm": 3},
        evidence=seen,
    )


def test_a_mutant_found_only_by_more_cases_is_a_survivor() -> None:
    late = Outcome(Mutant("one"), "killed", "oracle", "nan", "NaN", case=700)
    result = combined(outcome(), late, 100)
    assert (result.state, result.message) == ("survived", "found by oracle (nan) after 700 cases: NaN")


def test_scores_have_confidence_intervals() -> None:
    half = score(5, 10)
    assert (half.percent, round(half.low, 3), round(half.high, 3)) == (50.0, 0.237, 0.763)
    assert score(0, 0).percent == 100.0
    assert round(score(10, 10).low, 3) == 0.722


def test_a_sample_keeps_the_order_and_depends_only_on_the_seed() -> None:
    mutants = [Mutant(str(number)) for number in range(100)]
    chosen = sampled(mutants, 10, 3)
    assert len(chosen) == 10
    assert list(chosen) == sorted(chosen, key=mutants.index)
    assert chosen == sampled(mutants, 10, 3) != sampled(mutants, 10, 4)
    assert sampled(mutants, None, 3) is mutants


def test_the_file_has_a_schema_version(tmp_path: Path) -> None:
    assert Audit("t", "unified", 0, 1, 1.0, 1, {}, ()).schema == 1
