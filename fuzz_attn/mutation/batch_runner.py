"""BatchRunner: judges a batch of mutants on case after case, until each is killed or the cases are spent.

The cases are those of a default campaign on one core, each prepared once for many mutants.

*Fixed tolerances*, as kernels' test suites use them, judge the same outputs, to compare with the oracle's derived
bound. Each gets its best chance: it compares with the exact output, rounded to the output's type, on this harness's
cases, and it sees a launch that fails or hangs. It has no sanitizers and no metamorphic relations, and checks only the
rows.

- vLLM's tests: atol 1.5e-2 and rtol 1e-2 for half types, 1.5e-1 for both where anything is fp8
  (test_triton_unified_attention.py); 1e-3 and 1e-5 in float32 (test_attention.py).
- FlashAttention's tests (hopper/test_flash_attn.py): the largest error may be twice that of a plain implementation in
  the inputs' own type (three times with a soft cap), plus twice the roundoff at 0.3.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Final, NamedTuple

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine.schedule import play_round, size_on_cpu
from fuzz_attn.errors import HangInterrupt, UnsupportedByBackendError
from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.mutation.audit_results import (
    FLASH_ATTENTION,
    NO_MUTANT,
    PROPERTIES,
    VLLM,
    Evidence,
    FalseAlarm,
    IrChange,
    Mutant,
    Outcome,
    PositionFile,
    State,
)
from fuzz_attn.mutation.ir_operators import Probes, Rewrite, changes_in
from fuzz_attn.operations.operation import derived_seed
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.oracle.logits import score_scale
from fuzz_attn.oracle.reference import Reference, attend, output_factor
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import check
from fuzz_attn.properties.comparisons import compared
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target


class DrawnCase(NamedTuple):
    """One case of a campaign with its metamorphic relation."""

    case: AnyCase
    relation: str | None


class CaseStream:
    """The cases of ``fuzz-attn run --workers 1 --seed SEED``, drawn a round at a time and then kept."""

    def __init__(self, domain: AnyDomain, seed: int) -> None:
        self._domain = domain
        self._seed = seed
        self._drawn: list[DrawnCase] = []
        self._rounds = 0

    def __getitem__(self, number: int) -> DrawnCase:
        """Return the case of that number, counted from 0; draws as many rounds as needed."""
        while len(self._drawn) <= number:
            self._draw_round()
        return self._drawn[number]

    def _draw_round(self) -> None:
        def keep(case: AnyCase, relation: str | None) -> None:
            self._drawn.append(DrawnCase(case, relation))

        size = size_on_cpu(self._rounds)
        play_round(self._domain, derived_seed(self._seed, 0, self._rounds), size.cases, keep, size)
        self._rounds += 1


class RestorableTensors:
    """The tensors of a case with a copy of their first contents."""

    def __init__(self, tensors: AttentionTensors) -> None:
        self.tensors = tensors
        self._copies = [(memory, memory.clone()) for memory in self._memories()]

    def _memories(self) -> Iterator[torch.Tensor]:
        """Yield the memory of every tensor; two views of one memory yield it once."""
        seen = set()
        outputs = (output.tensor for output in self.tensors.outputs.values())
        for tensor in (*(tensor for _, tensor in self.tensors.inputs()), *outputs):
            memory = self.tensors.memory_of(tensor)
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                yield memory

    def restored(self) -> AttentionTensors:
        """Return the tensors with their first contents."""
        for memory, copy in self._copies:
            memory.copy_(copy)
        return self.tensors


class PreparedCase:
    """One case of the stream, each experiment on which makes and judges its tensors anew."""

    def __init__(self, drawn: DrawnCase, target: Target, backend: Backend) -> None:
        self.drawn = drawn
        self.target = target
        self.backend = backend
        self.operation = operation_of(drawn.case)
        self.allowed_errors: dict[str, AllowedErrors] = {}

    def compute_reference(self, *, with_tolerances: bool) -> None:
        """Compute what all experiments share: nothing."""

    def experiment(self, target: Target) -> Experiment:
        """Return an experiment on the case."""
        return self.operation.experiment(self.drawn.case, target, self.backend)

    def check(self, experiment: Experiment, relation: str | None) -> Verdict:
        """Return the first failed verdict of an experiment and one relation, else the oracle's."""
        return self.operation.failures(experiment, relation)[0]

    def check_relation(self, relation: str, experiment: Experiment) -> Verdict:
        """Return the verdict of one relation."""
        return compared(self.operation.compare(relation, experiment), experiment, relation)


