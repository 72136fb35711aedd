"""Call experiment: a sequence of calls of one target, each launched with its memory and judged before the next.

The memory of its tensors is that of earlier calls, or apart from it.

The harness makes and judges tensors of its own for each call. Between them and the target stands a :class:`Lender`. It
copies the bytes of each tensor's storage into memory that the target may have seen before, and what the call leaves
there back. So every check of the harness's tensors holds for what the target got: guards, inputs that must not change,
elements that must be written.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.inputs.storage import storage_of
from fuzz_attn.operations.calls.call_case import Call, CallSequence, Storage, positions
from fuzz_attn.operations.calls.second_call import FirstStream, Meanwhile
from fuzz_attn.operations.operation import Operation
from fuzz_attn.oracle.verdict import Refusal, Verdict
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target

LARGEST: Final = 2**26
"""Bytes of a storage that is lent. One that is larger may mostly be addresses without memory, and is given as it is."""
_OWN_REFERENCES: Final = 2
"""References to memory that no tensor uses: that of its block, and that of the call which counts them."""


class Middle(Protocol):
    """Where a call runs, and what happens in its middle."""

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""


class DeviceMemory:
    """Memory of a GPU, which tensors use that torch makes of CUDA's array interface; each of them refers to it.

    It is not taken with ``torch.empty``: while a target runs, that gives a part of a larger memory between guards.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._taken = torch.zeros(size, dtype=torch.uint8, device=device)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._taken.data_ptr(), False),
            "version": 2,
        }


class Block:
    """Memory that is lent, as bytes. An object below the tensor tells by its references whether a target uses it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        self._memory = np.empty(size, np.uint8) if device.type == "cpu" else DeviceMemory(size, device)
        self.bytes = self._new()
        self.is_filled = False

    def _new(self) -> torch.Tensor:
        """Return a new storage over the same memory."""
        if isinstance(self._memory, np.ndarray):
            return torch.from_numpy(self._memory)
        return torch.as_tensor(self._memory, device=self._device)  # which is no copy: it is there

    def free(self) -> bool:
        """Let new tensors have the memory; return whether that is possible, because no tensor has it any more."""
        self.bytes = torch.empty(0)
        free = sys.getrefcount(self._memory) <= _OWN_REFERENCES
        self.bytes = self._new()
        return free


class Given(NamedTuple):
    """A tensor as the target gets it, the block that it is a view of, and the harness's own storage, as bytes."""

    tensor: torch.Tensor
    block: Block
    own: torch.Tensor


class Lender:
    """Calls a target with lent memory: in place of its ``call``, whose signature it has."""

    def __init__(self, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, call)
        self._call = call
        self._given: dict[str, Given] = {}
        self._in_use: list[Block] = []
        """Blocks of earlier calls, whose addresses no tensor of a later one gets."""
        self._next: tuple[Storage, int, Middle | None] | None = None

    def prepare(self, storage: Storage, *, raises: int = 0, middle: Middle | None = None) -> None:
        """Let the next call have memory of a kind, and run where and how the ``middle`` says.

        One that ``raises`` gets None in the place of a tensor, the first from the last one on.
        """
        self._next = storage, raises, middle

    def __call__(self, *positional: Any, **arguments: Any) -> Any:
        """Return the result of the call; one that was not prepared gets the harness's own tensors."""
        if self._next is None:
            return self._call(*positional, **arguments)
        (storage, raises, middle), self._next = self._next, None
        given = self._lend({name: value for name, value in arguments.items() if _is_lent(value)}, storage)
        handed: dict[str, Any] = {name: each.tensor for name, each in given.items()}
        if raises:
            handed[list(handed)[-1 - (raises - 1) % len(handed)]] = None

        def call() -> Any:
            _fill(given.values())  # here, so that it is done in the stream of the call
            return self._call(*positional, **{**arguments, **handed})

        try:
            result = call() if middle is None else middle.around(call)
        finally:
            if any(each.own.is_cuda for each in given.values()):
                torch.cuda.synchronize()  # also what the target launched in other streams, as after a single call
            for each in given.values():
                each.own.copy_(each.block.bytes)
        return _own_of(result, given)

    def _lend(self, tensors: dict[str, torch.Tensor], storage: Storage) -> dict[str, Given]:
        """Return the tensors of a call, each in the memory of its namesake before where it has the same layout."""
        before, self._given = self._given, {}
        same = set() if storage == "fresh" else _alike(tensors, before)
        blocks = {_address(tensors[name]): before[name].block for name in same}
        old = {name: before[name].tensor for name in same if storage != "address"}
        self._in_use += [each.block for name, each in before.items() if name not in same]
        before.clear()
        if storage == "address":
            still_used = {address for address, block in blocks.items() if not block.free()}
            self._in_use += [blocks.pop(address) for address in still_used]
        for name, tensor in tensors.items():
            own, address = storage_of(tensor), _address(tensor)
            if address not in blocks:
                blocks[address] = Block(own.numel(), tensor.device)
            block, view = blocks[address], old.get(name)
            self._given[name] = Given(_view(tensor, block.bytes) if view is None else view, block, own)
        return dict(self._given)


def _own_of(result: Any, given: dict[str, Given]) -> Any:
    """Return a result with the harness's own memory in the place of what was lent."""
    if type(result) in (tuple, list):
        return type(result)(_own_of(each, given) for each in result)
    if _is_lent(result):
        for each in given.values():
            if _address(result) == _address(each.tensor):
                return _view(result, each.own)
    return result


