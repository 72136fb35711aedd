"""State target: a callable that merges attention states, called by the names of its parameters."""

from __future__ import annotations

from typing import Final

from fuzz_attn.binding.binding import Binding
from fuzz_attn.operations.merge_states.state_case import NAME, ROLES, StateDomain
from fuzz_attn.operations.small.small_target import SmallTarget, signature_of

LAUNCHER: Final = "merge_states:merge_states"


def load(name: str, binding: Binding | None) -> SmallTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit."""
    found = signature_of(name, binding, (NAME, LAUNCHER), ROLES, ROLES, "a merge of states")
    return SmallTarget(name, found.call, domain=StateDomain(), roles=found.roles)
