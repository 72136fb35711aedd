"""Operation: what the house asks of one kind of problem, such as attention; the base class of all operations.

Cases and domains are the operation's own types. Of a case the house itself reads only what :class:`Case` has. So they
are ``Any`` here: an operation gets back what it has drawn or read itself.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from fuzz_attn.case.aspect_table import AspectTable
from fuzz_attn.case.aspects import Aspect
from fuzz_attn.case.contract_trial import named_of, trial_of
from fuzz_attn.case.description import Line
from fuzz_attn.errors import CaseError
from fuzz_attn.forensics.explanation import Explanation, Finding, FirstOperation
from fuzz_attn.oracle.verdict import Refusal
from fuzz_attn.properties.relations import Relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding, Signature
    from fuzz_attn.case.aspect_table import NotDrawn
    from fuzz_attn.case.parts import DTypes
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.targets.target import Target

FULL_ROUND: Final = 6
"""Every so many rounds, cases are drawn from the whole domain."""
FRUITLESS_ROUNDS: Final = 3
"""After so many rounds in which everything was refused, a campaign ends."""
MOST_REDUCTIONS: Final = 12
"""Reductions of the refusals of one place; after that they are only counted."""
ALL_SHARDS: Final = -1
"""Stands for a shard in the seeds of what all shards share."""


class Key(Protocol):
    """The part of a case that decides whether another kernel must be compiled."""

    @property
    def number(self) -> int:
        """A number for the key, the same in every process."""


class Case(Protocol):
    """What the house reads of a case of any operation: a frozen msgspec structure, which compares by value."""

    @property
    def seed(self) -> int:
        """The seed of its numbers."""

    @property
    def compile_key(self) -> Key:
        """The part that decides whether another kernel must be compiled."""


ExcludesKey: TypeAlias = Callable[[Any], bool]
"""Returns whether a campaign does not want any case of a compile key."""


class RoundSize(NamedTuple):
    """How much a round draws.

    ``layouts`` is the number of strided layouts beside the dense one, and ``compiling`` the number of relations that
    need a kernel of their own; None is all of them.
    """

    cases: int
    keys: int
    layouts: int | None = None
    compiling: int | None = None


class Drawing(NamedTuple):
    """What a round draws: a strategy of cases with a choice of a relation or None, and the relations to choose from."""

    strategy: SearchStrategy[tuple[Any, int | None]]
    relations: frozenset[str]


class SharedRound(Protocol):
    """A visit of one compile key, whose cases share kernels. Any shard can play it, each with cases of its own."""

    @property
    def key(self) -> Any:
        """The compile key."""

    @property
    def sample(self) -> int:
        """The seed of the cases that show which kernels it needs."""

    @property
    def turn(self) -> int:
        """The number of visits of the key before this one."""

    @property
    def is_usual(self) -> bool:
        """Whether its kernels are the usual variant."""

    def usual(self) -> SharedRound:
        """Return the round with the usual variant of its kernels, for a target that refuses the other."""

    def narrow(self, domain: Any) -> SharedRound:
        """Return the round with fewer kernels, for a target that is compiled for more than the key."""


class Lengths(NamedTuple):
    """Smaller cases of one kind: ``resized`` returns a case of a length from ``low`` up to ``high``, its own one."""

    low: int
    high: int
    resized: Callable[[int], Any]


class Batch(NamedTuple):
    """The sequences of a case, each as its cached and its new tokens; ``page`` is the size of a page, 0 for none."""

    sequences: tuple[tuple[int, int], ...]
    page: int = 0


Holds: TypeAlias = Literal[
    "lengths",
    "indices",
    "slots",
    "vector",
    "bias",
    "scale",
    "mask",
    "numbers",
    "cache",
    "output",
    "sums",
    "written",
]
"""What a tensor argument holds: a length of each sequence, int32 indices, int64 slots, a number of each head, a bias
between tokens, a scale, bits of a mask, numbers of the problem, a cache that is read, an output, log-sum-exps, or a
cache that is written."""


class TensorRole(NamedTuple):
    """What the argument of a role holds, and the features with which a case has it; none where all cases do."""

    holds: Holds
    features: frozenset[str] = frozenset()


def tensor_roles(roles: Mapping[str, Holds | tuple[Holds, str]]) -> dict[str, TensorRole]:
    """Return what the arguments of roles hold, some of them only with features, which are named in one text."""
    return {
        role: TensorRole(of) if isinstance(of, str) else TensorRole(of[0], frozenset(of[1].split()))
        for role, of in roles.items()
    }


Active: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns the context in which a healthy target runs."""


