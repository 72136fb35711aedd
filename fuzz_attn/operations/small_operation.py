"""Small operation: a base class of operations with few compile keys, and of what their cases and domains are made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fuzz_attn.case.aspects import Aspect
from fuzz_attn.errors import BindingError, CaseError, DomainError
from fuzz_attn.operations.operation import Drawing, ExcludesKey, Operation, RoundSize, SharedRound
from fuzz_attn.properties.relations import chosen_relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding, Signature
    from fuzz_attn.operations.small_target import Roles, SmallExperiment
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.strategies.draws import Sample
    from fuzz_attn.targets.target import Target


C = TypeVar("C", bound=str)

FAR_AXES: Final = "far_axes"
"""The field of a case with the axes along which tensors span 2^31 elements, ``tensor_axis`` each, and its feature."""
MOST_FAR_ELEMENTS: Final = 2**22
"""Elements of a tensor times the indices of its far axis, each of which has memory of its own."""
MOST_FAR: Final = 256
"""Indices of a far axis at most; with more, no stride would be that of a far axis."""


OTHER_SIZES: Final = (24, 16)
"""Sizes of heads in some cases near a failing one: with one column, or a full block, much is the same by chance."""
OF_OTHER_SIZE: Final = 3
"""Of so many cases near a failing one, one has heads of another size."""
WIDE_SPREAD: Final = 60.0
"""The spread of log-sum-exps of which some have no weight beside others."""


def always(case: Any, domain: Any) -> bool:
    """Return that a relation holds."""
    return True


class SmallOperation(Operation):
    """An operation whose compile keys are a pool in memory. ``roles`` are the parameters of its targets in words."""

    roles: ClassVar[Mapping[str, str]]

    @abstractmethod
    def pool(self, domain: Any) -> tuple[Any, ...]:
        """Return the compile keys that cases are drawn from, the simplest first."""

    @abstractmethod
    def freed(self, domain: Any, key: Any, sample: Sample) -> Any:
        """Return the key with sizes from anywhere in the domain."""

    @abstractmethod
    def cases(self, domain: Any, keys: tuple[Any, ...]) -> SearchStrategy[Any]:
        """Return a strategy of cases of some compile keys."""

    @abstractmethod
    def experiments(self) -> type[SmallExperiment]:
        """Return the class of its experiments, which imports torch."""

    def without_padding(self, case: Any) -> Any:
        """Return the case without rows behind those of its tokens."""
        return replace(case, padded_tokens=0)

    def drawing_of_round(
        self,
        domain: Any,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws."""
        from fuzz_attn.operations import small_draws  # noqa: PLC0415 - imports Hypothesis

        free = partial(self.freed, domain)
        keys = small_draws.keys_of_round(self.pool(domain), round_seed, size.keys, excludes, covered, free)
        return small_draws.drawing_of(self.cases(domain, keys), self.relations)

    def strategy(self, domain: Any, wanted: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Return a strategy of all cases of a domain, with some values of their compile keys."""
        pool = self.pool(domain)
        keys = (key for key in pool if all(getattr(key, name, value) == value for name, value in wanted.items()))
        return self.cases(domain, tuple(keys) or pool)

    def shared_round(self, domain: Any, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
        """Return a round that the shards of a campaign can share."""
        from fuzz_attn.operations.small_draws import shared_round  # noqa: PLC0415 - imports Hypothesis

        return shared_round(self.pool(domain), campaign, number, covered)

    def drawing_of_shared(self, domain: Any, shared: SharedRound) -> Drawing:
        """Return what a shared round draws."""
        from fuzz_attn.operations.small_draws import drawing_of  # noqa: PLC0415 - imports Hypothesis

        return drawing_of(self.cases(domain, (shared.key,)), self.relations)

    def may_play(self, shared: SharedRound, domain: Any, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain."""
        return shared.key in self.pool(domain) and not (excludes is not None and excludes(shared.key))

    def chosen_relation(self, choice: int, case: Any, domain: Any, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case."""
        return chosen_relation(choice, case, domain, among, self.relations)

    def uncovered(self, domain: Any, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""
        pool = self.pool(domain)
        return sum(key.number not in covered for key in pool), len(pool)

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        rows = []
        for name, why in reasons.items():
            constant = f"the constant {binding.constants[name]!r}" if name in binding.constants else ""
            rows.append((name, constant or self.roles[binding.roles[name]], why))
        return rows

    def takes(self, signature: Signature, stated: Binding) -> bool:
        """Return whether a signature is that of a target."""
        from fuzz_attn.operations.small_target import matched  # noqa: PLC0415 - imports torch

        try:
            matched(signature, self.signature_roles(), stated)
        except BindingError:
            return False
        return True

    def count_known(self, names: Iterable[str]) -> int:
        """Return how many parameters of a signature have the names of a role."""
        roles = self.signature_roles()
        return len({*roles.words, *(name for its in roles.names.values() for name in its)}.intersection(names))

    @abstractmethod
    def signature_roles(self) -> Roles:
        """Return the roles that the parameters of its targets may have, with their names."""

    @abstractmethod
    def plain_case(self, domain: Any) -> Any:
        """Return an easy case that tells how a target is called: no two numbers of it are alike."""

    def calibrated(self, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
        """Return a target once it is known how it is called, and what was learned in sentences.

        What the names do not tell is tried on an easy case. A feature that such a case is refused for is not drawn.
        """
        from fuzz_attn.operations.small_target import calibrated  # noqa: PLC0415 - imports torch

        return calibrated(self, self.plain_case, target, backend)

    def experiment(
        self, case: Any, target: Any, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""
        return self.experiments()(case, target, backend, strict=strict, host_only=host_only)

    def digest(self, case: Any) -> str:
        """Return 16 hexadecimal digits of the tensors of a case."""
        from fuzz_attn.inputs.tensors import digest_of  # noqa: PLC0415 - imports torch

        return digest_of(self.experiments().materialise(case))

    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""
        from fuzz_attn.properties.check import failures_of_call  # noqa: PLC0415 - imports torch

        return failures_of_call(experiment, relation, self.compare)

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""
        return self.experiments().second[relation](experiment)


class SmallDomain(Struct, frozen=True, forbid_unknown_fields=True):
    """The cases that a target promises. A subclass has ``features``, and the tag ``operation`` with its family."""

    @property
    def family(self) -> str:
        """The family of its targets, which is the name of the operation."""
        return str(type(self).__struct_config__.tag)

    @property
    def excluded(self) -> tuple[frozenset[str], ...]:
        """The combinations of features that are not supported together: none."""
        return ()

    def allows(self, feature: str) -> bool:
        """Return whether cases may have the feature."""
        own: Any = self
        return feature in own.features

    def in_memory(self) -> Self:
        """Return the domain without tensors whose addresses mostly take no memory."""
        return self

    def on_gpu(self) -> Self:
        """Return the domain as a GPU has it, where all addresses take memory."""
        return self.in_memory()

    def require(self, known: Mapping[str, Aspect], *needed: tuple[object, ...]) -> None:
        """Raise :class:`DomainError` for an unknown feature, or where one of the ``needed`` choices is empty."""
        own: Any = self
        unknown = sorted(own.features - known.keys())
        if unknown or not all(needed):
            raise DomainError(f"domain={self!r} has unknown features {unknown}, or lacks types or sizes")

    def lacking(self, case: Any, known: Mapping[str, Aspect]) -> str:
        """Return a feature of a case that the domain does not promise, in words; an empty string without one."""
        return next((each.words for name, each in known.items() if each.value(case) and not self.allows(name)), "")


class Fields:
    """Makes aspects of the fields of a case; the defaults are those of the ``plain`` one."""

    def __init__(self, plain: Struct) -> None:
        self._plain = plain

    def field(self, words: str, name: str, *, tried: tuple[Any, ...] = (), **more: Any) -> Aspect:
        """Return an aspect whose value is that of a field; the shrinker tries some values."""
        set_value = partial(_with, name=name)
        smaller = tuple(partial(set_value, value=each) for each in tried)
        value = attrgetter(name)
        return Aspect(words, value, set_value, self._default(name), smaller=smaller, name=name, **more)

    def flag(self, words: str, name: str, form: Any = True) -> Aspect:
        """Return a feature that a case has where a field differs from its default; ``form`` is the simplest value."""
        default = self._default(name)

        def changed(case: Any, on: Any) -> Any:
            return _with(case, form if on else default, name=name)

        return Aspect(words, lambda case: bool(getattr(case, name) != default), changed, has_form=True)

    def _default(self, name: str) -> Any:
        return getattr(self._plain, name)


def far_aspect(most: int) -> Aspect:
    """Return the aspect of the far axes of a case, of which there are at most so many; the shrinker drops each."""
    smaller = tuple(partial(_nearer, place=place) for place in range(most))
    return when("elements far apart", lambda case: bool(case.far_axes), smaller, far_axes=())


def _nearer(case: Any, *, place: int) -> Any:
    return replace(case, far_axes=case.far_axes[:place] + case.far_axes[place + 1 :])


def fitting(
    names: Iterable[C], used: Mapping[str, int], indices: Mapping[str, int], num_elements: int
) -> tuple[C, ...]:
    """Return those of the far axes that a case has, of not too many indices and not too much memory.

    ``used`` and ``indices`` say how many indices of each axis tokens may use, and how many it has: each of them has
    memory of its own. Raises ``CaseError`` for two axes of one tensor.
    """
    most = min(MOST_FAR, MOST_FAR_ELEMENTS // num_elements)
    kept = tuple(name for name in names if used.get(name, 0) > 0 and indices[name] <= most)
    tensors = [name.rpartition("_")[0] for name in kept]
    if len(set(tensors)) < len(tensors):
        raise CaseError(f"far_axes={kept} must name one axis of each tensor")
    return kept


def far_words(names: Iterable[str]) -> list[str]:
    """Return far axes in words."""
    return [f"{axis}s of {tensor} spread over 2^31 elements" for tensor, _, axis in (n.rpartition("_") for n in names)]


def when(
    words: str, holds: Callable[[Any], bool], smaller: tuple[Callable[[Any], Any], ...] = (), **plain: Any
) -> Aspect:
    """Return a trait that a case loses with some fields; the shrinker also tries the changes ``smaller``."""
    return Aspect(words, holds, lambda case, on: case if on else replace(case, **plain), smaller=smaller)


def _with(case: Any, value: Any, *, name: str) -> Any:
    return replace(case, **{name: value})


def near_size(size: int, number: int) -> int:
    """Return the size of a head in the near case of a number.

    >>> near_size(1, 1), near_size(1, 2), near_size(24, 1)
    (24, 1, 16)
    """
    return next(other for other in OTHER_SIZES if other != size) if number % OF_OTHER_SIZE == 1 else size
