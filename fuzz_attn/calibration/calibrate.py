"""Calibrate: asks every question about a target, and returns its whole binding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from fuzz_attn.backends.backend import Backend
from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.conventions import capital, differences, how_to_state, open_in, phrase
from fuzz_attn.binding.promises import domain_of, expressible
from fuzz_attn.calibration.easy_cases import Batch, Size, case_of, sizes
from fuzz_attn.calibration.questions import OFF_VALUES, QUESTIONS, Question, filled
from fuzz_attn.calibration.trial import Trial, bound_to, tried_on
from fuzz_attn.case.aspects import Feature
from fuzz_attn.errors import BindingError
from fuzz_attn.targets.target import Target

PLAIN: Final = QUESTIONS[0]
FAMILIES_OF_PACKED: Final = ("context", "chunked", "unified")
"""Where keys of new tokens may be read, the strictest first: a target that reads all of them packed fits the second."""


EASIER: Final = (
    "It was calibrated on {}: no binding fits where a sequence has several new tokens and a context, "
    "which is a defect, or another causal convention."
)
BATCHES: Final[dict[Batch, str]] = {"decode": "one new token of each sequence", "fresh": "sequences without a context"}


@dataclass
class Calibration:
    """The state of one calibration: the binding so far, and what was learned, in sentences."""

    target: Target
    backend: Backend
    binding: Binding
    size: Size
    notes: list[str] = field(default_factory=list)
    refused: set[Feature] = field(default_factory=set)

    def outcomes(self, question: Question, bindings: Iterable[Binding]) -> list[tuple[Binding, Trial]]:
        """Return what each binding gives on the case of a question."""
        return [(each, self._outcome(question, each)) for each in bindings]

    def _outcome(self, question: Question, binding: Binding) -> Trial:
        assert binding.family is not None
        return tried_on(self.target, binding, case_of(question.name, binding.family, self.size), self.backend)

    def ask(self, question: Question) -> None:
        """Settle one question; raises :class:`BindingError` where no candidate fits, or two do."""
        tried = self.outcomes(question, question.candidates(self.binding))
        fitting = [binding for binding, result in tried if result.outcome == "fits"]
        if fitting:
            self._settle(question, fitting)
            return
        others = self.outcomes(question, question.alternatives(tried[0][0]))
        better = [binding for binding, result in others if result.outcome == "fits"]
        if better:
            said = differences(better[0], tried[0][0])
            raise self._error(
                f"is not called as its binding says: {said}; but its output is right where "
                f"{differences(tried[0][0], better[0])}"
            )
        self._without_fit(question, [result for _, result in tried])

    def _settle(self, question: Question, fitting: list[Binding]) -> None:
        """Take the first fitting candidate, unless another differs from it in more than a lenient convention."""
        first = fitting[0]
        strict = [name for name in question.fields if name not in question.lenient]
        for name in strict:
            values = list(dict.fromkeys(getattr(each, name) for each in fitting))
            if len(values) > 1:
                both = " and ".join(f"{name} = {value!r}" for value in values)
                raise self._error(f"fits both {both} on an easy case: state {how_to_state(name)} in a binding file")
        settled = [name for name in question.fields if name in open_in(self.binding)]
        self.notes += [f"{capital(phrase(name, getattr(first, name)))} (calibrated)." for name in settled]
        self.binding = first

    def _without_fit(self, question: Question, tried: list[Trial]) -> None:
        settles = [name for name in question.fields if name in open_in(self.binding)]
        raised = all(each.outcome == "raised" for each in tried)
        if raised and question.feature is not None:
            self._refuse(question.feature)
            self.binding = next(iter(question.candidates(self.binding)))
        elif settles:
            ways = "; ".join(f"{how_to_state(name)}" for name in settles)
            shown = next((each for each in tried if each.outcome == "wrong"), tried[0])
            why = f"it {shown.why}" if raised else f"it gives {shown.why}"
            raise self._error(
                f"is wrong on an easy case with every {settles[0]} that was tried ({why}): either it has a bug even "
                f"there, or it is called in another way. Write what is true of it into a file, {ways}, and give the "
                "file with --binding: a bug is then found and explained"
            )
        else:
            what = f"with {question.feature}" if question.feature else "without any feature"
            self.notes.append(f"The target is wrong on an easy case {what}, however it is called: a defect of it.")

    def _refuse(self, feature: Feature) -> None:
        """Leave out a feature that an easy case is refused for; one that the target promises is drawn, and fails."""
        if feature in self.target.promised:
            self.notes.append(f"The target refuses an easy case with {feature}, which it promises.")
            return
        self.refused.add(feature)
        self.notes.append(f"The target refuses an easy case with {feature}, which is not drawn.")

    def _error(self, what: str) -> BindingError:
        return BindingError(f"target={self.target.name!r} {what}")


def calibrated(target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
    """Return a target whose binding is whole, and what was learned, in sentences.

    A published interface comes with all of its conventions and is not asked. Raises :class:`BindingError` where a
    convention cannot be settled.
    """
    match = target.match
    if match.published or match.binding.whole:
        return target, ()
    state = _with_plain_case(target, backend)
    features = domain_of(state.binding).features
    for question in QUESTIONS[1:]:
        if question.feature in features and (state.binding.family != target.family or _promises(target, question)):
            if question.name == "scales":  # the plain case tells only which form a target accepts when it is off
                state.binding = replace(state.binding, scales=match.binding.scales)
            state.ask(question)
    whole = bound_to(target, next(filled(state.binding, list(open_in(state.binding)))))
    features = (whole.domain.features & expressible(whole.match.binding)) - state.refused
    return dataclasses.replace(whole, domain=replace(whole.domain, features=features)), tuple(state.notes)


def _promises(target: Target, question: Question) -> bool:
    return question.feature in target.domain.features


def _with_plain_case(target: Target, backend: Backend) -> Calibration:
    """Return a calibration that has settled what the plain case tells: layout, where new keys are, what "off" is."""
    attempts = [Calibration(target, backend, start, size) for size in sizes(target.domain) for start in _starts(target)]
    likeliest = None
    for attempt in attempts:
        results = {result.outcome for _, result in attempt.outcomes(PLAIN, PLAIN.candidates(attempt.binding))}
        if "fits" in results:
            likeliest = attempt
            break
        likeliest = likeliest or (attempt if "wrong" in results else None)
    likeliest = likeliest or attempts[0]
    likeliest.ask(PLAIN)
    if likeliest.size.batch != "ragged" and not target.domain.no_context:
        likeliest.notes.append(EASIER.format(BATCHES[likeliest.size.batch]))
    return likeliest


def _starts(target: Target) -> list[Binding]:
    """Return the bindings to start from: with each family that packed keys may have, and each value of "off"."""
    binding = target.match.binding
    families = FAMILIES_OF_PACKED if target.match.family_is_open else (binding.family,)
    return [replace(start, family=family) for family in families for start in _with_off(target, binding)]


def _with_off(target: Target, binding: Binding) -> list[Binding]:
    """Return the binding with each value of "off" that nothing tells: those of required parameters."""
    roles = binding.parameter_of
    off = dict(binding.off)
    off |= {role: 1.0 for role in ("k_scale", "v_scale") if role in roles and role not in off}
    forms = ("tensor", "float") if binding.scales is None and {"k_scale", "v_scale"} & _required(target) else (None,)
    values = OFF_VALUES if "window" in _required(target) and "window" not in off else (None,)
    return [
        replace(binding, off=off if len(values) == 1 else {**off, "window": value}, scales=binding.scales or form)
        for form in forms
        for value in values
    ]


def _required(target: Target) -> set[str]:
    required = target.signature.required
    return {role for role, parameter in target.match.binding.parameter_of.items() if parameter in required}
