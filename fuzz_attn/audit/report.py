"""What an audit says: the table while it runs, the survivors, and the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.audit.results import Audit, Outcome, Score, counted, median_case, own_score, rule_score
from fuzz_attn.audit.subjects import Subject
from fuzz_attn.plain_text import count, whole

RULE_NAMES: Final = {"vllm": "vLLM's fixed tolerance", "flash_attention": "FlashAttention's rule"}


class Board:
    """What an audit has found so far. ``places`` holds (case, subjects left) of each worker."""

    def __init__(self, subjects: int, cases: int) -> None:
        self.subjects = subjects
        self.cases = cases
        self.places: Sequence[tuple[int, int]] = ()
        self._outcomes: list[Outcome] = []
        self._again = 0

    def add(self, outcome: Outcome) -> None:
        """Take one outcome in; in a second look it only counts."""
        if self._again:
            self._again -= 1
        else:
            self._outcomes.append(outcome)

    def look_again(self, survivors: int) -> None:
        """Say that so many survivors are looked at for longer."""
        self._again = survivors

    def line(self) -> str:
        """Return it all in one line."""
        found = Counter(outcome.state for outcome in self._outcomes)
        words = [f"{len(self._outcomes)} of {self.subjects} examined", f"{found['killed']} found"]
        words += [f"{found['survived']} survived", f"{found['invalid']} invalid"]
        if self._again:
            words.append(f"{self._again} survivors to look at again")
        places = ", ".join(f"case {case} ({alive} left)" for case, alive in self.places)
        return ", ".join(words) + (f"; at {places}" if places else "")

    def render(self) -> RenderableType:
        """Return the table of a terminal."""
        return Group(by_class(self._outcomes), whole(self.line()))


def render(audit: Audit) -> RenderableType:
    """Return everything that a reader wants to know of a finished audit."""
    survivors = [outcome for outcome in audit.outcomes if outcome.state == "survived"]
    parts: list[RenderableType] = [by_class(audit.outcomes)]
    if survivors:
        parts += ["", Text(f"{count(len(survivors), 'survivor')}:", style="bold"), *map(_survivor, survivors)]
    parts += ["", Text(f"Audit of {audit.target}", style="bold"), _summary(audit)]
    return Group(*parts)


def by_class(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with a line for each class of mutants: how many were found, by what, and how soon."""
    table = Table(box=None)
    for name in ("class", "found", "of", "equivalent", "median case", "median s", "by"):
        table.add_column(name, justify="left" if name in ("class", "by") else "right", no_wrap=name != "by")
    classes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        classes.setdefault(class_of(outcome.subject), []).append(outcome)
    for name, members in sorted(classes.items()):
        table.add_row(name, *_class_row(members))
    return table


def class_of(subject: Subject) -> str:
    """Return the class of a subject: the kind of its change, or that it is a specimen."""
    return subject.mutant.kind if subject.mutant else "specimen"


def _class_row(members: Sequence[Outcome]) -> Iterator[str]:
    found = [outcome for outcome in members if outcome.state == "killed"]
    by = Counter(outcome.property_name for outcome in found)
    place = median_case(members)
    yield str(len(found))
    yield str(len(counted(members)))
    yield str(sum(outcome.state == "equivalent" for outcome in members))
    yield "" if place is None else f"{place:g}"
    yield f"{median(outcome.seconds for outcome in found):.2f}" if found else ""
    yield ", ".join(f"{name} {number}" for name, number in by.most_common())


def _survivor(outcome: Outcome) -> Text:
    seen, mutant = outcome.evidence, outcome.subject.mutant
    words = [f"in {count(seen.cases, 'case')}"]
    if mutant is not None and seen.reached:
        words.append(f"ran in {seen.reached}, another value in {seen.differed}, other output in {seen.changed}")
    elif seen.changed:
        words.append(f"other output in {seen.changed}")
    words.append(f"largest err / bound {seen.ratio:.3f}")
    return whole(f"  {outcome.subject.name}: {'; '.join([*words, *filter(None, [outcome.message])])}")


def _summary(audit: Audit) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, words in _numbers(audit):
        table.add_row(what, words)
    return table


def _numbers(audit: Audit) -> Iterator[tuple[str, str]]:
    found = [outcome for outcome in audit.outcomes if outcome.state == "killed"]
    yield "seed", f"{audit.seed}; at most {count(audit.cases, 'case')} each, those of a default campaign on one core"
    yield "time", f"{audit.seconds:.0f} s on {count(audit.workers, 'worker')}"
    yield "found", _percent(own_score(audit.outcomes))
    if found:
        slowest = max(found, key=lambda outcome: outcome.seconds)
        latest = max(found, key=lambda outcome: outcome.case)
        yield "median", f"{median_case(found):g} cases, {median(o.seconds for o in found):.2f} s"
        yield (
            "slowest",
            f"{slowest.seconds:.1f} s ({slowest.subject.name}); {latest.case} cases ({latest.subject.name})",
        )
    for rule, name in RULE_NAMES.items() if audit.ruled else ():
        alarms = len(audit.false_alarms.get(rule, ()))
        yield name, f"{_percent(rule_score(audit.outcomes, rule))}; {count(alarms, 'false alarm')}"
    for state, meaning in (("equivalent", "never any other bits"), ("invalid", "no kernel")):
        number = sum(outcome.state == state for outcome in audit.outcomes)
        if number:
            yield state, f"{number} ({meaning}), not counted"
    alarms = len(audit.false_alarms.get("", ()))
    yield "healthy", f"{count(alarms, 'false alarm')} in {count(audit.healthy_cases, 'case')}"


def _percent(score: Score) -> str:
    return f"{score.found} of {score.of}, {score.percent:.1f} % (95 % interval {score.low:.1%} to {score.high:.1%})"