class Rule(Protocol):
    """A combination that a target refuses."""

    @property
    def refusal(self) -> Refusal:
        """Why the first case was refused."""

    def matches(self, case: Any) -> bool:
        """Return whether a case has the combination."""

    def words(self, domain: Any) -> tuple[str, ...]:
        """Return the combination in words."""


Probe: TypeAlias = Callable[[Sequence[Any]], Sequence[Refusal | None]]
"""Returns the refusals of cases, None for one that runs or fails; raises :class:`OutOfProbesError` at its limit."""


class Refusals:
    """What a target refuses, as far as a campaign has found out. This base class finds no rule and excludes nothing."""

    def __init__(self, domain: Any) -> None:
        self.full = domain
        self.domain = domain
        """The domain without what single rules exclude."""
        self.rules: list[Any] = []
        self.judged_cases = 0

    def judged(self, case: Any) -> None:
        """Keep a case that the target does not refuse; a rule that excludes it is dropped."""
        self.judged_cases += 1

    def refused(self, case: Any, refusal: Refusal, probe: Probe) -> tuple[Rule, ...]:
        """Return the rules that a refused case leads to; ``probe`` tells what is refused of other cases."""
        return ()

    def learn(self, rules: Iterable[Any]) -> None:
        """Take over rules of other shards, except for those that exclude a judged case."""

    def told(self, rule: Any) -> tuple[str, bytes]:
        """Return a name that follows from a rule, and the rule as bytes."""
        raise NotImplementedError("there are no rules")

    def heard(self, found: bytes) -> Rule | None:
        """Return a rule that another shard has told; None where it means nothing in this domain."""
        return None

    def excludes(self, case: Any) -> bool:
        """Return whether a case need not be launched, since a rule says that it is refused; true for nearly all."""
        return False

    def excludes_key(self, key: Any) -> bool:
        """Return whether a rule says that every case of a compile key is refused."""
        return False

    def drawing(self, number: int) -> tuple[Any, ExcludesKey | None]:
        """Return the domain of a round and what it leaves out; now and then everything, to check the rules."""
        if number % FULL_ROUND == FULL_ROUND - 1:
            return self.full, None
        return self.domain, self.excludes_key

    def hopeless(self, rounds: int) -> bool:
        """Return whether no case was judged in some rounds, so that more of them would be a waste."""
        return rounds >= FRUITLESS_ROUNDS and not self.judged_cases


