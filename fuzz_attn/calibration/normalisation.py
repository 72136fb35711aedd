"""Normalisation: exact cases settle whether code without Triton kernels divides by the denominator last.

With scores of exactly 0, code that divides last sums integers, which is exact in any order. Code that normalises P
first rounds 1/n, in float32 or in the type of V, and sums products of that. In *short* cases each element of the output
must be within the bound of code that divides last, and elements of both kinds of other code must be far outside; where
they are not, nothing is concluded. In a *long* case, most columns have a few integers that cancel: their sums must be
0. It tells code that merges normalised segments of long sequences, and a lost key spoils one column only, so that a bug
does not hide itself.

Code may take another way with other types, features and lengths, so each of these is settled by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Final, TypeAlias

import msgspec
import numpy as np
import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.features import features_of
from fuzz_attn.case.parts import DTypes, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, IntegerValues, SinkRecipe, UniformScores
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.arithmetic import dtype_of
from fuzz_attn.oracle.reference import Reference, attend, output_factor
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import Target

SHORT: Final = (11, 13, 41, 43, 601)
"""Keys of the sequences of a short case: 1/n is inexact in every type."""
SEEDS: Final = 3
DECISIVE: Final = 4
"""Elements that must tell code of each other kind."""
LONG: Final = 512
"""Sequences of more keys are settled by a long case too."""
TERMS: Final = 14
"""Integers of a column of a long case; they are those from -7 to 7 without 0."""
NEARLY_ALL: Final = 0.9
"""Share of a long case's columns that must cancel. A lost key spoils one; a merge of segments a quarter or more."""
LARGER: Final = 32.0
"""Factor of the integers of a short case: errors of float32 are then no denormals of float16."""
LARGEST: Final = 4096.0
"""The same for a long case, whose outputs are smaller."""
NO_SINK: Final = -1000.0

NOTE: Final = (
    "It divides by the softmax denominator once, after all sums, as exact cases show (calibrated), so sums that are "
    "exact in any order must be exact; rounding.normalises_last = False in a binding overrules it."
)

_Key: TypeAlias = tuple[DTypes, tuple[str, ...], bool, int]


@dataclass
class NormalisationCalibrator:
    """What was settled of one target, by types, features, whether sequences have several new tokens, and length."""

    _found: dict[_Key, bool] = field(default_factory=dict)
    _told: bool = False

    def target_for(self, experiment: Experiment) -> Target:
        """Return the target of an experiment, as it is or with ``normalises_last`` where that is certain.

        A target that has kernels, or that states how it normalises, is not asked.
        """
        target, backend = experiment.target, experiment.backend
        if not _is_open(target) or backend.arithmetic() or backend.name == "interpreter":
            return target
        case = experiment.case
        longest = max((each.seq_len for each in case.sequences), default=0)
        several = any(each.query_len > 1 for each in case.sequences)
        key = (case.dtypes, features_of(case), several, _bits(longest))
        if key not in self._found:
            self._found[key] = divides_last(case, target, backend)
        return replaced(target, read=msgspec.structs.replace(target.read, normalises_last=self._found[key]))

    def new_notes(self) -> tuple[str, ...]:
        """Return in a sentence, once, that the target divides last for some cases."""
        if self._told or not any(self._found.values()):
            return ()
        self._told = True
        return (NOTE,)


def _bits(longest: int) -> int:
    """Return the same number for all lengths that are settled together, between two powers of two; 0 for short ones."""
    return (longest - 1).bit_length() if longest > LONG else 0


def _is_open(target: Target) -> bool:
    return target.rounding is None and "normalises_last" not in target.match.binding.rounding


def divides_last(case: AttentionCase, target: Target, backend: Backend) -> bool:
    """Return whether a target certainly divides by the denominator last in cases of the types and features of one."""
    query_len = 3 if any(each.query_len > 1 for each in case.sequences) else 1
    longest = max((each.seq_len for each in case.sequences), default=0)
    last = replaced(target, read=msgspec.structs.replace(target.read, normalises_last=True))
    try:
        with backend.unrecorded():
            launches = [Experiment(each, last, backend) for each in _short_cases(case, query_len)]
            if not _all_exact(launches):
                return False
            return longest <= LONG or _cancels(Experiment(_long_case(case, query_len, longest), last, backend))
    except FuzzAttnError:  # these sizes do not go with the features, or nothing runs them
        return False


def _short_cases(case: AttentionCase, query_len: int) -> Iterator[AttentionCase]:
    sequences = tuple(Sequence(query_len, keys - query_len) for keys in SHORT)
    return (_exact(case, sequences, LARGER, seed) for seed in range(1, SEEDS + 1))


def _exact(case: AttentionCase, sequences: tuple[Sequence, ...], factor: float, seed: int) -> AttentionCase:
    """Return a case with the types and features of another, whose scores are 0 and whose values are integers.

    ``factor`` is the scale of fp8 values; others are multiplied by it later.
    """
    return replace(
        case,
        sequences=sequences,
        pages=PageLayout(block_size=case.pages.block_size, permuted=True),
        window=case.window and 2 * max(each.seq_len for each in sequences),
        scores=UniformScores(),
        values=IntegerValues(),
        scales=Scales(v=factor if is_fp8(case.dtypes.kv) else 1.0),
        alibi=case.alibi and AlibiRecipe(kind="zero"),
        sinks=case.sinks and SinkRecipe(level=NO_SINK, spread=0.0),
        qq_bias=None,
        overrides=(),
        near_uniform=False,
        equal_heads=False,
        key_marks=False,
        padded_tokens=0,
        seed=seed,
    )


