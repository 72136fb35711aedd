"""Binding: how a target is called, as plain data that goes into messages, files and tables, and is read from a file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.binding.layouts import LAYOUTS, Layout
from fuzz_attn.case.aspects import Feature
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import MOST_ARGUMENTS
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import BindingError
from fuzz_attn.foreign_files import content_of

Constant: TypeAlias = bool | int | float | str | tuple[bool | int | float | str, ...] | None
"""A value of a TOML file; the text ``None`` is Python's None, which TOML lacks."""

WindowSpelling: TypeAlias = Literal["pair", "keys", "left"]
"""How a window of W keys is spelled: ``(W - 1, 0)``, W, or W - 1."""
ScaleForm: TypeAlias = Literal["tensor", "float", "per_head"]
ScaleDirection: TypeAlias = Literal["multiply", "divide"]
Fp8Form: TypeAlias = Literal["typed", "bytes"]
OutputForm: TypeAlias = Literal["in_place", "returned"]
DTypeOfTensor: TypeAlias = Literal[
    "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "query", "output"
]
Limit: TypeAlias = bool | int | tuple[int | str | tuple[str, ...], ...] | dict[str, bool | str]
"""The value of one field of a domain."""
Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**31)] | str

_GROUPS: Final = "roles, constants, tensors, sizes and paths"
PathValue: TypeAlias = bool | int | float | str | None
MOST_VALUES: Final = 16
"""Values of an optional argument at most: each is covered with each feature."""
LEFT_OUT: str = "default"
"""The role of a parameter that keeps its default."""


class TensorRecipe(Plain, frozen=True):
    """A tensor that the caller provides: scratch, or with ``value`` a constant one.

    A size is a number or a text such as ``head_size + 1``; the names are those of
    :data:`fuzz_attn.binding.call.SIZES`. ``dtype`` may be that of the query or the output.
    """

    shape: tuple[Size, ...]
    dtype: DTypeOfTensor = "float32"
    value: float | int | None = None


