"""Named causes: what a failure needs, the path of its target included, found with a few more launches.

A bug of one configuration of an autotuner is told from that of another by its wrong output. Two configurations show the
same bug where both are wrong and agree within their bounds.

That is options of Triton's compiler that its case chooses, poison that reaches the output, or a rounding that the
target does not declare.

The oracle itself judges: the failing case, and a few more launches that differ in their scores and values, are compared
again with the bounds of other rounding models. Each launch shows some roundings and not others. With one visible key
only the output and the sums are rounded; with equal scores no score is; with equal values only the weights' sum. So a
model that fits all launches may be the target's, while the error of a lost or wrong key fits none. Of several models
the one is named whose emulation (:mod:`fuzz_attn.oracle.emulation`) makes the most similar errors.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import POISONED, poison_in_words
from fuzz_attn.case.domain import within
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypeName
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.case.paths import in_words
from fuzz_attn.case.plain import counted
from fuzz_attn.case.recipes import (
    ConstantValues,
    LevelScores,
    NormalScores,
    NormalValues,
    PoisonRecipe,
    ScoreRecipe,
    UniformScores,
    ValueRecipe,
)
from fuzz_attn.errors import CaseError, FuzzAttnError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.emulation import emulate
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundedTo, RoundingModel
from fuzz_attn.oracle.row_blocks import row_blocks
from fuzz_attn.oracle.verdict import Kind, Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.comparisons import SameBits, compared
from fuzz_attn.properties.experiment import Experiment, Launch, options_of
from fuzz_attn.properties.relations import with_other_poison

SECONDS: Final = 6.0
"""Time of the other configurations, after which no further one is launched."""
MOST_LISTED: Final = 3
"""Configurations that are listed by their words."""

NEAR: Final = 2.0**-10
"""Share of a number by which two outputs that are wrong in one way may differ beyond their bounds."""

Outcome: TypeAlias = Literal["right", "same", "other"]


class NamedPaths(NamedTuple):
    """What a failure needs of configurations and optional arguments, in words, and configurations that show it too."""

    words: str = ""
    configurations: tuple[int, ...] = ()


def with_paths_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure with the configurations and optional arguments that it needs."""
    found = NamedPaths() if verdict.passed else named_paths(experiment)
    return msgspec.structs.replace(verdict, only_with=found.words, configurations=found.configurations)


def named_paths(experiment: Experiment) -> NamedPaths:
    """Return what the failure of an experiment needs; nothing where it needs a relation, or has no other paths."""
    if not experiment.target.autotuned and not experiment.case.launch.arguments:
        return NamedPaths()
    try:
        own = [each for each in all_failures(experiment) if not each.passed]
        if not own:
            return NamedPaths()
        of_configurations = _of_configurations(experiment, own[0])
        words = [of_configurations.words, *_of_arguments(experiment)]
    except FuzzAttnError:
        return NamedPaths()
    return NamedPaths("; ".join(filter(None, words)), of_configurations.configurations)


def _of_configurations(experiment: Experiment, own: Verdict) -> NamedPaths:
    """Return in which configurations the case is wrong in the same way, and in which it is right."""
    count, number = configurations_left(experiment.first), experiment.case.launch.configuration
    if count < 2:
        return NamedPaths()
    until = time.monotonic() + SECONDS
    by_outcome: dict[Outcome, dict[int, str]] = {"right": {}, "same": {}, "other": {}}
    for other in range(count):
        if other == number % count:
            by_outcome["same"][other] = configuration_of(experiment.first)
        elif time.monotonic() < until:
            case = _with_configuration(experiment.case, other)
            launched = experiment.with_target(case, experiment.target)
            by_outcome[_outcome(launched, experiment, own)][other] = configuration_of(launched.first)
    if not by_outcome["right"]:
        return NamedPaths()
    same = tuple(sorted(by_outcome["same"], key=lambda other: other != number % count))
    right = _others(len(by_outcome["right"]))
    words = [f"wrong with {_listed([*by_outcome['same'].values()])}", f"right with {right}"]
    if by_outcome["other"]:
        words.append(f"wrong in another way with {_listed([*by_outcome['other'].values()])}")
    return NamedPaths("; ".join(words), same)


