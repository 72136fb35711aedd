"""What does not compile, or what host code refuses, is known before a worker plays its round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, LaunchHints, Sequence
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.engine import compiler
from fuzz_attn.engine.compiler import Compiler, Reductions, Workers
from fuzz_attn.engine.events import WHOLE_RUN, CaseRefused, RefusalReduced, RoundCompiled, StageEvent
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.rehearsal import (
    MOST_TRIED,
    Compiled,
    Rehearsed,
    compile_most,
    known_kernels,
    refused_among,
)
from fuzz_attn.engine.rounds import CASES, ReadyRound, Rounds, StagePlan
from fuzz_attn.engine.schedule import play_shared_round
from fuzz_attn.errors import LoweringError, OutOfProbesError
from fuzz_attn.operations.attention.drawing import SharedRound, shared_round
from fuzz_attn.operations.attention.refusals import Condition, Rule, Rules, rule_of, told
from fuzz_attn.oracle.verdict import Refusal
from fuzz_attn.strategies.kernel_variants import USUAL
from fuzz_attn.ttir.compiler_compat import WantedKernel

ORDER = Order(AttentionCase(sequences=(Sequence(1, 3),)))
HOST = Refusal("host", "ValueError", "head size 1", "launcher.py:7")
TRITON = LoweringError("", error="CompilationError", reason="block of 1", location="kernel.py:3", stated=True)
COMPILE = Refusal("compile", "CompilationError", "block of 1", "kernel.py:3")


class Names:
    """Kernels by their names: those of ``failing`` do not compile. ``compiled`` are the names of the others."""

    def __init__(self, failing: str = "", error: Exception = TRITON) -> None:
        self.failing, self.error = failing, error
        self.compiled = ""

    def sample(self, *needed: str) -> list[Rehearsed]:
        """Return a case for each word, with a kernel for each of its letters."""
        return [
            Rehearsed(ORDER, tuple(WantedKernel((None, name), self._compiling(name)) for name in each))
            for each in needed
        ]

    def _compiling(self, name: str) -> Callable[[], None]:
        def compile_it() -> None:
            if name in self.failing:
                raise self.error
            self.compiled += name

        return compile_it


def test_the_kernels_of_most_cases_are_compiled_once_and_no_more_than_that() -> None:
    names = Names()
    done = compile_most(names.sample("ab", "cd", "ab", "e", "ac", "ac", "ac"), most=3)
    assert names.compiled == "acb"
    assert done == Compiled(compiled=3, accepted=[ORDER.case] * 2)


def test_a_single_case_may_need_more_kernels_than_that() -> None:
    names = Names()
    assert compile_most(names.sample("abcd", "e"), most=3).playable
    assert names.compiled == "abcd"


def test_kernels_that_do_not_compile_are_replaced_by_others() -> None:
    names = Names(failing="b")
    done = compile_most(names.sample("ab", "ab", "c", "d", "e"), most=3)
    assert names.compiled == "acd"
    assert done == Compiled(compiled=3, failed=1, accepted=[ORDER.case] * 2)


def test_a_round_without_a_case_that_compiles_is_refused() -> None:
    names = Names(failing="abcdefgh")
    done = compile_most(names.sample(*"abcdefgh"), most=3)
    assert done == Compiled(failed=MOST_TRIED, refused=(ORDER, COMPILE))


def test_an_error_of_the_compiler_that_is_no_refusal_is_left_to_a_worker() -> None:
    done = compile_most(Names(failing="a", error=RuntimeError("no memory")).sample("a"), most=3)
    assert done == Compiled(failed=1)


def test_a_round_is_refused_by_host_code_only_with_all_of_its_cases() -> None:
    refused, names = Rehearsed(ORDER, refusal=HOST), Names()
    assert compile_most([refused, refused], most=3) == Compiled(refused=(ORDER, HOST))
    assert compile_most([refused, *names.sample("a"), refused], most=3) == Compiled(compiled=1, accepted=[ORDER.case])


def test_cases_that_cannot_be_rehearsed_may_need_any_kernel() -> None:
    accepted, failed = Names().sample(*"abcdefghijklmnopqrst"), Rehearsed(ORDER, failed=True)
    assert known_kernels([*accepted, failed])
    assert not known_kernels([*accepted, failed, failed, failed])


@pytest.mark.parametrize(
    "condition",
    [
        Condition("sinks", frozenset((True,))),
        Condition("sequences", least=2),
        Condition("head size", frozenset((16, 1, 256))),
        Condition("type", frozenset((DTypes(), DTypes(q="float16", kv="float16", out="float16")))),
        Condition("path", frozenset((LaunchHints(path="2d"), LaunchHints(path="3d", num_segments=4)))),
    ],
)
def test_a_rule_is_told_to_other_shards(condition: Condition, tmp_path: Path) -> None:
    rule, domain = Rule(HOST, (condition,), frozenset(("sinks",))), Domain(paths=("auto", "2d", "3d"))
    Rounds(tmp_path).make()
    one, other = Rounds(tmp_path), Rounds(tmp_path)
    for _ in range(2):
        one.tell(*told(rule))
    assert [rule_of(found, domain) for found in other.told()] == [rule]
    assert one.told() == other.told() == []


def test_a_rule_on_what_the_domain_does_not_have_is_left_out() -> None:
    rule = Rule(HOST, (Condition("path", frozenset((LaunchHints(path="2d"),))),))
    assert rule_of(told(rule)[1], Domain(paths=("auto",))) is None


def test_a_told_rule_that_excludes_a_judged_case_is_not_believed() -> None:
    refusals, rule = Rules(Domain()), Rule(HOST, (Condition("head size", frozenset((16,))),))
    refusals.learn([rule, rule])
    assert refusals.excludes(ORDER.case)
    assert 16 not in refusals.domain.head_sizes
    refusals.judged(ORDER.case)
    refusals.learn([rule])
    assert not refusals.rules


def test_one_case_of_each_refusing_place_is_reduced() -> None:
    other = Order(replace(ORDER.case, seed=7))
    elsewhere = Rehearsed(other, refusal=COMPILE)
    rehearsed = [Rehearsed(ORDER), Rehearsed(ORDER, refusal=HOST), elsewhere, Rehearsed(other, refusal=HOST)]
    assert set(refused_among(rehearsed)) == {(ORDER, HOST), (other, COMPILE)}


class FakeRehearsal:
    """A target that refuses what ``refuses`` says of a round, and of a case what ``probes`` says."""

    def __init__(
        self,
        refuses: Callable[[SharedRound], Refusal | None],
        probes: Callable[[AttentionCase], Refusal | None] | None = None,
    ) -> None:
        self.refuses, self.probes = refuses, probes

    def cases_of(self, shared: SharedRound, count: int = 4) -> list[Rehearsed]:
        refusal = self.refuses(shared)
        if refusal and self.probes is not None:
            found: list[Order] = []
            play_shared_round(Domain(), shared, shared.sample, count, lambda case, _: found.append(Order(case)))
            return [Rehearsed(order, refusal=refusal) for order in found]
        return [Rehearsed(ORDER, refusal=refusal)] * count if refusal else Names().sample("a")

    def refusals_of(self, cases: Iterable[AttentionCase]) -> list[Refusal | None]:
        if self.probes is None:
            raise OutOfProbesError
        return [self.probes(case) for case in cases]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[StageEvent], list[ReadyRound]]]:
    """Return a function that compiles some rounds, and returns the events and the rounds that a shard gets."""

    def run(
        refuses: Callable[[SharedRound], Refusal | None],
        rounds: int,
        probes: Callable[[AttentionCase], Refusal | None] | None = None,
        *,
        strict: bool = False,
        cores: int = 0,
        rehearsal: type[FakeRehearsal] = FakeRehearsal,
    ) -> tuple[list[StageEvent], list[ReadyRound]]:
        monkeypatch.setattr(compiler, "rehearsal_of", lambda setup, workers: rehearsal(refuses, probes))
        plan = StagePlan(Setup("unified", strict=strict), 1, str(tmp_path), cores=cores or rounds)
        Rounds(tmp_path).make()
        stage, events = Compiler(plan, Workers((9, 0, 132), Domain(), None)), list[StageEvent]()
        shard, played = Rounds(tmp_path), list[ReadyRound]()
        while sum(isinstance(event, RoundCompiled) for event in events) < rounds or stage._held:
            events += stage.step()
            played += [ready for _ in range(shard.waiting()) if (ready := shard.next(Random(1), lambda: False))]
        stage._forks.kill()
        return events, played

    return run


Played = Callable[..., tuple[list[StageEvent], list[ReadyRound]]]


def test_of_refused_rounds_workers_see_one_case_of_each_reason(played: Played) -> None:
    events, rounds = played(
        lambda shared: HOST if shared.key.has("window") else COMPILE if shared.key.has("sinks") else None, 8
    )
    refused = [event for event in events if isinstance(event, CaseRefused)]
    assert [ready.cases for ready in rounds].count(1) == 2
    assert {ready.cases for ready in rounds} == {1, CASES}
    assert {(event.shard, event.phase, event.order) for event in refused} == {(WHOLE_RUN, "search", ORDER)}
    assert {event.refusal for event in refused} <= {HOST, COMPILE}


def test_the_usual_variant_is_tried_where_another_is_refused(played: Played) -> None:
    _, rounds = played(lambda shared: None if shared.form.variant == USUAL else HOST, 16)  # the first other one is 6
    assert {ready.cases for ready in rounds} == {CASES}
    assert {ready.usual for ready in rounds} == {True, False}


class CompiledForEachWindow(FakeRehearsal):
    """A target that is compiled for each window; one with sinks needs as many kernels whatever the windows are."""

    def cases_of(self, shared: SharedRound, count: int = 4) -> list[Rehearsed]:
        many = shared.key.has("sinks") or (shared.key.has("window") and not shared.form.windows)
        return Names().sample(*("abcd" if many else "ab"))


def test_a_round_that_needs_many_kernels_gets_few_windows_if_that_helps(played: Played) -> None:
    _, rounds = played(lambda shared: None, 16, rehearsal=CompiledForEachWindow)
    keys = {ready.number: shared_round(Domain(), 1, ready.number).key for ready in rounds}
    both = {(key.has("window"), key.has("sinks")) for key in keys.values()}
    assert both == {(a, b) for a in (True, False) for b in (True, False)}
    windows = {number for number, key in keys.items() if key.has("window") and not key.has("sinks")}
    assert all(ready.narrow == (ready.number in windows) for ready in rounds)


def test_the_rounds_that_all_wait_for_have_the_kernels_of_one_case(played: Played) -> None:
    events, _ = played(lambda shared: None, 8, cores=3, rehearsal=CompiledForEachWindow)
    compiled = {event.round: event.compiled for event in events if isinstance(event, RoundCompiled)}
    assert {count for number, count in compiled.items() if number < 3} == {1}
    assert {count for number, count in compiled.items() if number >= 3} <= {2, 3}


def test_a_strict_run_plays_what_is_refused(played: Played) -> None:
    events, rounds = played(lambda shared: HOST, 3, strict=True)
    assert {ready.cases for ready in rounds} == {CASES}
    assert {ready.complete for ready in rounds} == {False}
    assert not any(isinstance(event, CaseRefused) for event in events)


def sinks_refused(case: AttentionCase) -> Refusal | None:
    return HOST if case.sinks is not None else None


def test_a_refusal_is_reduced_without_a_worker_and_its_keys_cost_nothing(played: Played, tmp_path: Path) -> None:
    events, rounds = played(lambda shared: HOST if shared.key.has("sinks") else None, 40, sinks_refused, cores=3)
    reduced = [event for event in events if isinstance(event, RefusalReduced)]
    assert [(event.shard, event.refusal, event.combination) for event in reduced] == [(WHOLE_RUN, HOST, ("sinks",))]
    assert [rule_of(found, Domain()) for found in Rounds(tmp_path).told()] == [
        Rule(HOST, (Condition("sinks", frozenset((True,))),))
    ]
    compiled = {event.round for event in events if isinstance(event, RoundCompiled)}
    keys = [shared_round(Domain(), 1, number).key for number in range(max(compiled))]
    left_out = {number for number, key in enumerate(keys) if number not in compiled}
    assert left_out  # beginning with the first that was not under way already, all but each sixth
    assert all(keys[number].has("sinks") for number in left_out)
    assert [ready.cases for ready in rounds].count(1) == 1


def test_a_case_that_compiles_refutes_a_rule(tmp_path: Path) -> None:
    Rounds(tmp_path).make()
    reductions, with_sinks = Reductions(Domain(), Rounds(tmp_path)), Order(replace(ORDER.case, sinks=SinkRecipe()))
    ((number, refused),) = reductions.wanted([(with_sinks, HOST), (with_sinks, HOST)])
    assert reductions.is_under_way(HOST.site)
    result = reductions.reduce(refused, lambda cases: [sinks_refused(case) for case in cases])
    assert len(reductions.ended(number, result)) == 1
    assert not reductions.is_under_way(HOST.site)
    assert not reductions.wanted([(with_sinks, HOST)])
    reductions.accepted([with_sinks.case])
    assert reductions.wanted([(with_sinks, HOST)])


def test_a_reduction_whose_fork_died_ends_without_a_rule(tmp_path: Path) -> None:
    Rounds(tmp_path).make()
    reductions = Reductions(Domain(), Rounds(tmp_path))
    ((number, _),) = reductions.wanted([(ORDER, HOST)])
    assert reductions.ended(number, b"") == []
    assert not reductions.is_under_way(HOST.site)
    assert not Rounds(tmp_path).told()
