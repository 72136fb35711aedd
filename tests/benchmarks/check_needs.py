"""Check what saved failures are said to need: each is judged without one trait after the other.

    python tests/benchmarks/check_needs.py FOLDER...

Each folder holds the files of one target, which is run as the first of them says. A trait that a failure is said to
need is refuted if the case without it fails in the same class. Contracts are left out: each argument is its own trait.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.case_judge import CaseJudge, load
from fuzz_attn.engine.failures.reduction import allowed, changed
from fuzz_attn.engine.failures.triage import class_of, failures_of
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.operations.registry import operation_of


def classes(judge: CaseJudge, order: Order) -> set[str]:
    """Return the classes in which a case fails; places are named without the folder of the machine."""
    return {named(class_of(verdict)) for verdict in failures_of(judge.judge(order))}


def named(failure_class: str) -> str:
    """Return a class with the name of its file only."""
    kind, _, place = failure_class.partition(" ")
    return f"{kind} {Path(place).name}".strip()


def refuted(judge: CaseJudge, found: Counterexample) -> Iterator[str] | None:
    """Yield the traits that a failure is said to need and does not; None where the case does not fail here."""
    order, own = Order(found.case, found.relation), named(class_of(found.verdict))
    if own not in classes(judge, order):
        return None
    return _refuted(judge, found, order, own)


def _refuted(judge: CaseJudge, found: Counterexample, order: Order, own: str) -> Iterator[str]:
    domain, table = judge.ready().domain, operation_of(found.case).aspects
    for trait in (*table.traits, *table.nuances):
        if trait.present(found.case) and {trait.words, *trait.words_in(found.case)} & set(found.trigger):
            without = changed(order, trait.without)
            if without is not None and allowed(without, domain) and own in classes(judge, without):
                yield trait.words


def main() -> None:
    """Print for each folder what is refuted, and how many failures do not show here."""
    shown = lost = 0
    for folder in map(Path, sys.argv[1:]):
        files = sorted(path for path in folder.rglob("*.json") if not path.name.startswith("contract"))
        saved = [counterexamples.load(path) for path in files if path.parent.parent.name == "counterexamples"]
        if not saved:
            continue
        judge = load(Setup(saved[0].target, family=saved[0].family, binding=saved[0].binding, backend="simulator"))
        judge.ready()
        for found in saved:
            traits = refuted(judge, found)
            shown, lost = shown + (traits is not None), lost + (traits is None)
            for words in traits or ():
                print(f"{found.target}: {found.signature} does not need: {words}")
    print(f"{shown} failures checked, {lost} do not show here")


if __name__ == "__main__":
    main()
