"""Call: the arguments of one call of a target, and what becomes of its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from fuzz_attn.bindings.binding import LEFT_OUT, Binding, python_value
from fuzz_attn.errors import ReturnedOutputError
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensor_types import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.problem import Problem
from fuzz_attn.targets.bindings.roles import ROLES
from fuzz_attn.targets.bindings.scratch import tensor_of
from fuzz_attn.targets.bindings.signature import Signature
from fuzz_attn.targets.bindings.values import has_default_scale


@dataclass(frozen=True)
class Call:
    """The keyword arguments of one call, and the problem that they come from."""

    arguments: dict[str, Any]
    problem: Problem

    def changed(self) -> tuple[str, ...]:
        """Return what the target changed of the memory that was made for the call, by the names of its content."""
        return tuple(copy.name for copy in self.problem.copies if copy.is_changed)

    def finish(self, result: object) -> int:
        """Copy each output that the target returns to the case's own.

        Return how many tensors it returned beside the outputs. Raises :class:`ReturnedOutputError` for a value that is
        no tensor of its output's shape and type.
        """
        values, outputs = _values_of(result), self.problem.tensors.outputs
        names = self.problem.binding.returned
        if len(values) < len(names):
            raise ReturnedOutputError(f"returned {len(values)} values where its binding promises {', '.join(names)}")
        for name, value in zip(names, values, strict=False):
            if name in outputs:
                take(value, outputs[name], self.problem.tensors.output_words(name))
        others = [value for name, value in zip_longest(names, values) if name not in outputs]
        return sum(isinstance(each, torch.Tensor) and not _is_output(each, outputs.values()) for each in others)


def _values_of(result: object) -> tuple[object, ...]:
    """Return what a target returned, value by value."""
    return tuple(result) if isinstance(result, tuple | list) and result else (result,)


def _is_output(value: torch.Tensor, outputs: Iterable[OutputTensor]) -> bool:
    """Return whether a tensor is a view of an output of the case."""
    return any(_is_memory_of(output.tensor, value) for output in outputs)


def _is_memory_of(output: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether a tensor is a view of the output; only dense ones on a device have memory with an address."""
    if other.layout is not torch.strided or other.device != output.device:
        return False
    return other.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()


def call_of(binding: Binding, signature: Signature, tensors: AttentionTensors) -> Call:
    """Return the call of a callable with this signature."""
    problem = Problem(tensors, binding)
    arguments: dict[str, Any] = {
        name: ROLES[role].value(problem)
        for name, role in binding.roles.items()
        if role != LEFT_OUT and not _is_implied(name, role, binding, signature, tensors)
    }
    arguments |= {name: python_value(value) for name, value in binding.constants.items()}
    arguments |= {name: tensor_of(name, recipe, problem) for name, recipe in binding.tensors.items()}
    return Call(arguments, problem)


def _is_implied(name: str, role: str, binding: Binding, signature: Signature, tensors: AttentionTensors) -> bool:
    """Return whether an argument is left out, because the launcher derives the same value."""
    optional = name in signature.names and name not in signature.required
    return role in binding.implied and optional and has_default_scale(tensors)


def take(found: object, output: OutputTensor, words: str) -> None:
    """Copy the live elements of an output that a target returned to the case's own; ``words`` are for messages."""
    own = output.tensor
    if not isinstance(found, torch.Tensor):
        raise ReturnedOutputError(f"returned a {type(found).__name__} where its binding promises {words}")
    if found.shape != own.shape or found.dtype != own.dtype:
        raise ReturnedOutputError(
            f"returned {found.dtype} {list(found.shape)} where {words} is {own.dtype} {list(own.shape)}"
        )
    output.copy_live(bits_of(found), bits_of(own))
