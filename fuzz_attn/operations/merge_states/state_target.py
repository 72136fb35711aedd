"""State target: a callable that merges attention states, in one of the forms in which published ones take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.operations.merge_states.state_case import NAME, NAMES, NEEDED, ROLES, StateDomain
from fuzz_attn.operations.merge_states.state_tensors import StateTensors
from fuzz_attn.operations.small_target import Forms, Roles, SmallTarget, found, limited

LAUNCHER: Final = "merge_states:merge_states"
STATE_ROLES: Final = Roles(ROLES, NAMES, NEEDED, "a merge of states")
_BASES: Final = {"e": "the natural logarithm", "2": "the logarithm of base 2"}
_PROMISED: Final = frozenset(("empty_states", "strides"))
"""What the names of other parameters than this project's own promise."""


@dataclass(frozen=True)
class StateTarget(SmallTarget):
    """A callable that merges all states of a row, or two."""

    def value(  # noqa: PLR0911 - one for each kind of role
        self, role: str, tensors: StateTensors, forms: Forms
    ) -> object:
        """Return the argument of a role."""
        outputs, sums = tensors.partial_outputs, self._ordered(tensors.partial_lses)
        place = 0 if role.startswith("first") else 1
        match role:
            case "partial_outputs":
                return outputs
            case "first_output" | "second_output":
                return outputs[place]
            case "partial_lses" | "first_lse" | "second_lse":
                given = sums if role == "partial_lses" else sums[place]
                return given if self.domain.lse.order == "tokens" else forms.given(role, given)
            case "token_outputs" | "token_lses":
                by_token = (outputs if role == "token_outputs" else tensors.partial_lses).transpose(0, 1)
                return forms.given(role, by_token.flatten(0, 1) if "state_indptr" in self.roles else by_token)
            case "state_indptr":
                count, tokens = outputs.shape[:2]
                return forms.given(role, torch.arange(tokens + 1, dtype=torch.int32, device=outputs.device) * count)
            case "first_to_out" | "first_to_lse":
                output = tensors.outputs["out" if role == "first_to_out" else "lse"].tensor
                first = (outputs if role == "first_to_out" else tensors.partial_lses)[0]
                bits_of(output)[: len(first)] = bits_of(first)
                return output
            case "lse" if self.domain.lse.order == "heads":
                own = tensors.outputs["lse"]
                return forms.output(role, own, own.tensor.T, lambda bits: bits.T)
        return tensors.outputs[role].tensor

    def _ordered(self, lses: torch.Tensor) -> torch.Tensor:
        return lses if self.domain.lse.order == "tokens" else lses.transpose(-1, -2)

    def variants(self) -> Iterator[tuple[StateTarget, str]]:
        """Yield the target with each base of LSEs, and each order of their axes where it is given such tensors."""
        if self.match.published or "lse" in self.match.binding.domain:
            return
        has_order = not {"token_lses", "first_to_lse"} & set(self.roles)
        for order in ("tokens", "heads") if has_order else ("tokens",):
            for base, words in _BASES.items():
                lse = LogSumExp(base="2" if base == "2" else "e", order="heads" if order == "heads" else "tokens")
                yield self.with_domain(replace(self.domain, lse=lse)), f"LSEs are {words}, {order} first"


def load(name: str, binding: Binding | None) -> StateTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit."""
    call, match = found(name, binding, (NAME, LAUNCHER), STATE_ROLES)
    roles, domain = set(match.binding.parameter_of), StateDomain()
    if not match.published and not match.binding.whole:
        pair = {"second_output", "second_lse"} & roles
        domain = replace(domain, features=_PROMISED, empty_outputs=("zero",), num_states=(2, 2) if pair else (1, 64))
    target = StateTarget(name, call, domain=limited(domain, match.binding), binding=binding, how=match)
    if {"out", "first_to_out"} & roles:
        return target
    return target.with_domain(target.domain, returns=("out", "lse"), output="returned")
