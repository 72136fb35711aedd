"""The names of the fixed tolerances that an audit evaluates beside the campaign's properties."""

from typing import Final

VLLM: Final = "vllm"
FLASH_ATTENTION: Final = "flash_attention"

RULES: Final = (VLLM, FLASH_ATTENTION)

PROPERTIES: Final = ""
"""The name of the campaign's properties in the same tables."""
