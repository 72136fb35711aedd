"""Missing launches: kernels that a target does not launch for a batch, though rows of it need them."""

from __future__ import annotations

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import Sequence
from fuzz_attn.errors import CaseError, FuzzAttnError
from fuzz_attn.forensics.explanation import Finding, count
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment

LONGER = 8
"""Keys by which a sequence that joins the batch is longer than the others."""


def missing_launch(experiment: Experiment, found: Finding) -> Finding | None:
    """Return that a kernel is not launched, where rows are never written and a batch of more sequences is right.

    The rows of the case are in that batch too, for which the target launches the same kernels and another one.
    """
    if found.reason != "unwritten" or not found.words.endswith("never written"):
        return None
    own = launched(experiment)
    for sequence in _sequences(experiment.case):
        other = _joined_by(experiment, sequence)
        more = sorted(launched(other) - own) if other is not None else []
        if other is not None and more and own < launched(other) and not _fails(other):
            name = " and ".join(more)
            batch = f"{count(sequence.query_len, 'query token')} behind {count(sequence.context_len, 'key')}"
            words = f"{found.words}: {name} is not launched; right beside a sequence with {batch}, where it is launched"
            return Finding("unwritten", words, cause=f"unwritten: {name} is not launched")
    return None


def _sequences(case: AttentionCase) -> tuple[Sequence, ...]:
    """Return sequences that may join a batch: each is the longest of it, with one query token or several."""
    longest = case.max_seq_len + LONGER
    return Sequence(1, longest), Sequence(3, longest)


def _joined_by(experiment: Experiment, sequence: Sequence) -> Experiment | None:
    """Return the case with one more sequence; None where it cannot exist, or cannot be launched."""
    case = experiment.case
    try:
        other = experiment.with_target(replace(case, sequences=(*case.sequences, sequence)), experiment.target)
        return None if other.first.error else other
    except (CaseError, FuzzAttnError):
        return None


def launched(experiment: Experiment) -> frozenset[str]:
    """Return the kernels that a case launches, by their names; none where the backend does not tell."""
    backend, names = experiment.backend, set[str]()
    if isinstance(backend, SimulatorBackend):
        with backend.watched(lambda program, bound, grid: names.add(program.name)):
            experiment.launch_tensors(experiment.again())
    return frozenset(names)


def _fails(experiment: Experiment) -> bool:
    return any(not verdict.passed for verdict in all_failures(experiment))
