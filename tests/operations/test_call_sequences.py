"""Sequences of calls as one case: their data, the memory that calls get, and what is found, shrunk and explained."""

from __future__ import annotations

import gc
import hashlib
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
import triton

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import HeadLayout, LaunchHints, Sequence
from fuzz_attn.counterexamples import Counterexample, signed
from fuzz_attn.engine.failures.reduction import simplify, trigger_of
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.errors import CaseError, CounterexampleError
from fuzz_attn.operations.calls import call_case
from fuzz_attn.operations.calls.call_case import (
    BOUNDARIES,
    EARLIER,
    OTHER_NUMBERS,
    PAIRS,
    SAME_STORAGE,
    SHARE,
    SHARE_AT_FIRST,
    SHARE_OF_KEEPING,
    Call,
    CallDraws,
    CallSequence,
    Storage,
    calls_of,
    in_words,
    suspects,
)
from fuzz_attn.operations.calls.call_experiment import Lender
from fuzz_attn.operations.calls.second_call import Meanwhile
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.owners import HARNESS
from fuzz_attn.targets.keeping import Keeper
from fuzz_attn.targets.loading import load_target

SAMPLES = Path(__file__).parents[1] / "sample_targets"
KEEPING = SAMPLES / "keeping_calls.py"
CASE = AttentionCase((Sequence(1, 3), Sequence(2, 1)))
OTHER = msgspec.structs.replace(CASE, seed=7)
LONGER = AttentionCase((Sequence(1, 3), Sequence(2, 0)))
"""Of as many sequences and as long a longest one as ``CASE``."""
WRONG = {
    "cached_by_pointer": CallSequence((Call(LONGER), Call(CASE, "contents"))),
    "cached_by_shape": CallSequence((Call(LONGER), Call(CASE))),
    "keeps_scratch": CallSequence((Call(CASE), Call(CASE))),
    "fails_after_an_error": CallSequence((Call(CASE, raises=1), Call(CASE))),
    "shares_scratch": CallSequence((Call(CASE), Call(LONGER, alongside=6))),
}
CAUSES = {
    "cached_by_pointer": "the target keeps something by address, and uses it for other contents",
    "cached_by_shape": "the target keeps something by shape or arguments, and uses it for other tensors",
    "keeps_scratch": "the target does not make anew what an earlier call has left",
    "fails_after_an_error": "the target does not clean up after an error",
    "shares_scratch": "calls in two threads share something",
}
FILES = ("keeping_calls.py", "keeping_in_triton.py")
RIGHT = tuple(
    (file, name)
    for file, names in zip(
        FILES,
        (
            ("right_by_shape", "right_by_pointer", "right_scratch", "right_in_threads", "unified_attention"),
            ("scratch_of_each_stream", "joins_its_stream", "right_unified"),
        ),
        strict=True,
    )
    for name in names
)
SEQUENCES = (
    *WRONG.values(),
    CallSequence((Call(CASE), Call(CASE, "again"), Call(OTHER, "address"), Call(LONGER, "contents"), Call(CASE))),
    CallSequence((Call(OTHER), Call(CASE, "address"))),
    *(CallSequence((Call(OTHER), Call(LONGER, alongside=line))) for line in (1, 3, 5, 8, 500)),
    CallSequence((Call(OTHER), Call(LONGER), Call(OTHER), Call(LONGER, alongside=3, stream=True))),
)


def with_case(sequence: Any) -> Counterexample:
    return signed("fake", "unified", None, sequence, Verdict("oracle", "mismatch", "wrong", ratio=3.0))


