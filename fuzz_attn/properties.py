"""Properties: what must hold for every case. Each is a named question to one experiment, answered by a verdict.

The first launch answers the ``LAUNCH`` properties together; each ``RELATION`` compares it with one further launch, so a
campaign asks for one of these at a time. Later properties of the design find their place in the same two tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.case import AttentionCase, replace
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.experiment import Experiment, Launch
from fuzz_attn.judge import judge
from fuzz_attn.oracle import attend
from fuzz_attn.recipes import PoisonRecipe, SlotPoison, TablePoison
from fuzz_attn.tensors import AttentionTensors, storage_bytes
from fuzz_attn.verdict import Kind, Verdict


@dataclass(frozen=True)
class Property:
    """A named question. ``relation`` tells that it needs launches beyond the first."""

    name: str
    check: Callable[[Experiment], Verdict]
    relation: bool = False


def _oracle(experiment: Experiment) -> Verdict:
    """Every element that a row owns agrees with the oracle within its bound, and was written."""
    tensors = experiment.first.tensors
    return judge(tensors, attend(tensors, experiment.target.model))


def _sanitizers(experiment: Experiment) -> Verdict:
    """Every access stays inside its tensor's own elements, nothing unwritten is read, no programs race, no index wraps.

    Holds where the backend has no sanitizers.
    """
    observations = experiment.first.observations
    if not observations:
        return Verdict("sanitizers")
    kind, message = observations[0]
    more = f" (and {len(observations) - 1} more findings)" if len(observations) > 1 else ""
    return Verdict("sanitizers", kind, f"{message}{more}", wrong=len(observations))


def _nothing_else_written(experiment: Experiment) -> Verdict:
    """Nothing but live rows is written: padded rows, padding between rows and heads keep their bits."""
    launch = experiment.first
    changed = launch.output_before != launch.output_after
    allowed = _owned_bytes(launch.tensors)
    outside = int((changed & ~allowed).sum())
    if not outside:
        return Verdict("nothing_else_written")
    message = f"{outside} bytes of the output's memory that belong to no row were written"
    return Verdict("nothing_else_written", "written_outside", message, wrong=outside, elements=changed.numel())


def _inputs_unchanged(experiment: Experiment) -> Verdict:
    """No input changes, its padding included."""
    launch = experiment.first
    for name, tensor in launch.tensors.inputs():
        if not torch.equal(storage_bytes(tensor), launch.inputs_before[name]):
            return Verdict("inputs_unchanged", "input_changed", f"the launch changed its input {name}")
    return Verdict("inputs_unchanged")


def _determinism(experiment: Experiment) -> Verdict:
    """Two launches on the same input give the same bits."""
    again = experiment.launch(experiment.case)
    return _same_bits(experiment.first, again, "determinism", "nondeterministic", "two launches on the same input")


def _poison_independence(experiment: Experiment) -> Verdict:
    """Whatever stands in dead slots, in padding and past the end of the block table, the output has the same bits.

    Where it has not, a target that is not even deterministic fails for that.
    """
    other = experiment.launch(with_other_poison(experiment.case))
    compared = "two launches that differ only in slots, table entries and padding that nobody may read"
    verdict = _same_bits(experiment.first, other, "poison_independence", "poison_dependent", compared)
    if verdict.kind == "poison_dependent":
        again = _determinism(experiment)
        return verdict if again.passed else again
    return verdict


_OTHER_SLOT: Final[dict[SlotPoison, SlotPoison]] = {
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "negative_inf",
}
_OTHER_ENTRY: Final[dict[TablePoison, TablePoison]] = {
    "zero": "one_past",
    "negative": "zero",
    "one_past": "negative",
    "huge": "zero",
}


def with_other_poison(case: AttentionCase) -> AttentionCase:
    """Return the case with every poison exchanged for another, that of the output included."""
    poison = PoisonRecipe(
        keys=_OTHER_SLOT[case.poison.keys],
        values=_OTHER_SLOT[case.poison.values],
        table=_OTHER_ENTRY[case.poison.table],
        out=0 if case.poison.out else 1,
    )
    return replace(case, poison=poison)


def _same_bits(first: Launch, other: Launch, name: str, kind: Kind, compared: str) -> Verdict:
    if other.error:
        return Verdict(name, "exception", f"only the second launch raised {other.error}")
    rows = sum(first.tensors.query_lens)
    one, two = (_bits(launch.tensors.output[:rows]) for launch in (first, other))
    different = int((one != two).any(dim=-1).sum()) if rows else 0
    if not different:
        return Verdict(name)
    where = (one != two).nonzero()[0].tolist()
    message = f"{compared} differ in {different} (token, head) rows, first at token {where[0]}, head {where[1]}"
    return Verdict(name, kind, message, wrong=different, elements=one.shape[0] * one.shape[1])


def _bits(output: torch.Tensor) -> torch.Tensor:
    return output.contiguous().view(torch.uint8)


def _owned_bytes(tensors: AttentionTensors) -> torch.Tensor:
    """Return which bytes of the output's memory belong to a row of a sequence."""
    output = tensors.output
    owned = torch.zeros(output.untyped_storage().nbytes(), dtype=torch.bool, device=output.device)
    elements = owned.view(-1, output.element_size())
    index = elements.as_strided(
        (*output.shape, output.element_size()),
        (*(stride * output.element_size() for stride in output.stride()), 1),
        output.storage_offset() * output.element_size(),
    )
    index[: sum(tensors.query_lens)] = True
    return owned


LAUNCH: Final = (
    Property("sanitizers", _sanitizers),
    Property("inputs_unchanged", _inputs_unchanged),
    Property("oracle", _oracle),
    Property("nothing_else_written", _nothing_else_written),
)
"""Answered from the first launch, in this order: the oracle reads the inputs as the launch left them."""

RELATIONS: Final = (
    Property("determinism", _determinism, relation=True),
    Property("poison_independence", _poison_independence, relation=True),
)
"""Each compares the first launch with another one."""

PROPERTIES: Final = {entry.name: entry for entry in (*LAUNCH, *RELATIONS)}


def check(experiment: Experiment, relation: str | None = None) -> Verdict:
    """Return the first verdict that is wrong, of the launch properties and one relation; else the oracle's.

    An exception of the target answers for all of them. Raises :class:`FuzzAttnError` for an unknown relation.
    """
    if experiment.first.error:
        return Verdict("oracle", "exception", f"the target raised {experiment.first.error}")
    verdicts = {}
    for asked in (*LAUNCH, *([property_named(relation)] if relation else [])):
        verdicts[asked.name] = verdict = asked.check(experiment)
        if not verdict.passed:
            return verdict
    return verdicts["oracle"]


def property_named(name: str) -> Property:
    """Return a property by its name; raises :class:`FuzzAttnError` for one that does not exist."""
    if name not in PROPERTIES:
        raise FuzzAttnError(f"property={name!r} must be one of: {', '.join(PROPERTIES)}")
    return PROPERTIES[name]
