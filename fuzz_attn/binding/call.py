"""Call: the arguments of one call of a target, scratch of the caller included, and what becomes of its result.

An unusual call has arguments in the form of a contract trial, and takes back what the target wrote to them.

Each changed argument has memory of its own, full of bytes that are NaN or -1, between guards.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from fuzz_attn.binding.binding import LEFT_OUT, Binding, Signature, Size, TensorRecipe, python_value
from fuzz_attn.binding.roles import ROLES
from fuzz_attn.binding.values import Problem, guarded_memory, has_default_scale
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.errors import BindingError, ReturnedOutputError
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import GUARD_BYTES, bits_of, is_fp8_dtype, storage_of
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


LARGEST: Final = 2**26
"""Bytes of memory that a changed argument may take. A larger one may mostly be addresses without memory."""
_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
_WHOLE: Final = (torch.int32, torch.int64)
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Changed:
    """An argument in another form: the harness's ``own`` tensor, what the target gets, and its memory before."""

    name: str
    own: torch.Tensor
    given: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor

    def take_back(self) -> bool:
        """Copy what the call wrote to the harness's own tensor; return whether it also wrote around the elements."""
        if self.given.is_meta or self.before.equal(self.memory):
            return False
        before = self.before.view(self.given.dtype).as_strided(
            self.given.shape, self.given.stride(), self.given.storage_offset()
        )
        written = (bits_of(self.given) != bits_of(before)).to(self.own.device)
        values = bits_of(self.given.to(self.own.device, self.own.dtype))
        bits_of(self.own).copy_(torch.where(written, values, bits_of(self.own)))
        if 0 not in self.given.stride():
            bits_of(before).copy_(bits_of(self.given))
        return not self.before.equal(self.memory)


class UnusualCall:
    """Calls a target in place of its ``call``, whose signature it has, with the arguments of a trial changed.

    ``parameters`` are the parameters of the roles, ``outputs`` the tensors that the target writes. After a call,
    ``names`` are the parameters whose arguments had the form, empty where the case allows it for none, and ``beyond``
    those around whose elements the target wrote.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        trial: ContractTrial,
        parameters: Mapping[str, str],
        outputs: Iterable[OutputTensor],
    ) -> None:
        functools.update_wrapper(self, call)
        self._call, self._trial = call, trial
        self._names = [parameters[role] for role in trial.roles if role in parameters]
        self._outputs = tuple(outputs)
        self.names: tuple[str, ...] = ()
        self.beyond: tuple[str, ...] = ()

    def __call__(self, *positional: Any, **arguments: Any) -> Any:
        """Return the result of the call."""
        changed = self.changed(arguments)
        self.names = tuple(each.name for each in changed)
        try:
            with OneDevice() if self._trial.form == "device" else nullcontext():
                result = self._call(*positional, **{**arguments, **{each.name: each.given for each in changed}})
        finally:
            if self._trial.form == "in_place":
                changed = changed[1:]
                self._take_output(changed)
            self.beyond = tuple(each.name for each in changed if each.take_back())
        return self._own_of(result, changed)

    def changed(self, arguments: Mapping[str, Any]) -> list[Changed]:
        """Return the arguments that have another form in the call, none where they cannot have it."""
        found = [(name, arguments[name]) for name in self._names if isinstance(arguments.get(name), torch.Tensor)]
        if any(tensor.untyped_storage().nbytes() > LARGEST for _, tensor in found):
            return []
        if self._trial.form == "in_place":
            return _in_place(found)
        made = [in_form(name, tensor, self._trial) for name, tensor in found]
        return [each for each in made if each is not None]

    def _take_output(self, changed: list[Changed]) -> None:
        """Copy the live elements of an output that is the same tensor as an input, also where the call left them.

        An element may have the bits that the input had there, so only the case tells which ones must be written.
        """
        for each in changed:
            for output in self._outputs:
                if output.tensor.data_ptr() == each.own.data_ptr():
                    output.copy_live(bits_of(each.given), bits_of(each.own))

    def _own_of(self, result: Any, changed: list[Changed]) -> Any:
        """Return a result with the harness's tensor in place of a changed one, and wider numbers like it narrowed."""
        if type(result) in (tuple, list):
            return type(result)(self._own_of(each, changed) for each in result)
        if not isinstance(result, torch.Tensor) or result.is_meta or _is_an_output(self._outputs, result):
            return result
        for each in changed:
            if result.numel() and result.data_ptr() == each.given.data_ptr():
                return each.own
            like = result.shape[:-1] == each.own.shape[:-1]
            if like and result.dtype == each.given.dtype == _WIDER.get(each.own.dtype):
                return result.to(each.own.dtype)
        return result


def _is_an_output(outputs: Iterable[OutputTensor], result: torch.Tensor) -> bool:
    return any(result.data_ptr() == output.tensor.data_ptr() for output in outputs)


