"""Experiment: one case on one target and one backend, with the first launch that its properties share.

An exception of the target refuses the case, or is a failure.

A target refuses a case where its own host code raises before the first launch, or where a kernel does not compile for a
reason that the compiler states, such as an option that only another GPU's compiler has. A refusal depends on the shape
and the features of a case only: where the same shape with other data runs, the exception is a failure.
"""

from __future__ import annotations

import dataclasses
import linecache
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import torch

from fuzz_attn.backends.backend import Backend, Observation, Watch
from fuzz_attn.binding.call import UnusualCall
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.errors import (
    BindingError,
    DeviceFullError,
    DeviceLostError,
    HangInterrupt,
    NotCompiledInterrupt,
    UnsupportedByBackendError,
)
from fuzz_attn.inputs.output_tensors import copied, snapshot_of, still_holds, with_outputs_of, without_gradients
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, materialise, outputs_of
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.row_blocks import RowBlock, cost_of, row_blocks
from fuzz_attn.oracle.verdict import OUT_OF_RESOURCES, Refusal, Stage
from fuzz_attn.owners import Owner, owner_of
from fuzz_attn.targets import target
from fuzz_attn.targets.target import Called, Target

if TYPE_CHECKING:
    from fuzz_attn.ttir.triton_compat import LaunchedConfiguration

REFUSING: Final = (AssertionError, ValueError, NotImplementedError, TypeError)
"""Exceptions with which host code refuses its arguments. Others, such as an IndexError, are failures."""


def refusal_by(raised: BaseException, text: str, *, launched: bool) -> Refusal | None:
    """Return the refusal that an exception of a target is, None where it is a failure.

    ``text`` is the exception's text. ``launched`` says whether the target had tried a launch or written its output.
    """
    # Not at the top, because these import Triton: a fork server imports this module, and no Triton.
    from fuzz_attn.ttir.lowering import rejection_of  # noqa: PLC0415
    from fuzz_attn.ttir.triton_compat import is_unknown_option  # noqa: PLC0415

    rejection = rejection_of(raised)
    if rejection is not None:
        message = rejection.reason or rejection.source
        compiled = Refusal("compile", rejection.error, message, rejection.location, rejection.source)
        return compiled if rejection.stated else None
    if is_unknown_option(raised):
        return _refused_option(raised, text)
    place = None if launched or not isinstance(raised, REFUSING) else place_of(raised)
    if place is None:
        return None
    return _refused_at(place, "host", raised, text)


def _refused_option(raised: BaseException, text: str) -> Refusal:
    """Return the refusal of an option, which the compiler raises for a launch that a backend may have taken over."""
    place = next((frame for frame in reversed(_called(raised)) if _owner(frame) == "target"), None)
    if place is None:
        return Refusal("compile", type(raised).__name__, text)
    return _refused_at(place, "compile", raised, text)


def _refused_at(place: traceback.FrameSummary, stage: Stage, raised: BaseException, text: str) -> Refusal:
    source = linecache.getline(place.filename, place.lineno or 0).strip()
    return Refusal(stage, type(raised).__name__, text, f"{place.filename}:{place.lineno}", source)