def _others(count: int) -> str:
    return "the other configuration" if count == 1 else f"the {count} others"


def _listed(configurations: Sequence[str]) -> str:
    """Return configurations in words, at most a few of them."""
    shown = [*configurations[:MOST_LISTED]]
    more = len(configurations) - len(shown)
    return " and ".join([*(f"({each})" if len(configurations) > 1 else each for each in shown), *_more(more)])


def _more(count: int) -> list[str]:
    return [f"{counted(count, 'other')}"] if count else []


def configurations_left(launch: Launch) -> int:
    """Return the most configurations that pruning left an autotuned kernel of a launch; 0 without such a kernel."""
    return max((len(each.left) for each in launch.configurations), default=0)


def configuration_of(launch: Launch) -> str:
    """Return the configurations of a launch in words, with the kernels' names where there are several."""
    words = {each.kernel: each.words for each in launch.configurations if len(each.left) > 1}
    listed = (f"{kernel} {each}" for kernel, each in words.items())
    return "; ".join(listed) if len(words) > 1 else next(iter(words.values()), "another configuration")


def _with_configuration(case: AttentionCase, number: int) -> AttentionCase:
    return replace(case, launch=msgspec.structs.replace(case.launch, configuration=number))


def _outcome(launched: Experiment, experiment: Experiment, own: Verdict) -> Outcome:
    """Return whether another configuration is right, or wrong in the same way or in another."""
    failures = [each for each in all_failures(launched) if not each.passed]
    if not failures:
        return "right"
    if own.worst and not experiment.first.error and not launched.first.error:
        return "same" if agree(experiment, launched) else "other"
    return "same" if any((each.kind, each.site) == (own.kind, own.site) for each in failures) else "other"


def agree(one: Experiment, other: Experiment, slack: float = 1.0) -> bool:
    """Return whether two launches of one problem give the same outputs, however wrong they are.

    They are the same within their bounds times ``slack``.
    """
    for name, expected in one.reference.items():
        first, second = (each.first.tensors.outputs[name] for each in (one, other))
        own, its = first.elements.double(), second.elements.double()
        near = (own - its).abs() <= 2.0 * slack * expected.bound + torch.maximum(own.abs(), its.abs()) * NEAR
        alike = near | (own.isnan() & its.isnan()) | (own == its)
        if not bool((alike & (first.unwritten == second.unwritten)).all()):
            return False
    return True


def _of_arguments(experiment: Experiment) -> Iterator[str]:
    """Yield for each optional argument of the case whether it is right with the default."""
    arguments, defaults = experiment.case.launch.arguments, experiment.target.signature.defaults
    for place, argument in enumerate(arguments):
        rest = arguments[:place] + arguments[place + 1 :]
        case = replace(experiment.case, launch=msgspec.structs.replace(experiment.case.launch, arguments=rest))
        failures = all_failures(experiment.with_target(case, experiment.target))
        if all(each.passed for each in failures):
            default = f", {argument[0]}={defaults[argument[0]]!r}" if argument[0] in defaults else ""
            yield f"wrong with {in_words((argument,))}; right with the default{default}"


def without_options(case: AttentionCase) -> AttentionCase:
    """Return the case with the launcher's own options."""
    return replace(case, launch=msgspec.structs.replace(case.launch, num_warps=0, num_stages=0))


def with_options_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure with a hint that the launcher's own options pass, if they do: then the compiler is suspect."""
    if verdict.passed or not options_of(experiment.case.launch):
        return verdict
    try:
        failures = all_failures(experiment.with_target(without_options(experiment.case), experiment.target), None)
    except FuzzAttnError:
        return verdict
    if not all(each.passed for each in failures):
        return verdict
    return msgspec.structs.replace(verdict, hint=_in_words(experiment))


