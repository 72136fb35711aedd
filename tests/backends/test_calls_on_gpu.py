"""Sequences of calls on a GPU: lent memory, two threads, two streams, and targets that keep something between calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.operations.calls.call_case import Call, CallSequence
from fuzz_attn.operations.calls.call_experiment import Block
from fuzz_attn.operations.calls.second_call import FirstStream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KEEPING = Path(__file__).parents[1] / "sample_targets" / "keeping_in_triton.py"
HALF = DTypes("float16", "float16", "float16")
CASE = AttentionCase((Sequence(1, 40), Sequence(2, 20)), heads=HeadLayout(2, 2, 32), dtypes=HALF)
LONGER = AttentionCase((Sequence(1, 21), Sequence(2, 39)), heads=HeadLayout(2, 2, 32), dtypes=HALF, seed=3)
BOTH = Call(LONGER), Call(CASE)
WRONG = {
    "cached_by_pointer": CallSequence((Call(LONGER), Call(CASE, "contents"))),
    "cached_by_shape": CallSequence(BOTH),
    "keeps_scratch": CallSequence((Call(CASE), Call(CASE))),
    "fails_after_an_error": CallSequence((Call(CASE, raises=1), Call(CASE))),
    "shares_scratch": CallSequence((*BOTH, Call(LONGER), Call(CASE, alongside=9))),
    "scratch_of_all_streams": CallSequence((*BOTH, Call(LONGER), Call(CASE, alongside=12, stream=True))),
    "beside_the_stream": CallSequence((*BOTH, Call(LONGER), Call(CASE, alongside=3, stream=True))),
}
RIGHT = ("scratch_of_each_stream", "joins_its_stream", "right_unified")


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, IsolatedWorker]]:
    found: dict[str, IsolatedWorker] = {}
    yield found
    for worker in found.values():
        worker.__exit__(None, None, None)


def judged(workers: dict[str, IsolatedWorker], name: str, case: Any, **asked: Any) -> Any:
    if name not in workers:
        workers[name] = IsolatedWorker(Setup(f"{KEEPING}:{name}", backend="cuda")).__enter__()
    workers[name].renew()
    return workers[name].judge(Order(case, **asked))


@pytest.mark.parametrize("name", WRONG)
def test_what_a_target_keeps_wrongly_fails(name: str, workers: dict[str, IsolatedWorker]) -> None:
    judged(workers, name, CASE)  # compiles
    for _ in range(3):
        assert not judged(workers, name, WRONG[name]).verdict.passed
    assert judged(workers, name, CASE).verdict.passed
    explanation = judged(workers, name, WRONG[name], forensics=True).explanation
    assert explanation.reason == "earlier call"


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_target_does_rightly_passes(name: str, workers: dict[str, IsolatedWorker]) -> None:
    lines = [
        CallSequence((*BOTH, Call(LONGER), Call(CASE, alongside=line, stream=stream)))
        for stream in (False, True)
        for line in (1, 5, 12, 30, 60)
    ]
    memory = CallSequence((Call(LONGER), Call(CASE, "contents"), Call(CASE, "again"), Call(LONGER, "address")))
    for sequence in (*WRONG.values(), memory, *lines):
        verdict = judged(workers, name, sequence).verdict
        assert verdict.passed, (verdict, sequence)


def test_a_second_stream_waits_for_what_its_call_is_given() -> None:
    """A busy GPU may make a call's tensors later than the host has launched the call."""
    busy, given = torch.ones(8192, 8192, device="cuda"), torch.zeros(8, device="cuda")

    def make() -> None:
        for _ in range(8):
            busy.copy_(busy @ busy / 8192)
        given.fill_(2)

    def make_and_call() -> None:
        make()
        first.second.around(lambda: given.add_(1))

    make()
    given.add_(1)  # a kernel that is loaded only now would wait for the GPU
    first = FirstStream(1, make_and_call)
    first.around(lambda: None)
    assert given.tolist() == [3.0] * 8


def test_memory_of_a_gpu_is_lent_anew_only_when_nothing_uses_it() -> None:
    block = Block(1000, torch.device("cuda"))
    address = block.bytes.data_ptr()
    assert block.free()
    assert block.bytes.data_ptr() == address
    view = block.bytes[4:].view(torch.float16)
    assert not block.free()
    assert view.data_ptr() == address + 4
