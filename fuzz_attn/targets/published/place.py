"""Place: where a target of a package that is not installed is, as ``--target`` names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz_attn.errors import TargetError

_REQUIREMENT: Final = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WHEEL_FORM: Final = "PACKAGE==VERSION:module:function"
_CHECKOUT_FORM: Final = "FOLDER::module:function"


@dataclass(frozen=True)
class WheelPlace:
    """A function in a published wheel: ``vllm==0.33.0:vllm.v1.attention.ops.prefix_prefill:context_attention_fwd``."""

    package: str
    version: str
    module: str
    attribute: str


@dataclass(frozen=True)
class CheckoutPlace:
    """A function in a checkout: ``path/to/repo::module:function``."""

    folder: Path
    module: str
    attribute: str


def place_of(spec: str) -> WheelPlace | CheckoutPlace | None:
    """Return the place that a specification names, None if it names an installed module, a file or a known name.

    Raises :class:`TargetError` where it is incomplete.
    """
    if "::" in spec:
        folder, _, rest = spec.partition("::")
        module, attribute = _module_and_attribute(rest, spec, _CHECKOUT_FORM)
        if not Path(folder).is_dir():
            raise TargetError(f"target={spec!r}: folder {folder!r} does not exist")
        return CheckoutPlace(Path(folder).resolve(), module, attribute)
    if "==" in spec:
        requirement, _, rest = spec.partition(":")
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise TargetError(f"target={spec!r} must be {_WHEEL_FORM}, with one exact version")
        return WheelPlace(found["package"], found["version"], *_module_and_attribute(rest, spec, _WHEEL_FORM))
    return None


def _module_and_attribute(text: str, spec: str, form: str) -> tuple[str, str]:
    module, _, attribute = text.partition(":")
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(attribute):
        raise TargetError(f"target={spec!r} must be {form}")
    return module, attribute
