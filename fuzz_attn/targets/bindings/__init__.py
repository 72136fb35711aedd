"""ABIs: the published signatures of the kernel families, by their names on the command line."""

from __future__ import annotations

from typing import Final

from fuzz_attn.case.families import Abi
from fuzz_attn.targets.bindings.binding import Family
from fuzz_attn.targets.bindings.split import CHUNKED, CONTEXT, PAGED
from fuzz_attn.targets.bindings.unified import UNIFIED

FAMILIES: Final[dict[Abi, Family]] = {family.abi: family for family in (UNIFIED, CHUNKED, CONTEXT, PAGED)}
"""Every ABI; a signature that fits several is the first one's."""
