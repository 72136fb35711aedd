"""Call: the arguments of one call of a target, and what becomes of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuzz_attn.bindings.binding import LEFT_OUT, Binding, python_value
from fuzz_attn.errors import ReturnedOutputError
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
        """Copy a returned output to the case's own, where the target returns it.

        Return how many tensors it returned beside the output. Raises :class:`ReturnedOutputError` for a result that is
        no tensor of the output's shape and type.
        """
        values = _values_of(result)
        if self.problem.binding.output == "returned":
            take(values[0], self.problem.tensors)
            values = values[1:]
        output = self.problem.tensors.output
        return sum(isinstance(each, torch.Tensor) and not _is_memory_of(output, each) for each in values)


def _values_of(result: object) -> tuple[object, ...]:
    """Return what a target returned, value by value; the output is the first one, if it is returned."""
    return tuple(result) if isinstance(result, tuple | list) and result else (result,)


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


def take(found: object, tensors: AttentionTensors) -> None:
    """Copy the rows that a target must answer from the output that it returned to the case's own."""
    output = tensors.output
    if not isinstance(found, torch.Tensor):
        raise ReturnedOutputError(f"returned a {type(found).__name__} where its binding promises the output")
    if found.shape != output.shape or found.dtype != output.dtype:
        raise ReturnedOutputError(
            f"returned {found.dtype} {list(found.shape)} where the output is {output.dtype} {list(output.shape)}"
        )
    rows = sum(tensors.query_lens)
    answered = tensors.answered_tokens
    live = slice(0, rows) if answered is None else answered.nonzero().flatten()
    stored, given = (bits_of(tensor)[:rows] for tensor in (output, found))
    stored[live] = given[live]