def test_a_file_holds_a_sequence() -> None:
    for sequence in SEQUENCES:
        found = with_case(sequence)
        assert msgspec.json.decode(msgspec.json.encode(found), type=Counterexample) == found
    states = CallSequence((Call(StateCase(2)), Call(StateCase(3))))
    assert msgspec.json.decode(msgspec.json.encode(Order(states)), type=Order) == Order(states)
    assert operation_of(states).features_of(states) == ("earlier_call",)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ((Call(CASE, "again"),), "the first call of a sequence cannot have storage='again'"),
        ((Call(CASE), Call(OTHER, "again")), "storage='again' must have the case"),
        ((Call(CASE), Call(StateCase())), "must be cases of one operation"),
        ((Call(CASE), Call(CASE, raises=1)), "the last call of a sequence must be judged"),
        ((Call(CASE), Call(CASE, "contents", alongside=3)), "must have fresh memory"),
        ((Call(CASE), Call(CASE, stream=True)), "a call in a second stream must be alongside another one"),
        ((Call(CallSequence((Call(CASE), Call(CASE)))),), "must be cases of one operation"),
    ],
)
def test_impossible_sequences_are_refused(calls: tuple[Call, ...], words: str) -> None:
    with pytest.raises(CaseError, match=words):
        CallSequence(calls)


def test_a_file_with_an_impossible_call_names_its_place(tmp_path: Path) -> None:
    data = msgspec.to_builtins(with_case(WRONG["keeps_scratch"]))
    data["case"]["calls"][1]["case"]["sequences"] = [{"query_len": -1}]
    file = tmp_path / "one.json"
    file.write_bytes(msgspec.json.encode(data))
    with pytest.raises(CounterexampleError, match=r"calls\[1\]\.case\.sequences"):
        counterexamples.load(file)


class Seen:
    """A callable that notes the tensors that it gets, and writes the call's number to ``out``."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.addresses: list[int] = []
        self.versions: list[int] = []
        self.objects: list[int] = []
        self.kept: list[torch.Tensor] | None = [] if keeps else None

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.addresses.append(x.data_ptr())
        self.versions.append(x._version)
        self.objects.append(id(x))
        if self.kept is not None:
            self.kept.append(x.view(-1))
        out.fill_(len(self.addresses))
        return out


def lend(seen: Seen, *calls: tuple[Storage, float]) -> list[torch.Tensor]:
    """Call with tensors full of numbers in some memory; return the harness's own outputs."""
    lender, outputs = Lender(seen), []
    for storage, number in calls:
        x, out = torch.full((3, 2), number), torch.zeros(2)
        lender.prepare(storage)
        assert lender(x=x, out=out).data_ptr() == out.data_ptr()
        assert x.eq(number).all()
        outputs.append(out)
        gc.collect()
    return outputs


def test_memory_is_lent_as_a_sequence_says() -> None:
    seen = Seen()
    outputs = lend(seen, ("fresh", 1.0), ("again", 1.0), ("contents", 2.0), ("address", 3.0), ("fresh", 4.0))
    assert [int(out[0]) for out in outputs] == [1, 2, 3, 4, 5]
    first = seen.addresses[0]
    assert seen.addresses[:4] == [first] * 4
    assert seen.addresses[4] != first
    assert seen.objects[0] == seen.objects[1] == seen.objects[2]
    assert seen.versions[0] == seen.versions[1] < seen.versions[2]


def test_memory_that_a_target_still_uses_is_not_lent_anew() -> None:
    seen = Seen(keeps=True)
    lend(seen, ("fresh", 1.0), ("address", 2.0))
    assert seen.addresses[0] != seen.addresses[1]
    assert seen.kept is not None
    assert float(seen.kept[0][0]) == 1.0


def test_a_second_thread_runs_at_a_line_of_the_target() -> None:
    events: list[str] = []

    def call() -> str:
        events.append("first")
        events.append("last")
        return "result"

    for line, expected in ((1, ["middle", "first", "last"]), (2, ["first", "middle", "last"]), (9, None)):
        events.clear()
        assert Meanwhile(line, lambda: events.append("middle")).around(call) == "result"
        assert events == (expected or ["first", "last", "middle"])


