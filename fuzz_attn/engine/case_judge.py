"""The worker of a campaign: loads a target and judges cases. ``python -m fuzz_attn.engine.case_judge`` serves one."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from fuzz_attn.backends.kernel_coverage import KernelConfigurations, merged_configurations
from fuzz_attn.case.contract_trial import trial_of
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import FuzzAttnError, NotCompiledInterrupt, UnsupportedByBackendError
from fuzz_attn.forensics.explanation import Explanation, Finding, FirstOperation
from fuzz_attn.operations.registry import FAMILIES, AnyCase, FamilyName, load_target, operation_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.workers.messages import Compiling
from fuzz_attn.workers.worker import Send, serve

if TYPE_CHECKING:
    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.calibration.easy_cases import BrokenPromises
    from fuzz_attn.operations.operation import Operation
    from fuzz_attn.oracle.verdict import Refusal
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.targets.arithmetic import ArithmeticReader
    from fuzz_attn.targets.keeping import Keeper
    from fuzz_attn.targets.target import Target


KNOWN: Final = "A part of the binding is known of this launcher (fuzz_attn/targets/bindings.toml)."

PATH: Final = "the same result on easy cases"
"""Why an optional argument is a path, if nobody states it."""


@dataclass
class CaseJudge:
    """A target and its backend, both imported. With ``strict``, what the target refuses is a failure.

    Where the names of its parameters do not tell how the target is called, it is calibrated once the device has
    started.
    """

    target: Target
    backend: Backend
    strict: bool = False
    memory: int = 0
    """The limit of a process's memory in bytes, 0 for none."""
    learned: tuple[str, ...] = ()
    """What the calibration has learned, in sentences."""
    checks_device: bool = True
    """Whether this process checks the arithmetic of its GPU. That of a CPU is checked anyway: it needs no compiler."""
    _reader: ArithmeticReader | None = None
    _broken: BrokenPromises | None = None
    _keeper: Keeper | None = None

    @property
    def operation(self) -> Operation:
        """The operation of the target."""
        return operation_of(self.target.domain)

    @property
    def forks_first(self) -> bool:
        """Whether the process must fork before the device starts."""
        return self.backend.forks_first

    def start(self) -> None:
        """Start the device and calibrate the target; raises :class:`fuzz_attn.errors.FuzzAttnError` if it cannot."""
        self.backend.start()
        self.target, learned = self.operation.calibrated(self.target, self.backend)
        self.learned += learned

    def ready(self) -> Ready:
        """Start and check the backend; raises :class:`fuzz_attn.errors.FuzzAttnError` where it does not work."""
        from fuzz_attn.targets.keeping import Keeper  # noqa: PLC0415 - imports torch

        reasons, promised = self.target.match.reasons, self.target.domain
        self._keeper = Keeper(self.target)
        self.start()
        target, backend = self.target, self.backend
        reasons = {name: PATH if name in target.match.binding.paths else why for name, why in reasons.items()}
        shims = backend.preflight() if self.checks_device or not backend.forks_first else ()
        domain = target.domain
        if backend.device != "cpu":
            domain = domain.on_gpu()
        elif not backend.reaches_large_offsets():
            domain = domain.in_memory()
        return Ready(
            target.name,
            target.slug,
            target.family,
            backend.name,
            backend.device,
            backend.sanitizers,
            shims,
            domain,
            (*backend.notes(), *self.learned),
            target.match.binding,
            reasons,
            target.match.published,
            self.backend.gpu(),
            self.operation.not_drawn(promised, domain, target),
            unexercised=target.unexercised,
            contracts=target.match.binding.contracts,
            calls=True,
        )

    def answer(self, message: bytes, send: Send) -> None:
        """Judge the order of a message and send the answer."""
        self.backend.announce(lambda ended: send(Compiling(ended)))
        send(self.judge(msgspec.json.decode(message, type=Order)))

    def judge(self, order: Order) -> Answer:
        """Return the answer to an order."""
        if not order.compiled:
            return self._judge(order)
        self.backend.compiles = False
        try:
            return self._judge(order)
        except NotCompiledInterrupt:
            return Answer(missing=True)
        finally:
            self.backend.compiles = True

    def _judge(self, order: Order) -> Answer:
        operation = operation_of(order.case)
        if order.digest:
            return Answer(digest=operation.digest(order.case))
        if order.probes:
            return Answer(refusals=tuple(self._probe(case, host_only=order.host_only) for case in order.probes))
        experiment = self._experiment(order.case)
        if order.forensics:
            return self._explained(experiment, order)
        refusal = experiment.refusal
        if trial_of(order.case) is not None:
            return self._tried(experiment)
        notes = (*self._read_arithmetic(experiment), *_unjudged(experiment))
        verdict, *others = (Verdict("oracle"),) if refusal else operation.failures(experiment, order.relation)
        if order.explain and not refusal:
            verdict = operation.with_causes(verdict, experiment)
        kernels = self.backend.new_kernels()
        masks = self.backend.new_masks()
        return Answer(
            verdict,
            tuple(others),
            refusal,
            masks=masks,
            compiled=kernels.compiled,
            loaded=kernels.loaded,
            compiling=kernels.seconds,
            notes=notes,
            keeps=() if self._keeper is None else self._keeper.news(),
            configurations=_launched(experiment),
        )

    def _tried(self, experiment: Experiment) -> Answer:
        """Return the answer to a contract trial, whose kernels do not tell how the target rounds."""
        verdict, *_ = operation_of(experiment.case).failures(experiment, None)
        kernels = self.backend.new_kernels()
        return Answer(verdict, compiled=kernels.compiled, loaded=kernels.loaded, compiling=kernels.seconds)

    def _experiment(self, case: AnyCase) -> Experiment:
        """Return the experiment of a case. A refusal of what the target promises by name is a failure."""
        from fuzz_attn.calibration.easy_cases import BrokenPromises  # noqa: PLC0415 - imports torch, as below

        experiment = operation_of(case).experiment(case, self.target, self.backend, strict=self.strict)
        experiment.learn = self._read_arithmetic
        if self.strict or not self.target.promised or (refusal := experiment.refusal_alone) is None:
            return experiment
        if self._broken is None or self._broken.target is not self.target:
            self._broken = BrokenPromises(self.target, self.backend)
        broken = self._broken.by(case, refusal)
        return self.operation.experiment(case, self.target, self.backend) if broken else experiment

    def _explained(self, experiment: Experiment, order: Order) -> Answer:
        """Return the explanation of a failing case. The masks of its launches are not reported."""
        operation, trial = operation_of(order.case), trial_of(order.case)
        if trial is not None:
            from fuzz_attn.properties.check import accepted  # noqa: PLC0415 - imports torch

            words = accepted(trial, experiment.first.unusual)
            finding = Finding(
                "contract", f"{trial.subject}: {words}, and right otherwise", cause=f"contract: {trial.subject}"
            )
            return Answer(explanation=Explanation((finding,), launches=1))
        if experiment.refusal_alone is None:  # it is launched: else dots in tf32 would be held to exact bounds
            self._read_arithmetic(experiment)
        if order.site:
            experiment.put_first(order.site)
        explanation = operation.explain(experiment, order.relation)
        if order.thorough:  # a search takes seconds, in which a run judges hundreds of cases
            explanation = operation.with_repair(explanation, experiment, order.relation)
        if order.healthy:
            first_operation = self._first_operation(experiment, order)
            explanation = msgspec.structs.replace(explanation, operation=first_operation)
        kernels = self.backend.new_kernels()
        self.backend.new_masks()
        return Answer(explanation=explanation, compiled=kernels.compiled, loaded=kernels.loaded)

    def _first_operation(self, experiment: Experiment, order: Order) -> FirstOperation:
        """Return the first operation of a failing case that gives another value in a healthy target."""
        from fuzz_attn.targets.arithmetic import ArithmeticReader  # noqa: PLC0415 - as above
        from fuzz_attn.targets.loading import OtherVersion  # noqa: PLC0415 - as above

        version = OtherVersion(self.target)
        with version.active():
            try:
                loaded = _target(order.healthy, self.target.family, None, self.backend)
                healthy, _ = self.operation.calibrated(loaded, self.backend)
            except FuzzAttnError as error:
                return FirstOperation(f"the healthy kernel does not load: {error}")
        dtypes = self.operation.dtypes_of(order.case)
        if dtypes is not None:
            healthy = ArithmeticReader(healthy).target_for(self.backend.arithmetic(), dtypes)
        return self.operation.first_operation(experiment, order.relation, healthy, version.active)

    def _read_arithmetic(self, experiment: Experiment) -> tuple[str, ...]:
        """Learn how the target rounds from the kernels of its launches, and return in words what is new of it."""
        from fuzz_attn.targets.arithmetic import ArithmeticReader  # noqa: PLC0415 - imports Triton, as above

        dtypes = self.operation.dtypes_of(experiment.case)
        if dtypes is None:
            return ()
        if self._reader is None or self._reader.target is not self.target:
            self._reader = ArithmeticReader(self.target)
        experiment.target = self._reader.target_for(self.backend.arithmetic(), dtypes)
        return self._reader.new_notes()

    def _probe(self, case: AnyCase, *, host_only: bool) -> Refusal | None:
        """Return what is refused of a case; a backend that cannot run it does not refuse it."""
        experiment = self.operation.experiment(case, self.target, self.backend, strict=self.strict, host_only=host_only)
        try:
            return experiment.launch(case).refusal
        except UnsupportedByBackendError:
            return None


