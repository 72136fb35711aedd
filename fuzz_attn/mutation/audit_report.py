"""Report of an audit: the table while it runs, the survivors, and the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.mutation.audit_results import (
    FLASH_ATTENTION,
    PROPERTIES,
    VLLM,
    Audit,
    Mutant,
    Outcome,
    Reason,
    Score,
    SortedSurvivors,
    by_mutant,
    median_case,
    most_seen,
    own_score,
    refuted,
    rule_score,
    sort,
    times_found,
)
from fuzz_attn.report.printing import count, whole

RULE_NAMES: Final = {VLLM: "vLLM's fixed tolerance", FLASH_ATTENTION: "FlashAttention's rule"}


class LiveTable:
    """The outcomes of an audit so far, of ``expected``. ``progress`` holds (case, mutants left) of each worker."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
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
        words = [f"{len(self._outcomes)} of {self.expected} judged", f"{found['killed']} found"]
        words += [f"{found[state]} {state}" for state in ("survived", "unobserved", "invalid")]
        if self._survivors_left:
            words.append(f"{self._survivors_left} to examine again")
        progress = ", ".join(f"case {case} ({left} left)" for case, left in self.progress)
        return ", ".join(words) + (f"; at {progress}" if progress else "")

    def render(self) -> RenderableType:
        """Return the table for a terminal."""
        return Group(by_class(self._outcomes), whole(self.line()))


def render(audit: Audit, reasons: Sequence[Reason] = ()) -> RenderableType:
    """Return the report of a finished audit; mutants not found and without a reason come last, above the summary."""
    parts: list[RenderableType] = [by_class(audit.outcomes), *_equivalents(audit.outcomes, reasons)]
    parts += _found_by_some_seeds(audit)
    sorted_ = sort(missed(audit.outcomes), reasons)
    for reason, members in sorted_.explained:
        heading = f"{count(len(members), 'mutant')} not found, {_words(reason)}: {reason.because}"
        parts += ["", whole(heading, "bold"), *map(_survivor, members)]
    if sorted_.unexplained:
        unexplained = " and without a known reason" if reasons else ""
        parts += ["", Text(f"{count(len(sorted_.unexplained), 'mutant')} not found{unexplained}:", style="bold")]
        parts += map(_survivor, sorted_.unexplained)
    for reason, outcome in refuted(audit.outcomes, reasons):
        parts += ["", whole(f"Refuted: {_words(reason)} claims the {reason.equivalent}, but of", "bold")]
        parts.append(_survivor(outcome))
    parts += ["", Text(f"Audit of {audit.target}", style="bold"), _summary(audit, sorted_)]
    return Group(*parts)


def missed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return for each mutant that counts and that no seed found its outcome with the most evidence."""
    return [most_seen(each) for each in by_mutant(outcomes) if not times_found(each)]


def _words(reason: Reason) -> str:
    return reason.name.replace("_", " ")


def _equivalents(outcomes: Sequence[Outcome], reasons: Sequence[Reason]) -> Iterator[RenderableType]:
    """Yield for each reason the equivalent mutants that it covers, a line for each source line."""
    members = {outcome.mutant: outcome for outcome in outcomes if outcome.state == "equivalent"}
    for reason, each in sort(members.values(), [reason for reason in reasons if reason.equivalent]).explained:
        yield ""
        heading = (
            f"{count(len(each), 'equivalent mutant')}, the {reason.equivalent}, {_words(reason)}: {reason.because}"
        )
        yield whole(heading, "bold")
        yield from map(_equivalent_line, each)


def _equivalent_line(outcome: Outcome) -> Text:
    return whole(f"  {outcome.mutant.name}")


def _found_by_some_seeds(audit: Audit) -> Iterator[RenderableType]:
    """Yield a line for each mutant that some seeds found and others did not."""
    lines = []
    for each in by_mutant(audit.outcomes):
        times = times_found(each)
        if 0 < times < len(each):
            cases = ", ".join(str(outcome.case) for outcome in each if outcome.state == "killed")
            lines.append(whole(f"  {each[0].mutant.name}: {times} of {len(each)} seeds, after {cases} cases"))
    if lines:
        yield ""
        yield Text("Found by some seeds only:", style="bold")
        yield from lines


def by_class(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with a line for each class of mutants: how many were found, how soon, and by what."""
    several = len({outcome.seed for outcome in outcomes}) > 1
    names = ["class", "found", *["by some seeds"] * several, "of", "equivalent", "median case", "median s", "by"]
    table = Table(box=None)
    for name in names:
        table.add_column(name, justify="left" if name in ("class", "by") else "right", no_wrap=name != "by")
    classes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        classes.setdefault(class_of(outcome.mutant), []).append(outcome)
    for name, members in sorted(classes.items()):
        table.add_row(name, *_class_row(members, several))
    return table


