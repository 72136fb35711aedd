"""Bindings: the published signatures of the kernel families as data.

``binding`` holds the classes, ``unified`` and ``split`` one table of parameters for each family.
"""

from __future__ import annotations

from typing import Final

from fuzz_attn.case.families import Family
from fuzz_attn.targets.bindings.binding import Binding
from fuzz_attn.targets.bindings.split import CHUNKED, CONTEXT, PAGED
from fuzz_attn.targets.bindings.unified import UNIFIED

BINDINGS: Final[dict[Family, Binding]] = {binding.family: binding for binding in (UNIFIED, CHUNKED, CONTEXT, PAGED)}
"""Every family's binding. A signature that fits several families belongs to the first of them."""
