"""Chooses the few cases of a long campaign that show every outcome of its masks, and writes them as JSON.

``python mask_cases_program.py FILE`` judges the first cases of seed 1 of each family, which takes several minutes.
Run it where a change of the kernels or of the strategies leaves the stored cases without some outcome.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzz_attn.case.families import Family
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.mutation.batch_runner import CaseStream

DRAWN: dict[Family, int] = {
    "unified": 2500,
    "paged": 250,
    "context": 500,
    "chunked": 250,
    "extend": 600,
    "mla_decode": 1000,
    "token_decode": 1000,
    "varlen": 600,
}
"""Cases after which a campaign of a family shows nothing new, with a margin."""


def showing_more(family: Family, orders: Iterable[Order]) -> list[Order]:
    """Return the orders that show an outcome that none before them shows."""
    with IsolatedWorker(Setup(family, backend="simulator")) as worker:
        return [order for order in orders if worker.judge(order).masks]


def chosen(family: Family) -> list[Order]:
    """Return the cases of a campaign that are enough to show all of its outcomes."""
    with IsolatedWorker(Setup(family, backend="simulator")) as worker:
        stream = CaseStream(worker.ready.domain, 1)
    first = showing_more(family, (Order(*stream[number]) for number in range(DRAWN[family])))
    return showing_more(family, reversed(first))


def main() -> None:
    """Write the cases of all families."""
    found = {family: chosen(family) for family in DRAWN}
    Path(sys.argv[1]).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main()
