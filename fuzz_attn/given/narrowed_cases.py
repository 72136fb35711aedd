"""Narrowed cases: a strategy of the cases that a kernel promises, some of whose values a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from fuzz_attn.case.aspects import MASK_FEATURES, Aspect
from fuzz_attn.case.domain import within
from fuzz_attn.case.parts import DTypes
from fuzz_attn.errors import CaseError, DomainError
from fuzz_attn.given.kernel_judge import KernelJudge

AT_MOST: Final = "max_"
"""How the names of lengths begin, which the cases only may not exceed."""
_LENGTH: Final = Annotated[int, msgspec.Meta(ge=1)]


def narrowed_cases(judge: Callable[[], KernelJudge], chosen: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Return a strategy of cases of a kernel, with ``chosen`` values or values of chosen strategies.

    The kernel is loaded when the strategy is used first. It shrinks the values of strategies first, then as the
    strategies do that campaigns draw from. Raises :class:`DomainError` for an unknown name and for a value that the
    kernel does not promise.
    """
    return st.deferred(lambda: _narrowed(Choices(judge()), chosen))


def _narrowed(choices: Choices, chosen: Mapping[str, Any]) -> SearchStrategy[Any]:
    for name in chosen:
        choices.aspect(name)
    drawn = {name: value for name, value in chosen.items() if isinstance(value, SearchStrategy)}
    fixed = {name: choices.checked(name, value) for name, value in chosen.items() if name not in drawn}
    choices.check_together(fixed)
    return _cases(choices, fixed, drawn)


@st.composite
def _cases(
    draw: st.DrawFn, choices: Choices, fixed: Mapping[str, Any], drawn: Mapping[str, SearchStrategy[Any]]
) -> Any:
    values = {name: choices.checked(name, draw(strategy)) for name, strategy in drawn.items()}
    case = draw(choices.strategy(fixed, values))
    values = {**fixed, **values}
    try:
        for name, value in values.items():
            case = choices.having(case, name, value)
    except CaseError:
        reject()
    if not all(choices.has(case, name, value) for name, value in values.items()) or choices.unpromised(case):
        reject()
    return case


