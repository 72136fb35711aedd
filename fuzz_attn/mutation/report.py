"""Report of an audit: the table while it runs, the survivors, and the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.mutation.mutant import IN_32_BITS, Mutant
from fuzz_attn.mutation.results import (
    FLASH_ATTENTION,
    PROPERTIES,
    VLLM,
    Audit,
    Outcome,
    Score,
    counted,
    median_case,
    own_score,
    rule_score,
)
from fuzz_attn.mutation.survivors import Reason, SortedSurvivors, sort
from fuzz_attn.report.plain_text import count, whole

RULE_NAMES: Final = {VLLM: "vLLM's fixed tolerance", FLASH_ATTENTION: "FlashAttention's rule"}


class LiveTable:
    """The outcomes of an audit so far. ``progress`` holds (case, mutants left) of each worker."""

    def __init__(self, mutants: int) -> None:
        self.mutants = mutants
        self.progress: Sequence[tuple[int, int]] = ()
        self._outcomes: list[Outcome] = []
        self._survivors_left = 0

    def add(self, outcome: Outcome) -> None:
        """Add one outcome; while survivors are examined again it only counts down."""
        if self._survivors_left:
            self._survivors_left -= 1
        else:
            self._outcomes.append(outcome)

    def examine_again(self, survivors: int) -> None:
        """Expect the outcomes of so many survivors once more."""
        self._survivors_left = survivors

    def line(self) -> str:
        """Return the state in one line."""
        found = Counter(outcome.state for outcome in self._outcomes)
        words = [f"{len(self._outcomes)} of {self.mutants} judged", f"{found['killed']} found"]
        words += [f"{found['survived']} survived", f"{found['invalid']} invalid"]
        if self._survivors_left:
            words.append(f"{self._survivors_left} survivors to examine again")
        progress = ", ".join(f"case {case} ({left} left)" for case, left in self.progress)
        return ", ".join(words) + (f"; at {progress}" if progress else "")

    def render(self) -> RenderableType:
        """Return the table for a terminal."""
        return Group(by_class(self._outcomes), whole(self.line()))


def render(audit: Audit, reasons: Sequence[Reason] = ()) -> RenderableType:
    """Return the report of a finished audit; survivors without a reason come last, above the summary."""
    parts: list[RenderableType] = [by_class(audit.outcomes)]
    parts += _equivalents(audit.outcomes)
    sorted_ = sort((outcome for outcome in audit.outcomes if outcome.state == "survived"), reasons)
    for reason, members in sorted_.explained:
        heading = f"{count(len(members), 'survivor')} explained, {reason.name.replace('_', ' ')}: {reason.because}"
        parts += ["", whole(heading, "bold"), *map(_survivor, members)]
    if sorted_.unexplained:
        unexplained = " without a known reason" if reasons else ""
        parts += ["", Text(f"{count(len(sorted_.unexplained), 'survivor')}{unexplained}:", style="bold")]
        parts += map(_survivor, sorted_.unexplained)
    parts += ["", Text(f"Audit of {audit.target}", style="bold"), _summary(audit, sorted_)]
    return Group(*parts)


def _equivalents(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    """Yield the equivalent mutants, a line for each source line, with the number of cases that ran each."""
    lines: dict[str, list[str]] = {}
    for outcome in outcomes:
        change = outcome.mutant.ir_change
        if outcome.state == "equivalent" and change is not None:
            words = f"{change.operation}#{change.ordinal} {change.change} ({outcome.evidence.reached})"
            lines.setdefault(f"{change.kernel}/{change.file}:{change.line}", []).append(words)
    if lines:
        yield ""
        yield Text("Equivalent: the same bits in every case that ran the change (number of cases):", style="bold")
        yield from (whole(f"  {place}: {', '.join(changes)}") for place, changes in lines.items())


def by_class(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with a line for each class of mutants: how many were found, how soon, and by what."""
    table = Table(box=None)
    for name in ("class", "found", "of", "equivalent", "median case", "median s", "by"):
        table.add_column(name, justify="left" if name in ("class", "by") else "right", no_wrap=name != "by")
    classes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        classes.setdefault(class_of(outcome.mutant), []).append(outcome)
    for name, members in sorted(classes.items()):
        table.add_row(name, *_class_row(members))
    return table


