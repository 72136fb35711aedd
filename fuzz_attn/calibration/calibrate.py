"""Calibrate: asks every question about a target, tries the paths among its arguments, and returns its whole binding.

The same result means another path to it, which is drawn. Another result means a convention or a feature that no role
names, which stays at its default.

A question has *candidates*, which fill in what the binding leaves open, and *alternatives*, which contradict what it
states. Alternatives are tried only where no candidate fits, to tell a wrong binding from a defect of the target.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from msgspec.structs import replace as changed

from fuzz_attn.backends.backend import Backend
from fuzz_attn.binding.binding import (
    CHOICES,
    Binding,
    PathValue,
    arguments_of,
    capital,
    default_in_words,
    differences,
    how_to_state,
    open_in,
    other_values,
    phrase,
    unexercised,
)
from fuzz_attn.binding.promises import domain_of, expressible
from fuzz_attn.calibration.easy_cases import Batch, Size, case_of, sizes
from fuzz_attn.case.aspects import FEATURES, Feature, all_features_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import unpromised
from fuzz_attn.case.parts import MOST_ARGUMENTS, Sequence
from fuzz_attn.case.paths import in_words
from fuzz_attn.errors import BindingError, CaseError, FuzzAttnError
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.named_causes import agree
from fuzz_attn.targets.target import Target

SECONDS: Final = 12.0
"""Time of all trials; arguments that are not tried by then stay at their defaults."""
MOST_SIZES: Final = 6
MANY_KEYS: Final = 1100
MANY_NEW_KEYS: Final = 150
"""Of a sequence whose keys are all new: every one of them is a row too."""
SHOWN_OF_A_PATH: Final = 120

PathOutcome: TypeAlias = Literal["same", "other", "refused"]


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

    def outcome(self, name: str, value: PathValue) -> tuple[PathOutcome | None, str]:
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
    ) -> tuple[PathOutcome, str]:
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
    return line if len(line) <= SHOWN_OF_A_PATH else f"{line[:SHOWN_OF_A_PATH]} ..."


FAMILIES_OF_PACKED: Final = ("context", "chunked", "unified")
"""Where keys of new tokens may be read, the strictest first: a target that reads all of them packed fits the second."""

EASIER: Final = (
    "It was calibrated on {}: no binding fits where a sequence has several new tokens and a context, "
    "which is a defect, or another causal convention."
)
BATCHES: Final[dict[Batch, str]] = {"decode": "one new token of each sequence", "fresh": "sequences without a context"}
Variants = Callable[[Binding], Iterator[Binding]]
Outcome: TypeAlias = Literal["fits", "wrong", "raised"]

COARSE: Final = 64.0
"""How many bounds of the default rounding model an output of the right binding may be off, unless its own model allows
more. Few targets state theirs, and correct kernels were measured at up to 58 such bounds; a wrong convention is off by
whole values."""

SHOWN_CHARACTERS: Final = 300


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
    """Return a target whose binding is whole, with its optional arguments tried, and what was learned, in sentences.

    Raises :class:`BindingError` where a convention cannot be settled.
    """
    settled, notes = _settled(target, backend)
    return with_paths_tried(settled, backend, stated=target.match.binding.whole), notes


def _settled(target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
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
                state.binding = changed(state.binding, scales=match.binding.scales)
            state.ask(question)
    whole = bound_to(target, next(filled(state.binding, list(open_in(state.binding)))))
    features = (whole.domain.features & expressible(whole.match.binding)) - state.refused
    return dataclasses.replace(whole, domain=changed(whole.domain, features=features)), tuple(state.notes)


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
    return [changed(start, family=family) for family in families for start in _with_off(target, binding)]


def _with_off(target: Target, binding: Binding) -> list[Binding]:
    """Return the binding with each value of "off" that nothing tells: those of required parameters."""
    roles = binding.parameter_of
    off = dict(binding.off)
    off |= {role: 1.0 for role in ("k_scale", "v_scale") if role in roles and role not in off}
    forms = ("tensor", "float") if binding.scales is None and {"k_scale", "v_scale"} & _required(target) else (None,)
    values = OFF_VALUES if "window" in _required(target) and "window" not in off else (None,)
    return [
        changed(binding, off=off if len(values) == 1 else {**off, "window": value}, scales=binding.scales or form)
        for form in forms
        for value in values
    ]


def _required(target: Target) -> set[str]:
    required = target.signature.required
    return {role for role, parameter in target.match.binding.parameter_of.items() if parameter in required}


@dataclass(frozen=True)
class Question:
    """One question. ``fields`` are the conventions that it settles, the first fitting value of the ``lenient`` ones.

    It is asked where the target's domain has the ``feature``.
    """

    name: str
    fields: tuple[str, ...]
    alternatives: Variants
    feature: Feature | None = None
    lenient: tuple[str, ...] = ()

    def candidates(self, binding: Binding) -> Iterator[Binding]:
        """Yield the binding with each combination of values for what it leaves open."""
        yield from filled(binding, [name for name in self.fields if name in open_in(binding)])


def filled(binding: Binding, names: list[str]) -> Iterator[Binding]:
    """Yield the binding with each combination of values of some conventions."""
    for values in product(*(_choices(name, binding) for name in names)):
        yield changed(binding, **dict(zip(names, values, strict=True)))


def _choices(name: str, binding: Binding) -> tuple[str, ...]:
    if name != "layout":
        return CHOICES[name]
    paged = "block_table" in binding.parameter_of
    return tuple(layout for layout in CHOICES[name] if (layout == "slots") != paged)


def _changed(name: str, binding: Binding) -> Iterator[Binding]:
    """Yield the binding with each other value of one convention."""
    own = getattr(binding, name)
    yield from (changed(binding, **{name: value}) for value in _choices(name, binding) if value != own)


def _swapped(binding: Binding, first: str, second: str) -> Iterator[Binding]:
    """Yield the binding with two roles exchanged."""
    parameters = binding.parameter_of
    if first in parameters and second in parameters:
        changes = {parameters[first]: second, parameters[second]: first}
        yield changed(binding, roles={**binding.roles, **changes})


def _renamed(binding: Binding, role: str, other: str) -> Iterator[Binding]:
    """Yield the binding with another role in place of one."""
    parameters = binding.parameter_of
    if role in parameters and other not in parameters:
        yield changed(binding, roles={**binding.roles, parameters[role]: other})


def _off(binding: Binding, role: str) -> Iterator[Binding]:
    """Yield the binding with each other value for what "off" is."""
    if role not in binding.parameter_of:
        return
    own: Any = binding.off.get(role, ())
    values = (value for value in OFF_VALUES if value != own)
    yield from (changed(binding, off={**binding.off, role: value}) for value in values)


OFF_VALUES: Final = (None, -1, 0, (-1, -1))


def _of_plain(binding: Binding) -> Iterator[Binding]:
    yield from _changed("layout", binding)
    yield from _swapped(binding, "key_cache", "value_cache")
    yield from _swapped(binding, "new_keys", "new_values")
    yield from _renamed(binding, "seq_lens", "context_lens")
    yield from _renamed(binding, "context_lens", "seq_lens")
    yield from _swapped(binding, "query_start_loc", "seq_lens")
    yield from _swapped(binding, "max_query_len", "max_seq_len")
    yield from _off(binding, "window")
    if "output" not in binding.parameter_of and binding.output == "in_place":
        yield changed(binding, output="returned")
    if "output" in binding.parameter_of and binding.output == "returned":
        yield changed(binding, output="in_place")


def _of_window(binding: Binding) -> Iterator[Binding]:
    yield from _changed("window", binding)


def _of_scales(binding: Binding) -> Iterator[Binding]:
    yield from _swapped(binding, "k_scale", "v_scale")
    for name in ("scale_direction", "fp8", "scales"):
        yield from _changed(name, binding)


def _of_sinks(binding: Binding) -> Iterator[Binding]:
    yield from _swapped(binding, "sinks", "alibi_slopes")


def _nothing(binding: Binding) -> Iterator[Binding]:
    yield from ()


QUESTIONS: Final = (
    Question("plain", ("layout",), _of_plain),
    Question("window", ("window",), _of_window, "window"),
    Question("scales", ("fp8", "scales", "scale_direction"), _of_scales, "fp8_kv", lenient=("fp8", "scales")),
    Question("sinks", (), _of_sinks, "sinks"),
    Question("alibi", (), _of_sinks, "alibi"),
    Question("softcap", (), _nothing, "softcap"),
)
PLAIN: Final = QUESTIONS[0]
"""Every question, in the order in which they are asked. Each case has one feature, so a question needs no later one."""


class Trial(NamedTuple):
    """What became of a trial, and why it does not fit."""

    outcome: Outcome
    why: str = ""


def bound_to(target: Target, binding: Binding) -> Target:
    """Return a target with a binding that is whole, and with the family of its problem."""
    whole = changed(binding, whole=True)
    if binding.family == target.family:
        return dataclasses.replace(target, binding=whole)
    own = target.domain
    domain = changed(domain_of(whole), configurations=own.configurations, arguments=own.arguments)
    return dataclasses.replace(target, binding=whole, domain=domain)


def tried_on(target: Target, binding: Binding, case: AttentionCase, backend: Backend) -> Trial:
    """Return whether a target that is called by a binding computes the case."""
    experiment = Experiment(case, bound_to(target, binding), backend)
    try:
        with backend.unrecorded():
            launch = experiment.first
    except BindingError as error:
        return Trial("raised", str(error))
    if launch.error:
        return Trial("raised", " ".join(launch.error.split())[:SHOWN_CHARACTERS])
    if experiment.changed_inputs:
        return Trial("wrong", f"another {experiment.changed_inputs[0]}, which it must not change")
    wrong = _wrong_elements(experiment)
    return Trial("wrong", f"{wrong} wrong elements") if wrong else Trial("fits")


def _wrong_elements(experiment: Experiment) -> int:
    """Return how many elements of all outputs were not written or are far from the oracle's."""
    tensors, wrong = experiment.first.tensors, 0
    usual = attend(tensors, RoundingModel(), experiment.blocks)
    for name, expected in experiment.reference.items():
        output = tensors.outputs[name]
        error = (output.elements.double() - expected.value).abs()
        near = (error <= torch.maximum(COARSE * usual[name].bound, expected.bound)) & ~output.unwritten
        wrong += int((~near).sum())
    return wrong
