"""Mask bits: by which bits of the custom masks rows attend keys, where those are not their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.attended_keys import ATTENDED, Recovered
from fuzz_attn.forensics.explanation import Finding, Row, rows_of_case
from fuzz_attn.forensics.lab import Array
from fuzz_attn.inputs.batch_rows import custom_masks, sees

TELLING_BITS: Final = 6
"""With fewer bits of later sequences, those of another sequence may be equal by chance."""
MOST_BITS: Final = 1 << 13
"""Bits of all masks up to which each place is tried as the beginning of one."""


def _attended_by(row: Row, found: Recovered) -> Array:
    """Return for each key of a sequence up to the end of a row whether the row attends it."""
    weights = np.nan_to_num(
        found.actual[row.token, row.head, found.cells.keys_of(row.sequence, row.kv_head)[: row.end]]
    )
    attended: Array = weights > ATTENDED * max(float(weights.max(initial=0.0)), 1e-6)
    return attended


def mask_row_findings(found: Recovered, case: AttentionCase) -> list[Finding]:
    """Return that the rows of a custom mask are read as if they had another length, or as if they began elsewhere.

    Only if that gives what is attended. It is vague where several lengths do, or few bits tell.
    """
    bits = custom_masks(case)
    if not bits:
        return []
    memory, starts = np.concatenate([each.reshape(-1) for each in bits]), np.cumsum([0, *(each.size for each in bits)])
    attended = [(row, _attended_by(row, found)) for row in rows_of_case(case)]

    def reads(first: Callable[[Row], int], sequence: int | None = None) -> bool:
        """Return whether each row, of one sequence if one is given, attends the keys of the bits from its place on."""
        for row, keys_of_row in (each for each in attended if sequence in (None, each[0].sequence)):
            places = first(row) + np.arange(row.end)
            read = (memory[np.clip(places, 0, len(memory) - 1)] != 0) & (places >= 0)
            if sequence is not None:  # what lies behind the mask's bits is not known
                read = np.where(places < len(memory), read, keys_of_row)
            if not np.array_equal(read, keys_of_row):
                return False
        return True

    def of_length(length: int) -> Callable[[Row], int]:
        added = length - case.max_seq_len
        return lambda row: starts[row.sequence] + row.query * (case.sequences[row.sequence].seq_len + added)

    lengths = [length for length in range(2 * case.max_seq_len + 2) if reads(of_length(length))]
    if len(bits) > 1 and not lengths and reads(lambda row: row.query * case.sequences[row.sequence].seq_len):
        words = "the custom mask of each sequence is read from the first bit of all, which is that of sequence 0"
        return [Finding("mask", words, vague=len(memory) - starts[1] < TELLING_BITS)]
    for index, mask in enumerate(bits if not lengths and len(memory) <= MOST_BITS else []):
        places = [
            place
            for place in range(len(memory) - mask.size // 2)
            if reads(lambda row, place=place, size=mask.shape[-1]: place + row.query * size, index)  # type: ignore[misc]
        ]
        if len(places) == 1 and places[0] != starts[index] and mask.size >= TELLING_BITS:
            words = f"the custom mask of sequence {index} is read from bit {places[0]}, and begins with {starts[index]}"
            return [Finding("mask", words)]
    wrong = sorted(length - case.max_seq_len for length in lengths if length != case.max_seq_len)
    if not wrong or case.max_seq_len in lengths:
        return []
    longest = max(case.sequences, key=lambda sequence: sequence.seq_len)
    named = {"context": longest.context_len, "new tokens": longest.query_len}
    seen = [f"{longest.seq_len + each} bits" for each in wrong[:3]]
    which = [name for name, length in named.items() if length - longest.seq_len == wrong[0]]
    why = f", the number of its {which[0]}" if which and len(wrong) == 1 else ""
    words = f"rows of the custom mask are read as if they had {' or '.join(seen)}{why}, and have {longest.seq_len}"
    return [Finding("mask", words, vague=len(wrong) > 1)]


def of_parts(found: Recovered, case: AttentionCase, finding: Finding) -> Finding:
    """Return a finding of hidden keys that are attended, with the part of the keys whose bits are not applied.

    It is vague where new tokens are read apart and the case does not hide keys of both parts.
    """
    hidden: dict[str, list[bool]] = {"context": [], "new tokens": []}
    for row in rows_of_case(case):
        attended = _attended_by(row, found)
        for key in range(row.end):
            if not sees(case, row.sequence, row.query, key):
                part = "context" if key < case.sequences[row.sequence].context_len else "new tokens"
                hidden[part].append(bool(attended[key]))
    if not all(hidden.values()):
        return msgspec.structs.replace(finding, vague=any(case.reads_packed))
    whole = [part for part, attended in hidden.items() if all(attended)]
    right = [part for part, attended in hidden.items() if not any(attended)]
    if len(whole) == 2:
        return msgspec.structs.replace(finding, words=f"{finding.words}; no bit of it is applied")
    if not whole or not right:
        return finding
    where = f"no bit of it is applied to keys of the {whole[0]}, and those of the {right[0]} are right"
    return msgspec.structs.replace(finding, words=f"{finding.words}; {where}")