def class_of(mutant: Mutant) -> str:
    """Return the class of a mutant: the kind of its change, or ``seeded bug``."""
    return mutant.ir_change.kind if mutant.ir_change else "seeded bug"


def is_width(mutant: Mutant) -> bool:
    """Return whether a mutant computes a product in 32 bits, which only tensors of 2^31 elements reveal."""
    return mutant.ir_change is not None and mutant.ir_change.change == IN_32_BITS


def _class_row(members: Sequence[Outcome]) -> Iterator[str]:
    found = [outcome for outcome in members if outcome.state == "killed"]
    by = Counter(outcome.property_name for outcome in found)
    case = median_case(members)
    yield str(len(found))
    yield str(len(counted(members)))
    yield str(sum(outcome.state == "equivalent" for outcome in members))
    yield "" if case is None else f"{case:g}"
    yield f"{median(outcome.seconds for outcome in found):.2f}" if found else ""
    yield ", ".join(f"{name} {number}" for name, number in by.most_common())


def _survivor(outcome: Outcome) -> Text:
    seen = outcome.evidence
    words = [f"in {count(seen.cases, 'case')}"]
    if outcome.mutant.ir_change is not None and seen.reached:
        words.append(f"ran in {seen.reached}, another value in {seen.differed}, other output in {seen.changed}")
    elif seen.changed:
        words.append(f"other output in {seen.changed}")
    words.append(f"largest err / bound {seen.ratio:.3f}")
    return whole(f"  {outcome.mutant.name}: {'; '.join([*words, *filter(None, [outcome.message])])}")


def _summary(audit: Audit, survivors: SortedSurvivors) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, words in _numbers(audit, survivors):
        table.add_row(what, words)
    return table


def _numbers(audit: Audit, survivors: SortedSurvivors) -> Iterator[tuple[str, str]]:
    found = [outcome for outcome in audit.outcomes if outcome.state == "killed"]
    yield "seed", f"{audit.seed}; at most {count(audit.cases, 'case')} each, from a default campaign on one core"
    yield "time", f"{audit.seconds:.0f} s on {count(audit.workers, 'worker')}"
    yield "found", _percent(own_score(audit.outcomes))
    if found:
        slowest = max(found, key=lambda outcome: outcome.seconds)
        latest = max(found, key=lambda outcome: outcome.case)
        yield "median", f"{median_case(found):g} cases, {median(o.seconds for o in found):.2f} s"
        yield (
            "slowest",
            f"{slowest.seconds:.1f} s ({slowest.mutant.name}); {latest.case} cases ({latest.mutant.name})",
        )
    if survivors.explained:
        explained = sum(len(members) for _, members in survivors.explained)
        yield "survived", f"{explained} explained, {len(survivors.unexplained)} not"
    for rule, name in RULE_NAMES.items() if audit.ruled else ():
        alarms = len(audit.false_alarms.get(rule, ()))
        yield name, f"{_percent(rule_score(audit.outcomes, rule))}; {count(alarms, 'false alarm')}"
    for state, meaning in (("equivalent", "always the same bits"), ("invalid", "no valid kernel")):
        number = sum(outcome.state == state for outcome in audit.outcomes)
        if number:
            yield state, f"{number} ({meaning}), not counted"
    narrow = sum(outcome.state == "equivalent" and is_width(outcome.mutant) for outcome in audit.outcomes)
    if narrow:
        yield "", f"{narrow} of the equivalent are products in 32 bits that no case took beyond 2^31"
    alarms = len(audit.false_alarms.get(PROPERTIES, ()))
    yield "healthy", f"{count(alarms, 'false alarm')} in {count(audit.healthy_cases, 'case')}"


def _percent(score: Score) -> str:
    return f"{score.found} of {score.of}, {score.percent:.1f} % (95 % interval {score.low:.1%} to {score.high:.1%})"
