"""Few values: where a long row looks as if a key were lost, most of its values become 0, so that each key left shows.

The bound of a row grows with its number of keys, as a kernel may round each weight. So under most rounding models a key
lost among thousands lies within it. A key whose value is 0 adds nothing to the bound. With a few dozen values other
than 0 in each column, the loss of any of their keys exceeds the bound, in every order of summation and for every way to
normalise.

The first launch says which keys to keep: in rows of equal weights (:mod:`fuzz_attn.inputs.equal_heads`), the marks of
few keys share a column, and a lost key moves this column by its whole mark. That is a suspicion only: the roundings of
a correct kernel may move it as far. The second launch decides it, within the bound of its own problem. So nothing has
to be known of how the target normalises, and a target without the suspicion is not launched again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from fuzz_attn.inputs.equal_heads import equal_heads
from fuzz_attn.inputs.transforms import only_values
from fuzz_attn.oracle.reference import attend, output_factor
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
LAUNCHES: Final = 8
"""The most launches for one suspicion. If most columns are suspicious, as where a target rounds much, it is one."""
FEW_COLUMNS: Final = 8
"""One suspicious column of fewer may be most of them by itself."""


class Suspicion(NamedTuple):
    """A row and a column whose error is as large as what a key adds, and the keys that may be the lost one.

    The likeliest ``positions`` come first. ``wide`` says whether most columns of the row have such errors.
    """

    size: float
    sequence: int
    head: int
    column: int
    positions: torch.Tensor
    wide: bool


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
    if model.normalises_last or not (case.key_marks and case.equal_heads):
        return
    found = [each for block in experiment.blocks if (each := _suspicion(block, experiment)) is not None]
    if not found:
        return
    worst = max(found, key=lambda each: each.size)
    room = KEPT * case.heads.head_size
    for number, positions in enumerate(torch.split(worst.positions, room)):
        if number == (1 if worst.wide else LAUNCHES):
            return
        tensors = only_values(experiment.fresh(), worst.sequence, positions.sort().values, worst.head, worst.column)
        other = experiment.launch_tensors(tensors)
        exact = attend(other.tensors, model)
        change = f"a launch with all values 0 but those of {len(positions)} keys of sequence {worst.sequence}"
        yield WithinBound(other, change, exact, own=exact)


@torch.inference_mode()
def _suspicion(block: RowBlock, experiment: Experiment) -> Suspicion | None:
    """Return the largest suspicion of a block, None if there is none."""
    tensors, reference = experiment.first.tensors, experiment.reference
    factor = output_factor(tensors)
    if block.values.shape[-2] < LONG or not factor:
        return None
    first = int(block.values.shape[-1] > 1)
    shape = (-1, *block.queries.shape[1:2], *block.queries.shape[3:])
    actual = tensors.output[: len(reference.expected)].double()
    error = (actual - reference.expected).div_(factor).view(shape)[block.tokens].transpose(1, 2)[..., first::2]
    sizes = block.value_sizes[..., first::2]
    least = sizes.masked_fill(sizes == 0.0, torch.inf).amin(-2)[:, :, None, None]
    ratio = (error.abs() * block.num_visible[:, None, :, None, None]).div_(least)
    equal = torch.from_numpy(equal_heads(experiment.case)).to(ratio.device).view(shape[1:3])
    usable = equal[None, :, None, :, None] & (block.num_visible >= LONG)[:, None, :, None, None]
    ratio = ratio.masked_fill(~usable, 0.0).nan_to_num_(0.0, 0.0, 0.0)
    if not ratio.numel() or not float(ratio.max()) >= SUSPICIOUS:
        return None
    place = torch.unravel_index(ratio.argmax(), ratio.shape)
    span, head, row, _, marked = (int(each) for each in place)
    column = 2 * marked + first
    values = block.values[span, head, :, column]
    seen = block.visible[span, row] & (values != 0.0)
    opposite = seen & (values.sign() != float(error[place].sign()))
    positions = torch.cat([_ends_first(block.key_position[span][each]) for each in (opposite, seen & ~opposite)])
    token = int(block.tokens[span, row])
    return Suspicion(
        size=float(ratio.max()),
        sequence=_sequence_of(token, tensors.query_lens),
        head=head,
        column=column,
        positions=positions,
        wide=ratio.shape[-1] >= FEW_COLUMNS and float((ratio[place[:-1]] >= SUSPICIOUS).double().mean()) > 0.5,
    )


def _ends_first(positions: torch.Tensor) -> torch.Tensor:
    """Return ascending positions in another order: the first, the last, and so on to the middle one."""
    order = torch.arange(len(positions), device=positions.device)
    return positions[torch.minimum(order, len(positions) - 1 - order).argsort(stable=True)]


def _sequence_of(token: int, query_lens: tuple[int, ...]) -> int:
    """Return the sequence of a query token."""
    end = 0
    for sequence, query_len in enumerate(query_lens):
        end += query_len
        if token < end:
            return sequence
    raise AssertionError(token)
