"""Path trials: what other values of a target's optional arguments do on a few easy cases.

The same result means another path to it, which is drawn. Another result means a convention or a feature that no role
names, which stays at its default.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace as changed

from fuzz_attn.backends.backend import Backend
from fuzz_attn.binding.binding import Binding, PathValue
from fuzz_attn.binding.signature import arguments_of, default_in_words, other_values, unexercised
from fuzz_attn.calibration.easy_cases import case_of, sizes
from fuzz_attn.case.aspects import FEATURES, Feature, all_features_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import unpromised
from fuzz_attn.case.parts import MOST_ARGUMENTS, Sequence
from fuzz_attn.case.paths import in_words
from fuzz_attn.errors import BindingError, CaseError, FuzzAttnError
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.named_paths import agree
from fuzz_attn.targets.target import Target

SECONDS: Final = 12.0
"""Time of all trials; arguments that are not tried by then stay at their defaults."""
COARSE: Final = 64.0
"""How many bounds an output may be off with the defaults, as the target's own roundings are not known yet."""
MOST_SIZES: Final = 6
MANY_KEYS: Final = 1100
MANY_NEW_KEYS: Final = 150
"""Of a sequence whose keys are all new: every one of them is a row too."""
SHOWN_CHARACTERS: Final = 120

Outcome: TypeAlias = Literal["same", "other", "refused"]


def with_paths_tried(target: Target, backend: Backend, *, stated: bool) -> Target:
    """Return a target with the paths among its optional arguments, and with those that no case has in words.

    Nothing is tried where all of its binding was ``stated``, as in a saved failure.
    """
    open_ = unexercised(target.signature, target.match.binding)
    if not open_:
        return target
    trials = _Trials(target, backend)
    paths: dict[str, tuple[PathValue, ...]] = {}
    untried, tried = [], []
    for name, default in open_.items():
        values = () if stated or len(paths) == MOST_ARGUMENTS else other_values(name, target.signature)
        outcomes = {value: trials.outcome(name, value) for value in values}
        same = tuple(value for value, (outcome, _) in outcomes.items() if outcome == "same")
        others = [f"{in_words([(name, value)])}{why}" for value, (_, why) in outcomes.items() if why]
        if same:
            paths[name] = same
        elif not others:
            untried.append(default_in_words(name, default))
        tried += others
    return _with_paths(target, paths, (*([", ".join(untried)] if untried else []), *tried))


def _with_paths(target: Target, paths: dict[str, tuple[PathValue, ...]], words: tuple[str, ...]) -> Target:
    if not paths:
        return dataclasses.replace(target, unexercised=words)
    stated = target.stated or Binding()
    binding = changed(stated, paths={**stated.paths, **paths})
    found = dataclasses.replace(target, binding=binding, unexercised=words)
    domain = changed(target.domain, arguments=arguments_of(target.signature, found.match.binding))
    return dataclasses.replace(found, domain=domain)