def _all_exact(experiments: list[Experiment]) -> bool:
    """Return whether all outputs are those of code that divides last, and other code would differ."""
    told = np.zeros(2, dtype=np.int64)
    for experiment in experiments:
        launch = experiment.launch_tensors(_enlarged(experiment.fresh()))
        if launch.error or launch.observations or not all(launch.tensors.answers):
            return False
        blocks, target = tuple(row_blocks(launch.tensors)), experiment.target
        reference = attend(launch.tensors, target.rounding_model, blocks)
        if not bool((_errors(launch.tensors, reference) <= reference.bound).all()):
            return False
        for block in blocks:
            told += _told(block, launch.tensors, target, reference)
    return bool((told >= DECISIVE).all())


def _enlarged(tensors: AttentionTensors) -> AttentionTensors:
    """Return tensors whose values are larger; those of fp8 have a scale."""
    for values in (tensors.value_slots, tensors.new_values):
        if values is not None and values.dtype.itemsize > 1:
            values.mul_(LARGER)
    return tensors


def _errors(tensors: AttentionTensors, reference: Reference) -> torch.Tensor:
    error = (tensors.output[: len(reference.expected)].double() - reference.expected).abs_()
    return error.nan_to_num(torch.inf)


def _told(block: RowBlock, tensors: AttentionTensors, target: Target, reference: Reference) -> np.ndarray:
    """Return how many elements code would get wrong that normalises P first: in the type of P, and in float32."""
    weights = (block.visible[:, None, :, None] / block.visible.sum(-1)[:, None, :, None, None]).float()
    values = block.values[:, :, None, None].float()
    summed = (weights.unsqueeze(-1) * values).cumsum(-2)[..., -1, :].double()
    narrow = dtype_of(target.rounding_model.probability, tensors)
    rounded = summed
    if narrow != torch.float32:
        rounded = (weights.to(narrow).double().unsqueeze(-1) * values.double()).sum(-2)
    counts = []
    for output in (rounded, summed):
        placed = output.expand(*block.queries.shape[:4], -1).transpose(1, 2).flatten(2, 3) * output_factor(tensors)
        stored = placed.to(tensors.output.dtype).double()
        error = (stored - reference.expected[block.tokens]).abs()
        counts.append(int((error > reference.bound[block.tokens]).sum()))
    return np.array(counts)


def _long_case(case: AttentionCase, query_len: int, longest: int) -> AttentionCase:
    """Return a case of one sequence as long as any that is settled with another's longest one, of odd length.

    So code that takes another way from some length on is told, wherever between two powers of two that lies.
    """
    keys = 2 ** _bits(longest) - 1
    return _exact(case, (Sequence(query_len, keys - query_len),), LARGEST, 1)


def _cancels(experiment: Experiment) -> bool:
    """Return whether nearly all sums of a long case are exactly 0, whose values cancel in each column."""
    tensors = experiment.fresh()
    columns = _put_cancelling(tensors)
    launch = experiment.launch_tensors(tensors)
    if launch.error or launch.observations:
        return False
    output = launch.tensors.output[: sum(tensors.query_lens)][-1, :, :columns].double()
    return bool(columns) and float((output == 0.0).double().mean()) >= NEARLY_ALL


def _put_cancelling(tensors: AttentionTensors) -> int:
    """Write values that cancel into the columns of a sequence, each at places of its own; return how many columns.

    Places lie among the keys of the context, which the last row sees.
    """
    keys, block_size = tensors.context_lens[0], tensors.block_size
    head_size = tensors.output.shape[-1]
    columns, random = min(head_size, keys // TERMS), np.random.default_rng(1)
    integers = np.array([each for each in range(-TERMS // 2, TERMS // 2 + 1) if each])
    values = torch.zeros(keys, head_size)
    places = random.permutation(keys)[: columns * TERMS].reshape(columns, TERMS)
    for column, chosen in enumerate(places):
        values[chosen, column] = torch.from_numpy(random.permutation(integers)).float()
    position = torch.arange(keys)
    pages = tensors.block_table[0].cpu().long()[position // block_size]
    slots = tensors.value_slots
    values *= LARGEST if tensors.kv_dtype.itemsize > 1 else 1.0
    stored = values.to(tensors.kv_dtype)[:, None].expand(-1, tensors.num_kv_heads, -1)
    slots[pages.to(slots.device), (position % block_size).to(slots.device)] = stored.to(slots.device).view(slots.dtype)
    new = tensors.context_lens[0] + torch.arange(tensors.query_lens[0])
    pages = tensors.block_table[0].cpu().long()[new // block_size]
    slots[pages.to(slots.device), (new % block_size).to(slots.device)] = 0
    if tensors.new_values is not None:
        tensors.new_values.zero_()
    return columns