class SharedCase(PreparedCase):
    """A case whose experiments share its tensors, its reference, and the errors that two fixed tolerances allow."""

    def __init__(self, drawn: DrawnCase, target: Target, backend: Backend) -> None:
        super().__init__(drawn, target, backend)
        self.reference: Reference
        self._tensors: dict[AnyCase, list[RestorableTensors]] = {}

    def experiment(self, target: Target) -> SharedExperiment:
        """Return an experiment on the case with its tensors and its reference."""
        return SharedExperiment(self, target)

    def check(self, experiment: Experiment, relation: str | None) -> Verdict:
        """Return the first failed verdict, after which nothing else is judged."""
        return check(experiment, relation)

    def tensors(self, case: AnyCase, number: int) -> AttentionTensors:
        """Return tensors of this case or of one derived from it; each number has tensors of its own."""
        made = self._tensors.setdefault(case, [])
        while len(made) <= number:
            made.append(RestorableTensors(materialise(case, self.backend.device, self.target.stored_as)))
        return made[number].restored()

    def compute_reference(self, *, with_tolerances: bool) -> None:
        """Compute the reference and, on demand, what the fixed tolerances allow; must precede any launch."""
        tensors = self.tensors(self.drawn.case, 0)
        self.reference = attend(tensors, self.target.rounding_model)
        self.allowed_errors = allowed_errors(tensors, self.reference) if with_tolerances else {}


class SharedExperiment(Experiment):
    """An experiment on a prepared case, which already has everything that does not depend on the target."""

    def __init__(self, prepared: SharedCase, target: Target) -> None:
        super().__init__(prepared.drawn.case, target, prepared.backend)
        self._prepared = prepared
        self._launches: dict[AnyCase, int] = {}

    @cached_property
    def reference(self) -> Reference:
        """The prepared case's reference. No launch changes it, since changed inputs are a failure of their own."""
        return self._prepared.reference

    def launch(self, case: AnyCase) -> Launch:
        """Return a new launch of the target on a case, on tensors of its own within this experiment."""
        number = self._launches.get(case, 0)
        self._launches[case] = number + 1
        return self.launch_tensors(self._prepared.tensors(case, number))


@dataclass
class MutantRun:
    """A mutant with its target and what the cases of one seed showed so far.

    ``undecided`` names what has not found the mutant yet: the campaign's properties and the fixed tolerances.
    ``seconds`` are the mutant's own, without what all mutants of its batch share.
    """

    mutant: Mutant
    target: Target
    undecided: set[str]
    seed: int = 0
    seconds: float = 0.0
    cases: int = 0
    reached: int = 0
    differed: int = 0
    changed: int = 0
    ratio: float = 0.0
    verdict: Verdict | None = None
    case: int = 0
    seconds_until_found: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)
    invalid: str = ""

    def found(self, verdict: Verdict, case: int, seconds: float) -> None:
        """Record the verdict of the properties that killed the mutant, its case and the time until then."""
        self.undecided.remove(PROPERTIES)
        self.verdict, self.case, self.seconds_until_found = verdict, case, seconds

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        evidence = Evidence(self.cases, self.reached, self.differed, self.changed, self.ratio)
        if self.verdict is None:
            state: State = "invalid" if self.invalid else "survived" if self.changed else "unobserved"
            return Outcome(self.mutant, state, self.seed, message=self.invalid, rules=self.rules, evidence=evidence)
        return Outcome(
            self.mutant,
            "killed",
            self.seed,
            property_name=self.verdict.property_name,
            kind=self.verdict.kind,
            message=self.verdict.message,
            case=self.case,
            seconds=self.seconds_until_found,
            rules=self.rules,
            evidence=evidence,
        )


