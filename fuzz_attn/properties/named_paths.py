"""Named paths: which configurations and optional arguments of a target a failure needs, found with a few more launches.

A bug of one configuration of an autotuner is told from that of another by its wrong output. Two configurations show the
same bug where both are wrong and agree within their bounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.paths import in_words
from fuzz_attn.case.plain import counted
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment, Launch

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