def class_of(mutant: Mutant) -> str:
    """Return the class of a mutant: the kind of its change, or ``seeded bug``."""
    return mutant.ir_change.kind if mutant.ir_change else "seeded bug"


def _class_row(members: Sequence[Outcome], several: bool) -> Iterator[str]:
    """Yield the cells of a class: found means by every seed that has judged the mutant."""
    mutants = by_mutant(members)
    found = [outcome for outcome in members if outcome.state == "killed"]
    always = sum(times_found(each) == len(each) for each in mutants)
    case = median_case(members)
    yield str(always) if mutants else "-"
    if several:
        yield str(sum(times_found(each) > 0 for each in mutants) - always) if mutants else "-"
    yield str(len(mutants))
    yield str(len({outcome.mutant for outcome in members if outcome.state == "equivalent"}))
    yield "" if case is None else f"{case:g}"
    yield f"{median(outcome.seconds for outcome in found):.2f}" if found else ""
    by = Counter(outcome.property_name for outcome in found)
    yield ", ".join(f"{name} {number}" for name, number in by.most_common())


def _survivor(outcome: Outcome) -> Text:
    seen = outcome.evidence
    words = [f"in {count(seen.cases, 'case')}"]
    if outcome.mutant.ir_change is not None and seen.reached:
        words.append(f"ran in {seen.reached}, another value in {seen.differed}, other output in {seen.changed}")
    else:
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
    seeds = ", ".join(map(str, audit.seeds))
    yield (
        "seed" if len(audit.seeds) == 1 else "seeds",
        f"{seeds}; at most {count(audit.cases, 'case')} each, from a default campaign on one core",
    )
    yield "time", f"{audit.seconds:.0f} s on {count(audit.workers, 'worker')}"
    yield "found", _percent(own_score(audit.outcomes), len(audit.seeds))
    yield from _differences_of_seeds(audit)
    if found:
        slowest = max(found, key=lambda outcome: outcome.seconds)
        latest = max(found, key=lambda outcome: outcome.case)
        yield "median", f"{median_case(found):g} cases, {median(o.seconds for o in found):.2f} s"
        yield (
            "slowest",
            f"{slowest.seconds:.1f} s ({slowest.mutant.name}); {latest.case} cases ({latest.mutant.name})",
        )
    yield from _not_found(audit, survivors)
    for rule, name in RULE_NAMES.items() if audit.ruled else ():
        alarms = sum(alarm.rule == rule for alarm in audit.false_alarms)
        yield name, f"{_percent(rule_score(audit.outcomes, rule), len(audit.seeds))}; {count(alarms, 'false alarm')}"
    alarms = sum(alarm.rule == PROPERTIES for alarm in audit.false_alarms)
    yield "healthy", f"{count(alarms, 'false alarm')} in {count(audit.healthy_cases, 'case')}"


def _differences_of_seeds(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield how far the seeds differ, and how many mutants every, some and no seed found."""
    mutants = by_mutant(audit.outcomes)
    if len(audit.seeds) == 1 or not mutants:
        return
    shares = []
    for seed in audit.seeds:
        percent = own_score(outcome for outcome in audit.outcomes if outcome.seed == seed).percent
        if percent is not None:
            shares.append((percent, seed))
    (low, lowest), (high, highest) = min(shares), max(shares)
    yield "", f"from {low:.1f} % (seed {lowest}) to {high:.1f} % (seed {highest})"
    every = sum(times_found(each) == len(each) for each in mutants)
    some = sum(times_found(each) > 0 for each in mutants)
    yield "", f"{every} by every seed, {some - every} by some, {len(mutants) - some} by none"


def _not_found(audit: Audit, survivors: SortedSurvivors) -> Iterator[tuple[str, str]]:
    """Yield how many mutants no seed found, and how many leave the score."""
    outcomes = [*survivors.unexplained, *(outcome for _, members in survivors.explained for outcome in members)]
    if outcomes:
        unobserved = sum(outcome.state == "unobserved" for outcome in outcomes)
        yield "not found", f"{len(outcomes)}, of which {unobserved} changed no bit of any output (unobserved)"
    if survivors.explained:
        yield "", f"{len(outcomes) - len(survivors.unexplained)} explained, {len(survivors.unexplained)} not"
    for state, meaning in (("equivalent", "for a written reason"), ("invalid", "no valid kernel")):
        number = len({outcome.mutant for outcome in audit.outcomes if outcome.state == state})
        if number:
            yield state, f"{number} ({meaning}), not counted"


def _percent(score: Score, seeds: int) -> str:
    if score.percent is None:
        return "none, of no mutant"
    mean = " (mean of the seeds)" if seeds > 1 else ""
    share = f"{score.percent:.1f} % (95 % interval {score.low:.1%} to {score.high:.1%})"
    return f"{round(score.found, 1):,g} of {score.of:,}{mean}, {share}"
