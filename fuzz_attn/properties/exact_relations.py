"""Exact relations: two launches that must give the same bits, however the target rounds.

Each function has the name of its relation in the registry and returns the comparison to make.
"""

from __future__ import annotations

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.transforms import arranged, with_own_pages, with_pages_reversed
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, reordered, second_launch
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import with_other_poison, with_other_strides


def determinism(experiment: Experiment) -> Comparison:
    """Launch a second time on the same input."""
    return second_launch(experiment)


def poison_independence(experiment: Experiment) -> Comparison:
    """Launch with other poison in unused slots, in padding and past the end of the block table."""
    other = experiment.launch(with_other_poison(experiment.case))
    return SameBits(other, "a launch with other poison in unused slots, table entries and padding", "poison_dependent")


def page_permutation(experiment: Experiment) -> Comparison:
    """Launch with the physical pages in reverse order."""
    other = experiment.launch_tensors(with_pages_reversed(experiment.fresh()))
    return SameBits(other, "a launch with the physical pages in reverse order")


def own_slots(experiment: Experiment) -> Comparison:
    """Launch with a copy of each shared page for each of its uses."""
    other = experiment.launch_tensors(with_own_pages(experiment.fresh()))
    return SameBits(other, "a launch with slots of their own for the keys that share one")


def other_strides(experiment: Experiment) -> Comparison:
    """Launch with other strides of queries, outputs, caches and tables.

    Paddings change only by multiples of 16 elements, so that a compiler generates the same code. Code for other strides
    might sum in another order, and be right.
    """
    return SameBits(experiment.launch(with_other_strides(experiment.case)), "a launch with other strides")


def empty_sequences(experiment: Experiment) -> Comparison:
    """Launch without the batch's empty sequences, or with some if it has none.

    Only a case that chooses the kernel must give the same bits. A launcher that chooses may go by the size of the
    batch, so its output is compared within the error bound.
    """
    order, change = _other_empties(experiment.case)
    tensors, tokens = arranged(experiment.fresh(), order)
    other = experiment.launch_tensors(tensors)
    if experiment.case.launch.path == "auto":
        exact = reordered(experiment.reference, tensors, "token", tokens)
        return WithinBound(other, change, exact, own=exact)
    return SameBits(other, change, tokens=tokens)


def _other_empties(case: AttentionCase) -> tuple[list[int | None], str]:
    """Return the new order of the sequences, None for an empty one, and the change in words."""
    live = [index for index, sequence in enumerate(case.sequences) if sequence.query_len]
    if len(live) < len(case.sequences):
        return [*live], "a launch without the empty sequences"
    order: list[int | None] = [None]
    for index in live:
        order += [index, None]
    return order, "a launch with an empty sequence on either side of each"