@contextmanager
def limited_processor_time(seconds: float) -> Iterator[None]:
    """Raise :class:`HangInterrupt` in the running Python code when this process has used that much time."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise HangInterrupt

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


SHORTEST_HANG: Final = 3.0
LONGEST_HANG: Final = 30.0
HANG: Final = 20
"""A mutant hangs when it takes this many times the processor time of the healthy target, within the two limits."""


class BatchRunner:
    """Runs mutants of one target on the cases of any seed, in this process."""

    def __init__(self, target: Target, backend: SimulatorBackend, position: PositionFile) -> None:
        self._target = target
        self._backend = backend
        self._streams: dict[int, CaseStream] = {}
        self._position = position
        self._probes = Probes()
        backend.extend(self._probes.extension)
        self.false_alarms: set[FalseAlarm] = set()
        self.healthy_cases: dict[int, int] = {}
        """How many cases of each seed the healthy target was judged on."""

    def survey(self, seed: int, cases: int) -> list[Mutant]:
        """Return every change of the IR of the kernels that a seed's first cases launch, one case for each key."""
        keys, changes = set(), {}
        for number in range(cases):
            drawn = self._drawn(seed, number)
            if drawn.case.compile_key not in keys:
                keys.add(drawn.case.compile_key)
                self._backend.rewrite(Rewrite())
                _ = operation_of(drawn.case).experiment(drawn.case, self._target, self._backend).first
                for function in self._backend.parsed:
                    changes.update(dict.fromkeys(changes_in(function)))
        return [Mutant(change.name, change) for change in sorted(changes)]

    def run(
        self,
        runs: Sequence[MutantRun],
        seed: int,
        cases: int,
        *,
        enough: int = 0,
        after_case: Callable[[int, list[MutantRun]], None],
    ) -> None:
        """Judge mutants on a seed's first cases.

        ``after_case`` is called with the number of each case, from 1, and the mutants that are not yet decided. With
        ``enough``, changed operations are watched, no metamorphic relation is checked, and a mutant is decided once
        it ran its own in that many cases.
        """
        shared = 0.0
        left = [*enumerate(runs)]
        for number in range(cases):
            if not left:
                return
            self._position.write(number, NO_MUTANT)
            started = time.perf_counter()
            healthy = self._healthy(seed, number, any(run.undecided - {PROPERTIES} for _, run in left))
            shared += time.perf_counter() - started
            if healthy is not None:
                for index, run in left:
                    self._position.write(number, index)
                    self._judge_mutant(run, healthy, number, shared, enough)
            left = [(index, run) for index, run in left if run.undecided]
            after_case(number + 1, [run for _, run in left])

    def _drawn(self, seed: int, number: int) -> DrawnCase:
        if seed not in self._streams:
            self._streams[seed] = CaseStream(self._target.domain, seed)
        return self._streams[seed][number]

    def _healthy(self, seed: int, number: int, with_tolerances: bool) -> _HealthyCase | None:
        """Return the case with the healthy target's results; None, and a false alarm, where that fails."""
        drawn = self._drawn(seed, number)
        kind = SharedCase if operation_of(drawn.case).has_tolerances else PreparedCase
        prepared = kind(drawn, self._target, self._backend)
        prepared.compute_reference(with_tolerances=with_tolerances)
        self.healthy_cases[seed] = max(self.healthy_cases.get(seed, 0), number + 1)
        started = time.perf_counter()
        self._backend.rewrite(Rewrite())
        experiment = prepared.experiment(self._target)
        verdict = prepared.check(experiment, drawn.relation)
        seconds = time.perf_counter() - started
        if not verdict.passed:
            self.false_alarms.add(FalseAlarm(PROPERTIES, seed, number + 1))
            return None
        launch = experiment.first
        rules = {name for name, rule in prepared.allowed_errors.items() if rule.accepts(launch.tensors)}
        for rule in prepared.allowed_errors.keys() - rules:
            self.false_alarms.add(FalseAlarm(rule, seed, number + 1))
        changes = {change for function in self._backend.parsed for change in changes_in(function)}
        outputs = {name: memory.clone() for name, memory in launch.outputs_after.items()}
        return _HealthyCase(prepared, verdict, outputs, rules, changes, seconds)

    def _judge_mutant(self, run: MutantRun, healthy: _HealthyCase, number: int, shared: float, enough: int) -> None:
        """Judge one mutant on one case."""
        change = run.mutant.ir_change
        if change is not None and change not in healthy.changes:
            return
        run.cases += 1
        self._probes.reset()
        started = time.perf_counter()
        verdict, launch = self._verdict(run, healthy, Rewrite(change, probed=enough > 0))
        run.seconds += time.perf_counter() - started
        run.reached += self._probes.tally.reached > 0
        run.differed += self._probes.tally.differed > 0
        if verdict is None:
            run.undecided.clear()
            return
        if launch is not None and not healthy.has_outputs_of(launch):
            run.changed += 1
        if verdict.passed:
            run.ratio = max(run.ratio, verdict.ratio or 0.0)
        elif PROPERTIES in run.undecided:
            run.found(verdict, number + 1, shared + run.seconds)
        _apply_rules(run, healthy, launch, number)
        if enough and run.reached >= enough:
            run.undecided.clear()

    def _verdict(self, run: MutantRun, healthy: _HealthyCase, rewrite: Rewrite) -> tuple[Verdict | None, Launch | None]:
        """Return the verdict and the first launch, if there was one; no verdict on a change that is no kernel."""
        self._backend.rewrite(rewrite)
        experiment = healthy.prepared.experiment(run.target)
        limit = min(max(SHORTEST_HANG, HANG * healthy.seconds), LONGEST_HANG)
        relation = None if PROPERTIES not in run.undecided or rewrite.probed else healthy.prepared.drawn.relation
        try:
            with limited_processor_time(limit):
                verdict = healthy.judge(experiment, relation)
        except HangInterrupt:
            return Verdict("oracle", "timeout", f"the launch did not end within {limit:.0f} s"), None
        except UnsupportedByBackendError as error:
            if run.mutant.ir_change is not None:
                run.invalid = str(error)
                return None, None
            return Verdict("oracle", "exception", str(error)), None
        except Exception as error:  # noqa: BLE001 - a mutated kernel is any program at all; what it breaks is found
            return Verdict("oracle", "crash", f"{type(error).__name__}: {error}"), None
        if run.mutant.ir_change is not None and verdict.kind == "exception":
            run.invalid = verdict.message  # the launcher is healthy, so the changed IR is no kernel
            return None, None
        return verdict, None if experiment.first.error else experiment.first