@pytest.mark.parametrize("folder", [Path(triton.__file__).parent, HARNESS])
def test_lines_that_a_launch_runs_are_not_counted(folder: Path) -> None:
    """A hook, or what compiling a kernel imports: it runs the first time only, while the compiler's locks are held."""
    events, names = list[str](), dict[str, Any]()
    exec(compile("def launch(hook):\n    hook()", str(folder / "launch.py"), "exec"), names)

    def hook() -> None:
        events.append("hook")

    def call() -> None:
        names["launch"](hook)
        events.append("last")

    Meanwhile(2, lambda: events.append("middle")).around(call)
    assert events == ["hook", "middle", "last"]


def test_a_second_thread_that_waits_for_a_lock_of_the_first_ends() -> None:
    lock, events = threading.Lock(), list[str]()

    def call(name: str) -> None:
        with lock:
            events.append(name)
            events.append(name)

    Meanwhile(3, lambda: call("second")).around(lambda: call("first"))
    assert events == ["first", "first", "second", "second"]


def test_the_first_thread_waits_for_a_second_one_that_computes_for_long_at_one_line() -> None:
    events: list[str] = []

    def work() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 6_000_000)  # some seconds of work without Python's lock
        events.append("second")

    Meanwhile(1, work).around(lambda: events.append("first"))
    assert events == ["second", "first"]


def test_a_sequence_is_shrunk_by_calls_and_then_by_what_they_are() -> None:
    wide = msgspec.structs.replace(CASE, heads=HeadLayout(4, 2, 64), window=3)
    start = CallSequence((Call(wide), Call(msgspec.structs.replace(wide, seed=3), "address"), Call(wide, "contents")))

    def fails(order: Order) -> bool:
        calls = calls_of(order.case)
        changed = (now.storage in ("contents", "address") and now.case != old.case for old, now in pairwise(calls))
        return any(changed)

    domain = Domain()
    found = simplify(Order(start), fails, domain)
    calls = calls_of(found.case)
    assert [call.storage for call in calls] == ["fresh", "contents"]
    assert {call.case.heads for call in calls} == {HeadLayout()}
    assert {len(call.case.sequences) for call in calls} == {1}
    assert calls[0].case.max_seq_len == calls[1].case.max_seq_len == 1
    trigger = trigger_of(found, lambda order: "fails" if fails(order) else "passes", domain)
    assert trigger == (EARLIER, SAME_STORAGE, OTHER_NUMBERS)


def test_a_sequence_that_needs_no_earlier_call_becomes_a_case() -> None:
    found = simplify(Order(SEQUENCES[5]), lambda order: True, Domain())
    assert isinstance(found.case, AttentionCase)


def test_sequences_are_described_by_what_each_call_is() -> None:
    sequence = WRONG["cached_by_pointer"]
    assert in_words(sequence, 1) == "other arguments, in the same storage"
    described = dict(operation_of(sequence).described(sequence))
    assert described["call 2 of 2"] == "other arguments, in the same storage"
    assert "sequence 1: 2 query tokens" in described["in call 1"]


@pytest.fixture(scope="module")
def judged() -> Iterator[Callable[..., Any]]:
    """Returns the answer of a fresh process to a sequence."""
    workers: dict[str, IsolatedWorker] = {}

    def judge(target: str, case: Any, **asked: Any) -> Any:
        if target not in workers:
            workers[target] = IsolatedWorker(Setup(f"{SAMPLES / target}", backend="simulator")).__enter__()
        workers[target].renew()
        return workers[target].judge(Order(case, **asked))

    yield judge
    for worker in workers.values():
        worker.__exit__(None, None, None)


