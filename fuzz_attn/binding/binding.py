"""Binding: how a target is called, as plain data that goes into messages, files and tables, and is read from a file.

It gives parameters of a signature their roles. Layouts say how the caches lie in memory. Conventions are what a binding
must state before its target can be called.

A new layout is one entry of ``LAYOUTS``. The axes of a pattern are in the order of the tensor's dimensions; axes in
parentheses share a dimension. ``dim`` is the head size, or in pieces of 16 bytes ``piece x``.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from fuzz_attn.case.aspects import Feature
from fuzz_attn.case.cache_layout import HEADS, LATENT, ROWS, SLOTS, SPLIT, CacheFormat
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import MOST_ARGUMENTS
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import BindingError, TargetError
from fuzz_attn.foreign_files import content_of

Groups: TypeAlias = tuple[tuple[str, ...], ...]

AXES: Final = ("block", "slot", "head", "piece", "x")
"""Every axis, in the order of a cache ``[num_blocks, block_size, num_kv_heads, head_size]``."""
_PATTERN: Final = re.compile(r"\(([a-z ]+)\)|([a-z]+)")


class Layout(Plain, frozen=True):
    """The patterns of both caches. ``words`` describe it in tables."""

    keys: str
    values: str
    words: str = "a layout of its own"

    def __post_init__(self) -> None:
        """Refuse a pattern that lacks an axis or has it twice."""
        super().__post_init__()
        for pattern in (self.keys, self.values):
            found = [axis for group in groups_of(pattern) for axis in group]
            if sorted(found) != sorted(AXES):
                raise BindingError(f"layout pattern {pattern!r} must name block, slot, head and dim, each once")

    @property
    def pages(self) -> bool:
        """Whether the first dimension counts pages only, so that a block table can index it."""
        return groups_of(self.keys)[0] == ("block",)


def groups_of(pattern: str) -> Groups:
    """Return the axes of each dimension of a pattern, ``dim`` as its two parts."""
    groups = [(inside or single).split() for inside, single in _PATTERN.findall(pattern)]
    return tuple(tuple(part for axis in group for part in _parts(axis)) for group in groups)


def _parts(axis: str) -> tuple[str, ...]:
    return ("piece", "x") if axis == "dim" else (axis,)


LAYOUTS: Final[dict[str, Layout]] = {
    "rows": Layout(
        "block slot head dim", "block slot head dim", "[num_blocks, block_size, num_kv_heads, head_size] (NHD)"
    ),
    "heads_first": Layout(
        "block head slot dim", "block head slot dim", "[num_blocks, num_kv_heads, block_size, head_size] (HND)"
    ),
    "split": Layout(
        "block head piece slot x",
        "block head dim slot",
        "keys [num_blocks, num_kv_heads, head_size // x, block_size, x], values [num_blocks, num_kv_heads, head_size, "
        "block_size]",
    ),
    "slots": Layout("(block slot) head dim", "(block slot) head dim", "[num_slots, num_kv_heads, head_size]"),
    "latent": Layout(
        "block slot (head dim)",
        "block slot (head dim)",
        "one cache [num_blocks, block_size, head_size], whose first elements are the values",
    ),
}
"""Every layout that has a name."""


_SLOTS: Final = LAYOUTS["slots"]
_FORMATS: Final = {"rows": ROWS, "heads_first": HEADS, "slots": SLOTS, "split": SPLIT, "latent": LATENT}
"""The format in which caches lie for each layout that has a name."""


@cache
def format_of(layout: Layout | None, family: Family) -> CacheFormat | None:
    """Return the format in which the caches of a family's cases lie for a target with this layout.

    None for a pattern of one's own, of which a call gets a copy; the family's own where no layout is stated.
    """
    own = FAMILIES[family].cache
    if layout is None or (own.is_packed and (layout.keys, layout.values) == (_SLOTS.keys, _SLOTS.values)):
        return own
    named = ((LAYOUTS[name], each) for name, each in _FORMATS.items())
    return next((each for other, each in named if (other.keys, other.values) == (layout.keys, layout.values)), None)


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
    - ``layout``: how the caches lie in memory (:mod:`fuzz_attn.binding.binding`).
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


Names: TypeAlias = frozenset[str]
DECORATED: Final = "decorated_by_fuzz_attn"
"""The attribute of a test that holds the function which ``fuzz_attn.fuzz`` decorates, and which the test fuzzes."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable.

    ``names`` can be passed by keyword, in the order of the signature; ``required`` are those of them without a default.
    ``positional`` are required and cannot be passed by keyword. ``takes_any_keyword`` is true for a callable with
    ``**kwargs``. ``defaults`` are the values of the others, ``annotations`` the text of each annotation.
    """

    names: tuple[str, ...]
    required: Names
    positional: Names
    takes_any_keyword: bool
    defaults: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def takes(self, name: str) -> bool:
        """Return whether the argument can be passed by keyword."""
        return self.takes_any_keyword or name in self.names


def signature_of(call: Callable[..., object]) -> Signature:
    """Return the parameters of a callable, also of one that Triton or functools wrapped."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise TargetError(f"has no signature that could be read: {error}") from error
    keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        names=tuple(p.name for p in keyword),
        required=frozenset(p.name for p in keyword if p.default is p.empty),
        positional=frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty),
        takes_any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
        defaults={p.name: p.default for p in keyword if p.default is not p.empty},
        annotations={p.name: _text(p.annotation) for p in keyword if p.annotation is not p.empty},
    )


