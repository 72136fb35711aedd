"""Call: the arguments of one call of a target, scratch of the caller included, and what becomes of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import torch

from fuzz_attn.binding.binding import LEFT_OUT, Binding, Size, TensorRecipe, python_value
from fuzz_attn.binding.problem import Problem
from fuzz_attn.binding.roles import ROLES
from fuzz_attn.binding.signature import Signature
from fuzz_attn.binding.values import has_default_scale
from fuzz_attn.errors import BindingError, ReturnedOutputError
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensor_types import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors


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
        values, outputs = values_of(result), self.problem.tensors.outputs
        names = self.problem.binding.returned
        if len(values) < len(names):
            raise ReturnedOutputError(f"returned {len(values)} values where its binding promises {', '.join(names)}")
        for name, value in zip(names, values, strict=False):
            if name in outputs:
                take(value, outputs[name], self.problem.tensors.output_words(name))
        others = [value for name, value in zip_longest(names, values) if name not in outputs]
        return sum(isinstance(each, torch.Tensor) and not _is_output(each, outputs.values()) for each in others)


def values_of(result: object) -> tuple[object, ...]:
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
    arguments |= {name: size_of(size, problem) for name, size in binding.sizes.items()}
    for name, value in tensors.launch.arguments:
        if not signature.takes(name):
            raise BindingError(f"the case has argument {name}={value!r}, which the signature lacks")
        arguments[name] = value
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
    # An axis for a batch before the others, or for the one token of each sequence behind the first.
    if found.shape in ((1, *own.shape), (own.shape[0], 1, *own.shape[1:])):
        found = found.reshape(own.shape)
    if found.shape != own.shape or found.dtype != own.dtype:
        raise ReturnedOutputError(
            f"returned {found.dtype} {list(found.shape)} where {words} is {own.dtype} {list(own.shape)}"
        )
    output.copy_live(bits_of(found), bits_of(own))


SIZES: Final[dict[str, Callable[[Problem], int]]] = {
    "num_tokens": lambda problem: problem.tensors.query.shape[0],
    "num_seqs": lambda problem: len(problem.tensors.query_lens),
    "num_query_heads": lambda problem: problem.tensors.query.shape[1],
    "num_kv_heads": lambda problem: problem.tensors.num_kv_heads,
    "head_size": lambda problem: problem.tensors.query.shape[2],
    "value_size": lambda problem: problem.tensors.output.shape[2],
    "rope_size": lambda problem: problem.tensors.query.shape[2] - problem.tensors.output.shape[2],
    "padded_head_size": lambda problem: 1 << (problem.tensors.query.shape[2] - 1).bit_length(),
    "block_size": lambda problem: problem.tensors.block_size,
    "num_blocks": lambda problem: problem.tensors.key_cache.shape[0],
    "max_query_len": lambda problem: problem.tensors.max_query_len,
    "max_seq_len": lambda problem: problem.tensors.max_seq_len,
}
"""The names that the shape of a tensor may use."""


def tensor_of(name: str, recipe: TensorRecipe, problem: Problem) -> torch.Tensor:
    """Return a constant tensor, or scratch that is not initialised, which the backends poison or watch."""
    shape = [size_of(size, problem) for size in recipe.shape]
    dtype = _dtype(recipe, problem)
    if recipe.value is None:
        return torch.empty(shape, dtype=dtype, device=problem.device)
    return problem.kept(name, torch.full(shape, recipe.value, dtype=dtype, device=problem.device))


def size_of(size: Size, problem: Problem) -> int:
    """Return a size: a number, or sums of products of names and numbers such as ``num_seqs * head_size + 1``."""
    if isinstance(size, int):
        return size
    return sum(math.prod(_term(term.strip(), size, problem) for term in part.split("*")) for part in size.split("+"))


def _term(term: str, size: str, problem: Problem) -> int:
    if term.isdecimal():
        return int(term)
    if term not in SIZES:
        raise BindingError(f"size {size!r} of a tensor has no {term!r}: choose among {', '.join(SIZES)}")
    return SIZES[term](problem)


def _dtype(recipe: TensorRecipe, problem: Problem) -> torch.dtype:
    if recipe.dtype == "query":
        return problem.tensors.query.dtype
    if recipe.dtype == "output":
        return problem.tensors.output.dtype
    dtype: torch.dtype = getattr(torch, recipe.dtype)
    return dtype