class Operation(ABC):
    """One kind of problem, with all that the house asks of it.

    - ``families`` are the interfaces of its targets, the simplest first; no two operations have one name for theirs.
    - ``aspects`` is the table of everything that varies in a case, ``features`` those that a target may lack.
    - ``poisons`` maps traits of poison that spreads to what of the memory has it.
    - ``relations`` are its metamorphic relations.
    """

    name: ClassVar[str]
    families: ClassVar[Mapping[str, str]]
    case_type: ClassVar[type[Struct]]
    domain_type: ClassVar[type[Struct]]
    aspects: ClassVar[AspectTable]
    features: ClassVar[Mapping[str, Aspect]]
    relations: ClassVar[Mapping[str, Relation]]
    poisons: ClassVar[Mapping[str, str]] = {}
    tensor_roles: ClassVar[Mapping[str, TensorRole]] = {}
    """The roles whose arguments are tensors of the caller: those of contract trials."""
    is_exported: ClassVar[bool] = False
    """Whether a failure can be exported as a script."""
    needs_fresh_process: ClassVar[bool] = False
    """Whether a case is about what a process keeps, so that each look at a failing one needs a process of its own."""
    has_tolerances: ClassVar[bool] = False
    """Whether audits know fixed tolerances for it, and share the oracle's answers between the mutants of a case."""
    fp8_output: ClassVar[str] = ""
    """The trait of an output in fp8, whose NaN has the bits of an element that was never written."""

    # What a case is

    def features_of(self, case: Any) -> tuple[str, ...]:
        """Return the names of the features that identify a failure of the case, in a fixed order."""
        own = tuple(name for name, each in self.features.items() if each.identifies and each.value(case))
        return (*named_of(case), *own)

    def all_features_of(self, case: Any) -> frozenset[str]:
        """Return the names of all features of the case."""
        return frozenset(name for name, each in self.features.items() if each.value(case))

    def traits_of(self, case: Any, relation: str | None = None) -> frozenset[str]:
        """Return the traits of a case and of the second launch of its relation."""
        known = self.relations.get(relation or "")
        added = self.features[known.adds] if known is not None and known.adds else None
        return frozenset(self.aspects.traits_of(case, relation, added))

    def launch_path(self, case: Any) -> str:
        """Return the launch path that a case asks for; an empty string where its targets have one only."""
        return ""

    @abstractmethod
    def described(self, case: Any) -> list[Line]:
        """Return a case as (what, words) pairs; two different cases have different ones."""

    def numbers(self, case: Any) -> list[Line]:
        """Return the few numbers of a case that a report lists beside its description."""
        return []

    @abstractmethod
    def sizes_in_words(self, case: Any) -> tuple[str, ...]:
        """Return how large a case is, for a line of a table."""

    @abstractmethod
    def ratio_type(self, case: Any) -> str:
        """Return the type of the output by which ratios of error and bound are counted."""

    def has_fp8_output(self, case: Any) -> bool:
        """Return whether an output has an fp8 type."""
        return False

    def judged_alone(self, case: Any) -> tuple[Any, ...]:
        """Return the cases of which a launch of this one tells what is refused: itself, with usual arguments only."""
        return () if trial_of(case) is not None else (case,)

    def is_mostly_virtual(self, case: Any) -> bool:
        """Return whether a tensor of the case has far more addresses than memory, so that a copy of it is too large."""
        return any(each.virtual and each.value(case) for each in self.features.values())

    def is_served(self, case: Any) -> bool:
        """Return whether a case looks like what people serve."""
        return False

    def batch_of(self, case: Any) -> Batch | None:
        """Return the sequences of a case, which a report draws; None for a case without any."""
        return None

    def lengths_of(self, case: Any) -> Iterable[tuple[str, int]]:
        """Return the lengths of a case, by what they are, that a report counts by their powers of two."""
        return ()

    def sizes_of(self, case: Any) -> Iterable[tuple[str, int]]:
        """Return the sizes of a case, by what they are, that a report counts one by one."""
        return ()

    def limits_of(self, domain: Any) -> dict[str, str]:
        """Return what a domain promises, one row of a table for each limit."""
        return {}

    def types_of(self, case: Any) -> Iterable[tuple[str, str]]:
        """Return the dtype of each tensor of a case."""
        return ()

    @property
    def arguments(self) -> dict[str, Aspect]:
        """The aspects that a caller may choose by name: all features, and what has a name."""
        aspects = (*self.aspects.oddities, *self.aspects.kinds, *self.aspects.nuances)
        return {**self.features, **{aspect.name: aspect for aspect in aspects if aspect.name}}

    # Smaller cases

    @abstractmethod
    def unpromised(self, case: Any, domain: Any) -> str:
        """Return what of a case its target does not promise, in words; an empty string where it promises all."""

    def allows(self, case: Any, relation: str | None, domain: Any) -> bool:
        """Return whether a case lies in a domain and its relation holds."""
        if self.unpromised(case, domain):
            return False
        return relation is None or self.relations[relation].holds(case, domain)

    def simplicity(self, case: Any) -> tuple[float, ...]:
        """Return a key by which simpler cases of as many traits come first: fewer and smaller parts."""
        return ()

    def harmless(self, case: Any, places: Iterable[str]) -> Any:
        """Return the case with poison that does not spread in some places, which are values of ``poisons``."""
        return case

    def is_harmless(self, case: Any, place: str) -> bool:
        """Return whether the poison of a place does not spread in a case."""
        return True

    def parts(self, case: Any) -> int:
        """Return the number of parts of a batch that the shrinker may leave out."""
        return 1

    def with_parts(self, case: Any, kept: Sequence[int]) -> Any:
        """Return the case with some of its parts only; raises :class:`fuzz_attn.errors.CaseError` where it cannot."""
        return case

    def shorter(self, case: Any, part: int, number: int) -> Lengths | None:
        """Return the shorter cases of one part of the batch, the ``number``-th kind of them; None behind the last."""
        return None

    def with_keys(self, case: Any, number: int) -> Any:
        """Return a case like this one whose batch is one part of so many keys.

        Raises :class:`fuzz_attn.errors.CaseError` where there is none, or none that is judged in milliseconds.
        """
        raise CaseError(f"cases of {self.name} have no keys")

    def with_smaller_blocks(self, case: Any) -> Iterator[Callable[[Any], Any]]:
        """Yield changes to smaller blocks of memory, as many as before, of a case that has several of them.

        If such a case fails too, only the number of blocks counts, and lengths are measured there.
        """
        return iter(())

    def without_padding(self, case: Any) -> Any:
        """Return the case without memory behind the last row of its output; raises ``CaseError`` where it cannot."""
        return case

    def relations_of(self, case: Any, domain: Any) -> tuple[str, ...]:
        """Return the names of the relations that hold for a case."""
        return tuple(relation.name for relation in self.relations.values() if relation.holds(case, domain))

    def relation_in_words(self, name: str) -> str:
        """Return a relation's name and claim for a report; the bare name if the relation is unknown."""
        words = name.replace("_", " ")
        return f"{words}: {self.relations[name].claim}" if name in self.relations else words

    def has_second_case(self, relation: str) -> bool:
        """Return whether the second launch of a relation is like a case of its own."""
        return False

    def second_case(self, case: Any, relation: str) -> Any:
        """Return a case like the second launch of a relation; raises ``CaseError`` where the rest does not fit."""
        raise NotImplementedError(relation)

    # What is drawn

    @abstractmethod
    def drawing_of_round(
        self,
        domain: Any,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws: few compile keys, none that ``excludes``, and ``covered`` ones last."""

    @abstractmethod
    def strategy(self, domain: Any, wanted: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Return a strategy of all cases of a domain, which Hypothesis shrinks.

        Their compile keys have the values that are ``wanted`` by name, as far as keys of the domain can have them.
        """

    @abstractmethod
    def shared_round(self, domain: Any, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
        """Return a round that the shards of a campaign can share; those of ``covered`` keys come last at first."""

    @abstractmethod
    def drawing_of_shared(self, domain: Any, shared: Any) -> Drawing:
        """Return what a shared round draws."""

    @abstractmethod
    def may_play(self, shared: Any, domain: Any, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain after what the target refuses."""

    @abstractmethod
    def chosen_relation(self, choice: int, case: Any, domain: Any, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case; over all choices each is equally frequent."""

    @abstractmethod
    def uncovered(self, domain: Any, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""

    def refusals(self, domain: Any) -> Refusals:
        """Return what a campaign knows at first of the refusals of a target."""
        return Refusals(domain)

    # What is judged, by packages that import torch

    @abstractmethod
    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names; raises :class:`fuzz_attn.errors.TargetError` without one."""

    def takes(self, signature: Signature, stated: Binding) -> bool:
        """Return whether a signature is that of a target, where attention's names do not fit it."""
        return False

    def count_known(self, names: Iterable[str]) -> int:
        """Return how many parameters of a signature have names of this operation, where they are not attention's."""
        return 0

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        return [(name, name, why) for name, why in reasons.items()]

    def conventions_of(self, binding: Binding) -> list[str]:
        """Return how a target is called, beyond the roles of its parameters, in sentences."""
        return []

    def calibrated(self, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
        """Return a target once it is known how it is called, and what was learned in sentences."""
        return target, ()

    def not_drawn(self, promised: Any, domain: Any, target: Target) -> NotDrawn:
        """Return why features that exist are not drawn, where a target ``promised`` a domain before it was ready."""
        return {}

    def easy_case(self, domain: Any) -> Any:
        """Return a small case that any target of a domain can run; None where there is none."""
        return None

    def first_operation(
        self, experiment: Experiment, relation: str | None, healthy: Target, active: Active
    ) -> FirstOperation:
        """Return the first operation of a kernel that gives another value in a healthy target, run while ``active``."""
        return FirstOperation(f"kernels of {self.name} are not compared yet")

    def dtypes_of(self, case: Any) -> DTypes | None:
        """Return the types by which the arithmetic of a target's kernels is read; None where nothing is read."""
        return None

    @abstractmethod
    def experiment(
        self, case: Any, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""

    @abstractmethod
    def digest(self, case: Any) -> str:
        """Return 16 hexadecimal digits of the tensors of a case, to detect that they are made in another way."""

    @abstractmethod
    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""

    @abstractmethod
    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""

    def with_causes(self, verdict: Verdict, experiment: Experiment) -> Verdict:
        """Return a failed verdict with what a few more launches name as its cause."""
        return verdict

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return what the kernel did wrong, in words, from more launches."""
        words = f"nothing explains failures of {self.name} yet"
        return Explanation((Finding("unknown", words),))

    def with_repair(self, found: Explanation, experiment: Experiment, relation: str | None) -> Explanation:
        """Return an explanation with a change of the kernel that makes the case right, where one was found."""
        from fuzz_attn.forensics.repaired import with_repair  # noqa: PLC0415 - imports torch

        return with_repair(found, experiment, relation, self)

    @abstractmethod
    def near_case(self, case: Any, number: int) -> Any:
        """Return a case with the features of another one and other sizes; raises ``CaseError`` if it cannot exist."""


def derived_seed(campaign: int, shard: int, number: int) -> int:
    """Return the seed of one round of one shard, unrelated to the seeds of all other rounds."""
    text = f"{campaign}/{shard}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
