"""The registry of operations, and how data that holds cases of any of them is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import BindingError, CaseError, TargetError
from fuzz_attn.operations.attention.attention import Attention
from fuzz_attn.operations.cache_write.cache_writing import CacheWrite
from fuzz_attn.operations.calls.call_case import NAME as CALLS
from fuzz_attn.operations.calls.call_case import CallSequence
from fuzz_attn.operations.calls.call_sequences import CallSequences
from fuzz_attn.operations.merge_states.merging_states import MergeStates
from fuzz_attn.operations.operation import Operation

OPERATIONS: Final[dict[str, Operation]] = {
    operation.name: operation for operation in (Attention(), MergeStates(), CacheWrite())
}
"""Every operation by its name. Attention comes first: a file that names none is of it."""

FAMILIES: Final = {family: words for operation in OPERATIONS.values() for family, words in operation.families.items()}
"""The families of all operations, with their words."""

if TYPE_CHECKING:
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.targets.target import Target

    FamilyName: TypeAlias = str
else:
    FamilyName = Literal[tuple(FAMILIES)]
    """The name of a family of any operation."""

UNNAMED: Final = next(iter(OPERATIONS))
"""The operation of a case in a file that names none."""
NAME: Final = "operation"
"""The field that names the operation in a case's JSON."""

DEFAULT_DOMAIN: Final = OPERATIONS[UNNAMED].domain_type()
"""The domain of a message that holds none."""

AnyCase: TypeAlias = Any
"""A case of any operation, as a field of :class:`HoldsCases`."""
AnyDomain: TypeAlias = Any
"""A domain of any operation, likewise."""


_OF_TYPE: Final[dict[type, Operation]] = {
    kind: operation for operation in OPERATIONS.values() for kind in (operation.case_type, operation.domain_type)
}
_SEQUENCES: Final = {operation.case_type: CallSequences(operation) for operation in OPERATIONS.values()}
"""The sequences of calls of each operation, by the type of their cases."""


def operation_of(data: Any) -> Operation:
    """Return the operation of a case, of a sequence of them, or of a domain."""
    return _SEQUENCES[type(data.last)] if isinstance(data, CallSequence) else _OF_TYPE[type(data)]


def operation_of_family(family: str) -> Operation:
    """Return the operation that targets of a family do."""
    return next(each for each in OPERATIONS.values() if family in each.families)


def load_target(name: str, family: str | None, binding: Binding | None) -> Target:
    """Return the target that a specification names.

    Its operation is that of the family, which built-in targets have as their names, or else the first that the
    signature fits. Raises :class:`fuzz_attn.errors.TargetError` where none fits, with the reason of the likeliest.
    """
    known = family or name
    if known in FAMILIES:
        return operation_of_family(known).load_target(name, family, binding)
    if binding is not None and binding.whole and binding.family is None:  # attention's bindings say their family
        other = _other_operation(name, binding)
        if other is None:
            raise TargetError(f"target={name!r} has no operation that its binding fits")
        return other.load_target(name, family, binding)
    try:
        return OPERATIONS[UNNAMED].load_target(name, family, binding)
    except TargetError as error:
        if not isinstance(error.__cause__, BindingError):
            raise
        other = _other_operation(name, binding) or _likeliest(name)
        if other is None:
            raise
        return other.load_target(name, family, binding)


def _other_operation(name: str, binding: Binding | None) -> Operation | None:
    """Return the operation whose names the signature of a target has; None without one."""
    from fuzz_attn.binding.binding import signature_of  # noqa: PLC0415 - few targets get here
    from fuzz_attn.targets.loading import known_of, object_named  # noqa: PLC0415 - imports torch

    found = object_named(name)
    if not callable(found):
        return None
    stated, signature = known_of(name, binding), signature_of(found)
    return next((each for each in OPERATIONS.values() if each.takes(signature, stated)), None)


def _likeliest(name: str) -> Operation | None:
    """Return the operation of which a target without queries has most parameters, half of its own; None for none."""
    from fuzz_attn.binding.binding import signature_of  # noqa: PLC0415 - likewise
    from fuzz_attn.binding.roles import ROLE_OF  # noqa: PLC0415 - imports torch
    from fuzz_attn.targets.loading import object_named  # noqa: PLC0415 - likewise

    found = object_named(name)
    names = signature_of(found).names if callable(found) else ()
    if "query" in {ROLE_OF.get(each) for each in names}:
        return None
    counts = {each: each.count_known(names) for each in OPERATIONS.values()}
    likeliest = max(counts, key=lambda each: counts[each])
    return likeliest if counts[likeliest] > len(names) / 2 else None


class HoldsCases(Plain, frozen=True):
    """Data with cases or a domain in the fields that ``of_operations`` names, or in tuples there.

    JSON holds a case as its fields; that of another operation than attention also names the operation. Raises
    :class:`CaseError` for cases that cannot be, with the place in the file.
    """

    of_operations: ClassVar[tuple[str, ...]] = ("case",)

    def __post_init__(self) -> None:
        """Make cases of what was read."""
        for name in self.of_operations:
            value = getattr(self, name)
            if isinstance(value, tuple):
                if any(type(each) is dict for each in value):
                    force_setattr(self, name, tuple(_read(each, name) for each in value))
            elif not isinstance(value, msgspec.Struct):
                force_setattr(self, name, _read(value, name))
        super().__post_init__()


def _read(value: Any, field: str) -> Any:
    """Return a case or a domain that was read as plain data."""
    if isinstance(value, msgspec.Struct):
        return value
    named = value.get(NAME, UNNAMED) if isinstance(value, dict) else UNNAMED
    if named == CALLS and field != "domain":
        return _read_calls(value, field)
    if named not in OPERATIONS:
        raise CaseError(f"operation={named!r} must be one of {', '.join((*OPERATIONS, CALLS))}")
    operation = OPERATIONS[named]
    try:
        return msgspec.convert(value, operation.domain_type if field == "domain" else operation.case_type)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise CaseError(f"{what} - at `$.{field}{place or '`'}") from error


def _read_calls(value: dict[str, Any], field: str) -> CallSequence:
    """Return a sequence of calls that was read as plain data."""
    try:
        calls = msgspec.convert(value, CallSequence).calls
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise CaseError(f"{what} - at `$.{field}{place or '`'}") from error
    single = [_read(call.case, f"{field}.calls[{number}].case") for number, call in enumerate(calls)]
    return CallSequence(tuple(replace(call, case=case) for call, case in zip(calls, single, strict=True)))