def _launched(experiment: Experiment) -> tuple[KernelConfigurations, ...]:
    """Return the configurations that the autotuned kernels of the first launch had."""
    found = experiment.first.configurations
    return (
        merged_configurations(KernelConfigurations(each.kernel, each.left, (each.place,)) for each in found)
        if found
        else ()
    )


def _unjudged(experiment: Experiment) -> tuple[str, ...]:
    """Return in words what a target returned that no property looks at."""
    beyond = experiment.first.beyond
    if not beyond:
        return ()
    tensors = "a tensor" if beyond == 1 else f"{beyond} tensors"
    return (f"It returns {tensors} beside the output, such as an LSE. Nothing is checked in them.",)


def load(setup: Setup) -> CaseJudge:
    """Return the target and the backend of a set-up, imported. Built-in targets must not refuse a case of their domain.

    The backend has to prepare the process before torch and the target are imported. Raises
    :class:`fuzz_attn.errors.FuzzAttnError` for what the user can mend.
    """
    from fuzz_attn.backends import backend_named  # noqa: PLC0415 - heavy imports happen only in the child

    backend = backend_named(setup.backend)
    backend.prepare()
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    importlib.import_module("fuzz_attn.properties.check")  # here, so that no fork has to
    from fuzz_attn.targets.loading import is_known  # noqa: PLC0415 - as above

    target = _target(setup.target, setup.family, setup.binding, backend)
    strict = setup.strict or setup.target in FAMILIES
    learned = (KNOWN,) if is_known(setup.target, setup.binding) else ()
    return CaseJudge(target, backend, strict, setup.memory, learned, setup.checks_device)


def _target(name: str, family: FamilyName | None, binding: Binding | None, backend: Backend) -> Target:
    """Return a target, which is told on a CPU that there is a GPU unless it is built in."""
    from fuzz_attn.targets.gpu_answers import gpu_answers  # noqa: PLC0415 - as above

    without_gpu = backend.device == "cpu" and name not in FAMILIES
    with gpu_answers() if without_gpu else nullcontext():
        target = load_target(name, family, binding)
        target = target.on_device(backend.tensor_core_slack)
    return replace(target, without_gpu=without_gpu)


def _load_message(message: bytes) -> CaseJudge:
    return load(msgspec.json.decode(message, type=Setup))


if __name__ == "__main__":
    serve(_load_message)
