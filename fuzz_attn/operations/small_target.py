"""Small target: a callable whose parameters have the roles of a small operation, found by their names, and its tensors.

What names do not tell, calibration settles: a target has *variants*, and the one that is right on an easy case is it.
:class:`SmallExperiment` launches a case on it.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import msgspec
import torch
from msgspec.structs import replace

from fuzz_attn.backends.backend import Backend
from fuzz_attn.binding.binding import (
    LEFT_OUT,
    Binding,
    Signature,
    default_in_words,
    python_value,
    signature_of,
    unexercised,
)
from fuzz_attn.binding.call import take, values_of
from fuzz_attn.binding.matching import Match, require_each_once, require_taken
from fuzz_attn.binding.values import Copy, guarded
from fuzz_attn.errors import BindingError, CaseError, TargetError
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.storage import GUARD_BYTES, bits_of, spread, stride_of
from fuzz_attn.operations.operation import Operation
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.verdict import Refusal
from fuzz_attn.properties.comparisons import Comparison
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.built_in import launcher
from fuzz_attn.targets.loading import known_of, object_named
from fuzz_attn.targets.target import Called, Target


def with_far_axis(case: Any, near: torch.Tensor, name: str, axes: tuple[str, ...]) -> torch.Tensor:
    """Return a tensor with that axis far which the case names; ``axes`` are its first axes, those it may name."""
    for place, axis in enumerate(axes):
        used = case.far_lengths.get(f"{name}_{axis}", 0)
        if f"{name}_{axis}" in case.far_axes:
            return spread(near, place, stride_of(near, place, used))
    return near


HOST_COST: Final = 2**18
"""Elements of a case up to which the host judges it."""
Easy: TypeAlias = Callable[[Any], Any]
"""Returns an easy case of a domain."""


class Roles(NamedTuple):
    """The roles of an operation: each in words, the names of parameters beside its own, and which a target needs.

    ``needed`` are sets of roles, of which a target must have one; ``what`` is such a target in words.
    """

    words: Mapping[str, str]
    names: Mapping[str, tuple[str, ...]]
    needed: tuple[tuple[str, ...], ...]
    what: str


class Written(NamedTuple):
    """A copy of an output in another form, and what turns its bits back."""

    copy: Copy
    output: OutputTensor
    back: Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Forms:
    """The tensors that are made for one call, in the forms in which the target takes them."""

    read: list[Copy] = field(default_factory=list)
    written: dict[str, Written] = field(default_factory=dict)

    def given(self, name: str, values: torch.Tensor, guard: float | None = None) -> torch.Tensor:
        """Return a dense copy of an input between guards, watched for changes."""
        self.read.append(guarded(name, values, guard))
        return self.read[-1].tensor

    def output(
        self, name: str, output: OutputTensor, values: torch.Tensor, back: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return a dense copy of an output in another form, which :meth:`finish` turns back."""
        self.written[name] = Written(guarded(name, values), output, back)
        return self.written[name].copy.tensor

    def finish(self) -> tuple[str, ...]:
        """Copy what was written to the outputs; return what was changed of the memory around all copies, by names."""
        changed = [copy.name for copy in self.read if copy.is_changed]
        for name, (copy, output, back) in self.written.items():
            bits_of(output.tensor).copy_(back(bits_of(copy.tensor)))
            ends = slice(0, GUARD_BYTES), slice(GUARD_BYTES + copy.tensor.numel() * copy.tensor.element_size(), None)
            if any(not copy.memory[end].equal(copy.before[end]) for end in ends):
                changed.append(name)
        return tuple(changed)


