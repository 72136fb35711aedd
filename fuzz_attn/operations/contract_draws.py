"""Contract draws: which drawn case becomes a contract trial, and of what.

Each form of each argument is tried once before any is tried again. What shows most bugs comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.contract_trial import OUTPUT_OF, TOGETHER, ContractTrial, Form, OtherType
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.operation import Holds, Operation

SHARES: Final = (1 / 12, 1 / 30, 1 / 100, 1 / 400)
"""The part of the cases that are trials, until each was tried once, twice, three times, and later on."""
SHARE_ON_GPU: Final = 1 / 1000
"""The part on a GPU, where a trial that the target takes compiles a kernel of its own."""
PATIENCE: Final = 20
"""After so many cases in a row none of which can be one of the trials that are left, all are tried again."""
ALIKE: Final = 3
"""Sequences of the same lengths in a trial of an expanded tensor."""

_Kind = tuple[Form, OtherType]
_PLACED: Final[tuple[_Kind, ...]] = (("offset", ""), ("device", ""))
FIRST: Final[dict[Holds, tuple[_Kind, ...]]] = {
    "lengths": (("stepped", ""), ("type", "int64"), ("expanded", "")),
    "indices": (("stepped", ""), ("type", "int64")),
    "slots": (("stepped", ""), ("type", "int32")),
    "vector": (("stepped", ""), ("type", "float16"), ("type", "float64")),
    "bias": (("stepped", ""), ("type", "float64")),
    "scale": (("type", "float64"), ("type", "float16")),
    "mask": (("stepped", ""), ("type", "uint8")),
    "numbers": (("swapped", ""), ("type", "wider"), ("in_place", "")),
    "cache": (("type", "wider"),),
    "output": (("swapped", ""), ("type", "wider")),
    "sums": (),
    "written": (),
}
"""What is tried first of an argument, by what it holds.

The last axis of numbers, caches and outputs stays dense: all such kernels take that for granted.
"""
LATER: Final[dict[Holds, tuple[_Kind, ...]]] = {
    **dict.fromkeys(FIRST, _PLACED),
    "output": (("offset", ""),),
    "sums": (("offset", ""),),
    "written": (("offset", ""),),
}
"""What is tried afterwards. An output on another device is no mistake that anybody makes."""
ORDINARY: Final[dict[tuple[Holds, Form], str]] = {
    ("numbers", "swapped"): "strides",
    ("output", "swapped"): "strides",
    ("output", "type"): "mixed_dtypes",
    ("vector", "type"): "bias_dtypes",
    ("bias", "type"): "bias_dtypes",
    ("bias", "stepped"): "inner_strides",
}
"""Forms that ordinary cases have where the target promises a feature."""
OPERANDS: Final[tuple[Holds, ...]] = ("numbers", "cache")
"""What kernels multiply. Those of 16 bits get no wider type there: dots cut float32 to tf32, in the simulator too."""
_NEVER_ON_GPU: Final = ("wider",)
"""On a GPU, dots of float32 are less exact than the bounds of 16-bit types allow."""


class ContractDraws:
    """Makes a contract trial of some of the drawn cases of a campaign on a target with a ``binding``."""

    def __init__(self, operation: Operation, domain: Any, binding: Binding, random: Random, *, on_gpu: bool) -> None:
        self._operation, self._domain, self._random = operation, domain, random
        self._on_gpu = on_gpu
        self._trials = [[*self._of(binding, kinds)] for kinds in (FIRST, LATER)]
        self._trials[0].append(ContractTrial("empty"))
        self._pending = self._shuffled()
        self._fruitless = 0
        self._shares = [SHARE_ON_GPU] if on_gpu else [*SHARES]

    def trial_of(self, case: Any) -> Any | None:
        """Return a drawn case as a trial, None where it stays an ordinary case."""
        if self._random.random() >= self._shares[0] or self._operation.is_mostly_virtual(case):
            return None
        for place, trial in enumerate(self._pending):
            tried = self.tried(case, trial)
            if tried is not None:
                del self._pending[place]
                self._fruitless = 0
                return tried
        self._fruitless += 1
        if not self._pending or self._fruitless > PATIENCE:
            self._pending, self._shares, self._fruitless = self._shuffled(), self._shares[1:] or self._shares, 0
        return None

    @property
    def first(self) -> tuple[ContractTrial, ...]:
        """The trials that are tried before those of addresses and devices."""
        return tuple(self._trials[0])

    def _of(self, binding: Binding, kinds: dict[Holds, tuple[_Kind, ...]]) -> Iterator[ContractTrial]:
        """Yield the trials of the parameters of a target."""
        roles = binding.parameter_of
        second = {other for role, other in TOGETHER.items() if role in roles}
        for role, tensor in self._operation.tensor_roles.items():
            if role not in roles:
                continue
            for form, to in kinds[tensor.holds]:
                possible = OUTPUT_OF.get(role) in roles if form == "in_place" else role not in second
                ordinary = ORDINARY.get((tensor.holds, form))
                if ordinary is not None and self._domain.allows(ordinary):
                    continue
                if possible and not (self._on_gpu and to in _NEVER_ON_GPU):
                    yield ContractTrial(form, role, to)

    def _shuffled(self) -> list[ContractTrial]:
        return [trial for group in self._trials for trial in self._random.sample(group, len(group))]

    def tried(self, case: Any, trial: ContractTrial) -> Any | None:
        """Return the case as a trial; None where it lacks the argument, or ordinary cases are like the trial."""
        try:
            if trial.form == "empty":
                empty = self._operation.with_parts(case, ())
                ordinary = empty == case or self._operation.allows(empty, None, self._domain)
                return None if ordinary else replace(empty, contract=trial)
            holds, features = self._operation.tensor_roles[trial.role]
            if features and features.isdisjoint(self._operation.all_features_of(case)):
                return None
            few = holds in ("lengths", "indices") and not self._has_many(case)
            if few or (trial.to == "wider" and holds in OPERANDS and self._has_narrow_dots(case)):
                return None
            if trial.form == "expanded":
                case = self._operation.with_parts(case, (0,) * min(ALIKE, max(2, self._operation.parts(case))))
                if not self._operation.allows(case, None, self._domain):
                    return None
            return replace(case, contract=trial)
        except (CaseError, IndexError):
            return None

    def _has_narrow_dots(self, case: Any) -> bool:
        """Return whether kernels multiply numbers of fewer than 32 bits."""
        dtypes = self._operation.dtypes_of(case)
        return dtypes is not None and {dtypes.q, dtypes.kv} != {"float32"}

    def _has_many(self, case: Any) -> bool:
        """Return whether a case has several sequences, one of them on several pages: else few indices tell nothing."""
        batch = self._operation.batch_of(case)
        if batch is None:
            return True
        return len(batch.sequences) > 1 and any(sum(lengths) > max(1, batch.page) for lengths in batch.sequences)