def _in_words(experiment: Experiment) -> str:
    chosen = options_of(experiment.case.launch)
    own = {kernel: _joined(each) for kernel, each in experiment.first.own_options.items() if each != chosen}
    listed = ", ".join(f"{options} of {kernel}" for kernel, options in own.items())
    return (
        f"It fails with {_joined(chosen)} and passes with the launcher's own {listed or 'choice'}. Only the compiler, "
        "or a kernel that depends on its threads, tells them apart."
    )


def _joined(options: dict[str, int]) -> str:
    return " and ".join(f"{name}={number}" for name, number in options.items())


_OF_THE_OUTPUT: Final[tuple[Kind, ...]] = ("mismatch", "nan", "inf", "unwritten", "poison_dependent")
"""An fp8 NaN counts as unwritten: it has the same bits."""


def with_poison_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure whose message also names the poison that reaches the output, if some does."""
    if verdict.kind not in _OF_THE_OUTPUT or experiment.first.error:
        return verdict
    reached = tuple(part for part in POISONED if _depends_on(part, experiment))
    if not reached or not _repeats(experiment):
        return verdict
    words = ", ".join(poison_in_words(experiment.case.poison, part) for part in reached)
    message = f"{verdict.message}; poison reaches the output: {words}"
    return msgspec.structs.replace(verdict, message=message, poison=reached)


def with_other(case: AttentionCase, part: str) -> AttentionCase:
    """Return the case with the poison of one part replaced by another."""
    other: PoisonRecipe = msgspec.structs.replace(case.poison, **{part: getattr(with_other_poison(case).poison, part)})
    return replace(case, poison=other)


def _depends_on(part: str, experiment: Experiment) -> bool:
    """Return whether the output has other bits with other poison in one part, or with harmless zeros."""
    harmless: PoisonRecipe = msgspec.structs.replace(experiment.case.poison, **{part: "zero"})
    others = with_other(experiment.case, part), replace(experiment.case, poison=harmless)
    return not all(_same(experiment, other) for other in others)


def _repeats(experiment: Experiment) -> bool:
    """Return whether the same case gives the same bits again; otherwise other poison proves nothing."""
    return _same(experiment, experiment.case)


def _same(experiment: Experiment, case: AttentionCase) -> bool:
    launch = dataclasses.replace(experiment.launch(case), observations=())
    return compared(SameBits(launch, "", "nondeterministic"), experiment, "").passed


Fields: TypeAlias = dict[str, Any]
"""Some fields of a rounding model."""

TYPE_FIELDS: Final = (
    "scaled_query", "products", "scores", "softmax", "probability", "partials", "lse", "output"
)  # fmt: skip
"""Fields that are types; a lower type of sums comes with that of products."""
IN_OWN_TYPE: Final = (("scores", "output"), ("scores", "softmax", "output"), ("scaled_query", "scores", "output"))
"""Fields that plain torch code in the type of q needs together."""

PROBES: Final[tuple[tuple[ScoreRecipe, ValueRecipe, int], ...]] = (
    (NormalScores(), NormalValues(), 200),
    (NormalScores(8.0), NormalValues(), 200),
    (LevelScores(-20.0), NormalValues(), 200),
    (UniformScores(), NormalValues(), 200),
    (NormalScores(2.0), ConstantValues(0.7), 60),
    (NormalScores(), NormalValues(), 0),
)
"""Scores, values and context lengths of the launches that show one kind of rounding more than others."""
SEEDS: Final = 2
"""Launches of each kind."""
QUERY_LEN: Final = 3
HEAD_SIZE: Final = 64
LITTLE_LEFT: Final = math.log(0.6)
"""Two independent errors of one size differ by more than each. Less than this is left only by the same roundings."""
UNKNOWN_SIZE: Final = frozenset(("exp_units", "tanh_units", "tanh_error", "tensor_core_slack"))
TINY: Final = 2.0**-300
NOISE: Final = 2.0**-22
"""Share of an output below which an error is that of float32."""
LIKE: Final = math.log(3.0)
"""How far sizes of errors may be apart. A bug that few cases show has no errors in most of the launches."""
SYSTEMATIC: Final = 0.7
"""Roundings go up and down, so their errors are less proportional to the output than this."""
NEARLY: Final = 0.1
"""Two roundings whose unlikeness differs by less are both named."""


def with_rounding_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure with a hint at the field of the rounding model that would let it pass, if some does.

    It takes up to a dozen launches. The failure remains one: a bug may have errors of the same size.
    """
    if verdict.kind != "mismatch" or experiment.first.error:
        return verdict
    own = experiment.target.rounding_model
    if _fits(experiment.first.tensors, own, {}):
        return verdict  # the second launch of a relation failed
    fitting = [f for f in alternatives(experiment.case, own) if _fits(experiment.first.tensors, own, f)]
    launches = []
    for tensors in _probes(experiment) if fitting else ():
        fitting = [fields for fields in fitting if _fits(tensors, own, fields)]
        if not fitting:
            break
        launches.append(Emulated(tensors, own))
    best = _most_likely(_finest(fitting), launches)
    rounding = stated(best)
    return msgspec.structs.replace(verdict, rounding=rounding, hint=hint_at(rounding)) if best else verdict


