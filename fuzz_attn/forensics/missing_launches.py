"""Missing launches: kernels that a target does not launch though rows need them, or launches with too small blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import Sequence
from fuzz_attn.errors import CaseError, FuzzAttnError
from fuzz_attn.forensics.explanation import Finding, count, rows_of_case
from fuzz_attn.forensics.lab import Array
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.simulator.site_values import short_name
from fuzz_attn.simulator.switches import constants_of

LONGER: Final = 8
"""Keys by which a sequence that joins the batch is longer than the others."""
MOST_ALONE: Final = 4
"""How many sequences of a batch are tried as a batch of one."""


def missing_launch(experiment: Experiment, found: Finding) -> Finding | None:
    """Return that a kernel is not launched, where rows are never written and another batch with them is right.

    The other batch has one more sequence, so that the target launches one more kernel, or only one of the sequences.
    """
    if found.reason != "unwritten" or not found.words.endswith("never written"):
        return None
    own = launched(experiment)
    for batch, words in _batches(experiment.case):
        other = _with_batch(experiment, batch)
        if other is None:
            continue
        here = launched(other)
        kept = own < here if len(batch) > 1 else True
        more = sorted(here - own)
        if more and kept and not _fails(other):
            lacks = f"{' and '.join(more)} {'is' if len(more) == 1 else 'are'} not launched"
            said = f"{found.words}: {lacks}; right {words}, where {'it is' if len(more) == 1 else 'they are'} launched"
            return Finding("unwritten", said, cause=f"unwritten: {lacks}", in_host=True)
    return None


def _batches(case: AttentionCase) -> Iterator[tuple[tuple[Sequence, ...], str]]:
    """Yield batches with one more sequence, which is the longest, and batches of a single sequence; each in words."""
    longest = case.max_seq_len + LONGER
    for more in (Sequence(1, longest), Sequence(3, longest)):
        of = f"{count(more.query_len, 'query token')} behind {count(more.context_len, 'key')}"
        yield (*case.sequences, more), f"beside a sequence with {of}"
    if len(case.sequences) > 1:
        for number, one in enumerate(case.sequences[:MOST_ALONE]):
            yield (one,), f"for sequence {number} alone"


def _with_batch(experiment: Experiment, batch: tuple[Sequence, ...]) -> Experiment | None:
    """Return the case with another batch; None where it cannot exist, or cannot be launched."""
    try:
        other = experiment.with_target(replace(experiment.case, sequences=batch), experiment.target)
        return None if other.first.error else other
    except (CaseError, FuzzAttnError):
        return None


def small_block(experiment: Experiment, found: Finding) -> Finding | None:
    """Return that only the first query heads of each KV head are answered, with a block that holds as many."""
    group, unwritten = experiment.case.heads.num_queries_per_kv, _unwritten_rows(experiment)
    if found.reason != "unwritten" or not found.words.endswith("never written") or not unwritten.any():
        return None
    places = {(row.head % group, bool(unwritten[row.token, row.head])) for row in rows_of_case(experiment.case)}
    answered = min(place for place, lost in places if lost)
    if not answered or places != {(place, place >= answered) for place in range(group)}:
        return None
    words = f"{found.words}: only the first {answered} of the {group} query heads of a KV head are answered"
    names = sorted({name for name, number in _block_sizes(experiment) if number == answered})
    words += f", as many as {names[0]} of the launch" if names else ""
    return Finding("unwritten", words, cause="unwritten: only the first query heads of a KV head are answered")


def _unwritten_rows(experiment: Experiment) -> Array:
    """Return bool ``[num_tokens, num_query_heads]``, or nothing where the output has other axes."""
    output = experiment.first.tensors.outputs.get("out")
    if output is None or output.unwritten.dim() != 3:
        return np.zeros(0, dtype=np.bool_)
    rows: Array = output.unwritten.all(dim=-1).cpu().numpy()
    return rows


def _block_sizes(experiment: Experiment) -> set[tuple[str, int]]:
    """Return the constants of all launches whose names are those of blocks, with their numbers."""
    backend, found = experiment.backend, set[tuple[str, int]]()
    if isinstance(backend, SimulatorBackend):
        with backend.watched(lambda program, bound, grid: found.update(constants_of(bound).items())):
            experiment.launch_tensors(experiment.again())
    return {(short_name(name), number) for name, number in found if "BLOCK" in name.upper()}


def launched(experiment: Experiment) -> frozenset[str]:
    """Return the kernels that a case launches, by their names; none where the backend does not tell."""
    backend, names = experiment.backend, set[str]()
    if isinstance(backend, SimulatorBackend):
        with backend.watched(lambda program, bound, grid: names.add(program.name)):
            experiment.launch_tensors(experiment.again())
    return frozenset(names)


def _fails(experiment: Experiment) -> bool:
    return any(not verdict.passed for verdict in all_failures(experiment))