@dataclass(frozen=True)
class SmallTarget(Target):
    """A callable whose parameters have roles. ``how`` is its binding with the reasons for it."""

    domain: Any = None
    how: Match = field(default_factory=lambda: Match(Binding()))

    @cached_property
    def match(self) -> Match:
        """The binding, with the reasons for it."""
        return self.how

    @property
    def stored_as(self) -> None:
        """The format in which attention's caches are made; other tensors are made for their case."""

    @property
    def autotuned(self) -> bool:
        """Whether cases choose among configurations of its kernels: only those of attention do."""
        return False

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of its parameters."""
        return tuple(self.match.binding.parameter_of)

    @abstractmethod
    def value(self, role: str, tensors: Any, forms: Forms) -> object:
        """Return the argument of a role."""

    def variants(self) -> Iterator[tuple[Self, str]]:
        """Yield the target with each way to call it that nothing tells, in words; none where nothing is open."""
        return iter(())

    def with_domain(self, promised: Any, **changes: Any) -> Self:
        """Return the target with another domain, and with these fields in its binding."""
        binding = replace(self.how.binding, **changes)
        return dataclasses.replace(self, domain=promised, how=dataclasses.replace(self.how, binding=binding))

    def settled(self) -> Self:
        """Return the target with a binding that says everything of it."""
        limits = {name: value for name, value in msgspec.to_builtins(self.domain).items() if name != "operation"}
        return self.with_domain(self.domain, domain=limits, whole=True)

    def run(self, tensors: Any) -> Called:
        """Call the target on tensors; raises what the target raises."""
        forms, binding = Forms(), self.match.binding
        arguments = {name: self.value(role, tensors, forms) for name, role in binding.roles.items() if role != LEFT_OUT}
        arguments |= {name: python_value(value) for name, value in binding.constants.items()}
        result = self.called(arguments)
        for name, value in zip(binding.returned, values_of(result), strict=False):
            if name in tensors.outputs:
                take(value, tensors.outputs[name], tensors.output_words(name))
        return Called(forms.finish())


def optional(target: SmallTarget, role: str) -> bool:
    """Return whether the parameter of a role has a default."""
    return target.match.binding.parameter_of.get(role) not in target.signature.required


def found(name: str, stated: Binding | None, own: tuple[str, str], roles: Roles) -> tuple[Callable[..., Any], Match]:
    """Return the callable that a specification names, or this project's ``own`` by name and launcher, and its roles.

    Raises :class:`TargetError` where its parameters are not those of such a target.
    """
    call = launcher(own[1]) if name == own[0] else object_named(name)
    if not callable(call):
        raise TargetError(f"target={name!r} must be callable, and is a {type(call).__name__}")
    try:
        return call, matched(signature_of(call), roles, known_of(name, stated))
    except BindingError as error:
        raise TargetError(f"target={name!r} {error}") from error


def matched(signature: Signature, roles: Roles, stated: Binding) -> Match:
    """Return the binding of a signature to roles; raises :class:`BindingError`, in one line, where it has none."""
    known = {name: role for role, names in roles.names.items() for name in names} | {role: role for role in roles.words}
    taken = {name: known[name] for name in signature.names if name in known and name not in stated.constants}
    taken |= stated.roles
    wrong = [role for role in taken.values() if role != LEFT_OUT and role not in roles.words]
    if wrong:
        raise BindingError(f"role {wrong[0]!r} is unknown to {roles.what}: choose among {', '.join(roles.words)}")
    bound = {role for role in taken.values() if role != LEFT_OUT}
    if not any(bound.issuperset(needed) for needed in roles.needed):
        raise BindingError(f"lacks the parameters {', '.join(_missing(bound, roles.needed))} of {roles.what}")
    needs = [each for each in signature.names if each in signature.required]
    if more := [each for each in needs if each not in taken and each not in stated.constants]:
        raise BindingError(
            f"needs parameters that {roles.what} does not have: {', '.join(more)}; state them under [constants] in a "
            "binding file if one value will do"
        )
    require_taken((*stated.roles, *stated.without_role), signature)
    require_each_once(taken)
    if made := [*stated.tensors, *stated.sizes, *stated.paths]:
        raise BindingError(f"states {made[0]!r} under [tensors], [sizes] or [paths], which {roles.what} does not have")
    ordered = {name: role for role in roles.words for name, its in taken.items() if its == role}
    left_out = {name: role for name, role in taken.items() if role == LEFT_OUT}
    reasons = {name: "stated" if name in stated.roles else "its name" for name in (*ordered, *stated.constants)}
    own = all(name == role for name, role in ordered.items())
    published = own and stated == Binding(domain=stated.domain, rounding=stated.rounding)
    return Match(replace(stated, roles=ordered | left_out), reasons, published=published)


def _missing(bound: set[str], needed: Sequence[tuple[str, ...]]) -> list[str]:
    """Return what the likeliest set of roles lacks, which is the first of those with the fewest missing."""
    lacks = [[role for role in roles if role not in bound] for roles in needed]
    return lacks[0] if len(lacks[0]) < len(needed[0]) or not bound else min(lacks, key=len)


def limited(domain: Any, stated: Binding) -> Any:
    """Return a domain within the limits that a binding states; raises :class:`TargetError` for others."""
    if not stated.domain:
        return domain
    try:
        return msgspec.convert({**msgspec.to_builtins(domain), **stated.domain}, type(domain))
    except msgspec.ValidationError as error:
        raise TargetError(f"domain: {error}") from error


class SmallExperiment(Experiment):
    """One case on one target and one backend.

    ``second`` has the second launch of each relation.
    """

    case: Any
    left: Any
    second: ClassVar[Mapping[str, Callable[[Any], Comparison]]]

    @staticmethod
    @abstractmethod
    def materialise(case: Any, device: str = "cpu", **changes: Any) -> CallTensors:
        """Return the tensors of a case."""

    @staticmethod
    @abstractmethod
    def with_other_numbers(case: Any) -> Any:
        """Return the case with other, ordinary numbers, which a target refuses too if it refuses for their sake."""

    @cached_property
    def refusal(self) -> Refusal | None:
        """What the target or the compiler refuses of the case, with any numbers; None where the case ran or failed."""
        refusal = self.first.refusal
        if self.case.contract is not None:
            return None
        if refusal is None or refusal.stage == "compile":
            return refusal
        return refusal if self.launch(self.with_other_numbers(self.case)).refusal else None

    @cached_property
    def place(self) -> str:
        """The device of the tensors that are judged: the host for small cases, else the backend's.

        Far tensors have addresses on the backend's only.
        """
        on_host = self.case.num_elements <= HOST_COST and not self.case.is_far
        return "cpu" if on_host else self.backend.device

    def with_target(self, case: Any, target: Target) -> Self:
        """Return an experiment with another case and target on the same backend."""
        return type(self)(case, target, self.backend)

    @property
    def is_right(self) -> bool:
        """Whether the first launch ran without a finding of a sanitizer, and all outputs are right."""
        first = self.first
        return not (first.error or first.observations) and judge(first.tensors, self.reference).passed

    def launch(self, case: Any, **changes: Any) -> Launch:
        """Return a new launch of the target on a case, made with the options of ``materialise``."""
        return self.launch_call(self.materialise(case, self.place, **changes))

    def seen(self, launch: Launch) -> Self:
        """Return the same experiment with another launch as its first, which was made of the first one's inputs."""
        other = type(self)(self.case, self.target, self.backend)
        other.first, other.reference, other._inputs_before = launch, self.reference, self._inputs_before
        return other

    def fresh(self) -> Any:
        """Return new tensors of the case, which the caller may change and launch."""
        return self.materialise(self.case, self.place)

    def again(self) -> Any:
        """Return new tensors of the case for another launch."""
        return self.fresh()

    def launch_call(self, tensors: CallTensors) -> Launch:
        """Return the launch of the target on tensors."""
        launched: Any = tensors
        return self.launch_tensors(launched)


