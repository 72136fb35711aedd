"""A case whose kernels are not compiled is not judged, if its order says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fuzz_attn.backends.backend import Watch
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import NotCompiledInterrupt


def test_an_order_may_forbid_to_wait_for_the_compiler(
    spec: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", os.environ["TRITON_INTERPRET"])  # which the backend changes
    judge, running = load(Setup(spec("unified_attention"), backend="simulator")), SimulatorBackend.running

    @contextmanager
    def not_compiled(self: SimulatorBackend) -> Iterator[Watch]:
        if not self.compiles:
            raise NotCompiledInterrupt
        with running(self) as watch:
            yield watch

    monkeypatch.setattr(SimulatorBackend, "running", not_compiled)
    order = Order(AttentionCase(sequences=(Sequence(1, 3),)), compiled=True)
    answer = judge.judge(order)
    assert answer == Answer(missing=True)
    assert not answer.judged
    allowed = judge.judge(Order(order.case))
    assert allowed.judged
    assert allowed.verdict.passed
