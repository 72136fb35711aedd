"""Call forms: arguments in the form in which a case passes them, where the contract allows several.

The functions are for cases whose form is not the usual one; only targets that declare ``call_forms`` get such cases.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.case.families import FAMILIES
from fuzz_attn.inputs.tensors import AttentionTensors

_NAMES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8_e4m3", "fp8", "auto"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "auto"),
}
_NAMES_OF_BYTES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8", "fp8_e4m3", "fp8"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
}


def scale_in_form(tensors: AttentionTensors, scale: torch.Tensor) -> torch.Tensor | None:
    """Return a scale of q, k or v in the form in which the case passes it."""
    form = tensors.form.scales
    if form == "omitted" and float(scale) == 1.0:
        return None
    if form == "scalar":
        return scale.reshape(())
    return scale.expand(max(1, len(tensors.query_lens)), tensors.num_kv_heads) if form == "expanded" else scale


def window_size(tensors: AttentionTensors) -> tuple[int, int]:
    """Return how many keys a row sees to the left and to the right of its own, -1 for no limit.

    New tokens never see a later one, so the right side may be 0 or -1 with and without a window.
    """
    usual, other = (0, -1) if tensors.window else (-1, 0)
    return tensors.window - 1, usual if tensors.form.window % 2 == 0 else other


def no_window(tensors: AttentionTensors) -> int | None:
    """Return the number of keys that means no window; the usual form is None."""
    return (None, 0, -1)[tensors.form.window]


def cache_name(tensors: AttentionTensors, *, as_bytes: bool) -> str:
    """Return one of the names of the cache's type in serving systems; bytes must be named.

    The usual name of e4m3 as bytes is the short one, "fp8".
    """
    names = _NAMES_OF_BYTES if as_bytes else _NAMES
    return names[tensors.kv_dtype][tensors.form.cache_name] if tensors.kv_dtype in names else "auto"


def query_starts(tensors: AttentionTensors) -> torch.Tensor | None:
    """Return the starts of the queries; paged decode needs them only to skip sequences."""
    needed = tensors.form.query_starts or tensors.filter_by_query_len or FAMILIES[tensors.family].needs_query_starts
    return tensors.query_start_loc if needed else None