def _text(annotation: Any) -> str:
    if isinstance(annotation, str) or "Literal[" in str(annotation):
        return str(annotation)
    return str(getattr(annotation, "__name__", annotation))


_LITERAL: Final = re.compile(r"Literal(\[[^\[\]]*\])")


def unexercised(signature: Signature, binding: Binding) -> dict[str, Any]:
    """Return the defaults of the parameters that are neither passed nor paths."""
    bound = {*binding.roles, *binding.without_role, *binding.paths}
    return {name: default for name, default in signature.defaults.items() if name not in bound}


def default_in_words(name: str, default: object) -> str:
    """Return an argument with its default, if that is a plain value: ``chunk=-1``."""
    plain = default is None or isinstance(default, bool | int | float | str)
    return f"{name}={default!r}" if plain else name


def other_values(name: str, signature: Signature) -> tuple[PathValue, ...]:
    """Return the other values of an optional argument, where its default or its annotation tells all of them.

    That is so for booleans and for ``Literal``. A number or a text may mean anything.
    """
    default = signature.defaults[name]
    if isinstance(default, bool):
        return (not default,)
    found = _LITERAL.search(signature.annotations.get(name, ""))
    try:
        listed = ast.literal_eval(found[1]) if found else []
    except (ValueError, SyntaxError):  # a name in it, such as one of an enumeration
        return ()
    return tuple(value for value in listed if isinstance(value, bool | int | str) and not _is(value, default))


def arguments_of(signature: Signature, binding: Binding) -> tuple[tuple[str, tuple[PathValue, ...]], ...]:
    """Return the values other than the default of each optional argument that a binding states as a path.

    Raises :class:`BindingError` for a parameter without a default, and for equal values.
    """
    paths = {name: tuple(map(python_value, values)) for name, values in binding.paths.items()}
    for name, values in paths.items():
        if name not in signature.defaults:
            known = ", ".join(signature.defaults) or "it has none"
            raise BindingError(f"paths.{name} must be a parameter with a default: {known}")
        if len(set(values)) < len(values):
            raise BindingError(f"paths.{name}={list(values)} must have different values, and 1 equals true")
    return _beside_defaults(paths, signature)


def _beside_defaults(
    paths: Mapping[str, tuple[PathValue, ...]], signature: Signature
) -> tuple[tuple[str, tuple[PathValue, ...]], ...]:
    others = {
        name: tuple(value for value in values if not _is(value, signature.defaults[name]))
        for name, values in paths.items()
    }
    return tuple((name, values) for name, values in others.items() if values)


def _is(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "layout": tuple(name for name in LAYOUTS if name != "latent"),  # a family of its own
    "window": get_args(WindowSpelling),
    "scales": get_args(ScaleForm),
    "scale_direction": get_args(ScaleDirection),
    "fp8": get_args(Fp8Form),
}
"""Every convention that names do not tell, with its values."""


