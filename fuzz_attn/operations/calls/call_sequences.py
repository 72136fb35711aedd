"""Sequences of calls as an operation: what the house asks of it, from the operation of the single calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace

from fuzz_attn.case.aspects import Aspect
from fuzz_attn.case.description import Line
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.explanation import FirstOperation
from fuzz_attn.operations.calls.call_case import (
    AFTER_ERROR,
    EARLIER,
    NAME,
    OWN,
    SAME_ADDRESS,
    SAME_STORAGE,
    SAME_TENSORS,
    SECOND_STREAM,
    SECOND_THREAD,
    CallSequence,
    lifted,
    mapped,
    positions,
    sequence_of,
    table_of,
)
from fuzz_attn.operations.operation import Batch, Drawing, ExcludesKey, Lengths, Operation, RoundSize, SharedRound

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.case.parts import DTypes
    from fuzz_attn.forensics.explanation import Explanation
    from fuzz_attn.operations.operation import Active
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.targets.target import Target

SIGNED: Final = {
    SAME_TENSORS: "same_tensors",
    SAME_STORAGE: "same_storage",
    SAME_ADDRESS: "same_address",
    AFTER_ERROR: "after_error",
    SECOND_STREAM: "second_stream",
    SECOND_THREAD: "second_thread",
    EARLIER: "earlier_call",
}
"""How the signature of a failure names what kind of sequence shows it: by the first of these."""


class CallSequences(Operation):
    """Sequences of calls, each of which is a case of a ``single`` operation."""

    name = NAME
    families: ClassVar[Mapping[str, str]] = {}
    case_type = CallSequence
    relations: ClassVar[Mapping[str, Any]] = {}
    needs_fresh_process = True

    def __init__(self, single: Operation) -> None:
        self.single = single
        self.aspects = table_of(single.aspects, single.parts, single.with_parts)  # type: ignore[misc]
        self.features: Mapping[str, Aspect] = {name: lifted(each) for name, each in single.features.items()}  # type: ignore[misc]
        self.poisons = single.poisons  # type: ignore[misc]
        self.is_exported = single.is_exported  # type: ignore[misc]
        self.fp8_output = single.fp8_output  # type: ignore[misc]
        self.domain_type = single.domain_type  # type: ignore[misc]

    # What a case is

    def features_of(self, case: CallSequence) -> tuple[str, ...]:
        """Return the kind of the sequence, and the features of its last call that identify a failure."""
        present = {aspect.words for aspect in OWN if aspect.value(case)}  # type: ignore[arg-type]
        kind = next((name for words, name in SIGNED.items() if words in present), "")
        return (*filter(None, (kind,)), *self.single.features_of(case.last))

    def all_features_of(self, case: CallSequence) -> frozenset[str]:
        """Return the names of all features of the last call."""
        return self.single.all_features_of(case.last)

    def traits_of(self, case: CallSequence, relation: str | None = None) -> frozenset[str]:
        """Return the traits of a sequence."""
        return frozenset(self.aspects.traits_of(case))

    def launch_path(self, case: CallSequence) -> str:
        """Return the launch path that the last call asks for."""
        return self.single.launch_path(case.last)

    def described(self, case: CallSequence) -> list[Line]:
        """Return what each call is to those before it, the last call, and where the others differ from it."""
        last = self.single.described(case.last)
        lines = [place.partition(", ")[::2] for place in positions(case)]
        lines += last
        for number, call in enumerate(case.calls[:-1], 1):
            own = self.single.described(call.case)
            missing = [what for what, _ in last if what not in dict(own)]
            differs = [f"{what}: {words}" for what, words in own if (what, words) not in last]
            differs += [f"without {what}" for what in missing]
            lines.append((f"in call {number}", "; ".join(differs) or "the same"))
        return lines

    def numbers(self, case: CallSequence) -> list[Line]:
        """Return the few numbers of the last call."""
        return self.single.numbers(case.last)

    def sizes_in_words(self, case: CallSequence) -> tuple[str, ...]:
        """Return the number of calls, and how large the last one is."""
        return (f"{len(case.calls)} calls", *self.single.sizes_in_words(case.last))

    def ratio_type(self, case: CallSequence) -> str:
        """Return the type of the output by which ratios of error and bound are counted."""
        return self.single.ratio_type(case.last)

    def has_fp8_output(self, case: CallSequence) -> bool:
        """Return whether an output has an fp8 type."""
        return self.single.has_fp8_output(case.last)

    def judged_alone(self, case: CallSequence) -> tuple[Any, ...]:
        """Return nothing: a call may be refused for what an earlier one has left."""
        return ()

    def is_mostly_virtual(self, case: CallSequence) -> bool:
        """Return whether a tensor of a call has far more addresses than memory."""
        return any(self.single.is_mostly_virtual(call.case) for call in case.calls)

    def is_served(self, case: CallSequence) -> bool:
        """Return whether the last call looks like what people serve."""
        return self.single.is_served(case.last)

    def batch_of(self, case: CallSequence) -> Batch | None:
        """Return the sequences of the last call's batch."""
        return self.single.batch_of(case.last)

    def lengths_of(self, case: CallSequence) -> Iterable[tuple[str, int]]:
        """Return the lengths of all calls."""
        return chain.from_iterable(self.single.lengths_of(call.case) for call in case.calls)

    def sizes_of(self, case: CallSequence) -> Iterable[tuple[str, int]]:
        """Return the sizes of the last call."""
        return self.single.sizes_of(case.last)

    def types_of(self, case: CallSequence) -> Iterable[tuple[str, str]]:
        """Return the types of the last call."""
        return self.single.types_of(case.last)

    def dtypes_of(self, case: CallSequence) -> DTypes | None:
        """Return nothing: each call's kernels are read when it has been launched."""
        return None

    # Smaller cases

    def unpromised(self, case: CallSequence, domain: Any) -> str:
        """Return what of a call its target does not promise, in words; an empty string where it promises all."""
        return next(filter(None, (self.single.unpromised(call.case, domain) for call in case.calls)), "")

    def allows(self, case: CallSequence, relation: str | None, domain: Any) -> bool:
        """Return whether all calls lie in a domain; no relation holds for a sequence."""
        return relation is None and all(self.single.allows(call.case, None, domain) for call in case.calls)

    def simplicity(self, case: CallSequence) -> tuple[float, ...]:
        """Return a key by which few calls come first, then a simple last one."""
        return (len(case.calls), *self.single.simplicity(case.last))

    def harmless(self, case: CallSequence, places: Iterable[str]) -> Any:
        """Return the case with poison that does not spread in some places."""
        places = tuple(places)
        return mapped(case, lambda single: self.single.harmless(single, places))

    def is_harmless(self, case: CallSequence, place: str) -> bool:
        """Return whether the poison of a place does not spread in any call."""
        return all(self.single.is_harmless(call.case, place) for call in case.calls)

    def parts(self, case: CallSequence) -> int:
        """Return the number of calls."""
        return len(case.calls)

    def with_parts(self, case: CallSequence, kept: Sequence[int]) -> Any:
        """Return the case with some of its calls only."""
        return sequence_of(tuple(case.calls[index] for index in kept))

    def shorter(self, case: CallSequence, part: int, number: int) -> Lengths | None:
        """Return the shorter cases of one part of all batches, then of those of each call."""
        found = list(self._shorter(case)) if not part else []
        return found[number] if number < len(found) else None

    def _shorter(self, case: CallSequence) -> Iterator[Lengths]:
        for changed in (range(len(case.calls)), *((number,) for number in range(len(case.calls)))):
            of = max(changed)
            single = case.calls[of].case
            for part in range(self.single.parts(single)):
                number = 0
                while (lengths := self.single.shorter(single, part, number)) is not None:
                    yield Lengths(lengths.low, lengths.high, partial(self._resized, case, changed, part, number))
                    number += 1

    def _resized(self, case: CallSequence, changed: Collection[int], part: int, number: int, length: int) -> Any:
        calls = list(case.calls)
        for place in changed:
            single = calls[place].case
            lengths = self.single.shorter(single, part, number) if part < self.single.parts(single) else None
            if lengths is not None and lengths.low <= length <= lengths.high:
                calls[place] = replace(calls[place], case=lengths.resized(length))
        return sequence_of(tuple(calls))

    def with_keys(self, case: CallSequence, number: int) -> Any:
        """Return the case with one part of so many keys in each call."""
        return mapped(case, lambda single: self.single.with_keys(single, number))

    def with_smaller_blocks(self, case: CallSequence) -> Iterator[Callable[[Any], Any]]:
        """Yield changes of all calls to smaller blocks of memory."""
        for change in self.single.with_smaller_blocks(case.last):
            yield partial(mapped, change=change)

    def without_padding(self, case: CallSequence) -> Any:
        """Return the case without memory behind the last rows of its outputs."""
        return mapped(case, self.single.without_padding)

    # What is judged

    def experiment(
        self, case: CallSequence, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of the calls on a target."""
        from fuzz_attn.operations.calls.call_experiment import CallExperiment  # noqa: PLC0415 - imports torch

        return CallExperiment(case, target, backend, self.single, strict=strict)

    def digest(self, case: CallSequence) -> str:
        """Return 16 hexadecimal digits of the tensors of the last call."""
        return self.single.digest(case.last)

    def failures(self, experiment: Any, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of the first call that fails, else only the oracle's of the last one."""
        verdicts: tuple[Verdict, ...] = experiment.judged.verdicts
        return verdicts

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Raise: no relation holds for a sequence."""
        raise FuzzAttnError(f"relation={relation!r} does not hold for a sequence of calls")

    def first_operation(
        self, experiment: Experiment, relation: str | None, healthy: Target, active: Active
    ) -> FirstOperation:
        """Return that no operation of a kernel is named: each is right when it is called alone."""
        return FirstOperation("a sequence of calls is not compared with a healthy kernel: each call is right alone")

    def explain(self, experiment: Any, relation: str | None) -> Explanation:
        """Return which call is wrong, and what of an earlier call it needs."""
        from fuzz_attn.operations.calls.call_explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment)

    def with_repair(self, found: Explanation, experiment: Any, relation: str | None) -> Explanation:
        """Return the explanation, with a change of the kernel if a call is wrong alone."""
        from fuzz_attn.operations.calls.call_explain import single_of, wrong_alone  # noqa: PLC0415 - as above

        case = wrong_alone(experiment)
        return found if case is None else experiment.single.with_repair(found, single_of(experiment, case), None)

    def near_case(self, case: Any, number: int) -> Any:
        """Raise: no case near a sequence is needed."""
        raise NotImplementedError

    # What is drawn: sequences are made of drawn cases

    def drawing_of_round(
        self,
        domain: Any,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def strategy(self, domain: Any, wanted: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def shared_round(self, domain: Any, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def drawing_of_shared(self, domain: Any, shared: Any) -> Drawing:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def may_play(self, shared: Any, domain: Any, excludes: ExcludesKey | None) -> bool:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def chosen_relation(self, choice: int, case: Any, domain: Any, among: Collection[str]) -> str:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def uncovered(self, domain: Any, covered: Collection[int]) -> tuple[int, int]:
        """Raise: single cases are drawn."""
        raise NotImplementedError

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Raise: the single operation loads targets."""
        raise NotImplementedError