def _finest(fitting: list[Fields]) -> list[Fields]:
    """Return the fields without coarser values where the size of an error is a guess."""
    guessed = {tuple(fields): fields for fields in reversed(fitting) if UNKNOWN_SIZE.intersection(fields)}
    return [fields for fields in fitting if guessed.get(tuple(fields), fields) is fields]


def _most_likely(fitting: list[Fields], launches: list[Emulated]) -> list[Fields]:
    """Return the most likely roundings of launches: one, or two that are nearly as likely; none if none is likely."""
    ranked = sorted((*_unlikeness(fields, launches), index) for index, fields in enumerate(fitting))
    likely = [
        fitting[rank[-1]] for rank in ranked if rank[0] == ranked[0][0] and rank[1] <= min(LIKE, ranked[0][1] + NEARLY)
    ]
    return likely[:1] + [fields for fields in likely[1:2] if not likely[0].items() <= fields.items()]


class Emulated:
    """A launch and its emulations."""

    def __init__(self, tensors: AttentionTensors, own: RoundingModel) -> None:
        self._tensors = tensors
        self._own = own
        self._blocks = tuple(row_blocks(tensors))
        self._actual = tensors.outputs["out"].elements.double()
        self._expected = self._with({})
        error = self._actual - self._expected
        self.size = _size(error)
        product = float((error * self._expected).mean().abs())
        self.share = product / max(self.size * _size(self._expected), TINY)
        """How much the errors are proportional to the output, from 0 to 1, as those of a wrong scale are."""
        self._least = NOISE * _size(self._expected) + TINY

    def compared(self, fields: Fields) -> tuple[float, float] | None:
        """Return two logarithms: how much of the error a model leaves, and how large its errors are beside the actual.

        None for a launch with neither.
        """
        emulated = self._with(fields)
        left, made = _size(self._actual - emulated), _size(emulated - self._expected)
        if max(self.size, made) <= self._least:
            return None
        sizes = [math.log(max(size, self._least)) for size in (left, made, self.size)]
        return sizes[0] - sizes[2], sizes[1] - sizes[2]

    def _with(self, fields: Fields) -> torch.Tensor:
        return emulate(self._tensors, msgspec.structs.replace(self._own, **fields), self._blocks)


def _unlikeness(fields: Fields, launches: Sequence[Emulated]) -> tuple[bool, float, int]:
    """Return how little the errors of some roundings are like those of launches, for sorting.

    Those that leave little of the errors come first. Of the others those come first whose errors have the same size in
    each launch. For a rounding whose size is not known, the sizes need only be proportional.
    """
    found = [pair for launch in launches if (pair := launch.compared(fields)) is not None]
    if not found:
        return True, math.inf, len(fields)
    left = median(pair[0] for pair in found)
    if left < LITTLE_LEFT:
        return False, left, len(fields)
    if median(launch.share for launch in launches) > SYSTEMATIC:
        return True, math.inf, len(fields)
    sizes = [pair[1] for pair in found]
    usual = median(sizes) if UNKNOWN_SIZE.intersection(fields) else 0.0
    return True, median(abs(size - usual) for size in sizes), len(fields)


