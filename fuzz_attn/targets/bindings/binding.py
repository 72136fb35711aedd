"""Binding: how the kernels of one family are called, as a table of parameters.

From the table follow whether a signature belongs to the family, which inputs the signature promises, and the arguments
of a call. Arguments are passed by keyword, and only those that the callable takes: published versions of one kernel
differ in their last parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from msgspec.structs import replace

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import ALL_FEATURES, FAMILIES, Family, Feature
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import DomainError, TargetError
from fuzz_attn.inputs.tensors import AttentionTensors

Names: TypeAlias = frozenset[str]
Arguments: TypeAlias = dict[str, Any]


def passed_scale(tensors: AttentionTensors, scale: torch.Tensor | None) -> torch.Tensor | None:
    """Return a scale of q, k or v in the form in which the case passes it."""
    form = tensors.form.scales
    if scale is None or (form == "omitted" and float(scale) == 1.0):
        return None
    if form == "scalar":
        return scale.reshape(())
    return scale.expand(max(1, len(tensors.query_lens)), tensors.num_kv_heads) if form == "expanded" else scale


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable.

    ``names`` can be passed by keyword, ``required`` are those of them without a default. ``positional`` are required
    and cannot be passed by keyword. ``takes_any_keyword`` is true for a callable with ``**kwargs``.
    """

    names: Names
    required: Names
    positional: Names
    takes_any_keyword: bool

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
        names=frozenset(p.name for p in keyword),
        required=frozenset(p.name for p in keyword if p.default is p.empty),
        positional=frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty),
        takes_any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


@dataclass(frozen=True)
class Parameter:
    """One parameter of a published signature.

    ``value`` computes the argument. A callable of the family must take a ``required`` parameter. A case may only have
    one of ``features`` if the callable takes the parameter. An ``opt_in`` argument is passed only to callables that
    name it, never through ``**kwargs``. If ``is_default`` returns True, the argument is left out where the callable has
    a default for it.
    """

    name: str
    value: Callable[[AttentionTensors], object]
    required: bool = False
    features: tuple[Feature, ...] = ()
    opt_in: bool = False
    is_default: Callable[[AttentionTensors], bool] | None = None

    def is_passed(self, signature: Signature, tensors: AttentionTensors) -> bool:
        """Return whether a call of such a callable passes the argument."""
        if self.name not in signature.names:
            return signature.takes_any_keyword and not self.opt_in
        return self.is_default is None or self.name in signature.required or not self.is_default(tensors)


@dataclass(frozen=True)
class Binding:
    """The published signature of one family.

    ``undeclared`` features never follow from a signature: a target has to declare them. A callable that names all of
    ``path_parameters`` can be told which kernel to launch, the 2D or the 3D one.
    """

    family: Family
    parameters: tuple[Parameter, ...]
    undeclared: frozenset[Feature] = frozenset()
    path_parameters: tuple[str, ...] = ()

    @cached_property
    def required(self) -> Names:
        """The names that a callable must take."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.required)

    @cached_property
    def known(self) -> Names:
        """The names of all parameters."""
        return frozenset(parameter.name for parameter in self.parameters)

    def misfit(self, signature: Signature) -> str:
        """Return why a signature is not of this family; empty if it is."""
        missing = sorted(name for name in self.required if not signature.takes(name))
        if missing:
            return f"lacks {', '.join(missing)}"
        if signature.positional:
            return f"requires {', '.join(sorted(signature.positional))} as positional-only arguments"
        unknown = sorted(signature.required - self.known)
        return f"requires {', '.join(unknown)}, which the family does not know" if unknown else ""

    def domain(self, signature: Signature) -> Domain:
        """Return the inputs that a signature promises: those features whose parameters it all takes."""
        features = self.expressible(signature) - self.undeclared
        return Domain(family=self.family, features=features, paths=self._paths(signature), fp8_q_scales=False)

    def declared(self, domain: Domain, signature: Signature) -> Domain:
        """Return a domain that a target declares; without a choice of features it gets those of its signature.

        Raises :class:`DomainError` for a domain that needs parameters which the signature lacks.
        """
        if domain.features == ALL_FEATURES:
            return self._checked(replace(domain, features=self.domain(signature).features), signature)
        expressible = self.expressible(signature)
        lacking = sorted(domain.features - expressible)
        if lacking:
            has = ", ".join(sorted(expressible)) or "none"
            raise DomainError(f"domain.features names {', '.join(lacking)}, which its signature lacks; it has {has}")
        return self._checked(domain, signature)

    def expressible(self, signature: Signature) -> frozenset[Feature]:
        """Return the features whose parameters a signature all takes."""
        missing = (parameter for parameter in self.parameters if not signature.takes(parameter.name))
        return FAMILIES[self.family].features - {feature for parameter in missing for feature in parameter.features}

    def _checked(self, domain: Domain, signature: Signature) -> Domain:
        chooses = "num_segments" in signature.names or self._paths(signature) != ("auto",)
        if domain.paths != ("auto",) and not chooses:
            ways = "num_segments" if not self.path_parameters else f"num_segments, or {', '.join(self.path_parameters)}"
            raise DomainError(f"domain.paths={domain.paths} needs a signature with {ways}")
        if domain.tile_hint and "tile_size" not in signature.names:
            raise DomainError("domain.tile_hint=True needs a signature with tile_size")
        return domain

    def arguments_for(self, signature: Signature, tensors: AttentionTensors) -> Arguments:
        """Return the keyword arguments of a call of a callable with this signature."""
        return {
            parameter.name: parameter.value(tensors)
            for parameter in self.parameters
            if parameter.is_passed(signature, tensors)
        }

    def _paths(self, signature: Signature) -> tuple[LaunchPath, ...]:
        chooses = bool(self.path_parameters) and signature.names.issuperset(self.path_parameters)
        return ("2d", "3d") if chooses else ("auto",)
