"""Second cases: the second launch of a relation as a case of its own. Does not import torch.

Most have other random numbers, so they show bugs of lengths, order, features and poison. Such a bug needs no relation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.recipes import PoisonRecipe, SlotPoison, TablePoison
from fuzz_attn.case.traits import ADDED_FEATURES, with_feature
from fuzz_attn.properties.relations import RELATIONS, live_sequences

_OTHER_SLOT: Final[dict[SlotPoison, SlotPoison]] = {
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "negative_inf",
    "zero": "nan",
}
_OTHER_ENTRY: Final[dict[TablePoison, TablePoison]] = {
    "zero": "one_past",
    "negative": "zero",
    "one_past": "negative",
    "huge": "zero",
}


def has_second_case(relation: str) -> bool:
    """Return whether the second launch of a relation is like a case of its own."""
    return relation in _SECOND or RELATIONS[relation].adds in ADDED_FEATURES


def second_case(case: AttentionCase, relation: str) -> AttentionCase:
    """Return a case like the second launch of a relation, which must have one.

    Raises :class:`fuzz_attn.errors.CaseError` where the rest of the case does not go with it.
    """
    feature = RELATIONS[relation].adds
    return with_feature(case, feature) if feature is not None else _SECOND[relation](case)


def with_other_poison(case: AttentionCase) -> AttentionCase:
    """Return the case with every poison replaced by another, also the output's."""
    poison = PoisonRecipe(
        keys=_OTHER_SLOT[case.poison.keys],
        values=_OTHER_SLOT[case.poison.values],
        table=_OTHER_ENTRY[case.poison.table],
        out=0 if case.poison.out else 1,
    )
    return replace(case, poison=poison)


def _with_other_empties(case: AttentionCase) -> AttentionCase:
    """Return the case without empty sequences, or with one on either side of each sequence if it has none."""
    live = live_sequences(case)
    if len(live) < len(case.sequences):
        return _with_order(case, live)
    empty = Sequence(0, case.max_seq_len)
    around = (each for sequence in case.sequences for each in (sequence, empty))
    return replace(case, sequences=(empty, *around), overrides=())


def _reversed(case: AttentionCase) -> AttentionCase:
    return _with_order(case, range(len(case.sequences))[::-1])


def _alone(case: AttentionCase) -> AttentionCase:
    live = live_sequences(case)
    return _with_order(case, (live[case.seed % len(live)],))


def _with_narrower_window(case: AttentionCase) -> AttentionCase:
    return replace(case, window=case.window - 1)


def _with_order(case: AttentionCase, order: range | tuple[int, ...]) -> AttentionCase:
    return replace(case, sequences=tuple(case.sequences[index] for index in order), overrides=())


_SECOND: Final[dict[str, Callable[[AttentionCase], AttentionCase]]] = {
    "empty_sequences": _with_other_empties,
    "batch_order": _reversed,
    "alone_in_batch": _alone,
    "narrower_window": _with_narrower_window,
    "poison_independence": with_other_poison,
}
