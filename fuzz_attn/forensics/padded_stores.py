"""Padded stores: stores that write the padding of a head too, the columns behind its last one.

A kernel computes a head in a block with a power of two of columns, and a store must leave out those behind the head.
They lie where the next head begins, so the case is launched with heads that lie apart: all else is right then, and what
is written outside lies directly behind the heads.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.forensics.accesses import SMALLEST_BLOCK, is_padded
from fuzz_attn.forensics.explanation import Finding
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import bits_of, elements_in
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.verdict import OUT_OF_BOUNDS_STORE
from fuzz_attn.properties.experiment import Experiment, Launch

MOST_ELEMENTS: Final = 2**20
"""Elements of a tensor whose padding is compared one by one."""


def gap_for(size: int) -> int:
    """Return how many elements between heads of a size hold the padding of each, none where heads have no padding.

    >>> gap_for(24), gap_for(1), gap_for(64)
    (8, 15, 0)
    """
    return max(SMALLEST_BLOCK, 1 << (size - 1).bit_length()) - size if is_padded(size) else 0


def padded_store(apart: Experiment) -> Finding | None:
    """Return which store writes the padding of heads, on a case whose heads lie apart; None where that is not all."""
    launch = apart.first
    if launch.error or not judge(launch.tensors, apart.reference).passed:
        return None
    found: dict[str, str] = {}
    for name, output in launch.tensors.outputs.items():
        if output.axes[-1] == "column" and gap_for(output.tensor.shape[-1]):
            if output.tensor.numel() > MOST_ELEMENTS:
                return None
            sites = _sites(name, output, launch)
            if sites is None:
                return None
            columns = f"columns of {launch.tensors.output_words(name)} from {output.tensor.shape[-1]} on"
            found |= dict.fromkeys(sites, columns)
    if not found:
        return None
    words = "; ".join(f"{columns} are written: {_store(site)}" for site, columns in found.items())
    return Finding("address", words, cause="address: the padding of heads is stored")


def _store(site: str) -> str:
    which = f"the store at {site.rpartition('/')[2]}" if site else "a store"
    return f"{which} does not leave out the padding of the head"


def _sites(name: str, output: OutputTensor, launch: Launch) -> list[str] | None:
    """Return the lines that store padding of an output, an empty text for an unknown one; None for other stores too."""
    tensor = output.tensor
    padding = _padding(tensor)
    memory = tensor.untyped_storage()
    sites = []
    for seen in launch.observations:
        if memory.data_ptr() <= seen.address < memory.data_ptr() + max(memory.nbytes(), 1):
            place = (seen.address - tensor.data_ptr()) // tensor.element_size() + seen.offset
            if not seen.message.startswith(OUT_OF_BOUNDS_STORE) or place not in padding:
                return None
            sites.append(seen.site)
    written = _written_outside(name, output, launch)
    if not written <= padding:
        return None
    return sites or [""] * bool(written)


def _padding(tensor: torch.Tensor) -> set[int]:
    """Return the offsets of the columns behind each head, up to a power of two, from the tensor's first element."""
    rows = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        rows = rows[..., None] + torch.arange(size) * stride
    first = tensor.shape[-1]
    columns = torch.arange(first, first + gap_for(first))
    return set((rows[..., None] + columns).flatten().tolist())


def _written_outside(name: str, output: OutputTensor, launch: Launch) -> set[int]:
    """Return the offsets of the elements of an output's memory that changed and must not, from the first element."""
    bits, before = bits_of(output.tensor), launch.outputs_before[name]
    allowed = before.clone()
    output.copy_live(bits, elements_in(allowed, bits))
    changed = allowed.view(bits.dtype) != launch.outputs_after[name].view(bits.dtype)
    return set((changed.nonzero().flatten() - int(bits.storage_offset())).tolist())