def open_in(binding: Binding) -> tuple[str, ...]:
    """Return the conventions that matter for the roles of a binding and that it does not state."""
    return tuple(name for name in CHOICES if getattr(binding, name) is None and matters(name, binding))


def matters(name: str, binding: Binding) -> bool:
    """Return whether an argument of a call depends on a convention."""
    roles = set(binding.parameter_of)
    if name == "layout":
        return True
    return "window" in roles if name == "window" else bool({"k_scale", "v_scale"} & roles)


def how_to_state(name: str) -> str:
    """Return the line of a binding file that states a convention."""
    return " or ".join(f'{name} = "{value}"' for value in CHOICES[name])


WORDS: Final[dict[str, dict[str, str]]] = {
    "layout": {name: f"caches are {layout.words}" for name, layout in LAYOUTS.items()},
    "output": {"in_place": "the output is written in place", "returned": "the output is returned"},
    "window": {
        "pair": "a window of W keys is passed as (W - 1, 0)",
        "keys": "a window counts keys, a row's own included",
        "left": "a window counts the keys before a row's own",
    },
    "scales": {
        "tensor": "scales are tensors of one element",
        "float": "scales are floats",
        "per_head": "scales are tensors with one element for each KV head",
    },
    "scale_direction": {"multiply": "scales multiply", "divide": "scales divide"},
    "fp8": {"typed": "fp8 caches have torch's fp8 types", "bytes": "fp8 caches are passed as bytes (uint8)"},
    "family": {
        "unified": "every key is read from the cache",
        "paged": "each sequence has one query token",
        "context": "the keys of new tokens are read packed",
        "chunked": "the keys of new tokens are read packed where a sequence has several",
    },
}
"""Convention, then value: a phrase without a capital and a full stop."""


def phrase(name: str, value: Any) -> str:
    """Return a convention in words."""
    if value is None:
        return f"{name} is open"
    return WORDS[name][value] if isinstance(value, str) and name in WORDS else f"{name} is {value!r}"


def differences(binding: Binding, other: Binding) -> str:
    """Return in words what ``other`` says and ``binding`` does not."""
    names = [name for name in Binding.__struct_fields__ if getattr(binding, name) != getattr(other, name)]
    return ", ".join(_difference(name, getattr(binding, name), getattr(other, name)) for name in names)


def _difference(name: str, before: Any, after: Any) -> str:
    if name == "roles":
        return ", ".join(f"{each} is the {after[each]}" for each in after if before.get(each) != after[each])
    if name == "off":
        return ", ".join(
            f"{each} is off as {after[each]!r}" for each in after if before.get(each, LEFT_OUT) != after[each]
        )
    return phrase(name, after)


def capital(words: str) -> str:
    """Return words with a capital first letter."""
    return words[:1].upper() + words[1:]


def parameters_of(binding: Binding, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield parameter, role and reason for every parameter of a target."""
    for name in dict.fromkeys((*binding.roles, *binding.without_role, *reasons)):
        yield name, _role(name, binding), reasons.get(name, "stated")


def _role(name: str, binding: Binding) -> str:
    if name in binding.roles:
        return binding.roles[name]
    if name in binding.constants:
        return f"the constant {binding.constants[name]!r}"
    if name in binding.paths:
        return f"a path, also {' and '.join(map(repr, binding.paths[name]))}"
    if name in binding.sizes:
        return f"the size {binding.sizes[name]}"
    return _tensor(binding.tensors[name]) if name in binding.tensors else ""


def _tensor(recipe: TensorRecipe) -> str:
    what = "scratch" if recipe.value is None else f"tensor of {recipe.value}"
    return f"{what} {recipe.dtype} [{', '.join(map(str, recipe.shape))}]"


def conventions_of(binding: Binding) -> Iterator[str]:
    """Yield a sentence for each convention that matters for the parameters of a target, and each stated rounding."""
    for name in ("output", *(name for name in CHOICES if matters(name, binding))):
        yield capital(f"{phrase(name, getattr(binding, name))}.")
    for role, value in binding.off.items():
        if role in binding.parameter_of:
            yield f"{role} is off as {value!r}."
    for name, value in binding.rounding.items():
        yield f"rounding.{name} is {value!r} (stated)."