def place_of(raised: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the target's own code, None where the exception comes from the harness."""
    own = next((frame for frame in reversed(_called(raised)) if _owner(frame) != "library"), None)
    return None if own is None or _owner(own) == "harness" else own


def _called(raised: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames below the call of the target, the innermost last."""
    frames = traceback.extract_tb(raised.__traceback__)
    calls = [index for index, frame in enumerate(frames) if frame.filename == target.__file__]
    return frames[calls[-1] + 1 :] if calls else []


def with_other_data(case: AttentionCase) -> tuple[AttentionCase, ...]:
    """Return cases of the same shape and features with other data: another seed, and plain numbers and poison."""
    plain = {field.name: field.default for field in msgspec.structs.fields(CaseFields) if field.name in _DATA}
    return (replace(case, seed=case.seed ^ 1), replace(case, seed=case.seed ^ 2, **plain))


_DATA: Final = ("scores", "values", "near_uniform", "equal_heads", "key_marks", "overrides", "poison")
"""The fields of a case that change numbers only."""


def _owner(frame: traceback.FrameSummary) -> Owner:
    return owner_of(frame.filename, frame.name)


OwnOptions = dict[str, dict[str, int]]
"""For each kernel the launcher's own values of the options that a case chooses."""


def options_of(launch: LaunchHints) -> dict[str, int]:
    """Return the options that a case chooses; none where it leaves them to the launcher."""
    chosen = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return {name: number for name, number in chosen.items() if number}


@dataclass
class Chosen:
    """The launcher's own options, which a case replaced, and the configurations of autotuners that were launched."""

    own: OwnOptions = dataclasses.field(default_factory=dict)
    configurations: list[LaunchedConfiguration] = dataclasses.field(default_factory=list)


@contextmanager
def launched_with(launch: LaunchHints, *, autotuned: bool) -> Iterator[Chosen]:
    """Give each launch the options of a case, and its configuration where the target is ``autotuned``."""
    options, chosen = options_of(launch), Chosen()
    with ExitStack() as stack:
        if options:
            from fuzz_attn.ttir.compiler_compat import options_chosen  # noqa: PLC0415 - imports Triton, and few need it

            chosen.own = stack.enter_context(options_chosen(options))
        if autotuned:
            from fuzz_attn.ttir.triton_compat import configuration_chosen  # noqa: PLC0415 - as above

            chosen.configurations = stack.enter_context(configuration_chosen(launch.configuration))
        yield chosen


_NOT_THE_TARGETS: Final = (
    BindingError,
    DeviceFullError,
    DeviceLostError,
    UnsupportedByBackendError,
    HangInterrupt,
    NotCompiledInterrupt,
)
"""What ends a launch and is no failure of the target's own."""
SHOWN_CHARACTERS: Final = 4000
"""Characters of an exception's text that a verdict keeps: a compiler may print the whole kernel."""


HOST_COST: Final = 2**21
"""Cases up to this cost (:func:`cost_of`) are judged on the host, where they take about 2 ms of a core at most.

On a GPU the oracle's 140 small operations and their waiting take 3 to 4 ms, whatever the size of the case.
"""


@dataclass(frozen=True)
class Launch:
    """The tensors after one call of the target, the outputs' memory before it, and what went wrong in the call.

    ``launched`` are the tensors that the target got, where they are copies on another device; ``tensors`` has copies of
    their outputs. ``own_options`` are the options of the launcher that the case replaced.
    """

    tensors: AttentionTensors
    outputs_before: dict[str, torch.Tensor]
    error: str = ""
    """``raised`` and the exception's type, text and innermost line, or which tensor was resized; else empty."""
    error_site: str = ""
    """``file:line`` of the target's innermost line that the exception passed."""
    refusal: Refusal | None = None
    """What the exception refuses, None where it is a failure."""
    observations: tuple[Observation, ...] = ()
    """The findings of the backend's sanitizers."""
    changed: tuple[str, ...] = ()
    """What the call changed of the memory that its binding made for it, such as a cache in another layout."""
    launched: AttentionTensors | None = None
    own_options: OwnOptions = dataclasses.field(default_factory=dict)
    beyond: int = 0
    """The number of tensors that the target returned beside the outputs."""
    configurations: tuple[LaunchedConfiguration, ...] = ()
    """Those that autotuned kernels were launched with, in order."""
    unusual: tuple[str, ...] = ()
    """The parameters whose arguments had the form of a contract trial."""
    error_calls: tuple[str, ...] = ()
    """``file:line`` of the target's lines that called the one of ``error_site``, the innermost first."""

    @property
    def outputs_after(self) -> dict[str, torch.Tensor]:
        """The whole memory of each output as bytes, including padding."""
        return memory_of_outputs(self.tensors)


def memory_of_outputs(tensors: AttentionTensors) -> dict[str, torch.Tensor]:
    """Return the whole memory of each output as bytes, without a copy."""
    return {name: storage_bytes(output.tensor) for name, output in tensors.outputs.items()}


class Experiment:
    """One case on one target and one backend. With ``strict``, refusals are failures.

    Compiler options that the case chose may be refused all the same, where a GPU has no room for them. With
    ``host_only`` a launch ends at the first kernel: that is enough to see what host code refuses.
    """

    def __init__(
        self, case: AttentionCase, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> None:
        self.strict = strict
        self.host_only = host_only
        self.case = case
        self.target = target
        self.backend = backend
        self.learn: Callable[[Experiment], object] = lambda experiment: None
        """Learns from a launch how the target rounds, where a case is several calls."""
        self.line_asked = ""
        """The line of the finding that is looked into; empty for what else a case shows."""
        self._inputs_before: dict[str, torch.Tensor] = {}

    @cached_property
    def first(self) -> Launch:
        """The first launch of the case."""
        tensors = self.fresh()
        if self._is_on_backend(tensors):
            self._inputs_before = {name: snapshot_of(tensors, tensor) for name, tensor in tensors.inputs()}
        else:
            self._inputs_before = {name: tensors.memory_of(tensor) for name, tensor in tensors.inputs()}
        return self.launch_tensors(tensors)

    @cached_property
    def refusal(self) -> Refusal | None:
        """What the target or the compiler refuses of the case, with any data; None where the case ran or failed."""
        refusal = self.first.refusal
        if self.case.contract is not None:
            return None
        if refusal is None or refusal.stage == "compile":
            return refusal
        others = (self.launch(case).refusal for case in with_other_data(self.case))
        return refusal if all(others) else None

    @property
    def refusal_alone(self) -> Refusal | None:
        """What is refused of the case, if it is a single launch; this launches it."""
        return self.refusal

    def put_first(self, site: str) -> None:
        """Let what a sanitizer observed at a line be the first observation of the first launch."""
        self.line_asked = site
        seen = tuple(sorted(self.first.observations, key=lambda each: each.site != site))
        self.first = dataclasses.replace(self.first, observations=seen)

    @cached_property
    def changed_inputs(self) -> list[str]:
        """The names of the inputs that the first launch changed, in their elements or in their padding."""
        tensors, before = self.first.launched or self.first.tensors, self._inputs_before
        own = [name for name, tensor in tensors.inputs() if not still_holds(tensors, tensor, before[name])]
        return own + [name for name in self.first.changed if name not in own]

    @cached_property
    def place(self) -> str:
        """The device of the tensors that are judged: the host for small cases, else the backend's."""
        case = self.case
        everywhere = case.pages.first_block == 0 and not case.strides.far
        return "cpu" if everywhere and cost_of(case) <= HOST_COST else self.backend.device

    @cached_property
    def left(self) -> AttentionTensors:
        """The tensors as the first launch left them, inputs included, where they are judged."""
        first = self.first
        if first.launched is None or not self.changed_inputs:
            return first.tensors
        return copied(first.launched, self.place)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return attend(self.left, self.target.rounding_model, self.blocks)

    @cached_property
    def blocks(self) -> tuple[RowBlock, ...]:
        """The row blocks of the inputs, as the first launch left them."""
        return tuple(row_blocks(self.left))

    def with_target(self, case: AttentionCase, target: Target) -> Experiment:
        """Return an experiment with another case and target on the same backend."""
        return Experiment(case, target, self.backend)

    def seen(self, launch: Launch) -> Experiment:
        """Return the same experiment with another launch as its first, which was made of the first one's inputs."""
        other = Experiment(self.case, self.target, self.backend)
        other.first, other.reference, other.blocks = launch, self.reference, self.blocks
        other._inputs_before = self._inputs_before
        return other

    def launch(self, case: AttentionCase) -> Launch:
        """Return a new launch of the target on a case."""
        return self.launch_tensors(materialise(case, self.place, self.target.stored_as))

    def fresh(self) -> AttentionTensors:
        """Return new tensors of the case, which the caller may change and launch."""
        return materialise(self.case, self.place, self.target.stored_as)

    def again(self) -> AttentionTensors:
        """Return tensors of the case for another launch: new outputs, and the first launch's inputs if unchanged."""
        if self.changed_inputs:
            return self.fresh()
        return dataclasses.replace(self.first.tensors, outputs=outputs_of(self.case, self.place))

    def launch_tensors(self, tensors: AttentionTensors, dead: torch.Tensor | None = None) -> Launch:
        """Return the launch of the target on tensors, which it then owns; the target writes their outputs.

        It gets copies of them if they are not on the backend's device. Where the backend has sanitizers, loads of the
        elements of ``dead`` are observed as ``uninitialised``.
        """
        here = self._is_on_backend(tensors)
        launched = tensors if here else copied(tensors, self.backend.device)
        before = {name: memory.clone() for name, memory in memory_of_outputs(tensors).items()}
        error, refusal, watch = "", None, Watch()
        lines: list[str] = []
        chosen = Chosen()
        called = Called()
        layouts = _layouts(launched)
        unusual, target = self._unusual(launched), self.target
        if unusual is not None:
            target = dataclasses.replace(target, call=unusual)
        try:
            options = launched_with(launched.launch, autotuned=target.autotuned)
            with self._recording(), self.backend.running() as watch, options as chosen:
                watch.host_only, watch.dead = self.host_only, dead
                called = target.run(launched)
        except _NOT_THE_TARGETS as raised:
            if not _is_of_other_device(raised, self.case.contract):
                raise
            error, refusal = _described(raised), Refusal("host", type(raised).__name__, str(raised))
        except BaseException as raised:  # noqa: BLE001 - whatever a target raises on a promised input is a finding
            error, lines = _described(raised), _lines_of(raised)
            began = watch.launches > 0 or _has_written(launched, before)
            refusal = refusal_by(raised, _text(raised), launched=began)
            if unusual is not None and isinstance(raised, Exception):
                refusal = refusal or Refusal("host", type(raised).__name__, _text(raised))
            elif self.strict and not _is_too_much(refusal, launched.launch):
                refusal = None
        else:
            error = _resized(layouts, _layouts(launched))
        changed, beyond = called
        if unusual is not None:
            changed += tuple(f"{name}: what lies around its elements" for name in unusual.beyond)
        flagged = tuple(name for name, tensor in launched.inputs() if tensor.requires_grad)
        if flagged or any(output.tensor.requires_grad for output in launched.outputs.values()):
            launched = without_gradients(launched)
            tensors = launched if here else tensors
            changed += tuple(f"{name}: it requires gradients now" for name in flagged if name not in changed)
        copies = None if here else launched
        if copies is not None and not error:
            tensors = with_outputs_of(tensors, copies)
        configurations = tuple(chosen.configurations)
        site = lines[0] if lines else ""
        return Launch(
            *(tensors, before, error, site, refusal, tuple(watch.observations), changed, copies),
            *(chosen.own, beyond, configurations),
            unusual=() if unusual is None else unusual.names,
            error_calls=tuple(lines[1:]),
        )

    def _unusual(self, launched: AttentionTensors) -> UnusualCall | None:
        """Return what calls the target in its place where the case is a contract trial."""
        trial = self.case.contract
        if trial is None:
            return None
        parameters = self.target.match.binding.parameter_of
        return UnusualCall(self.target.call, trial, parameters, launched.outputs.values())

    def _recording(self) -> AbstractContextManager[None]:
        """Return the context in which nothing is learned of how a target rounds, where it gets other types."""
        trial = self.case.contract
        return nullcontext() if trial is None or not trial.to else self.backend.unrecorded(own=False)

    def _is_on_backend(self, tensors: AttentionTensors) -> bool:
        return tensors.device.type == self.backend.device


def _is_of_other_device(raised: BaseException, trial: ContractTrial | None) -> bool:
    """Return whether the simulator was given a tensor of another device, which Triton refuses on a GPU."""
    return trial is not None and trial.form == "device" and isinstance(raised, UnsupportedByBackendError)


def _is_too_much(refusal: Refusal | None, launch: LaunchHints) -> bool:
    """Return whether a kernel has no room on a GPU with options that the case chose, not the launcher."""
    return refusal is not None and refusal.error == OUT_OF_RESOURCES and bool(options_of(launch))


def _has_written(launched: AttentionTensors, before: dict[str, torch.Tensor]) -> bool:
    """Return whether the memory of an output differs from before."""
    after = memory_of_outputs(launched)
    return not all(memory.equal(after[name].to(memory.device)) for name, memory in before.items())


_Layout: TypeAlias = tuple[torch.Size, tuple[int, ...], int, int]
"""Shape, strides, address and bytes of memory of a tensor."""


def _layouts(tensors: AttentionTensors) -> dict[str, _Layout]:
    """Return the layout of each output and of each input."""
    outputs = [(tensors.output_words(name), output.tensor) for name, output in tensors.outputs.items()]
    named = [*outputs, *tensors.inputs()]
    return {
        name: (tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.untyped_storage().nbytes())
        for name, tensor in named
    }


def _resized(before: dict[str, _Layout], after: dict[str, _Layout]) -> str:
    """Return which tensor a target gave another shape or other memory; an empty string if it did so to none."""
    for name, layout in before.items():
        if after[name] != layout:
            old, new = (tuple(each[0]) for each in (layout, after[name]))
            shapes = f" from {old} to {new}" * (old != new)
            return f"resized {name}{shapes}"
    return ""


def _described(raised: BaseException) -> str:
    """Return an exception's type, text and innermost line; the line's source stands for a text that is empty."""
    frames = traceback.extract_tb(raised.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = _text(raised) or (frames[-1].line or "" if frames else "")
    return f"raised {type(raised).__name__}: {text}{place}"


def _lines_of(raised: BaseException) -> list[str]:
    """Return ``file:line`` of the target's lines that an exception passed, the innermost first; none of a library's."""
    frames = traceback.extract_tb(raised.__traceback__)
    own = [frame for frame in frames if owner_of(frame.filename, frame.name) == "target"]
    return [f"{frame.filename}:{frame.lineno}" for frame in reversed(own)]


def _text(raised: BaseException) -> str:
    """Return the text of an exception, shortened and encodable in a file; its class may be the target's own."""
    try:
        text = str(raised)
    except BaseException as error:  # noqa: BLE001 - the target's own class may raise anything
        text = f"(its text raised {type(error).__name__})"
    more = f" ... ({len(text) - SHOWN_CHARACTERS} more characters)" if len(text) > SHOWN_CHARACTERS else ""
    return text[:SHOWN_CHARACTERS].encode(errors="backslashreplace").decode() + more
