"""What an audit says: the table while it runs, the survivors, and the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.mutation.results import Audit, Outcome, Score, counted, median_case, own_score, rule_score
from fuzz_attn.mutation.subjects import IN_32_BITS, Subject
from fuzz_attn.mutation.survivors import Reason, Sorted, sort
from fuzz_attn.report.plain_text import count, whole

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


def render(audit: Audit, reasons: Sequence[Reason] = ()) -> RenderableType:
    """Return everything that a reader wants to know of a finished audit; survivors without a reason come first."""
    parts: list[RenderableType] = [by_class(audit.outcomes)]
    parts += _equivalents(audit.outcomes)
    sorted_ = sort((outcome for outcome in audit.outcomes if outcome.state == "survived"), reasons)
    for reason, members in sorted_.explained:
        heading = f"{count(len(members), 'survivor')} explained, {reason.name.replace('_', ' ')}: {reason.because}"
        parts += ["", whole(heading, "bold"), *map(_survivor, members)]
    if sorted_.unexplained:
        unknown = " that nothing explains" if reasons else ""
        parts += ["", Text(f"{count(len(sorted_.unexplained), 'survivor')}{unknown}:", style="bold")]
        parts += map(_survivor, sorted_.unexplained)
    parts += ["", Text(f"Audit of {audit.target}", style="bold"), _summary(audit, sorted_)]
    return Group(*parts)


def _equivalents(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    """Yield the equivalent mutants, a line for each line of source: how many cases ran each with the same bits."""
    lines: dict[str, list[str]] = {}
    for outcome in outcomes:
        mutant = outcome.subject.mutant
        if outcome.state == "equivalent" and mutant is not None:
            change = f"{mutant.operation}#{mutant.ordinal} {mutant.change} ({outcome.evidence.reached})"
            lines.setdefault(f"{mutant.kernel}/{mutant.file}:{mutant.line}", []).append(change)
    if lines:
        yield ""
        yield Text("Equivalent, with the cases that ran the change and gave the same bits:", style="bold")
        yield from (whole(f"  {place}: {', '.join(changes)}") for place, changes in lines.items())


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


def is_width(subject: Subject) -> bool:
    """Return whether a subject makes an integer narrower: what it breaks shows in tensors of 2^31 elements alone."""
    return subject.mutant is not None and subject.mutant.change == IN_32_BITS


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


def _summary(audit: Audit, survivors: Sorted) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, words in _numbers(audit, survivors):
        table.add_row(what, words)
    return table


def _numbers(audit: Audit, survivors: Sorted) -> Iterator[tuple[str, str]]:
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
    if survivors.explained:
        explained = sum(len(members) for _, members in survivors.explained)
        yield "survived", f"{explained} explained, {len(survivors.unexplained)} not"
    for rule, name in RULE_NAMES.items() if audit.ruled else ():
        alarms = len(audit.false_alarms.get(rule, ()))
        yield name, f"{_percent(rule_score(audit.outcomes, rule))}; {count(alarms, 'false alarm')}"
    for state, meaning in (("equivalent", "never any other bits"), ("invalid", "no kernel")):
        number = sum(outcome.state == state for outcome in audit.outcomes)
        if number:
            yield state, f"{number} ({meaning}), not counted"
    narrow = sum(outcome.state == "equivalent" and is_width(outcome.subject) for outcome in audit.outcomes)
    if narrow:
        yield "", f"{narrow} of the equivalent are products in 32 bits, which no case took beyond 2^31"
    alarms = len(audit.false_alarms.get("", ()))
    yield "healthy", f"{count(alarms, 'false alarm')} in {count(audit.healthy_cases, 'case')}"


def _percent(score: Score) -> str:
    return f"{score.found} of {score.of}, {score.percent:.1f} % (95 % interval {score.low:.1%} to {score.high:.1%})"
