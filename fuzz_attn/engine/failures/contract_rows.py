"""Contract rows: one row of a contract names every argument that a target reads wrongly in the same way.

Most launchers pass no stride of what has one axis, so that lengths, prefix sums and tables fail one by one for one
reason. Each argument is found and shrunk as a failure of its own, and then ends in the row of the first one.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from fuzz_attn.case.contract_trial import NAME, trial_of
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.oracle.verdict import Verdict

_PREFIX: Final = f"{NAME} "


def contract_of(verdict: Verdict) -> str:
    """Return the class of a failure of a contract, which is what it is about; nothing for other verdicts."""
    return _PREFIX + verdict.message.partition(":")[0] if verdict.property_name == NAME and not verdict.passed else ""


def is_contract(failure_class: str) -> bool:
    """Return whether a class is that of a contract."""
    return failure_class.startswith(_PREFIX)


def contracts_of(found: Counterexample) -> tuple[str, ...]:
    """Return the classes of the contracts that the row of a counterexample names, its own first."""
    named = (contract_of(found.verdict), *filter(is_contract, found.also))
    return tuple(dict.fromkeys(filter(None, named)))


def have_one_row(one: Counterexample, other: Counterexample) -> bool:
    """Return whether two failures are contracts of arguments that are read wrongly in the same way.

    A mark as known covers the arguments that its file names, and no others.
    """
    first, second = trial_of(one.case), trial_of(other.case)
    if first is None or second is None or first.way != second.way or one.confirmation != other.confirmation:
        return False
    pairs = (one, other), (other, one)
    return all(a.status != "known" or set(contracts_of(b)) <= set(contracts_of(a)) for a, b in pairs)


def naming(found: Counterexample, *others: Counterexample) -> Counterexample:
    """Return a counterexample that also names the contracts of others, those that end in its row."""
    named = contracts_of(found)
    new = {name for other in others for name in contracts_of(other)}.difference(named)
    return replace(found, also=(*found.also, *sorted(new))) if named and new else found


def others_in_words(found: Counterexample) -> str:
    """Return of which other arguments the same holds, such as ``strides of block_table, strides of sinks``."""
    return ", ".join(name.removeprefix(_PREFIX) for name in contracts_of(found)[1:])