def _is_lent(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return 0 < value.untyped_storage().nbytes() <= LARGEST


def _alike(tensors: dict[str, torch.Tensor], before: dict[str, Given]) -> set[str]:
    """Return which tensors have the layout of their namesakes before; none where they share memory in another way."""
    same = {name for name in tensors if name in before and _layout(tensors[name]) == _layout(before[name].tensor)}
    pairs = {(_address(tensors[name]), _address(before[name].tensor)) for name in same}
    one_to_one = len({new for new, _ in pairs}) == len({old for _, old in pairs}) == len(pairs)
    return same if one_to_one else set()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    size = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, size


def _view(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the layout of another one over other memory."""
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _fill(given: Iterable[Given]) -> None:
    """Copy the harness's own bytes into lent memory, and let torch know which tensors have other contents now."""
    changed: set[int] = set()
    for each in given:
        block = each.block
        if not block.is_filled or not torch.equal(block.bytes, each.own):
            block.bytes.copy_(each.own)
            block.is_filled = True
            changed.add(id(block))
        if id(block) in changed:
            torch.autograd.graph.increment_version(each.tensor)


class Judged(NamedTuple):
    """What the calls of a sequence came to: the first call that failed, or the last one, and what it shows.

    ``same_as`` is the number of an earlier call, from 1, whose outputs have the same bits, 0 where none has.
    ``refusal`` is that of the last call where all are refused.
    """

    number: int
    verdicts: tuple[Verdict, ...]
    launch: Launch
    same_as: int = 0
    refusal: Refusal | None = None

    @property
    def failed(self) -> bool:
        """Whether a call fails."""
        return any(not verdict.passed for verdict in self.verdicts)


class CallExperiment(Experiment):
    """The calls of one sequence on one target and one backend; ``single`` is the operation of each call."""

    def __init__(
        self, case: CallSequence, target: Target, backend: Backend, single: Operation, *, strict: bool = True
    ) -> None:
        self.calls, self.single = case, single
        self._lender = Lender(target.call)
        self._lending = dataclasses.replace(target, call=self._lender)
        super().__init__(case.last, target, backend, strict=strict)

    @property
    def refusal(self) -> Refusal | None:
        """What the last call is refused for, where all calls are; else those that ran are judged."""
        return self.judged.refusal

    @property
    def refusal_alone(self) -> Refusal | None:
        """Nothing: calls that run before they are judged would leave something."""
        return None

    def put_first(self, site: str) -> None:
        """Leave the observations as they are: those of a call are said in the order in which it made them."""

    @property
    def first(self) -> Launch:
        """The launch of the call that decides: the first that fails, else the last."""
        return self.judged.launch

    @cached_property
    def judged(self) -> Judged:
        """What the calls came to; launches them."""
        outputs: list[dict[str, torch.Tensor]] = []
        places, calls = list(positions(self.calls)), self.calls.calls
        experiments = [self._of(call.case) for call in calls]
        judged, any_judged = None, False
        for number, (call, experiment) in enumerate(zip(calls, experiments, strict=True)):
            if not self._is_alongside(call):
                middle = None
                if number + 1 < len(calls) and self._is_alongside(calls[number + 1]):
                    middle = self._middle(calls[number + 1], experiments[number + 1])
                self._lender.prepare(call.storage, raises=call.raises, middle=middle)
            if call.raises:
                self._raise(experiment)
                continue
            launch = experiment.first
            verdicts: tuple[Verdict, ...] = (Verdict("oracle"),)
            if launch.refusal is None:
                any_judged = True
                self.learn(experiment)
                verdicts = self.single.failures(experiment, None)
            bits = {name: output.bits.clone() for name, output in launch.tensors.outputs.items()}
            named = tuple(_placed(verdict, places[number]) for verdict in verdicts)
            refusal = None if any_judged else launch.refusal
            judged = Judged(number, named, launch, _same(bits, outputs), refusal)
            if judged.failed:
                return judged
            outputs.append(bits)
        assert judged is not None  # the last call does not raise
        return judged

    def _of(self, case: Any) -> Experiment:
        """Return the experiment of one call."""
        experiment = self.single.experiment(case, self._lending, self.backend, strict=self.strict)
        if self.backend.device != "cpu":
            experiment.place = self.backend.device  # else the call would get copies, in memory of their own
        return experiment

    def _is_alongside(self, call: Call) -> bool:
        """Return whether a call runs in the middle of the one before it; a CPU has no streams."""
        return bool(call.alongside) and not (call.stream and self.backend.device == "cpu")

    def _middle(self, call: Call, experiment: Experiment) -> Middle:
        """Return what lets a call run in the middle of the one before it."""
        if not call.stream:
            return Meanwhile(call.alongside, partial(self._alongside, experiment, None))
        first = FirstStream(call.alongside, lambda: self._alongside(experiment, first.second))
        return first

    def _alongside(self, experiment: Experiment, middle: Middle | None) -> None:
        """Launch a call in the middle of another one."""
        self._lender.prepare("fresh", middle=middle)
        # Python 3.11 keeps other threads from a cached property while one thread computes it for another object.
        first: Any = vars(Experiment)["first"]
        vars(experiment)["first"] = first.func(experiment)

    def _raise(self, experiment: Experiment) -> None:
        """Launch a call that lacks a tensor; what becomes of it is not judged."""
        try:
            assert experiment.first
        except UnsupportedByBackendError:
            return


def _placed(verdict: Verdict, place: str) -> Verdict:
    """Return a failed verdict that says which call it is about."""
    if verdict.passed:
        return verdict
    return msgspec.structs.replace(verdict, message=f"{place}: {verdict.message}")


def _same(bits: dict[str, torch.Tensor], earlier: list[dict[str, torch.Tensor]]) -> int:
    """Return the number of the last earlier call with the same bits in all outputs, from 1; 0 for none."""
    for number, others in reversed(list(enumerate(earlier, 1))):
        if bits and bits.keys() == others.keys() and all(bits[name].equal(others[name]) for name in bits):
            return number
    return 0
