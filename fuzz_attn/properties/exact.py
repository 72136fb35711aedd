"""Exact relations: two launches that must give the same bits, whatever a target's roundings are."""

from __future__ import annotations

from typing import Final

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace, replace_layout
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.recipes import PoisonRecipe, SlotPoison, TablePoison
from fuzz_attn.inputs.transforms import arranged, with_pages_reversed
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.comparisons import AGAIN, judged, mapped, same_bits
from fuzz_attn.properties.experiment import Experiment

STRIDE_STEP: Final = 16
"""Elements by which a padding changes: a compiler that specialises on multiples of 16 then makes the same code."""

_OTHER_SLOT: Final[dict[SlotPoison, SlotPoison]] = {
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "negative_inf",
}
_OTHER_ENTRY: Final[dict[TablePoison, TablePoison]] = {
    "zero": "one_past",
    "negative": "zero",
    "one_past": "negative",
    "huge": "zero",
}


def determinism(experiment: Experiment) -> Verdict:
    """Two launches on the same input give the same bits."""
    again = experiment.launch_tensors(experiment.again())
    return same_bits(experiment, "determinism", again, AGAIN, kind="nondeterministic")


def poison_independence(experiment: Experiment) -> Verdict:
    """Whatever stands in dead slots, in padding and past the end of the block table, the output has the same bits."""
    other = experiment.launch(with_other_poison(experiment.case))
    change = "a launch with other poison in slots, table entries and padding that nobody may read"
    return same_bits(experiment, "poison_independence", other, change, kind="poison_dependent")


def page_permutation(experiment: Experiment) -> Verdict:
    """Where the pages lie in the caches is nobody's business: their order reversed, the same bits."""
    other = experiment.launch_tensors(with_pages_reversed(experiment.fresh()))
    change = "a launch with the physical pages in reverse order"
    return same_bits(experiment, "page_permutation", other, change)


def other_strides(experiment: Experiment) -> Verdict:
    """How queries, outputs, caches and tables are strided changes no bit: contiguous against padded, both ways.

    Paddings differ by multiples of 16 elements alone, so that whatever is compiled for strides is compiled alike; code
    for other strides might sum in another order, and be right.
    """
    other = experiment.launch(with_other_strides(experiment.case))
    change = "a launch with other strides"
    return same_bits(experiment, "other_strides", other, change)


def empty_sequences(experiment: Experiment) -> Verdict:
    """Sequences without query tokens disturb nobody: taken out where the case has some, else put in, the same bits.

    Bit for bit where the case says by which path to launch; a launcher that chooses may do so by the size of the batch,
    and is held to the error bound.
    """
    order, change = _other_empties(experiment.case)
    tensors, tokens = arranged(experiment.fresh(), order)
    other = experiment.launch_tensors(tensors)
    if experiment.case.launch.path == "auto":
        exact = mapped(experiment.reference, lambda rows: rows[tokens])
        return judged(experiment, "empty_sequences", other, change, exact, own=exact)
    return same_bits(experiment, "empty_sequences", other, change, tokens=tokens)


def with_other_poison(case: AttentionCase) -> AttentionCase:
    """Return the case with every poison exchanged for another, that of the output included."""
    poison = PoisonRecipe(
        keys=_OTHER_SLOT[case.poison.keys],
        values=_OTHER_SLOT[case.poison.values],
        table=_OTHER_ENTRY[case.poison.table],
        out=0 if case.poison.out else 1,
    )
    return replace(case, poison=poison)


def with_other_strides(case: AttentionCase) -> AttentionCase:
    """Return the case with every padding shorter by 16 elements where it has so many, else longer."""
    paddings = {
        name: _other_padding(size)
        for name in Strides.__struct_fields__
        if isinstance(size := getattr(case.strides, name), int)
    }
    bias = case.qq_bias
    if bias is not None:
        bias = msgspec.structs.replace(bias, row_padding=_other_padding(bias.row_padding))
    return replace_layout(case, strides=msgspec.structs.replace(case.strides, **paddings), qq_bias=bias)


def _other_padding(size: int) -> int:
    return size - STRIDE_STEP if size >= STRIDE_STEP else size + STRIDE_STEP


def _other_empties(case: AttentionCase) -> tuple[list[int | None], str]:
    live = [index for index, sequence in enumerate(case.sequences) if sequence.query_len]
    if len(live) < len(case.sequences):
        return [*live], "a launch without the empty sequences"
    order: list[int | None] = [None]
    for index in live:
        order += [index, None]
    return order, "a launch with an empty sequence on either side of each"