class OneDevice(TorchFunctionMode):
    """Refuses functions of tensors on ``meta`` and others, as torch refuses those of a GPU and a CPU.

    Some take such tensors together, and return whatever the memory holds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the result of a function; raises RuntimeError for tensors on several devices."""
        kwargs = kwargs or {}
        devices = {tensor.device for tensor in _tensors_in((*args, *kwargs.values()))}
        if len(devices) > 1:
            raise RuntimeError(f"expected all tensors to be on the same device, but found {sorted(map(str, devices))}")
        return func(*args, **kwargs)


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def in_form(name: str, tensor: torch.Tensor, trial: ContractTrial) -> Changed | None:
    """Return an argument in the form of a trial; None where the tensor cannot have it, or has it already."""
    made: dict[str, Callable[[], Changed | None]] = {
        "stepped": lambda: _stepped(name, tensor),
        "expanded": lambda: _expanded(name, tensor),
        "swapped": lambda: _swapped(name, tensor),
        "offset": lambda: _copy(name, tensor, tensor.stride(), skipped=1),
        "type": lambda: _of_type(name, tensor, trial.to),
        "device": lambda: _elsewhere(name, tensor),
    }
    return made[trial.form]() if tensor.numel() and trial.form in made else None


def _expanded(name: str, tensor: torch.Tensor) -> Changed | None:
    if tensor.dim() != 1 or len(tensor) < 2 or not bool((tensor == tensor[0]).all()):
        return None
    one = _copy(name, tensor[:1], (1,))
    return dataclasses.replace(one, own=tensor, given=one.given.expand(tensor.shape))


def _swapped(name: str, tensor: torch.Tensor) -> Changed | None:
    shape = tuple(tensor.shape)
    if len(shape) < 3 or 1 in shape[:2]:
        return None
    inner = math.prod(shape[2:])
    dense = (math.prod(shape[axis + 1 :]) for axis in range(2, len(shape)))
    return _copy(name, tensor, (inner, inner * shape[0], *dense))


def _of_type(name: str, tensor: torch.Tensor, to: str) -> Changed | None:
    dtype = _other_type(tensor, to)
    return None if dtype is None else _copy(name, tensor, tensor.stride(), dtype)


def _elsewhere(name: str, tensor: torch.Tensor) -> Changed:
    given = tensor.to("meta") if tensor.is_cpu else tensor.cpu().contiguous()
    memory = torch.empty(0) if given.is_meta else storage_of(given)
    return Changed(name, tensor, given, memory, memory.clone())


def _stepped(name: str, tensor: torch.Tensor) -> Changed | None:
    """Return an argument as every second element.

    Each integer is in memory twice. So who reads them as dense gets valid numbers, of which the second one is wrong.
    """
    if not tensor.dim() or tensor.shape[-1] < 2 or tensor.stride(-1) != 1:
        return None
    changed = _copy(name, tensor, tuple(2 * stride for stride in tensor.stride()))
    if tensor.dtype in _WHOLE:
        given = changed.given
        between = changed.memory.view(given.dtype).as_strided(given.shape, given.stride(), given.storage_offset() + 1)
        between.copy_(tensor)
        changed.before.copy_(changed.memory)
    return changed


def _other_type(tensor: torch.Tensor, to: str) -> torch.dtype | None:
    """Return another type that holds all numbers of a tensor; None for those that mean another thing there."""
    own = tensor.dtype
    if to == "wider":
        return _WIDER.get(own)
    other: torch.dtype = getattr(torch, to)
    if own == torch.bool:
        return other if other == torch.uint8 else None
    kinds = next((kinds for kinds in (_WHOLE, _FLOATS) if own in kinds and other in kinds), ())
    if own == other or not kinds or is_fp8_dtype(own):
        return None
    return other if tensor.to(other).to(own).equal(tensor) else None


def _in_place(found: list[tuple[str, torch.Tensor]]) -> list[Changed]:
    """Return an input and an output as one tensor that holds the input; nothing where they differ in shape or type."""
    if len(found) < 2:
        return []
    (name, own), (other, output) = found
    if own.shape != output.shape or own.dtype != output.dtype:
        return []
    shared = _copy(name, own, own.stride())
    return [shared, Changed(other, output, shared.given, shared.memory, shared.before.clone())]


def _copy(
    name: str, tensor: torch.Tensor, strides: tuple[int, ...], dtype: torch.dtype | None = None, skipped: int = 0
) -> Changed:
    """Return a copy of a tensor with these strides, in elements, ``skipped`` elements behind the first guard."""
    dtype = dtype or tensor.dtype
    pairs = zip(tensor.shape, strides, strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    memory = guarded_memory((span + skipped) * dtype.itemsize, tensor.device)
    given = memory.view(dtype).as_strided(tensor.shape, strides, GUARD_BYTES // dtype.itemsize + skipped)
    if dtype == tensor.dtype:
        bits_of(given).copy_(bits_of(tensor))
    else:
        given.copy_(tensor)
    return Changed(name, tensor, given, memory, memory.clone())