def _apply_rules(run: MutantRun, healthy: _HealthyCase, launch: Launch | None, number: int) -> None:
    """Apply the fixed tolerances that have not found the mutant yet and that accept the healthy output."""
    for rule in run.undecided & healthy.rules:
        if launch is None or not healthy.prepared.allowed_errors[rule].accepts(launch.tensors):
            run.undecided.remove(rule)
            run.rules[rule] = number + 1


@dataclass(frozen=True)
class _HealthyCase:
    """One case with the results of the healthy target.

    These are its verdict, the memory of its outputs, the fixed tolerances that accept it, the changes that its kernels
    allow, and the seconds it took.
    """

    prepared: PreparedCase
    verdict: Verdict
    outputs: dict[str, torch.Tensor]
    rules: set[str]
    changes: set[IrChange]
    seconds: float

    def has_outputs_of(self, launch: Launch) -> bool:
        """Return whether a launch left the same bits in the memory of all outputs."""
        after = launch.outputs_after
        return all(torch.equal(after[name], memory) for name, memory in self.outputs.items())

    def judge(self, experiment: Experiment, relation: str | None) -> Verdict:
        """Return the verdict on an experiment with this case; outputs of the same bits need no new judgement."""
        first = experiment.first
        if first.error or first.observations or not self.has_outputs_of(first):
            return self.prepared.check(experiment, relation)
        if experiment.changed_inputs:
            return self.prepared.check(experiment, relation)
        verdict = self.prepared.check_relation(relation, experiment) if relation else self.verdict
        return self.verdict if verdict.passed else verdict


