"""Audits find mutants, report survivors and survive crashes and hangs; also a fixed part of the project's own."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation import audit_report
from fuzz_attn.mutation.audit import Request, audit, combined, sampled
from fuzz_attn.mutation.audit_results import Audit, Evidence, Mutant, Outcome, State, load, own_score, score
from fuzz_attn.mutation.ir_operators import Rewrite
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.report.printing import text_of
from fuzz_attn.targets.loading import load_target

ROOT = Path(__file__).parents[2]

FEW = 40
"""Cases that launch all kernels of the unified family, and nearly all changes of them that a survey of 480 finds."""

SEEDED_BUG = """
[{name}]
families = ["unified"]
wrong = "{name}"
shown_by = "any case"
edits = [{{ file = "unified_attention.py", anchor = "    plan = plan_launch(", replacement = '''{code}
    plan = plan_launch(''' }}]
"""


HANGS = """    import signal
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, left / 50)
    while True: pass"""
"""A launch without an end, to which a fiftieth of its limit is left: none, and no end, where there is no limit."""


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
        "seeds": (1,),
        "workers": 1,
        "folder": folder,
        "survey_cases": FEW,
    }
    return Request(**options | changes)


def bugs_that_run(folder: Path, **codes: str) -> Path:
    """Return a folder of seeded bugs, named by keyword, whose launchers first run that code."""
    folder.mkdir()
    for name, code in codes.items():
        (folder / f"{name}.toml").write_text(SEEDED_BUG.format(name=name, code=code))
    return folder


def test_a_sample_of_the_seeded_bugs_is_found(tmp_path: Path, seeded_bugs: Path) -> None:
    done = audit(request(tmp_path, seeded_bugs=seeded_bugs, sample=10, max_cases=150), Console(quiet=True))
    assert [outcome.mutant.name for outcome in done.outcomes if outcome.state != "killed"] == []
    assert done.false_alarms == ()
    assert load(tmp_path / "audit.json") == done


@pytest.mark.slow
def test_most_of_a_sample_of_changed_kernels_is_found_in_a_target_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from fuzz_attn.kernels.unified_attention import unified_attention as mine\n")
    target = f"{tmp_path / 'mine.py'}:mine"
    done = audit(request(tmp_path, target=target, sample=20, max_cases=FEW), Console(quiet=True))
    found = own_score(done.outcomes)
    assert len(done.outcomes) == 20
    assert found.of >= 18, "hardly any change may make something that is no kernel"
    assert found.percent is not None
    assert found.percent >= 75, "in 40 cases: the whole audit gives a change 400"
    assert done.false_alarms == ()


def test_a_part_of_no_name_is_refused(tmp_path: Path, seeded_bugs: Path) -> None:
    with pytest.raises(FuzzAttnError, match="only='unknown' is in no mutant's name"):
        audit(request(tmp_path, seeded_bugs=seeded_bugs, only=("unknown",)), Console(quiet=True))


@pytest.mark.slow
def test_mutants_that_break_their_process_are_found_and_the_others_judged(tmp_path: Path) -> None:
    bugs = bugs_that_run(
        tmp_path / "bugs",
        ends="    import os; os._exit(3)",
        hangs=HANGS,
        raises="    raise ValueError('no')",
        nothing="    pass",
    )
    done = audit(request(tmp_path, seeded_bugs=bugs, max_cases=3, rules=True), Console(quiet=True))
    states = {outcome.mutant.name: (outcome.state, outcome.kind, outcome.case) for outcome in done.outcomes}
    assert states["ends"] == ("killed", "crash", 1)
    assert states["hangs"] == ("killed", "timeout", 1)
    assert states["raises"] == ("killed", "exception", 1)
    assert states["nothing"][0] == "unobserved"
    assert done.outcomes[0].rules == {"vllm": 1, "flash_attention": 1}
    assert "1 mutant not found" in text_of(audit_report.render(done))


@pytest.mark.slow
def test_several_seeds_judge_the_same_mutants(tmp_path: Path) -> None:
    options: dict[str, Any] = {"survey_cases": 5, "max_cases": 10, "target": "merge_states"}
    options |= {"only": ("merge_states.py:60/arith.subf#0",), "seeds": (3, 4), "workers": 2}
    done = audit(request(tmp_path, **options), Console(quiet=True))
    named: dict[int, list[str]] = {seed: [o.mutant.name for o in done.outcomes if o.seed == seed] for seed in (3, 4)}
    assert sorted(named[3]) == sorted(named[4])
    assert len(named[3]) == 4
    assert {outcome.state for outcome in done.outcomes} == {"killed"}
    single = audit(request(tmp_path, **options | {"seeds": (3,), "workers": 1}), Console(quiet=True))
    cases = {outcome.mutant: outcome.case for outcome in done.outcomes if outcome.seed == 3}
    assert len({*cases.values()}) > 1
    assert cases == {outcome.mutant: outcome.case for outcome in single.outcomes}


def test_kernels_of_both_launches_of_a_relation_are_changed() -> None:
    backend, target = SimulatorBackend(), load_target("unified")
    backend.rewrite(Rewrite())
    case = AttentionCase((Sequence(1, 20),), launch=LaunchHints("3d", num_segments=2))
    assert check(Experiment(case, target, backend), "segments").passed
    kernels = ["kernel_unified_attention_3d", "reduce_segments", "kernel_unified_attention_2d"]
    assert [function.name for function in backend.parsed] == kernels
    backend.rewrite(Rewrite())
    assert backend.parsed == []


def test_changes_of_a_kernel_without_queries_are_found(tmp_path: Path) -> None:
    parts = ("merge_states.py:60/arith.subf#0", "merge_states.py:60/math.exp#0")
    wanted = {"target": "merge_states", "only": parts, "max_cases": 40, "rules": True}
    done = audit(request(tmp_path, **wanted), Console(quiet=True))
    names = [outcome.mutant.name for outcome in done.outcomes]
    assert all(any(part in name for name in names) for part in parts)
    assert all(any(part in name for part in parts) for name in names), "only those asked for are judged"
    assert len(names) > 3
    assert {outcome.state for outcome in done.outcomes} == {"killed"}
    assert not done.ruled, "the tolerances are those of attention"
    assert done.false_alarms == ()


def test_a_target_without_a_kernel_has_no_mutant(tmp_path: Path) -> None:
    target = f"{ROOT / 'tests' / 'sample_targets' / 'torch_attention.py'}:unified_attention"
    with pytest.raises(FuzzAttnError, match="has no mutant"):
        audit(request(tmp_path, target=target, max_cases=3, survey_cases=3), Console(quiet=True))


def outcome(state: State = "unobserved", seed: int = 1, name: str = "one", **changes: Any) -> Outcome:
    return Outcome(Mutant(name), state, seed, **changes)


@pytest.mark.parametrize(("changed", "state"), [(0, "unobserved"), (1, "survived")])
def test_however_often_a_mutant_ran_with_the_same_bits_it_is_not_equivalent(changed: int, state: State) -> None:
    seen = Evidence(cases=2000, reached=1000, changed=changed)
    result = combined(outcome(rules={"vllm": 3}), outcome(evidence=seen))
    assert result == outcome(state, rules={"vllm": 3}, evidence=seen)
    assert own_score([result]).of == 1


def test_a_mutant_found_only_by_more_cases_is_a_survivor() -> None:
    late = outcome("killed", property_name="oracle", kind="nan", message="NaN", case=700)
    result = combined(outcome(), late)
    assert (result.state, result.message) == ("survived", "found by oracle (nan) after 700 cases: NaN")


@pytest.mark.parametrize(
    ("found", "of", "low", "high"), [(5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 20, 0.0, 0.1611)]
)
def test_scores_have_wilsons_confidence_interval(found: int, of: int, low: float, high: float) -> None:
    result = score(found, of)
    assert (result.percent, round(result.low, 4), round(result.high, 4)) == (100 * found / of, low, high)


def test_no_mutant_is_no_success() -> None:
    nothing = score(0, 0)
    assert (nothing.percent, nothing.low, nothing.high) == (None, 0.0, 1.0)
    unknown = Audit("t", "unified", (1,), 1, 1.0, 1, {}, (outcome("invalid"), outcome("equivalent", name="two")))
    text = text_of(audit_report.render(unknown))
    assert "none, of no mutant" in text
    assert "100" not in text


def test_the_score_of_several_seeds_is_their_mean() -> None:
    outcomes = [
        outcome("killed", 1),
        outcome("unobserved", 2),
        outcome("killed", 1, "two"),
        outcome("killed", 2, "two"),
    ]
    assert own_score(outcomes)[:2] == (1.5, 2)
    assert own_score([*outcomes, outcome("equivalent", 1, "three"), outcome("invalid", 2, "four")])[:2] == (1.5, 2)


def test_a_report_says_how_often_a_mutant_was_found() -> None:
    states: list[tuple[State, int]] = [("killed", 7), ("survived", 0), ("killed", 31), ("unobserved", 0)]
    outcomes = tuple(outcome(state, seed, case=case) for seed, (state, case) in enumerate(states, 1))
    text = text_of(audit_report.render(Audit("t", "unified", (1, 2, 3, 4), 9, 1.0, 1, {}, outcomes)), 200)
    assert "one: 2 of 4 seeds, after 7, 31 cases" in text
    assert "0.5 of 1 (mean of the seeds), 50.0 %" in text
    assert "from 0.0 % (seed 2) to 100.0 % (seed 3)" in text
    assert "0 by every seed, 1 by some, 0 by none" in text


def test_a_sample_keeps_the_order_and_depends_only_on_the_seed() -> None:
    mutants = [Mutant(str(number)) for number in range(100)]
    chosen = sampled(mutants, 10, 3)
    assert len(chosen) == 10
    assert list(chosen) == sorted(chosen, key=mutants.index)
    assert chosen == sampled(mutants, 10, 3) != sampled(mutants, 10, 4)
    assert sampled(mutants, None, 3) is mutants


def test_the_file_has_a_schema_version(tmp_path: Path) -> None:
    assert Audit("t", "unified", (0,), 1, 1.0, 1, {}, ()).schema == 2
