"""Binding: one family. How to recognise it, what inputs a callable's signature promises, and how it is called.

Calls are made by keyword, and only with arguments that the callable's signature has, since published versions differ
in what follows ``alibi_slopes``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family, Feature
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import TargetError
from fuzz_attn.inputs.tensors import AttentionTensors

Parameters: TypeAlias = frozenset[str]
Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Signature:
    """The keyword names that a callable takes; ``anything`` when it has ``**kwargs``.

    ``positional`` are required too, and cannot be given by keyword.
    """

    names: Parameters
    required: Parameters
    positional: Parameters
    anything: bool

    def takes(self, name: str) -> bool:
        """Return whether the callable can be given the argument by keyword."""
        return self.anything or name in self.names


def signature_of(call: Callable[..., object]) -> Signature:
    """Return the keyword names of a callable, also of one that Triton or functools wrapped."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise TargetError(f"has no signature that could be read: {error}") from error
    keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        names=frozenset(p.name for p in keyword),
        required=frozenset(p.name for p in keyword if p.default is p.empty),
        positional=frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


@dataclass(frozen=True)
class Binding:
    """One family.

    ``required`` are the arguments that a callable must take, ``known`` all others that the family can give it,
    ``late`` those of them that go to callables alone that name them. ``scratch`` makes arguments that are memory of
    their own, named in ``scratch_names``, for callables that name one of these. ``feature_arguments`` are what a
    callable must take for a feature to be drawn; features in ``undeclared`` are never taken from a signature.
    ``arguments`` makes all other arguments of a call, by the published names; those that ``defaults`` names say what
    leaving them out says.
    """

    family: Family
    required: Parameters
    known: Parameters
    feature_arguments: Mapping[Feature, tuple[str, ...]]
    arguments: Callable[[AttentionTensors], Arguments]
    late: Parameters = frozenset()
    scratch: Callable[[AttentionTensors], Arguments] = lambda _: {}
    scratch_names: Parameters = frozenset()
    undeclared: frozenset[Feature] = frozenset()
    paths: Callable[[Signature], tuple[LaunchPath, ...]] = lambda _: ("auto",)
    defaults: Callable[[AttentionTensors], Parameters] = lambda _: frozenset()

    def fits(self, signature: Signature) -> str:
        """Return why a signature is not this family's, or an empty string when it is."""
        lacking = sorted(name for name in self.required if not signature.takes(name))
        if lacking:
            return f"lacks {', '.join(lacking)}"
        if signature.positional:
            return f"requires {', '.join(sorted(signature.positional))} by position alone"
        features = {name for names in self.feature_arguments.values() for name in names}
        unknown = sorted(signature.required - self.required - self.known - features)
        return f"requires {', '.join(unknown)}, which the family does not know" if unknown else ""

    def domain(self, signature: Signature) -> Domain:
        """Return the inputs that a callable promises by its signature alone: features without argument are left out."""
        features = frozenset(
            feature
            for feature in FAMILIES[self.family].features - self.undeclared
            if all(signature.takes(name) for name in self.feature_arguments.get(feature, ()))
        )
        return Domain(family=self.family, features=features, paths=self.paths(signature), fp8_q_scales=False)

    def arguments_for(self, signature: Signature, tensors: AttentionTensors) -> Arguments:
        """Return the keyword arguments of one call, of those that the callable takes and has no default to say it."""
        spared = self.defaults(tensors) & (signature.names - signature.required)
        arguments = self.arguments(tensors)
        if not self.scratch_names.isdisjoint(signature.names):
            arguments |= self.scratch(tensors)
        return {name: value for name, value in arguments.items() if self._given(signature, name) and name not in spared}

    def _given(self, signature: Signature, name: str) -> bool:
        return name in signature.names or (signature.anything and name not in self.late)