@dataclass(frozen=True)
class AllowedErrors:
    """Attention's output that a rule expects, float64 ``[num_tokens, num_query_heads, head_size]``, and its limits."""

    expected: torch.Tensor
    limit: torch.Tensor

    def accepts(self, tensors: AttentionTensors) -> bool:
        """Return whether every live element is within its limit; NaN never is."""
        output = tensors.outputs["out"]
        actual = output.elements.double()
        near = ((actual - self.expected).abs() <= self.limit) | (actual == self.expected)
        return bool((near if output.live is None else near | ~output.live).all())


def allowed_errors(tensors: AttentionTensors, reference: Reference) -> dict[str, AllowedErrors]:
    """Return the errors that each rule allows in an output of these tensors."""
    dtype = tensors.output.dtype
    expected = stored(reference["out"].value, dtype)
    absolute, relative = tolerances(tensors)
    limits = {
        VLLM: absolute + relative * expected.abs(),
        FLASH_ATTENTION: torch.tensor(_flash_attention_limit(tensors, expected), dtype=torch.float64),
    }
    return {name: AllowedErrors(expected, limit) for name, limit in limits.items()}


def tolerances(tensors: AttentionTensors) -> tuple[float, float]:
    """Return vLLM's (atol, rtol) for tensors of these types."""
    types = (tensors.query.dtype, tensors.value_cache.dtype, tensors.output.dtype)
    if any(is_fp8_dtype(dtype) for dtype in types):
        return 1.5e-1, 1.5e-1
    return (1e-3, 1e-5) if tensors.query.dtype == torch.float32 else (1.5e-2, 1e-2)


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers rounded to a type, as float64; fp8 is clamped to its finite range."""
    if is_fp8_dtype(dtype):
        limit = torch.finfo(dtype).max
        numbers = numbers.clamp(-limit, limit).float()
    return numbers.to(dtype).double()


def _flash_attention_limit(tensors: AttentionTensors, expected: torch.Tensor) -> float:
    """Return the largest error that FlashAttention's tests allow for these tensors."""
    if not expected.numel():
        return 0.0
    plain = low_precision_output(tensors, expected)
    noise = (stored(stored(expected + 0.3, tensors.output.dtype) - 0.3, tensors.output.dtype) - expected).abs().max()
    return float((3 if tensors.softcap else 2) * (plain - expected).abs().max() + 2 * noise)


def low_precision_output(tensors: AttentionTensors, like: torch.Tensor) -> torch.Tensor:
    """Return the output of an implementation that keeps everything in the type of q, bfloat16 where that is fp8.

    It scales the keys, and keeps scores, weights and output in that type; sums are torch's. Float64, shaped as
    ``like``.
    """
    working = torch.bfloat16 if is_fp8_dtype(tensors.query.dtype) else tensors.query.dtype
    output = torch.zeros_like(like).view(like.shape[0], tensors.num_kv_heads, -1, like.shape[-1])
    for block in row_blocks(tensors):
        output[block.tokens] = _attended(block, tensors, working).double().transpose(1, 2)
    return stored(output.view_as(like) * output_factor(tensors), tensors.output.dtype)


def _attended(block: RowBlock, tensors: AttentionTensors, working: torch.dtype) -> torch.Tensor:
    """Return the weighted sum of V ``[B, num_kv_heads, Q, group, head_size]``, everything in one type."""
    keys = (block.keys * score_scale(tensors)).to(working)
    shape = (*block.queries.shape[:4], keys.shape[2])
    scores = (block.queries.to(working).flatten(2, 3) @ keys.transpose(-1, -2)).view(shape)
    if tensors.softcap:
        scores = torch.tanh(scores / tensors.softcap) * tensors.softcap
    if tensors.alibi_slopes is not None:
        slopes = tensors.alibi_slopes.to(working).view(keys.shape[1], 1, -1, 1)
        scores = scores + slopes * (block.key_position - block.context_len[:, None]).to(working)[:, None, None, None]
    if block.qq_bias is not None:
        scores = scores + block.qq_bias.to(working)[:, None, :, None]
    scores = scores.masked_fill(~block.visible[:, None, :, None], -torch.inf)
    if tensors.sinks is not None:
        sinks = tensors.sinks.to(working).view(keys.shape[1], 1, -1, 1).expand(*shape[:4], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : shape[-1]]
    return (weights.flatten(2, 3) @ block.values.to(working)).view(*block.queries.shape[:-1], -1)