class Choices:
    """What a test may choose of the cases of a target."""

    def __init__(self, judge: KernelJudge) -> None:
        self._operation, self._domain, self._target = judge.operation, judge.ready.domain, judge.ready.target
        self._strategies: dict[frozenset[tuple[str, Any]], SearchStrategy[Any]] = {}

    def aspect(self, name: str) -> Aspect:
        """Return the aspect of a name; raises :class:`DomainError` for an unknown one."""
        known = self._operation.arguments
        if name not in known:
            promised = known.keys() - (self._operation.features.keys() - self._domain.features)
            raise DomainError(f"cases() has no argument {name!r}: choose among {', '.join(sorted(promised))}")
        return known[name]

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as cases have it; raises :class:`DomainError`, with name, value and bound, for a wrong one."""
        aspect, feature = self.aspect(name), self._feature(name)
        if feature and value and not self._domain.allows(feature):
            raise DomainError(f"{name}={value!r} must be left out: {self._target} does not promise {aspect.words}")
        if feature and isinstance(value, bool):
            return value
        value = self._one_of(name, value) if name in ("dtypes", "mask") else self._typed(name, value)
        bounds = self._bounds(name)
        if bounds and value and not within(value, bounds):
            listed = f"from {bounds[0]} to {bounds[1]}" if len(bounds) == 2 else f"one of {', '.join(map(str, bounds))}"
            raise DomainError(f"{name}={value!r} must be {listed}: {self._target} promises no other")
        return value

    def check_together(self, fixed: Mapping[str, Any]) -> None:
        """Raise :class:`DomainError` for features that the target does not support together."""
        features = {feature for name, value in fixed.items() if (feature := self._feature(name)) and value}
        excluded = next((each for each in self._domain.excluded if each <= features), None)
        if excluded:
            words = " together with ".join(self._operation.features[each].words for each in sorted(excluded))
            raise DomainError(f"{', '.join(fixed)} cannot be: {self._target} does not promise {words}")

    def strategy(self, fixed: Mapping[str, Any], values: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Return the strategy of the cases of the target that already have most of the values.

        Where a value comes from a strategy, only what leaves few domains counts: features, masks and types.
        """
        wanted = {name: value if self._bounds(name) else self._wanted(name, value) for name, value in fixed.items()}
        wanted |= {name: self._wanted(name, value) for name, value in values.items() if not self._bounds(name)}
        known = frozenset((name, value) for name, value in wanted.items() if value is not None)
        if known not in self._strategies:
            self._strategies[known] = self._operation.strategy(self._domain_of(dict(known)), dict(known))
        return self._strategies[known]

    def having(self, case: Any, name: str, value: Any) -> Any:
        """Return a case with a value if there is one; raises :class:`CaseError` where the rest does not allow it."""
        aspect = self.aspect(name)
        if self.has(case, name, value):
            return case
        is_flag = isinstance(aspect.value(case), bool)
        if isinstance(value, bool):
            return aspect.having(case, True) if value and is_flag and aspect.has_form else aspect.without(case)
        return replace(case, **{name: value}) if is_flag else aspect.having(case, value)

    def has(self, case: Any, name: str, value: Any) -> bool:
        """Return whether a case has a value; of a length, whether it is not larger."""
        found = self.aspect(name).value(case)
        if name.startswith(AT_MOST):
            return bool(found <= value)
        if isinstance(value, bool):
            return bool(found) == value
        return bool((getattr(case, name) if isinstance(found, bool) else found) == value)

    def unpromised(self, case: Any) -> str:
        """Return what of a case the target does not promise, in words."""
        return self._operation.unpromised(case, self._domain)

    def _feature(self, name: str) -> str:
        """Return the feature that an argument is about, an empty string for none."""
        return name if name in self._operation.features else self.aspect(name).feature or ""

    def _wanted(self, name: str, value: Any) -> Any:
        """Return what a value asks of compile keys: whether they have a feature, a mask, types, or None for nothing."""
        if feature := self._feature(name):
            return bool(value) if feature == name else None
        return value if name in ("dtypes", "mask") else None

    def _bounds(self, name: str) -> tuple[int, ...]:
        """Return the sizes that the domain allows, an inclusive range of two or all of them; nothing for no size."""
        bounds = getattr(self._domain, self.aspect(name).bounds or f"{name}s", ())
        return bounds if isinstance(bounds, tuple) and name not in ("dtypes", "mask") else ()

    def _domain_of(self, wanted: Mapping[str, Any]) -> Any:
        """Return the domain without the features that are not wanted, and with the only sizes that are."""
        sizes = {
            self.aspect(name).bounds or f"{name}s": (value, value)
            for name, value in wanted.items()
            if value and self._bounds(name)
        }
        left_out = {name for name, value in wanted.items() if value is False}
        return replace(self._domain, features=self._domain.features - left_out, **sizes)

    def _one_of(self, name: str, value: Any) -> Any:
        """Return a kind of mask, or types, of which a text names one for all tensors."""
        if name == "mask":
            known = [kind for kind, features in MASK_FEATURES.items() if all(map(self._domain.allows, features))]
        else:
            known = list(self._domain.dtypes)
        if name == "dtypes" and isinstance(value, DTypes):
            return value
        if value not in known:
            raise DomainError(f"{name}={value!r} must be one of {', '.join(known)}: {self._target} promises no other")
        return value if name == "mask" else DTypes(value, value, value)

    def _typed(self, name: str, value: Any) -> Any:
        """Return a value of the type of its field, which also the simplest case of the target can have."""
        case_type = self._operation.case_type
        kind = _LENGTH if name.startswith(AT_MOST) else _field_types(case_type).get(name)
        if kind is None:
            raise DomainError(f"{name}={value!r} must be True or False")
        try:
            value = msgspec.convert(value, kind)
            easy = self._operation.easy_case(self._domain)
            if name in case_type.__struct_fields__ and easy is not None:
                replace(easy, **{name: value})
            return value
        except (msgspec.ValidationError, CaseError) as error:
            raise DomainError(f"{name}={value!r} is no value of a case: {error}") from error


def _field_types(case_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of the fields of a case, and of the fields of its parts."""
    fields = {field.name: field.type for field in msgspec.structs.fields(case_type)}
    parts = (kind for kind in fields.values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct))
    return {field.name: field.type for part in parts for field in msgspec.structs.fields(part)} | fields
