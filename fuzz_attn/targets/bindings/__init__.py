"""families: the published signatures of the kernel families, by their names on the command line."""

from __future__ import annotations

from typing import Final

from fuzz_attn.case.families import Family
from fuzz_attn.targets.bindings.binding import Binding
from fuzz_attn.targets.bindings.split import CHUNKED, CONTEXT, PAGED
from fuzz_attn.targets.bindings.unified import UNIFIED

BINDINGS: Final[dict[Family, Binding]] = {binding.family: binding for binding in (UNIFIED, CHUNKED, CONTEXT, PAGED)}
"""Every family; a signature that fits several is the first one's."""