class Binding(Plain, frozen=True):
    """How a target is called. A field that is None, and a parameter that is not listed, is not stated.

    - ``family``: what is computed (:mod:`fuzz_attn.case.families`).
    - ``roles``: the role of each parameter that is passed; ``default`` leaves it at its default.
    - ``constants``, ``tensors`` and ``sizes``: arguments that have no role. A size is computed from those of the case,
      such as ``head_size + 1``.
    - ``paths``: the values of optional arguments that have no role and must not change a result, such as ``use_tma``.
      Cases have each of them, and the default.
    - ``layout``: how the caches lie in memory (:mod:`fuzz_attn.binding.layouts`).
    - ``output``: whether the target writes its output or returns it. ``returns``: the names of the outputs that it
      returns, in order, if it returns more than ``out``; any other name stands for a value that nothing checks.
    - ``window``, ``scales``, ``scale_direction``, ``fp8``: conventions. ``fp8`` caches are passed as torch's fp8 types
      or as bytes.
    - ``off``: what the argument of a role is where the case does not have the feature.
    - ``implied``: roles whose argument is left out where it equals what launchers derive themselves.
    - ``index_dtype``: the type of lengths and indices that are made for the call.
    - ``domain``: fields of :class:`fuzz_attn.case.domain.Domain`, what the target handles of what its roles express.
    - ``promises``: features that no signature tells, in addition to those that follow from the roles.
    - ``contracts``: whether arguments in unusual forms are tried (:mod:`fuzz_attn.case.contract_trial`).
    - ``whole``: nothing is open or left to the names of parameters.
    - ``rounding``: fields of :class:`fuzz_attn.oracle.rounding_model.RoundingModel`, how the target rounds.
    - ``instance``: arguments of the constructor, where the target is a method of a class.
    """

    family: Family | None = None
    roles: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it for each struct
    constants: dict[str, Constant] = {}  # noqa: RUF012 - as above
    tensors: dict[str, TensorRecipe] = {}  # noqa: RUF012 - as above
    sizes: dict[str, Size] = {}  # noqa: RUF012 - as above
    paths: dict[str, tuple[PathValue, ...]] = {}  # noqa: RUF012 - as above
    layout: str | Layout | None = None
    output: OutputForm | None = None
    returns: tuple[str, ...] = ()
    window: WindowSpelling | None = None
    scales: ScaleForm | None = None
    scale_direction: ScaleDirection | None = None
    fp8: Fp8Form | None = None
    off: dict[str, Constant] = {}  # noqa: RUF012 - as above
    implied: tuple[str, ...] = ()
    index_dtype: Literal["int32", "int64"] = "int32"
    instance: dict[str, Constant] | None = None
    domain: dict[str, Limit] = {}  # noqa: RUF012 - as above
    promises: tuple[Feature, ...] = ()
    contracts: bool = True
    whole: bool = False
    rounding: dict[str, Constant] = {}  # noqa: RUF012 - as above

    def __post_init__(self) -> None:
        """Refuse a parameter that is stated twice, and a layout without such a name."""
        super().__post_init__()
        groups = (self.roles, self.constants, self.tensors, self.sizes, self.paths)
        names = [name for group in groups for name in group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BindingError(f"parameter {twice[0]!r} must be in one of {_GROUPS}, and is in two")
        for name, values in self.paths.items():
            if not 1 <= len(values) <= MOST_VALUES:
                raise BindingError(f"paths.{name}={list(values)} must have 1 to {MOST_VALUES} values")
        if len(self.paths) > MOST_ARGUMENTS:
            raise BindingError(f"paths={list(self.paths)} must name at most {MOST_ARGUMENTS} arguments")
        if isinstance(self.layout, str) and self.layout not in LAYOUTS:
            raise BindingError(f"layout={self.layout!r} must be one of {', '.join(LAYOUTS)}, or a table of patterns")

    @property
    def without_role(self) -> tuple[str, ...]:
        """The parameters whose arguments have no role."""
        return (*self.constants, *self.tensors, *self.sizes)

    @property
    def parameter_of(self) -> dict[str, str]:
        """The parameter of each role."""
        return {role: parameter for parameter, role in self.roles.items() if role != LEFT_OUT}

    @property
    def returned(self) -> tuple[str, ...]:
        """The outputs that the target returns, in order."""
        return self.returns or (("out",) if self.output == "returned" else ())

    @property
    def cache_layout(self) -> Layout | None:
        """The layout of the caches; None where it is not stated."""
        return LAYOUTS[self.layout] if isinstance(self.layout, str) else self.layout


def binding_of(stated: Binding | dict[str, Any] | None) -> Binding | None:
    """Return a binding that a user states in Python, checked; raises :class:`BindingError` with the wrong place."""
    if stated is None or isinstance(stated, Binding):
        return stated
    try:
        return msgspec.convert(stated, Binding)
    except msgspec.ValidationError as error:
        raise BindingError(f"binding: {error}") from error


def python_value(value: Constant) -> Any:
    """Return the Python value of a constant: None for the text ``None``, tuples for lists."""
    if value == "None":
        return None
    return tuple(map(python_value, value)) if isinstance(value, tuple | list) else value


LARGEST_BYTES: Final = 2**20
"""No binding file is larger."""


def read_binding(path: Path) -> Binding:
    """Return the binding that a file states; raises :class:`BindingError`, in one line that names the file."""
    try:
        table = tomllib.loads(content_of(path, LARGEST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, a huge number
        raise BindingError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    known = Binding.__struct_fields__
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise BindingError(f"{path}: has an unknown key {unknown[0]!r}; known are: {', '.join(known)}")
    try:
        stated = binding_of(table)
    except BindingError as error:
        raise BindingError(f"{path}: {error}") from error
    assert stated is not None
    return stated
