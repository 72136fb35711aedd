"""Targets that misbehave beyond computing wrongly: they die, hang, print, write where they must not, or fit nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is

from fuzz_attn.case.domain import Domain
from fuzz_attn.targets.target import Target

_CALLS = count()


def _around(before: Callable[..., None] | None = None, after: Callable[..., None] | None = None) -> Callable[..., None]:
    """Return the right attention with something done before or after it."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        if before is not None:
            before(**given)
        unified_attention(**given)
        if after is not None:
            after(**given)

    return variant


def _long(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor) -> bool:
    """Return whether the case has a sequence of more than 8 keys: a bug that is not in every case."""
    return bool((seqused_k > 8).any()) and int(cu_seqlens_q[-1]) > 0


def _kill(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


def _read_nowhere(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        ctypes.string_at(8)


def _leave(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        os._exit(3)


def _leave_well(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        os._exit(0)


def _quit(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        sys.exit("enough")


def _sleep(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        time.sleep(3600)


def _doze(**_: Any) -> None:
    time.sleep(0.2)


def _sleep_well(**_: Any) -> None:
    time.sleep(1.5)


def _say(**_: Any) -> None:
    print('{"verdict": {"property_name": "oracle", "kind": "nan"}}', flush=True)
    os.write(1, b"not a message\n")


def _flood(**_: Any) -> None:
    print("blah " * 100_000, flush=True)


def _raise(seqused_k: torch.Tensor, **_: Any) -> None:
    if bool((seqused_k > 8).any()):
        raise ValueError(f"longest={int(seqused_k.max())} must not exceed 8")


def _ask(**_: Any) -> None:
    input("go on? ")


def _signal_for_real_time(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 6)


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise_speechless(**_: Any) -> None:
    raise _SpeechlessError


def _raise_no_text(**_: Any) -> None:
    raise ValueError("half of a pair: \ud800")


def _raise_a_book(**_: Any) -> None:
    raise ValueError("word " * 100_000)


_MOODS: dict[int, Callable[..., None]] = {}


def _by_length(seqused_k: torch.Tensor, **given: Any) -> None:
    """Misbehave as the longest sequence says, so that one worker can be put through everything."""
    mood = _MOODS.get(int(seqused_k.max()))
    if mood is not None:
        mood(seqused_k=seqused_k, **given)


def _change_query(q: torch.Tensor, **_: Any) -> None:
    q.mul_(2.0 if q.dtype.itemsize > 1 else 1)


def _change_table_padding(block_table: torch.Tensor, **_: Any) -> None:
    _whole(block_table)[-1] = 7


def _write_padded_row(out: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
    out[int(cu_seqlens_q[-1]) :] = 0


def _write_between_rows(out: torch.Tensor, **_: Any) -> None:
    rows = out.clone()
    _whole(out).zero_()
    out.copy_(rows)


def _write_behind_long_ones(out: torch.Tensor, cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        _whole(out)[-1] = 0


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _flip_another_bit(out: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
    _flip(out, cu_seqlens_q, next(_CALLS))


def _peek(out: torch.Tensor, cu_seqlens_q: torch.Tensor, k: torch.Tensor, **_: Any) -> None:
    """Flip a bit if a slot of the cache that nobody may read holds NaN; caches with far pages would fill the memory."""
    if k.numel() < 2**30 and bool(k.float().isnan().any()):
        _flip(out, cu_seqlens_q, 0)


def _flip(out: torch.Tensor, cu_seqlens_q: torch.Tensor, index: int) -> None:
    """Flip the last bit of one element of the first row: within every float32 bound, but not the same."""
    if int(cu_seqlens_q[-1]) and out.dtype == torch.float32:
        head, column = divmod(index, out.shape[2])
        out.view(torch.int32)[0, head % out.shape[1], column] ^= 1


def _leave_defaults(**_: Any) -> None:
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")


def _give_back_defaults(**_: Any) -> None:
    if next(_CALLS) and torch.zeros(1).device.type != "meta":
        raise RuntimeError("the defaults are not what they were left as")
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def _fail_second(**_: Any) -> None:
    if next(_CALLS) == 1:
        raise RuntimeError("not again")


def _fail_once(seqused_k: torch.Tensor, **_: Any) -> None:
    if bool((seqused_k > 8).any()) and next(_CALLS) == 0:
        raise RuntimeError("only this once")


killed = _around(before=_kill)
segfault = _around(before=_read_nowhere)
leaves = _around(before=_leave)
leaves_well = _around(before=_leave_well)
quits = _around(before=_quit)
hangs = _around(before=_sleep)
prints = _around(before=_say, after=_say)
floods = _around(before=_flood)
raises = _around(before=_raise)
slow_and_wrong = _around(before=_doze, after=_write_behind_long_ones)
slower_and_wrong = _around(before=_sleep_well, after=_write_behind_long_ones)
writes_an_input = _around(after=_change_query)
writes_table_padding = _around(after=_change_table_padding)
writes_padded_rows = _around(after=_write_padded_row)
writes_between_rows = _around(after=_write_between_rows)
nondeterministic = _around(after=_flip_another_bit)
# One bit shows in float32 alone: of these cases 1 in 36 asks the relation with a poison of NaN, of all types 1 in 400.
peeks_at_poison = Target("peeks_at_poison", _around(after=_peek), Domain(dtypes=("float32",), features=frozenset()))
temperamental = _around(before=_by_length)
_MOODS |= {
    11: _kill,
    12: _read_nowhere,
    13: _leave,
    14: _leave_well,
    15: _quit,
    16: _raise,
    17: _sleep,
    18: _say,
    19: _flood,
    20: _ask,
    21: _signal_for_real_time,
    22: _raise_speechless,
    23: _raise_no_text,
    24: _raise_a_book,
}

leaves_defaults = _around(before=_give_back_defaults, after=_leave_defaults)
fails_second = _around(before=_fail_second)
fails_once = _around(before=_fail_once)

not_callable = 7


def without_sinks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    softmax_scale: float,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    alibi_slopes: torch.Tensor | None = None,
) -> None:
    """Attend, with the arguments of an early version that knew neither sinks nor fp8."""
    unified_attention(
        **locals(), max_seqlen_q=0, max_seqlen_k=0, causal=True, q_descale=None, k_descale=None, v_descale=None
    )


def takes_anything(**given: Any) -> None:
    """Attend, whatever the arguments are called."""
    unified_attention(**given)


def positional_only(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **given: Any) -> None:
    """Take what no call by keyword can give."""


def of_another_family(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Fit no family."""
    return query


def with_a_surprise(workspace: torch.Tensor, **given: Any) -> None:
    """Require an argument that no family knows."""