def _size(numbers: torch.Tensor) -> float:
    """Return the root of the mean square."""
    return float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0


def stated(likely: list[Fields]) -> str:
    """Return the likely roundings as a binding states them."""
    return " or ".join(
        " and ".join(f"rounding.{name} = {value!r}" for name, value in fields.items()) for fields in likely
    )


def hint_at(rounding: str) -> str:
    """Return the hint at the likely roundings."""
    return (
        f"It passes with {rounding}, and so do similar launches. If the kernel rounds like this on purpose, declare it "
        "(docs/rounding.md). A bug with errors of this size is possible too."
    )


def alternatives(case: AttentionCase, own: RoundingModel) -> Iterator[Fields]:
    """Yield fields of rounding models that allow more than a target's own, for a case of these types."""
    query: DTypeName = case.dtypes.q
    names: tuple[RoundedTo, ...] = ("float16", "bfloat16")
    for name in (_named(dtype, query) for dtype in names):
        yield from ({field: name} for field in TYPE_FIELDS)
        yield {"products": name, "accumulate": name}
        yield from (dict.fromkeys(fields, name) for fields in IN_OWN_TYPE)
    yield from ({"probability": name} for name in ("float8_e4m3fn", "float8_e5m2"))
    yield {"rounded_denominator": True}
    if query == "float32":
        yield from ({"input_precision": name} for name in ("bf16x6", "tf32x3", "bf16x3", "tf32"))
    else:
        yield {"tensor_core_slack": 2.0 * own.tensor_core_slack}
    if case.dtypes.kv != query:
        yield {"rounds_dequantised": False}
        yield {"query": "cache", "probability": "cache"}
        yield {"query": "cache", "probability": "cache", "rounds_dequantised": False}
    if not case.softcap:  # a simplified case has a soft cap only where that matters
        yield from ({"exp_units": 2.0**bits} for bits in (8, 13, 16))
    else:
        yield from ({"tanh_units": 2.0**bits} for bits in (8, 14, 16))
        yield from ({"tanh_units": None, "tanh_error": 2.0**-bits} for bits in (16, 10, 8))


def _named(dtype: RoundedTo, query: DTypeName) -> RoundedTo:
    """Return a type as a rounding model names it for queries of some type."""
    return "query" if dtype == query or (dtype == "bfloat16" and query.startswith("float8")) else dtype


def _fits(tensors: AttentionTensors, own: RoundingModel, fields: Fields) -> bool:
    """Return whether a launch's output passes under a model with other fields."""
    return judge(tensors, attend(tensors, msgspec.structs.replace(own, **fields))).passed


def _probes(experiment: Experiment) -> Iterator[AttentionTensors]:
    """Yield the tensors after launches of similar cases that the target answers."""
    for case in probe_cases(experiment.case, experiment.target.domain.head_sizes):
        try:
            launch = experiment.launch(case)
        except FuzzAttnError:  # a launch that the backend cannot run tells nothing
            continue
        if not launch.error and not launch.observations and all(launch.tensors.answers):
            yield launch.tensors


def probe_cases(case: AttentionCase, head_sizes: tuple[int, ...]) -> Iterator[AttentionCase]:
    """Yield cases with the types and features of a case, whose scores and values show different roundings."""
    query_len = 1 if FAMILIES[case.family].one_token_each else QUERY_LEN
    head_size = HEAD_SIZE if within(HEAD_SIZE, head_sizes) else case.heads.head_size
    heads = msgspec.structs.replace(case.heads, head_size=head_size)
    for seed in range(case.seed + 1, case.seed + 1 + SEEDS):
        for scores, values, context_len in PROBES:
            sequences = (Tokens(query_len if context_len else 1, context_len),)
            changes = {"sequences": sequences, "scores": scores, "values": values, "seed": seed, "heads": heads}
            try:
                yield replace(case, **changes, overrides=(), near_uniform=False, equal_heads=False, key_marks=False)
            except CaseError:  # these sizes do not go with the features of the case
                continue
