"""What a target refuses is no failure: it is counted, reduced to the smallest combination, and drawn no longer."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.binding import binding_of
from fuzz_attn.calibration.easy_cases import BrokenPromises, sizes
from fuzz_attn.case.aspect_table import NotDrawn
from fuzz_attn.case.aspects import FEATURES_OF, all_features_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Strides
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.case.recipes import ConstantValues, Override, SinkRecipe
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.events import RefusalReduced, WorkerReady
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners import statistics
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Tally, counted, merged_refusals
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import OutOfProbesError
from fuzz_attn.operations.attention.refusals import (
    JUDGED_FOR_ONE,
    LEAST_SECONDS,
    MOST_SECONDS,
    MOST_TIME,
    Rule,
    Rules,
)
from fuzz_attn.operations.operation import FULL_ROUND, Probe
from fuzz_attn.oracle.verdict import NOT_REDUCED, Refusal
from fuzz_attn.report.printing import text_of
from fuzz_attn.report.summary import combinations_in_words, render
from fuzz_attn.targets.loading import load_target

FILE = Path(__file__).parents[1] / "sample_targets" / "refusing.py"
SHORT = AttentionCase(sequences=(Tokens(1, 3),))
LARGE = AttentionCase(sequences=(Tokens(1, 3),), heads=HeadLayout(head_size=64))
DOMAIN = Domain()


@lru_cache(maxsize=1)
def _simulator() -> SimulatorBackend:
    return SimulatorBackend()


def _judge(name: str, case: AttentionCase, relation: str | None = None, *, strict: bool = False) -> Answer:
    """Return the answer of a worker of a target of refusing.py, in this process and in the simulator."""
    return CaseJudge(load_target(f"{FILE}:{name}"), _simulator(), strict).judge(Order(case, relation))


@pytest.mark.parametrize(
    ("name", "error", "message", "source"),
    [
        ("accepts_few", "AssertionError", "head size 16 is not supported", "assert q.shape[2] in (64, 128)"),
        ("refuses_all", "NotImplementedError", "not yet", 'raise NotImplementedError("not yet")'),
    ],
)
def test_host_code_refuses(name: str, error: str, message: str, source: str) -> None:
    answer = _judge(name, SHORT)
    assert not answer.judged
    assert answer.refusal is not None
    assert (answer.refusal.stage, answer.refusal.error, answer.refusal.message) == ("host", error, message)
    assert answer.refusal.source.startswith(source)
    assert answer.refusal.location.startswith(f"{FILE}:")


def test_an_option_of_another_gpus_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else Triton 3.9 warns
    refusal = _judge("needs_another_gpu", SHORT).refusal
    assert refusal is not None
    assert (refusal.stage, refusal.error) == ("compile", "KeyError")
    assert refusal.message == "'Keyword argument waves_per_eu was specified but unrecognised'"
    assert refusal.source.startswith("_any_kernel._pack_args(")


@pytest.mark.parametrize(
    ("name", "head_size", "error", "message"),
    [
        ("static_assert", 16, "static_assert", "heads of 32 or more"),
        ("needs_power_of_two", 24, "ValueError", "arange's range must be a power of 2"),
        ("needs_large_dot", 8, "AssertionError", "Input shapes should have M >= 1, N >= 1 and K >= 16"),
    ],
)
def test_the_compiler_refuses(name: str, head_size: int, error: str, message: str) -> None:
    case = AttentionCase(sequences=(Tokens(1, 3),), heads=HeadLayout(head_size=head_size))
    answer = _judge(name, case)
    assert answer.refusal is not None
    assert (answer.refusal.stage, answer.refusal.error, answer.refusal.message) == ("compile", error, message)
    assert answer.refusal.location.startswith(f"{FILE}:")
    assert answer.refusal == _judge(name, case).refusal, "the second time, the simulator remembers"
    assert _judge(name, LARGE).verdict.passed


def test_the_interpreter_refuses_what_triton_says_in_both() -> None:
    judge = CaseJudge(load_target(f"{FILE}:static_assert"), InterpreterBackend())
    refusal = judge.judge(Order(SHORT)).refusal
    assert refusal is not None
    assert (refusal.stage, refusal.error, refusal.message) == ("compile", "static_assert", "heads of 32 or more")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("asserts_on_data", "raised AssertionError: large numbers"),
        ("divides_by_zero", "raised ZeroDivisionError"),
        ("asserts_after_launch", "raised AssertionError: too late"),
        ("asserts_after_writing", "raised AssertionError: too late"),
        ("does_not_compile", "nothing_of_that_name is not defined"),
    ],
)
def test_other_exceptions_are_failures(name: str, message: str) -> None:
    case = AttentionCase(sequences=(Tokens(1, 3),), overrides=(Override("q", value=50.0),))
    answer = _judge(name, case)
    assert answer.judged
    assert (answer.verdict.property_name, answer.verdict.kind) == ("oracle", "exception")
    assert message in answer.verdict.message


def test_strict_makes_refusals_failures() -> None:
    for name in ("accepts_few", "static_assert"):
        answer = _judge(name, SHORT, strict=True)
        assert answer.judged
        assert answer.verdict.kind == "exception"


SINKS = AttentionCase(sequences=(Tokens(1, 3),), sinks=SinkRecipe())


def _promising(name: str, **stated: object) -> CaseJudge:
    """Return a worker of a target of refusing.py whose binding states more."""
    binding = binding_of(stated)
    return CaseJudge(load_target(f"{FILE}:{name}", None, binding), _simulator())


def test_a_promised_feature_that_is_refused_is_a_failure() -> None:
    silent, promises = _promising("refuses_sinks"), _promising("refuses_sinks", promises=["sinks"])
    states = _promising("refuses_sinks", domain={"features": ["sinks", "window"]})
    assert silent.judge(Order(SINKS)).refusal is not None
    for judge in (promises, states):
        answer = judge.judge(Order(SINKS))
        assert answer.refusal is None
        assert "AssertionError: assert sinks is None" in answer.verdict.message
        assert judge.judge(Order(SHORT)).verdict.passed


def test_a_promised_feature_that_is_refused_only_beside_another_is_no_failure() -> None:
    judge = _promising("refuses_sinks_in_windows", promises=["sinks", "window"])
    both = replace(SINKS, window=4)
    assert judge.judge(Order(both)).refusal is not None
    assert judge.judge(Order(SINKS)).verdict.passed


def test_another_refusal_of_a_case_with_a_refused_feature_is_no_failure() -> None:
    judge = _promising("accepts_few", promises=["sinks"])
    assert judge.judge(Order(SINKS)).refusal is not None, "its head size is refused first"
    of_64 = replace(SINKS, heads=HeadLayout(head_size=64), dtypes=DTypes("float16", "float16", "float16"))
    assert judge.judge(Order(of_64)).verdict.message.startswith("the target raised ValueError: sinks are not")


@pytest.mark.parametrize("family", get_args(Family))
def test_each_promised_feature_of_a_family_has_an_easy_case(family: Family) -> None:
    """All of them but those of addresses, which no host code refuses."""
    asked = BrokenPromises(load_target(family), _simulator())
    features = {feature for feature in FEATURES_OF[family] if asked.target.domain.allows(feature)}
    size = next(sizes(asked.target.domain))
    found = {feature: pair for feature in features if (pair := asked._with_and_without(feature, size)) is not None}
    assert features - found.keys() == {"large_offsets", "far_axes"} & features
    for feature, (case, without) in found.items():
        assert feature in all_features_of(case) - all_features_of(without)


def test_a_relation_whose_other_launch_is_refused_shows_nothing() -> None:
    assert _judge("refuses_sinks", SHORT, "absent_sinks").verdict.passed
    assert _judge("refuses_sinks", SHORT, "absent_sinks", strict=True).verdict.kind == "exception"


# What is refused, in one process.


def _refusal(line: int) -> Refusal:
    return Refusal("host", "AssertionError", "no", f"target.py:{line}")


def _compiled(line: int) -> Refusal:
    return Refusal("compile", "OutOfResources", "no", f"target.py:{line}")


Refusing = Callable[[AttentionCase], bool]


def _probe(*checks: Refusing) -> Probe:
    """Return a probe of a target that makes these checks in this order."""

    def probe(cases: Sequence[AttentionCase]) -> list[Refusal | None]:
        return [next((_refusal(line) for line, refuses in enumerate(checks) if refuses(case)), None) for case in cases]

    return probe


HALF = DTypes("float16", "float16", "float16")
COMPLEX = AttentionCase(
    sequences=(Tokens(5, 40), Tokens(1, 3), Tokens(0, 2)),
    heads=HeadLayout(2, 3, 80),
    dtypes=DTypes("float16", "float8_e4m3fn", "float16"),
    pages=PageLayout(block_size=24, permuted=True, spare_blocks=1),
    window=7,
    softcap=2.0,
    sinks=SinkRecipe(),
    strides=Strides(q_head=3, cache="kv_first"),
    values=ConstantValues(),
    padded_tokens=2,
)


@pytest.mark.parametrize(
    ("refuses", "words"),
    [
        (lambda case: case.sinks is not None and case.window > 0, ("sliding window", "sinks")),
        (lambda case: case.heads.head_size not in (64, 128), ("head size other than 64 or 128",)),
        (lambda case: case.heads.head_size == 80, ("head size 80",)),
        (lambda case: case.dtypes.q != "float32", None),
        (lambda case: case.max_seq_len > 20, ("21 keys of a sequence or more",)),
        (
            lambda case: len(case.sequences) > 1 and case.padded_tokens > 0,
            ("2 sequences or more", "padded rows of q and out"),
        ),
        (lambda case: case.strides.q_head > 0, ("padding between rows",)),
        (lambda case: case.alibi is None, ("no ALiBi slopes",)),
        (
            lambda case: case.heads.head_size not in (64, 128) and case.softcap > 0,
            ("soft cap", "head size other than 64 or 128"),
        ),
        (lambda case: True, ()),
    ],
)
def test_a_refusal_is_reduced_to_the_smallest_combination(refuses: Refusing, words: tuple[str, ...] | None) -> None:
    refusals = Rules(DOMAIN)
    (rule,) = refusals.refused(COMPLEX, _refusal(0), _probe(refuses))
    if words is not None:
        assert rule.words(DOMAIN) == words
    assert refusals.excludes(COMPLEX) == bool(rule.conditions)
    assert rule.matches(COMPLEX) == bool(rule.conditions)


@pytest.mark.parametrize(("rounds", "words"), [(0, ()), (1, ()), (4, ("head size 80",))])
def test_a_reduction_without_time_lists_only_what_matters(rounds: int, words: tuple[str, ...]) -> None:
    probe = _probe(lambda case: case.heads.head_size == 80)
    left = [rounds]

    def limited(cases: Sequence[AttentionCase]) -> Sequence[Refusal | None]:
        if not left[0]:
            raise OutOfProbesError
        left[0] -= 1
        return probe(cases)

    (rule,) = Rules(DOMAIN).refused(COMPLEX, _refusal(0), limited)
    assert rule.words(DOMAIN) == (*words, NOT_REDUCED)
    counts = counted(counted((), _refusal(0), combination=("sinks",)), _refusal(0), combination=rule.words(DOMAIN))
    assert combinations_in_words(counts[0]) == f"sinks; {', '.join((*words, NOT_REDUCED))}"


def test_a_check_that_another_hides_is_reduced_too() -> None:
    probe = _probe(lambda case: case.heads.head_size not in (64, 128), lambda case: case.dtypes.q != "float16")
    refusals = Rules(DOMAIN)
    refusals.refused(SHORT, _refusal(0), probe)
    (rule,) = refusals.refused(LARGE, _refusal(1), probe)
    assert [condition.name for condition in rule.conditions] == ["type"], "no other head size is accepted at all"
    assert refusals.domain.head_sizes == (64, 64, 128)
    assert refusals.domain.dtypes == ("float16",)


def _rule(refusals: Rules, case: AttentionCase, *checks: Refusing) -> tuple[Rule, ...]:
    return refusals.refused(case, _refusal(0), _probe(*checks))


def test_a_case_that_is_judged_drops_a_rule_that_excludes_it() -> None:
    refusals = Rules(DOMAIN)
    assert _rule(refusals, COMPLEX, lambda case: case.sinks is not None)
    assert refusals.excludes(COMPLEX)
    refusals.judged(COMPLEX)
    assert not refusals.excludes(COMPLEX)
    assert refusals.domain == DOMAIN


def test_a_few_excluded_cases_are_drawn_nevertheless() -> None:
    refusals = Rules(DOMAIN)
    assert _rule(refusals, COMPLEX, lambda case: case.sinks is not None)
    for _ in range(4 * JUDGED_FOR_ONE):
        refusals.judged(SHORT)
    assert [refusals.excludes(COMPLEX) for _ in range(6)] == [False] * 4 + [True] * 2


def test_some_rounds_draw_from_the_whole_domain() -> None:
    refusals = Rules(DOMAIN)
    assert _rule(refusals, COMPLEX, lambda case: case.sinks is not None)
    full = [domain == DOMAIN and excludes is None for domain, excludes in map(refusals.drawing, range(2 * FULL_ROUND))]
    assert full == 2 * ([False] * (FULL_ROUND - 1) + [True])


def test_slow_reductions_leave_time_for_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fuzz_attn.operations.attention.refusals.time.monotonic", lambda: now[0])
    probe = _probe(lambda case: case.sinks is not None, lambda case: case.heads.head_size == 80)

    def slow(cases: Sequence[AttentionCase]) -> Sequence[Refusal | None]:
        now[0] += LEAST_SECONDS
        return probe(cases)

    refusals = Rules(DOMAIN)
    assert refusals.refused(COMPLEX, _refusal(0), slow)
    large = AttentionCase(sequences=(Tokens(1, 3),), heads=HeadLayout(head_size=80))
    spent = now[0]
    now[0] = spent / MOST_TIME - 1.0
    assert refusals.refused(large, _refusal(1), slow) == ()
    now[0] = spent / MOST_TIME + 1.0
    assert refusals.refused(large, _refusal(1), slow)


def test_a_reduction_of_slow_compilations_ends_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, probed = [0.0], list[int]()
    monkeypatch.setattr("fuzz_attn.operations.attention.refusals.time.monotonic", lambda: now[0])

    def slow(cases: Sequence[AttentionCase]) -> Sequence[Refusal | None]:
        now[0] += 3.0 * len(cases)
        probed.append(len(cases))
        return [_compiled(0)] * len(cases)

    assert Rules(DOMAIN).refused(COMPLEX, _compiled(0), slow)
    assert set(probed) == {1}, "several at once could not be ended"
    assert MOST_SECONDS <= now[0] <= MOST_SECONDS + 3.0


def test_judged_cases_show_that_more_is_needed() -> None:
    """The rule holds for the simplest sizes only, so the judged case tells which attribute is missing."""
    refusals = Rules(DOMAIN)
    many = AttentionCase(sequences=(Tokens(1, 3),), heads=HeadLayout(num_kv_heads=2), sinks=SinkRecipe())
    refusals.judged(many)
    single = msgspec.structs.replace(COMPLEX, heads=HeadLayout(1, 3, 80))
    rules = _rule(refusals, single, lambda case: case.sinks is not None and case.heads.num_kv_heads == 1)
    assert not any(rule.matches(many) for rule in rules)
    assert not refusals.excludes(many)


FP8_CACHE = DTypes("float16", "float8_e4m3fn", "float16")


@pytest.mark.parametrize(
    ("name", "judged"),
    [
        ("padded_tokens", AttentionCase(sequences=(Tokens(1, 3),), padded_tokens=3)),
        ("stale_cache", AttentionCase(sequences=(Tokens(1, 3),), family="context", stale_cache=True)),
        ("filter_by_query_len", AttentionCase(sequences=(Tokens(1, 3),), family="paged", filter_by_query_len=True)),
        ("uint8_cache", AttentionCase(sequences=(Tokens(1, 3),), family="chunked", dtypes=FP8_CACHE, uint8_cache=True)),
    ],
)
def test_a_target_that_requires_an_unusual_feature(name: str, judged: AttentionCase) -> None:
    """No probe switches the feature on by itself, so only the judged case tells that it is required."""
    refusals = Rules(Domain(family=judged.family))
    refusals.judged(judged)
    refused = msgspec.structs.replace(judged, **{name: type(getattr(judged, name))()})
    (rule,) = _rule(refusals, refused, lambda case: case.dtypes == judged.dtypes and not getattr(case, name))
    assert rule.matches(refused)
    assert not rule.matches(judged)


def test_a_later_rule_makes_an_earlier_one_simpler() -> None:
    probe = _probe(lambda case: case.heads.head_size not in (64, 128), lambda case: case.dtypes != HALF)
    refusals = Rules(DOMAIN)
    (before,) = refusals.refused(LARGE, _refusal(1), probe)
    assert before.words(DOMAIN) == ("head size 64 or 128", "type other than float16")
    rules = refusals.refused(SHORT, _refusal(0), probe)
    assert [rule.words(DOMAIN) for rule in rules] == [("type other than float16",), ("head size other than 64 or 128",)]


def test_a_combination_that_contains_another_is_not_listed() -> None:
    larger = counted((), _refusal(1), combination=("sinks", "head size 8"))
    assert counted(larger, _refusal(1), combination=("sinks",))[0].combinations == (("sinks",),)


def test_the_summary_lists_what_is_not_drawn_and_why() -> None:
    tally = Tally()
    not_drawn: NotDrawn = {"softcap": "no parameter", "alibi": "no parameter", "bias_dtypes": "not promised"}
    tally(WorkerReady(0, Ready("t", "t", "unified", "simulator", not_drawn=not_drawn)))
    tally(RefusalReduced(0, Refusal("host", "ValueError", "no"), ("sinks",)))
    tally(RefusalReduced(0, Refusal("host", "ValueError", "not both"), ("sliding window", "fp8 output")))
    both = statistics.merged([tally.statistics(), Tally().statistics()])
    assert both is not None
    assert both.not_drawn == {**not_drawn, "sinks": "refused"}
    words = text_of(render(msgspec.structs.replace(both, cases=1)), width=200)
    assert re.search(r"not drawn +soft cap, ALiBi slopes: no parameter\n", words)
    assert "slopes or biases of other types: no signature promises that; `promises` of a binding can" in words
    assert re.search(r"\n +sinks: refused\n", words)


def test_counts_of_shards_are_merged_by_place() -> None:
    first = counted((), _refusal(1), cases=3, combination=("sinks",))
    second = counted(counted((), _refusal(2), cases=9), _refusal(1), cases=1, combination=("head size 8",))
    assert merged_refusals((*first, *second)) == (
        CountedRefusal(_refusal(2), 9),
        CountedRefusal(_refusal(1), 4, (("sinks",), ("head size 8",))),
    )


def test_a_campaign_goes_on_with_what_the_target_accepts(campaign: Callable[..., Results]) -> None:
    results = campaign("accepts_few", setup=Setup(f"{FILE}:accepts_few"), max_cases=40)
    statistics = results.statistics
    assert results.failure is None
    assert statistics.cases == 40
    assert statistics.refused < 12
    printed = text_of(render(statistics), 200)
    assert "head size other than 64 or 128" in printed
    assert "sinks are not supported" in printed
    assert "refusing.py:" in printed


@pytest.mark.slow
def test_a_campaign_ends_where_everything_is_refused(campaign: Callable[..., Results]) -> None:
    statistics = campaign("refuses_all", setup=Setup(f"{FILE}:refuses_all"), max_cases=40).statistics
    assert (statistics.cases, len(statistics.refusals)) == (0, 1)
    assert "every case" in text_of(render(statistics), 200)


PICKY = """
from pathlib import Path

from fuzz_attn.kernels.unified_attention import unified_attention


def attend(**given):
    if given["q"].shape[2] != 16:
        raise ValueError("only heads of 16")
    unified_attention(**given)
    Path(__file__).with_name("launched").touch()
"""


@pytest.mark.parametrize("backend", ["simulator", "interpreter"])
def test_a_probe_of_host_code_ends_at_the_first_launch(backend: str, tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY)
    probes = (SHORT, LARGE)
    with IsolatedWorker(Setup(f"{tmp_path / 'picky.py'}:attend", backend=backend)) as worker:
        for host_only in (True, False):
            refusals = worker.judge(Order(SHORT, probes=probes, host_only=host_only)).refusals
            assert [refusal and refusal.message for refusal in refusals] == [None, "only heads of 16"]
            assert (tmp_path / "launched").exists() is not host_only