class _Trials:
    """Launches of easy cases with one argument changed, beside those with the default."""

    def __init__(self, target: Target, backend: Backend) -> None:
        self._target, self._backend = target, backend
        self._until = time.monotonic() + SECONDS
        self._usual: list[Experiment] | None = None
        self._long: Experiment | None = None

    def outcome(self, name: str, value: PathValue) -> tuple[Outcome | None, str]:
        """Return what a value does, and in words why it is no path; None where that cannot be tried."""
        if self._usual is None:
            self._usual = list(self._right_ones())
            plain = self._usual[0].case if self._usual else None
            self._long = None if plain is None else self._right(self._with_many_keys(plain))
        if not self._usual or time.monotonic() > self._until:
            return None, ""
        for usual in self._usual:
            outcome, why = self._tried(usual, name, value, _other_numbers)
            if outcome != "same":
                return outcome, why
        # With many keys, wrong numbers are a failure that the campaign finds: an argument that changes nothing for few
        # keys is not a convention. But a launcher may return the states of its splits, which the caller has to merge.
        return ("same", "") if self._long is None else self._tried(self._long, name, value, _left_unwritten)

    def _right_ones(self) -> Iterator[Experiment]:
        """Yield launches of easy cases that are right with the defaults: a plain one, then with most features."""
        family, domain = self._target.family, self._target.domain
        for size in islice(sizes(domain), MOST_SIZES):
            plain = self._right(self._promised(case_of("plain", family, size)))
            if plain is not None:
                break
        else:
            return
        yield plain
        featured = self._with_features(plain.case)
        together = self._right(featured) if featured != plain.case else None
        if together is not None:
            yield together
        else:
            for feature in sorted(all_features_of(featured) - all_features_of(plain.case)):
                alone = self._right(self._with_feature(plain.case, feature))
                if alone is not None:
                    yield alone
        if domain.allows("fp8_kv"):
            scaled = self._right(self._promised(case_of("scales", family, size)))
            if scaled is not None:
                yield scaled

    def _promised(self, case: AttentionCase) -> AttentionCase:
        """Return the case as it is where a target has no caches without their new tokens."""
        return case if self._target.domain.allows("stale_cache") else replace(case, stale_cache=False)

    def _with_many_keys(self, case: AttentionCase) -> AttentionCase:
        """Return the case with enough keys in its first sequence that a launcher with splits uses several."""
        first, *rest = case.sequences
        keys = MANY_NEW_KEYS if self._target.domain.no_context else MANY_KEYS
        query_len = keys if self._target.domain.no_context else first.query_len
        return replace(case, sequences=(Sequence(query_len, keys - query_len), *rest))

    def _with_features(self, case: AttentionCase) -> AttentionCase:
        """Return the case with as many features of the domain as go together, on the same keys."""
        for name, aspect in FEATURES.items():
            if aspect.has_form and not aspect.virtual:
                found = self._with_feature(case, name)
                case = found if found.sequences == case.sequences else case
        return case

    def _with_feature(self, case: AttentionCase, name: Feature) -> AttentionCase:
        """Return the case with the simplest form of a feature, or as it is where the domain has no such case."""
        try:
            found = FEATURES[name].having(case, True)
        except CaseError:
            return case
        return case if unpromised(found, self._target.domain) else found

    def _right(self, case: AttentionCase) -> Experiment | None:
        """Return the launch of a case that is right with the defaults; None for others, and once the time is up."""
        if time.monotonic() > self._until:
            return None
        experiment = Experiment(case, self._target, self._backend)
        try:
            with self._backend.unrecorded():
                right = not experiment.first.error and not experiment.changed_inputs
                verdict = judge(experiment.first.tensors, experiment.reference) if right else None
        except FuzzAttnError:
            return None
        known = verdict is not None and verdict.kind in ("ok", "mismatch") and _ratio(verdict) <= COARSE
        return experiment if known else None

    def _tried(
        self, usual: Experiment, name: str, value: PathValue, difference: Callable[[Experiment, Experiment], str]
    ) -> tuple[Outcome, str]:
        """Return what a value does to a launch, and why it is not a path: for example the difference that it makes."""
        hints = changed(usual.case.launch, arguments=((name, value),))
        other = Experiment(replace(usual.case, launch=hints), self._target, self._backend)
        try:
            with self._backend.unrecorded():
                error = other.first.error
        except BindingError as raised:
            error = str(raised)
        except FuzzAttnError as raised:
            return "refused", f" cannot be tried: {_short(str(raised))}"
        if error:
            return "refused", f" is refused: {_short(error)}"
        if other.changed_inputs:
            return "other", f" changes {other.changed_inputs[0]}: a convention or feature that no role names"
        why = difference(usual, other)
        return ("other", why) if why else ("same", "")


def _other_numbers(usual: Experiment, other: Experiment) -> str:
    """Return in words that the outputs of two launches differ; empty where they agree."""
    slack = max(1.0, _ratio(judge(usual.first.tensors, usual.reference)))
    if agree(usual, other, slack):
        return ""
    return " changes the result: a convention or feature that no role names"


def _left_unwritten(usual: Experiment, other: Experiment) -> str:
    """Return in words that the other launch writes less of an output than the usual one; empty where it does not."""
    outputs = usual.first.tensors.outputs
    left = any(
        bool((its.unwritten & ~outputs[name].unwritten).any()) for name, its in other.first.tensors.outputs.items()
    )
    return " leaves an output unwritten: a convention that no role names" if left else ""


def _ratio(verdict: Verdict) -> float:
    return verdict.ratio or 0.0


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} ..."
