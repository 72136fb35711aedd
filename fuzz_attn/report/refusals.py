"""The refusals of a run: what the target or the compiler refused, with the message and the source line."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from fuzz_attn.engine.refusals.counts import CountedRefusal
from fuzz_attn.engine.refusals.reduction import NOT_REDUCED

MOST_COMBINATIONS: Final = 4
MOST_CHARACTERS: Final = 200


def render(refusals: tuple[CountedRefusal, ...]) -> Table:
    """Return a table of refusals, one row for each place that refuses."""
    table = Table(box=None, padding=(0, 1), title="Refused, so not judged", title_justify="left")
    table.add_column("cases", justify="right")
    for heading in ("refused", "message", "at"):
        table.add_column(heading, overflow="fold")
    for each in refusals:
        table.add_row(str(each.cases), Text(combinations_in_words(each)), Text(_message(each)), Text(_place(each)))
    return table


def combinations_in_words(refused: CountedRefusal) -> str:
    """Return the refused combinations: ``head size 24 with sinks; fp8 output``."""
    words = [_in_words(combination) for combination in refused.combinations]
    more = f"; {len(words) - MOST_COMBINATIONS} more" if len(words) > MOST_COMBINATIONS else ""
    return "; ".join(words[:MOST_COMBINATIONS]) + more if words else "not reduced"


def _in_words(combination: tuple[str, ...]) -> str:
    if combination[-1:] == (NOT_REDUCED,):
        return ", ".join([" with ".join(combination[:-1]), NOT_REDUCED][len(combination) == 1 :])
    return " with ".join(combination) or "every case"


def _message(refused: CountedRefusal) -> str:
    refusal = refused.refusal
    text = f"{refusal.error}: {refusal.message}" if refusal.message else refusal.error
    shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."
    return f"does not compile: {shown}" if refusal.stage == "compile" else shown


def _place(refused: CountedRefusal) -> str:
    return f"{refused.refusal.location}\n{refused.refusal.source}".strip()