@pytest.mark.parametrize("file", [FILES[0], pytest.param(FILES[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRONG)
def test_what_a_target_keeps_wrongly_fails_and_is_explained(name: str, file: str, judged: Callable[..., Any]) -> None:
    target = f"{file}:{name}"
    answer = judged(target, WRONG[name])
    assert not answer.verdict.passed
    assert " of 2, " in answer.verdict.message
    assert judged(target, WRONG[name].last).verdict.passed
    explanation = judged(target, WRONG[name], forensics=True).explanation
    assert explanation.reason == "earlier call"
    assert explanation.cause == f"earlier call: {CAUSES[name]}"


def test_a_first_call_that_is_wrong_alone_is_explained_as_a_case(judged: Callable[..., Any]) -> None:
    target, case = "keeping_calls.py:halves_the_scale", msgspec.structs.replace(CASE, softmax_scale=0.25)
    alone = judged(target, case, forensics=True).explanation
    assert (alone.reason, alone.findings[0].vague) == ("scale", False)
    sequence = CallSequence((Call(case), Call(case, "contents")))
    assert judged(target, sequence, forensics=True).explanation.findings == alone.findings


def test_room_that_grows_one_key_late_fails_over_a_power_of_two(judged: Callable[..., Any]) -> None:
    operation = operation_of(CASE)
    below, at, above = (operation.with_keys(CASE, 128 + beyond) for beyond in (-1, 0, 1))
    target = "keeping_calls.py:grows_one_late"
    verdict = judged(target, CallSequence((Call(below), Call(at), Call(above)))).verdict
    assert (verdict.passed, verdict.message.partition(",")[0]) == (False, "call 3 of 3")
    assert judged(target, CallSequence((Call(above), Call(at), Call(below)))).verdict.passed


def test_a_second_call_that_differs_in_one_argument_finds_a_stale_cache(judged: Callable[..., Any]) -> None:
    target = "keeping_in_triton.py:cached_without_the_scale"
    sequence = CallSequence((Call(msgspec.structs.replace(CASE, softmax_scale=0.25)), Call(CASE)))
    verdict = judged(target, sequence).verdict
    assert (verdict.kind, verdict.message.partition(":")[0]) == ("mismatch", "call 2 of 2, other arguments")
    explanation = judged(target, sequence, forensics=True).explanation
    assert explanation.cause == f"earlier call: {CAUSES['cached_by_shape']}"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("file", "name"), RIGHT)
def test_what_a_target_keeps_rightly_passes(file: str, name: str, judged: Callable[..., Any]) -> None:
    for sequence in SEQUENCES:
        assert judged(f"{file}:{name}", sequence).verdict.passed, sequence


def test_a_call_that_returns_what_an_earlier_one_returned_is_said_to(judged: Callable[..., Any]) -> None:
    one, two = AttentionCase((Sequence(1, 0),)), AttentionCase((Sequence(1, 1),))
    sequence = CallSequence((Call(one), Call(two, "contents")))
    explanation = judged("keeping_calls.py:cached_by_pointer", sequence, forensics=True).explanation
    assert "it returns what call 1 returned, bit for bit" in explanation.words
    assert "right without the earlier calls, with storage of its own, and after the same arguments" in explanation.words


def test_what_a_target_keeps_is_named() -> None:
    target = load_target(f"{KEEPING}:cached_by_shape", None, None)
    keeper = Keeper(target)
    known = target.call.__globals__["_by_shape"]
    known[0, 0] = torch.empty(0)
    assert keeper.news() == ("_by_shape (dict)",)
    known.clear()
    target.call.__globals__["_positions"](3)
    assert keeper.news() == ("_positions (lru_cache of tensors)",)
    assert keeper.news() == ()


def test_sequences_are_drawn_as_often_as_the_target_keeps_things() -> None:
    draws = CallDraws(operation_of(CASE), Domain(), Random(1))
    cases = [msgspec.structs.replace(CASE, seed=seed) for seed in range(4000)]
    draws.keeps = {"size (lru_cache)"}
    assert draws.share == SHARE_AT_FIRST
    found = [draws.sequence_of(case) for _ in range(5) for case in cases][1000:]
    assert sum(sequence is not None for sequence in found) / len(found) == pytest.approx(SHARE, rel=0.2)
    draws = CallDraws(operation_of(CASE), Domain(), Random(1))
    draws.keeps = {"_cache (dict)"}
    assert draws.share == SHARE_OF_KEEPING
    made = [sequence for case in cases if (sequence := draws.sequence_of(case)) is not None]
    assert len(made) > 150
    assert draws.share == SHARE
    assert all(sequence.last.compile_key == CASE.compile_key for sequence in made)
    kinds = {call.storage for sequence in made for call in sequence.calls}
    assert kinds == {"fresh", "again", "contents", "address"}
    assert any(call.raises for sequence in made for call in sequence.calls)
    assert any(call.alongside for sequence in made for call in sequence.calls)
    assert {len({call.alongside for call in sequence.calls} - {0}) for sequence in made} == {0, PAIRS}


def test_kinds_of_sequences_are_drawn_in_turn_over_each_boundary() -> None:
    draws = CallDraws(operation_of(CASE), Domain(), Random(1))
    draws.keeps = {"_cache (dict)"}
    cases = (msgspec.structs.replace(CASE, seed=seed) for seed in range(60000))
    made = [sequence for case in cases if (sequence := draws.sequence_of(case)) is not None]
    assert any(call.raises for call in made[0].calls)
    assert any(call.alongside for call in made[2].calls)
    lengths = [tuple(call.case.max_seq_len for call in sequence.calls) for sequence in made]
    over = {(boundary - 1, boundary, boundary + 1)[::step] for boundary in BOUNDARIES for step in (1, -1)}
    assert over <= set(lengths)


def test_calls_with_fewer_keys_are_suspected_of_a_single_sequence_too() -> None:
    single = msgspec.structs.replace(CASE, sequences=(Sequence(2, 47),))
    found = list(suspects(operation_of(single), single, []))
    earlier = {(each.calls[0].case.sequences[0], each.calls[-1].storage) for each in found}
    assert {(Sequence(2, 46), "contents"), (Sequence(1, 48), "contents"), (Sequence(1, 47), "contents")} <= earlier
    assert all(each.calls[-1].case == single for each in found)


def test_lengths_of_heads_that_are_large_stay_below_what_takes_long() -> None:
    operation, large = operation_of(CASE), msgspec.structs.replace(CASE, heads=HeadLayout(8, 8, 256))
    with pytest.raises(CaseError, match="a sequence of 4097 keys takes too long"):
        operation.with_keys(large, 4097)
    assert operation.with_keys(large, 33).sequences == (Sequence(1, 32),)


def test_calls_in_two_streams_are_drawn_where_there_are_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_case, "IN_STREAMS", 0.5)
    for streams in (True, False):
        draws = CallDraws(operation_of(CASE), Domain(), Random(1), streams=streams)
        cases = (msgspec.structs.replace(CASE, seed=seed) for seed in range(2000))
        made = [sequence for case in cases if (sequence := draws.sequence_of(case)) is not None]
        assert any(call.stream for sequence in made for call in sequence.calls) is streams


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(f"cached_by_{name}", marks=pytest.mark.slow) for name in ("pointer", "shape")), "keeps_scratch"],
)
def test_what_a_run_finds_replays_and_is_fixed_in_a_right_target(name: str, campaign: Callable[..., Results]) -> None:
    report = campaign("", setup=Setup(f"{KEEPING}:{name}"), max_cases=100, until_failure=True)
    # The campaign ends with its first failure, and may leave a row that was not followed.
    confirmed = [each for each in report.failures if each.counterexample.confirmation == "confirmed"]
    assert confirmed
    for each in confirmed:
        assert isinstance(each.counterexample.case, CallSequence)
        assert CAUSES[name] in each.counterexample.verdict.explanation
    row = confirmed[0]
    assert any(note.startswith("The target keeps between calls: _") for note in report.notes)
    (again,) = replay((Path(row.path),))
    assert not again.verdict.passed
    (fixed,) = replay((Path(row.path),), target=f"{KEEPING}:unified_attention")
    assert fixed.verdict.passed


def test_a_sequence_has_the_paths_of_its_calls_as_traits() -> None:
    flagged = msgspec.structs.replace(CASE, launch=LaunchHints(configuration=3, arguments=(("use_td", True),)))
    case = CallSequence((Call(CASE), Call(flagged)))
    assert {"configuration 3", "argument use_td=True"} <= operation_of(case).traits_of(case)
