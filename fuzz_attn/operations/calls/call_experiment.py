"""Call experiment: a sequence of calls of one target, each launched with its memory and judged before the next."""

from __future__ import annotations

import dataclasses
from functools import cached_property, partial
from typing import Any, NamedTuple

import msgspec
import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.operations.calls.call_case import Call, CallSequence, positions
from fuzz_attn.operations.calls.lent_memory import Lender, Middle
from fuzz_attn.operations.calls.second_stream import FirstStream
from fuzz_attn.operations.calls.second_thread import Meanwhile
from fuzz_attn.operations.operation import Operation
from fuzz_attn.oracle.verdict import Refusal, Verdict
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target


class Judged(NamedTuple):
    """What the calls of a sequence came to: the first call that failed, or the last one, and what it shows.

    ``same_as`` is the number of an earlier call, from 1, whose outputs have the same bits, 0 where none has.
    ``refusal`` is that of the last call where all are refused.
    """

    number: int
    verdicts: tuple[Verdict, ...]
    launch: Launch
    same_as: int = 0
    refusal: Refusal | None = None

    @property
    def failed(self) -> bool:
        """Whether a call fails."""
        return any(not verdict.passed for verdict in self.verdicts)


class CallExperiment(Experiment):
    """The calls of one sequence on one target and one backend; ``single`` is the operation of each call."""

    def __init__(
        self, case: CallSequence, target: Target, backend: Backend, single: Operation, *, strict: bool = True
    ) -> None:
        self.calls, self.single = case, single
        self._lender = Lender(target.call)
        self._lending = dataclasses.replace(target, call=self._lender)
        super().__init__(case.last, target, backend, strict=strict)

    @property
    def refusal(self) -> Refusal | None:
        """What the last call is refused for, where all calls are; else those that ran are judged."""
        return self.judged.refusal

    @property
    def refusal_alone(self) -> Refusal | None:
        """Nothing: calls that run before they are judged would leave something."""
        return None

    def put_first(self, site: str) -> None:
        """Leave the observations as they are: those of a call are said in the order in which it made them."""

    @property
    def first(self) -> Launch:
        """The launch of the call that decides: the first that fails, else the last."""
        return self.judged.launch

    @cached_property
    def judged(self) -> Judged:
        """What the calls came to; launches them."""
        outputs: list[dict[str, torch.Tensor]] = []
        places, calls = list(positions(self.calls)), self.calls.calls
        experiments = [self._of(call.case) for call in calls]
        judged, any_judged = None, False
        for number, (call, experiment) in enumerate(zip(calls, experiments, strict=True)):
            if not self._is_alongside(call):
                middle = None
                if number + 1 < len(calls) and self._is_alongside(calls[number + 1]):
                    middle = self._middle(calls[number + 1], experiments[number + 1])
                self._lender.prepare(call.storage, raises=call.raises, middle=middle)
            if call.raises:
                self._raise(experiment)
                continue
            launch = experiment.first
            verdicts: tuple[Verdict, ...] = (Verdict("oracle"),)
            if launch.refusal is None:
                any_judged = True
                self.learn(experiment)
                verdicts = self.single.failures(experiment, None)
            bits = {name: output.bits.clone() for name, output in launch.tensors.outputs.items()}
            named = tuple(_placed(verdict, places[number]) for verdict in verdicts)
            refusal = None if any_judged else launch.refusal
            judged = Judged(number, named, launch, _same(bits, outputs), refusal)
            if judged.failed:
                return judged
            outputs.append(bits)
        assert judged is not None  # the last call does not raise
        return judged

    def _of(self, case: Any) -> Experiment:
        """Return the experiment of one call."""
        experiment = self.single.experiment(case, self._lending, self.backend, strict=self.strict)
        if self.backend.device != "cpu":
            experiment.place = self.backend.device  # else the call would get copies, in memory of their own
        return experiment

    def _is_alongside(self, call: Call) -> bool:
        """Return whether a call runs in the middle of the one before it; a CPU has no streams."""
        return bool(call.alongside) and not (call.stream and self.backend.device == "cpu")

    def _middle(self, call: Call, experiment: Experiment) -> Middle:
        """Return what lets a call run in the middle of the one before it."""
        if not call.stream:
            return Meanwhile(call.alongside, partial(self._alongside, experiment, None))
        first = FirstStream(call.alongside, lambda: self._alongside(experiment, first.second))
        return first

    def _alongside(self, experiment: Experiment, middle: Middle | None) -> None:
        """Launch a call in the middle of another one."""
        self._lender.prepare("fresh", middle=middle)
        # Python 3.11 keeps other threads from a cached property while one thread computes it for another object.
        first: Any = vars(Experiment)["first"]
        vars(experiment)["first"] = first.func(experiment)

    def _raise(self, experiment: Experiment) -> None:
        """Launch a call that lacks a tensor; what becomes of it is not judged."""
        try:
            assert experiment.first
        except UnsupportedByBackendError:
            return


def _placed(verdict: Verdict, place: str) -> Verdict:
    """Return a failed verdict that says which call it is about."""
    if verdict.passed:
        return verdict
    return msgspec.structs.replace(verdict, message=f"{place}: {verdict.message}")


def _same(bits: dict[str, torch.Tensor], earlier: list[dict[str, torch.Tensor]]) -> int:
    """Return the number of the last earlier call with the same bits in all outputs, from 1; 0 for none."""
    for number, others in reversed(list(enumerate(earlier, 1))):
        if bits and bits.keys() == others.keys() and all(bits[name].equal(others[name]) for name in bits):
            return number
    return 0
