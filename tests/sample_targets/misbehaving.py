"""Targets that misbehave otherwise than by a wrong result: they crash, hang, print, write elsewhere or do not load."""

from __future__ import annotations

import contextlib
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

from fuzz_attn.targets import Domain, Target

_CALLS = count()


def _around(before: Callable[..., None] | None = None, after: Callable[..., None] | None = None) -> Callable[..., None]:
    """Return the right attention with a call before or after it."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        if before is not None:
            before(**given)
        unified_attention(**given)
        if after is not None:
            after(**given)

    return variant


def _long(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor) -> bool:
    """Return whether the case has a sequence of more than 8 keys, so that not every case fails."""
    return bool((seqused_k > 8).any()) and int(cu_seqlens_q[-1]) > 0


def _kill(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


def _read_null_page(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        ctypes.string_at(8)


def _exit(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        os._exit(3)


def _exit_with_zero(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        os._exit(0)


def _raise_system_exit(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        sys.exit("enough")


def _sleep(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        time.sleep(3600)


def _sleep_always(**_: Any) -> None:
    time.sleep(3600)


def _sleep_with_sinks(sinks: torch.Tensor | None, **_: Any) -> None:
    if sinks is not None:
        time.sleep(3600)


def _sleep_briefly(**_: Any) -> None:
    time.sleep(0.2)


def _sleep_longer(**_: Any) -> None:
    time.sleep(1.5)


def _print_a_message(**_: Any) -> None:
    print('{"verdict": {"property_name": "oracle", "kind": "nan"}}', flush=True)
    os.write(1, b"not a message\n")


def _print_much(**_: Any) -> None:
    print("blah " * 100_000, flush=True)


def _raise(seqused_k: torch.Tensor, **_: Any) -> None:
    if bool((seqused_k > 8).any()):
        raise RuntimeError(f"longest={int(seqused_k.max())} must not exceed 8")


def _assert(seqused_k: torch.Tensor, **_: Any) -> None:
    assert int(seqused_k.max()) <= 8


def _read_input(**_: Any) -> None:
    input("go on? ")


def _send_real_time_signal(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 6)


class _NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise_without_text(**_: Any) -> None:
    raise _NoTextError


def _raise_half_a_surrogate_pair(**_: Any) -> None:
    raise RuntimeError("half of a pair: \ud800")


def _raise_long_text(**_: Any) -> None:
    raise RuntimeError("word " * 100_000)


def _raise_keyboard_interrupt(**_: Any) -> None:
    raise KeyboardInterrupt


def _lower_recursion_limit(**_: Any) -> None:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 10)


def _resize_output(out: torch.Tensor, **_: Any) -> None:
    out.resize_(0)


def _replace_output(out: torch.Tensor, **_: Any) -> None:
    out.set_(torch.zeros_like(out))  # type: ignore[call-overload] # torch's stubs lack set_ of a tensor


def _resize_query(q: torch.Tensor, **_: Any) -> None:
    q.resize_(1)


def _patch_torch(**_: Any) -> None:
    torch.Tensor.untyped_storage = None  # type: ignore[method-assign,assignment] # the harness calls it


def _close_files(**_: Any) -> None:
    os.closerange(0, 256)


def _replace_files(**_: Any) -> None:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)


def _write_to_files(**_: Any) -> None:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"no message at all")


def _change_folder(**_: Any) -> None:
    os.chdir("/")
    sys.setrecursionlimit(900)


def _fork(**_: Any) -> None:
    os.fork()


def _exhaust_memory(**_: Any) -> None:
    hoard = []
    while True:
        hoard.append(torch.ones(2**24))  # 64 MiB


def _print_for_ever(**_: Any) -> None:
    while True:
        os.write(1, b"again and again\n" * 4096)


def _raise_later(**_: Any) -> None:
    """Install a handler that raises while the harness judges the output."""

    def late(number: int, frame: object) -> None:
        raise ValueError("too late")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


def _corrupt_heap(**_: Any) -> None:
    """Overwrite objects that the harness uses."""
    for name in ("Tensor", "uint8", "float32", "equal"):
        ctypes.memset(id(getattr(torch, name)), 0x41, 64)


_BY_LENGTH: dict[int, Callable[..., None]] = {}
_AFTERWARDS_BY_LENGTH: dict[int, Callable[..., None]] = {}


def _by_length(seqused_k: torch.Tensor, **given: Any) -> None:
    """Misbehave by the length of the longest sequence, so that one worker can meet every misbehaviour."""
    misbehaviour = _BY_LENGTH.get(int(seqused_k.max()))
    if misbehaviour is not None:
        misbehaviour(seqused_k=seqused_k, **given)


def _by_length_afterwards(seqused_k: torch.Tensor, **given: Any) -> None:
    misbehaviour = _AFTERWARDS_BY_LENGTH.get(int(seqused_k.max()))
    if misbehaviour is not None:
        misbehaviour(seqused_k=seqused_k, **given)


def _change_query(q: torch.Tensor, **_: Any) -> None:
    q.mul_(2.0 if q.dtype.itemsize > 1 else 1)


def _change_table_padding(block_table: torch.Tensor, **_: Any) -> None:
    _storage(block_table)[-1] = 7


def _write_padded_row(out: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
    out[int(cu_seqlens_q[-1]) :] = 0


def _write_between_rows(out: torch.Tensor, **_: Any) -> None:
    rows = out.clone()
    _storage(out).zero_()
    out.copy_(rows)


def _write_behind_the_output(out: torch.Tensor, cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any) -> None:
    if _long(cu_seqlens_q, seqused_k):
        _storage(out)[-1] = 0


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _flip_another_bit(out: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
    _flip(out, cu_seqlens_q, next(_CALLS))


def _flip_if_poison_is_nan(out: torch.Tensor, cu_seqlens_q: torch.Tensor, k: torch.Tensor, **_: Any) -> None:
    """Flip a bit if an unused slot of the cache holds NaN. Caches with large offsets would fill the memory."""
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


def _restore_defaults(**_: Any) -> None:
    if next(_CALLS) and torch.zeros(1).device.type != "meta":
        raise RuntimeError("the defaults are not those that were set before")
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def _fail_second(**_: Any) -> None:
    if next(_CALLS) == 1:
        raise RuntimeError("not again")


killed = _around(before=_kill)
segfault = _around(before=_read_null_page)
leaves = _around(before=_exit)
leaves_well = _around(before=_exit_with_zero)
quits = _around(before=_raise_system_exit)
hangs = _around(before=_sleep)
hangs_always = _around(before=_sleep_always)
hangs_with_sinks = _around(before=_sleep_with_sinks)
prints = _around(before=_print_a_message, after=_print_a_message)
floods = _around(before=_print_much)
raises = _around(before=_raise)
asserts = _around(before=_assert)
slow_and_wrong = _around(before=_sleep_briefly, after=_write_behind_the_output)
slower_and_wrong = _around(before=_sleep_longer, after=_write_behind_the_output)
writes_an_input = _around(after=_change_query)
writes_table_padding = _around(after=_change_table_padding)
writes_padded_rows = _around(after=_write_padded_row)
writes_between_rows = _around(after=_write_between_rows)
nondeterministic = _around(after=_flip_another_bit)
# One bit shows only in float32. 1 in 36 of these cases checks the relation with NaN as poison, 1 in 400 of all types.
depends_on_poison = Target(
    "depends_on_poison", _around(after=_flip_if_poison_is_nan), Domain(dtypes=("float32",), features=frozenset())
)
misbehaves_by_length = _around(before=_by_length, after=_by_length_afterwards)
_BY_LENGTH |= {
    11: _kill,
    12: _read_null_page,
    13: _exit,
    14: _exit_with_zero,
    15: _raise_system_exit,
    16: _raise,
    17: _sleep,
    18: _print_a_message,
    19: _print_much,
    20: _read_input,
    21: _send_real_time_signal,
    22: _raise_without_text,
    23: _raise_half_a_surrogate_pair,
    24: _raise_long_text,
    25: _raise_keyboard_interrupt,
    29: _close_files,
    30: _replace_files,
    31: _write_to_files,
    34: _exhaust_memory,
    35: _print_for_ever,
    40: _sleep_longer,
}
_AFTERWARDS_BY_LENGTH |= {
    26: _lower_recursion_limit,
    27: _resize_output,
    28: _patch_torch,
    32: _change_folder,
    33: _fork,
    36: _raise_later,
    37: _corrupt_heap,
    38: _replace_output,
    39: _resize_query,
}

leaves_defaults = _around(before=_restore_defaults, after=_leave_defaults)
fails_second = _around(before=_fail_second)

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
    """Attend with the parameters of an early version, which has neither sinks nor fp8."""
    unified_attention(
        **locals(), max_seqlen_q=0, max_seqlen_k=0, causal=True, q_descale=None, k_descale=None, v_descale=None
    )


def takes_any_keyword(**given: Any) -> None:
    """Attend, with any keyword arguments."""
    unified_attention(**given)


def positional_only(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **given: Any) -> None:
    """Require positional-only arguments."""


def fits_no_family(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Fit no family."""
    return query


def requires_unknown_argument(workspace: torch.Tensor, **given: Any) -> None:
    """Require an argument that no family has."""
