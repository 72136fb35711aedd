"""Comparisons: the verdict on another launch, bit for bit against the first one, or against what it should hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import torch

from fuzz_attn.inputs.dtypes import bits_of
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.verdict import Kind, Verdict
from fuzz_attn.properties.experiment import Experiment, Launch

AGAIN: Final = "a second launch on the same input"
"""How determinism is told."""


def failed(name: str, launch: Launch, change: str) -> Verdict | None:
    """Return the verdict on a launch that raised, or that the sanitizers object to; None where all went well."""
    if launch.error:
        return Verdict(name, "exception", f"only {change} raised {launch.error}")
    if launch.observations:
        kind, message = launch.observations[0]
        return Verdict(name, kind, f"only {change}: {message}", wrong=len(launch.observations))
    return None


def same_bits(
    experiment: Experiment,
    name: str,
    other: Launch,
    change: str,
    *,
    kind: Kind = "different_bits",
    tokens: torch.Tensor | None = None,
) -> Verdict:
    """Return whether another launch gave the same bits as the first; ``tokens[i]`` is the first one's row of its row i.

    Where it has not, a target that is not even deterministic fails for that.
    """
    wrong = failed(name, other, change)
    if wrong is not None:
        return wrong
    verdict = _same_rows(experiment.first, other, name, change, kind, tokens)
    if verdict.passed or name == "determinism":
        return verdict
    again = experiment.launch(experiment.case)
    repeated = same_bits(experiment, "determinism", again, AGAIN, kind="nondeterministic")
    return verdict if repeated.passed else repeated


def judged(
    experiment: Experiment,
    name: str,
    other: Launch,
    change: str,
    exact: Reference,
    *,
    slack: torch.Tensor | float = 0.0,
    own: Reference | None = None,
) -> Verdict:
    """Return whether another launch holds what it should, each element within the bound of its own problem.

    ``exact`` holds what is expected of it, known from the exact answer to another problem. Two launches that are both
    within their bounds of it differ by no more than the two bounds added up; to ask each of them finds more than to ask
    for their difference. Ill-conditioned rows and elements without a bound, of either problem, are left out. ``slack``
    is what the relation itself loses in float64. ``own`` is the reference of the other launch's problem where it is
    known already: that of the first one, as no row's bound depends on where the row stands, or on the launch.
    """
    wrong = failed(name, other, change)
    if wrong is not None:
        return wrong
    own = own or attend(other.tensors, experiment.target.model)
    bound = (own.bound + slack).masked_fill(exact.bound.isinf(), torch.inf)
    reference = Reference(exact.expected, bound, own.ill_conditioned | exact.ill_conditioned)
    verdict = judge(other.tensors, reference)
    message = verdict.message and f"{change}: {verdict.message}"
    return msgspec.structs.replace(verdict, property_name=name, message=message)


def mapped(reference: Reference, change: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    """Return a reference with its rows taken as a batch was changed: ``change`` indexes tokens, or tokens and heads."""
    return Reference(change(reference.expected), change(reference.bound), change(reference.ill_conditioned))


def _same_rows(
    first: Launch, other: Launch, name: str, change: str, kind: Kind, tokens: torch.Tensor | None
) -> Verdict:
    rows, answered = sum(other.tensors.query_lens), other.tensors.answered_tokens
    before = bits_of(first.tensors.output)
    before = before[:rows] if tokens is None else before[tokens]
    different = (before != bits_of(other.tensors.output)[:rows]).any(dim=-1)
    if answered is not None:
        different &= answered[:, None]
    count = int(different.sum())
    if not count:
        return Verdict(name)
    where = different.nonzero()[0].tolist()
    message = f"{change} differs in {count} (token, head) rows, first at token {where[0]}, head {where[1]}"
    return Verdict(name, kind, message, wrong=count, elements=different.numel())
