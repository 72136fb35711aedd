"""Scratch: tensors that the caller provides, from the recipes of a binding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from fuzz_attn.bindings.binding import Size, TensorRecipe
from fuzz_attn.errors import BindingError
from fuzz_attn.targets.bindings.problem import Problem

SIZES: Final[dict[str, Callable[[Problem], int]]] = {
    "num_tokens": lambda problem: problem.tensors.query.shape[0],
    "num_seqs": lambda problem: len(problem.tensors.query_lens),
    "num_query_heads": lambda problem: problem.tensors.query.shape[1],
    "num_kv_heads": lambda problem: problem.tensors.num_kv_heads,
    "head_size": lambda problem: problem.tensors.query.shape[2],
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