def calibrated(operation: Operation, easy: Easy, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
    """Return a target once it is known how it is called, with its unused arguments, and what was learned in sentences.

    Raises :class:`BindingError` where it is wrong in whatever way it is called, or right in two.
    """
    settled, notes = _settled(operation, easy, target, backend)
    unused = unexercised(settled.signature, settled.match.binding)
    words = ", ".join(starmap(default_in_words, unused.items()))
    return dataclasses.replace(settled, unexercised=(words,) if words else ()), notes


def _settled(operation: Operation, easy: Easy, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
    """Return a target once it is known how it is called, and what was learned in sentences.

    Raises :class:`BindingError` where it is wrong in whatever way it is called, or right in two.
    """
    assert isinstance(target, SmallTarget)
    if target.match.published or target.match.binding.whole:
        return target, _doubts(operation, easy(target.domain), target, backend)
    notes: tuple[str, ...] = ()
    if variants := list(target.variants()):
        tried = [(each, words, _why_wrong(operation, easy(each.domain), each, backend)) for each, words in variants]
        fitting = [(each, words) for each, words, why in tried if not why]
        if len(fitting) != 1:
            first = tried[0][-1] or "right"
            found = " and where ".join(words for _, words in fitting) or f"nothing that was tried (first: {first})"
            raise BindingError(f"target={target.name!r} is right on an easy case where {found}: state what is true")
        target, words = fitting[0]
        notes = (f"{words} (calibrated).",)
    refused = [
        name
        for name in sorted(target.domain.features)
        if _refuses(operation, easy(target.domain), target, backend, name)
    ]
    notes += tuple(f"The target refuses an easy case with {name}, which is not drawn." for name in refused)
    return target.with_domain(replace(target.domain, features=target.domain.features - {*refused})).settled(), notes


def _doubts(operation: Operation, plain: Any, target: SmallTarget, backend: Backend) -> tuple[str, ...]:
    """Return that a target whose parameters have the names of an operation gives something else on an easy case."""
    experiment = operation.experiment(plain, target, backend, strict=False)
    with backend.unrecorded():
        why = "" if experiment.refusal is not None else _what_is_wrong(experiment)
    words = f"The target is wrong on an easy case ({why}). The names of its parameters are those of {operation.name}:"
    return (f"{words} either it has a defect even there, or it does something else.",) if why else ()


def _why_wrong(operation: Operation, case: Any, target: SmallTarget, backend: Backend) -> str:
    """Return why a target is not right on the easy case; an empty string where it is."""
    with backend.unrecorded():
        return _what_is_wrong(operation.experiment(case, target, backend))


def _what_is_wrong(experiment: Experiment) -> str:
    """Return what is wrong with the first launch of an experiment; an empty string where it is right."""
    first = experiment.first
    if first.error:
        return " ".join(first.error.split())[:300]
    return "" if judge(first.tensors, experiment.reference).passed else "it gives wrong elements"


def _refuses(operation: Operation, plain: Any, target: SmallTarget, backend: Backend, name: str) -> bool:
    """Return whether a target refuses the easy case with a feature in its simplest form."""
    feature: Any = operation.features[name]
    if not feature.has_form:
        return False
    try:
        case = feature.having(plain, True)
    except CaseError:
        return False
    with backend.unrecorded():
        return operation.experiment(case, target, backend, strict=False).refusal is not None
