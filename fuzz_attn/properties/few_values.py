"""Few values: where a long row looks as if a key were lost, most of its values become 0, so that each key left shows.

The bound of a row grows with its number of keys, as a kernel may round each weight. So under most rounding models a key
lost among thousands lies within it. A key whose value is 0 adds nothing to the bound. With a few dozen values other
than 0 in each column, the loss of any of their keys exceeds the bound, in every order of summation and for every way to
normalise.

The first launch says which keys to keep: in rows of equal weights (:mod:`fuzz_attn.inputs.numbers`), the marks of
few keys share a column, and a lost key moves this column by its whole mark. That is a suspicion only: the roundings of
a correct kernel may move it as far. The second launch decides it, within the bound of its own problem. So nothing has
to be known of how the target normalises, and a target without the suspicion is not launched again.

Where more keys share the column than one launch has room for, launches before it narrow them down: the keys are spread
over all columns, and the column with the error has the lost key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from fuzz_attn.inputs.numbers import equal_heads
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.inputs.transforms import key_columns, only_values
from fuzz_attn.oracle.error_bound import counts_exactly
from fuzz_attn.oracle.reference import Expected, attend, output_factor
from fuzz_attn.oracle.row_blocks import RowBlock
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.comparisons import WithinBound, compared
from fuzz_attn.properties.experiment import Experiment

LONG: Final = 64
"""Rows of fewer keys are not looked at: the bound of a first launch shows each of them."""
SUSPICIOUS: Final = 0.5
"""Share of the smallest mark of a column by which it must be wrong."""
KEPT: Final = 64
"""Keys in a column of the second launch. In the coarsest common type of P, bfloat16, their roundings are together at
most about half of what one of them adds, with 131,072 keys too."""
LAUNCHES: Final = 12
"""The most launches for one suspicion: what 131,072 keys need that share one column, each launch halving them. If most
columns are suspicious, as where a target rounds much, it is one."""
FEW_COLUMNS: Final = 8
"""One suspicious column of fewer may be most of them by itself."""


class Suspicion(NamedTuple):
    """A row and a column whose error is as large as what a key adds, and the keys that may be the lost one.

    ``size`` is the error in multiples of what a key adds at least, ``added``. The row is that of a ``token`` and a
    ``query_head``. The keys have their marks in the ``columns``: one, or all if most of them have such errors. Of all
    keys, only the first and the last ones are ``positions``.
    """

    size: float
    added: float
    token: int
    sequence: int
    query_head: int
    head: int
    columns: slice
    positions: torch.Tensor


def few_values(experiment: Experiment) -> Verdict:
    """Where a long row looks as if a key were lost, no key is lost if most values are 0."""
    for comparison in comparisons(experiment):
        verdict = compared(comparison, experiment, "few_values")
        if not verdict.passed:
            return verdict
    return Verdict("few_values")


def comparisons(experiment: Experiment) -> Iterator[WithinBound]:
    """Yield the launches that decide the largest suspicion of a first launch that passes; none without one."""
    case, model = experiment.case, experiment.target.rounding_model
    if not (case.key_marks and case.equal_heads) or counts_exactly(experiment.first.tensors, model):
        return
    found = [each for block in experiment.blocks if (each := _suspicion(block, experiment)) is not None]
    if not found:
        return
    worst = max(found, key=lambda each: each.size)
    positions, room = worst.positions, KEPT * case.heads.head_size_v
    for _ in range(LAUNCHES):
        last = len(positions) <= room
        kept = positions if last else _all_but_one_group(positions, case.heads.head_size_v)
        tensors = only_values(experiment.fresh(), worst.sequence, kept, worst.head, worst.columns)
        other = experiment.launch_tensors(tensors)
        exact = attend(other.tensors, model)
        change = f"a launch with all values 0 but those of {len(kept)} keys of sequence {worst.sequence}"
        yield WithinBound(other, change, exact, own=exact)
        if last:
            return
        positions = _narrowed(positions, kept, worst, other.tensors, exact["out"])


def _all_but_one_group(positions: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Return the keys of a launch with a group of them in each column; the last group is left out."""
    group = -(-len(positions) // (num_columns + 1))
    return positions[: group * num_columns]


def _narrowed(
    positions: torch.Tensor, kept: torch.Tensor, worst: Suspicion, tensors: AttentionTensors, exact: Expected
) -> torch.Tensor:
    """Return the keys of the column with the largest error, or those that were left out if no error is suspicious."""
    row = worst.token, worst.query_head
    error = (tensors.output[row].double() - exact.value[row]).abs_().nan_to_num_(0.0, 0.0, 0.0)
    column = int(error.argmax())
    if float(error[column]) < SUSPICIOUS * worst.added * abs(output_factor(tensors)):
        return positions[len(kept) :]
    return kept[key_columns(len(kept), len(error)) == column]


@torch.inference_mode()
def _suspicion(block: RowBlock, experiment: Experiment) -> Suspicion | None:
    """Return the largest suspicion of a block, None if there is none."""
    tensors, reference = experiment.first.tensors, experiment.reference["out"]
    factor = output_factor(tensors)
    if block.values.shape[-2] < LONG or not factor:
        return None
    first = int(block.values.shape[-1] > 1)
    shape = (-1, *block.queries.shape[1:2], block.queries.shape[3], block.values.shape[-1])
    actual = tensors.outputs["out"].elements.double()
    error = (actual - reference.value).div_(factor).view(shape)[block.tokens].transpose(1, 2)[..., first::2]
    sizes = block.magnitudes[..., first::2]
    least = sizes.masked_fill(sizes == 0.0, torch.inf).amin(-2)[:, :, None, None]
    ratio = (error.abs() * block.num_visible[:, None, :, None, None]).div_(least)
    equal = torch.from_numpy(equal_heads(experiment.case)).to(ratio.device).view(shape[1:3])
    usable = equal[None, :, None, :, None] & (block.num_visible >= LONG)[:, None, :, None, None]
    ratio = ratio.masked_fill(~usable, 0.0).nan_to_num_(0.0, 0.0, 0.0)
    if not ratio.numel() or not float(ratio.max()) >= SUSPICIOUS:
        return None
    place = tuple((ratio == ratio.max()).nonzero()[0].tolist())
    span, head, row, group, marked = place
    columns, seen = slice(2 * marked + first, 2 * marked + first + 1), block.visible[span, row]
    if ratio.shape[-1] >= FEW_COLUMNS and float((ratio[place[:-1]] >= SUSPICIOUS).double().mean()) > 0.5:
        columns = slice(first, None, 2)
        positions = _ends(block.key_position[span][seen], KEPT * experiment.case.heads.head_size_v)
    else:
        positions = block.key_position[span][seen & (block.values[span, head, :, columns.start] != 0.0)]
    token = int(block.tokens[span, row])
    return Suspicion(
        size=float(ratio.max()),
        added=float(least.expand_as(ratio)[place] / block.num_visible[span, row]),
        token=token,
        query_head=head * ratio.shape[3] + group,
        sequence=_sequence_of(token, tensors.query_lens),
        head=head,
        columns=columns,
        positions=positions,
    )


def _ends(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Return this many positions at most: the first and the last ones."""
    half = count // 2
    return positions if len(positions) <= count else torch.cat([positions[:half], positions[-half:]])


def _sequence_of(token: int, query_lens: tuple[int, ...]) -> int:
    """Return the sequence of a query token."""
    end = 0
    for sequence, query_len in enumerate(query_lens):
        end += query_len
        if token < end:
            return sequence
    raise AssertionError(token)
