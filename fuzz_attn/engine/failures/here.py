"""Here: what a failure that another backend explains does on the one that found it, and what its file says of that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import msgspec

from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import Launches, order_of
from fuzz_attn.engine.failures.records import Records
from fuzz_attn.engine.failures.triage import KnownFailure, class_of, failures_of, is_same_way
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.oracle.verdict import Verdict

MOST_LARGER: Final = 6
"""So many larger cases are launched at most to find one that fails on the finding backend, where the shrunk one passes.

That is enough to find the place among 64 steps of shrinking, and each may compile.
"""
NOT_REPLAYED: Final = "it was not replayed there"
ONLY_SEEN: Final = "it was seen, and not followed"
AFTER_OTHERS: Final = "it fails only after other cases, which were not run there"
"""Why it is unknown what a failure does on the explaining backend."""


class LookBeside(Protocol):
    """Saves what a case shows beside a failure."""

    def __call__(self, failure: KnownFailure, order: Order, answer: Answer, phase: Phase) -> None:
        """Save each failure in an answer that is new."""


class Here:
    """Launches shrunk cases on the finding backend, which ``launches`` judges on."""

    def __init__(self, launches: Launches, records: Records, look_beside: LookBeside) -> None:
        self._launches = launches
        self._records = records
        self._look_beside = look_beside

    def say(self, failure: KnownFailure, **fields: object) -> None:
        """Let a failure say what it does on the explaining backend, or what its shrunk case does on its own."""
        elsewhere = failure.found.elsewhere
        if elsewhere is not None:
            self._records.change(failure, elsewhere=msgspec.structs.replace(elsewhere, **fields))

    def note(self, known: KnownFailure, classes: Collection[str]) -> None:
        """Let a known failure have further classes on the finding backend."""
        elsewhere, new = known.found.elsewhere, set(classes) - known.found_as
        if not new:
            return
        known.seen_as |= new
        if elsewhere is not None and known.shard == self._records.shard and not known.saved:
            found_as = tuple(sorted({*elsewhere.found_as, *new}))
            elsewhere = msgspec.structs.replace(elsewhere, found_as=found_as)
            known.found = msgspec.structs.replace(known.found, elsewhere=elsewhere)
            self._records.rewrite(known)

    def take_from(self, failure: KnownFailure, earlier: KnownFailure, digest: Callable[[KnownFailure], str]) -> None:
        """Let a failure that only the explaining backend had shown be one that the finding backend found."""
        elsewhere, own = failure.found.elsewhere, earlier.shard == self._records.shard and not earlier.saved
        if earlier.found.elsewhere is not None or elsewhere is None or not (own and earlier.there):
            return
        elsewhere = msgspec.structs.replace(elsewhere, outcome="fails", reason="")
        environment = failure.found.environment
        earlier.found = msgspec.structs.replace(earlier.found, environment=environment, elsewhere=elsewhere)
        try:
            self.check(earlier)
        finally:
            self._records.finish(earlier, digest(earlier))

    def check(self, failure: KnownFailure) -> None:
        """Launch a case that was shrunk on the explaining backend on the finding one.

        Where it passes, the failure gets the smallest of the cases on the way to it that is found to fail here.
        """
        if not failure.there or failure.found.elsewhere is None:
            return
        steps, last = failure.steps, len(failure.steps) - 1
        if self._fails(failure, steps[last]):
            self.say(failure, shrunk_case="fails")
        elif not last or not self._fails(failure, steps[0]):
            self.say(failure, shrunk_case="passes")
        else:
            found = self._smallest(failure)
            case = {"case": found.case, "relation": found.relation, "verdict": found.verdict, "also": found.also}
            failure.found = msgspec.structs.replace(failure.found, **case)
            self.say(failure, shrunk_case="larger")

    def _smallest(self, failure: KnownFailure) -> Counterexample:
        """Return a step of which is known that it fails here, while a later one passes: the first fails."""
        fails, passes = 0, len(failure.steps) - 1
        for _ in range(MOST_LARGER):
            middle = (fails + passes) // 2
            if middle == fails:
                break
            if self._fails(failure, failure.steps[middle]):
                fails = middle
            else:
                passes = middle
        return failure.steps[fails]

    def _fails(self, failure: KnownFailure, step: Counterexample) -> bool:
        """Return whether a case fails on the finding backend as it does on the explaining one."""
        order = order_of(step)
        answer = confirmation.in_fresh_process(order, self._launches)
        failures = failures_of(answer)
        same = [each for each in failures if is_same_way(each, step.verdict, order)]
        if same:
            self._note_found_as(failure, same)
        elif failures and not answer.killed:
            self._look_beside(failure, order, answer, "confirm")
        return bool(same)

    def _note_found_as(self, failure: KnownFailure, verdicts: Sequence[Verdict]) -> None:
        elsewhere = failure.found.elsewhere
        if elsewhere is not None:
            found_as = {*elsewhere.found_as, *map(class_of, verdicts)}
            if found_as != {*elsewhere.found_as}:
                self.say(failure, found_as=tuple(sorted(found_as)))
