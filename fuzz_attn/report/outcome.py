"""The outcome of a run: its verdict in one sentence, and its failures by cause, each with commands to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.case.contract_trial import trial_of
from fuzz_attn.engine.failures.triage import class_of, has_place, others_in_words
from fuzz_attn.engine.listeners.results import LEAST_JUDGED, FoundFailure, RunReport
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.report.failure import command_for, only_here
from fuzz_attn.report.printing import count, safe, whole

ENOUGH_CASES: Final = 30
"""From so many cases on, the rule of three holds: without a failure in n, at most 3 / n fail."""
NOT_FOLLOWED: Final = "seen, not followed"


Mark: TypeAlias = Literal["bad", "good", "open"]
"""What a verdict is: failures or an error; nothing found; too little judged, or not over yet."""


class Sentence(NamedTuple):
    """A verdict in one sentence, and what else it means."""

    mark: Mark
    words: str
    more: str = ""


def outcome(report: RunReport) -> RenderableType:
    """Return the verdict of a run, and under it the list of its failures."""
    return Group(verdict(report), failures_list(report.failures)) if report.failures else verdict(report)


def verdict(report: RunReport) -> Text:
    """Return the verdict of a run as a terminal shows it."""
    found = verdict_of(report, f" of {safe(report.target)}")
    words = ": ".join(filter(None, (found.words, found.more)))
    return Text(words, "bold green" if found.mark == "good" else "bold red")


def verdict_of(report: RunReport, of: str = "") -> Sentence:
    """Return the verdict of a run: how many failures, how many of them are new, or how little their absence says.

    ``of`` follows the number of cases.
    """
    statistics, failing = report.statistics, [found for found in report.failures if found.fails]
    among = f"in {count(statistics.cases, 'case')}{of}"
    if failing:
        words = f"{count(len(failing), 'failure')}{_of_contracts(failing)}{_others(report)} {among}"
        return Sentence("bad", words, _news(failing))
    refused = f"{count(statistics.refused, 'case')} refused"
    if report.lost:
        return Sentence("bad", f"Failing cases without a row {among}", report.lost)
    if report.errors and statistics.cases:
        return Sentence("bad", f"Cut short by an error: no failure{_others(report)} {among}")
    if not statistics.cases:
        return Sentence("open", f"Nothing judged{of}", refused if statistics.refused else "")
    if statistics.judged_share < LEAST_JUDGED:
        drawn = statistics.cases + statistics.refused + statistics.not_judged
        return Sentence(
            "open",
            f"Mostly refused: {statistics.refused} of {count(drawn, 'case')}, no failure{_others(report)} {among}",
        )
    return Sentence("good", f"No failure{_others(report)} {among}", confidence(statistics.cases))


def _of_contracts(failing: Sequence[FoundFailure]) -> str:
    """Return how many failures are of contracts only: unusual arguments that are neither read rightly nor refused."""
    number = sum(map(is_of_contract, failing))
    return f" ({'only' if number == len(failing) else number} of contracts)" if number else ""


def is_of_contract(found: FoundFailure) -> bool:
    """Return whether a failure needs an argument in an unusual form."""
    return trial_of(found.counterexample.case) is not None


def _others(report: RunReport) -> str:
    """Return the failures that do not fail a run, in words that follow those that do."""
    known = sum(found.known for found in report.failures)
    doubtful = sum(not found.fails and not found.known for found in report.failures)
    counted = (known, "known failure"), (doubtful, "unconfirmed timeout")
    return "".join(f", and {count(number, what)}" for number, what in counted if number)


def _news(failing: Sequence[FoundFailure]) -> str:
    """Return how many failures are new, where some are not: they have files from before the run."""
    new = sum(not found.saved for found in failing)
    regressed = sum(found.counterexample.status == "fixed" for found in failing)
    if new == len(failing):
        return ""
    if regressed == len(failing):
        return "it was marked as fixed" if regressed == 1 else "all of them were marked as fixed"
    every = "not new" if len(failing) == 1 else f"{new or 'none'} of them new"
    return every + f", {regressed} regressed" * bool(regressed)


def confidence(cases: int) -> str:
    """Return what so many cases without a failure say about how many fail at most."""
    if cases < ENOUGH_CASES:
        return f"fewer than {ENOUGH_CASES} cases say too little about how often one fails"
    return f"at most {3 / cases:.2g} failures per case with 95% confidence (3/n)"


def failures_list(failures: Sequence[FoundFailure]) -> RenderableType:
    """Return each failure with a number: its cause, what failed, its smallest case, how often it was seen, what to do.

    Failures of a class that were seen and not followed stand together.
    """
    lines: list[RenderableType] = []
    for number, (found, cases, status) in enumerate(rows_of(failures), 1):
        lines.append(_indented(cause(found), f"{number:>2}  ", "bold"))
        lines.append(_indented(f"{failure_in_words(found)}: {smallest_case(found)}"))
        lines.append(_indented(f"{count(cases, 'case')}, the first after {found.first_seen:.1f} s; {status}"))
        lines += [whole(f"    {line}") for line in _to_follow(found)]
    return Group(*lines)


def _indented(words: str, mark: str = "    ", style: str = "") -> Table:
    """Return words that stay behind a mark where they are wrapped."""
    row = Table.grid(padding=0)
    row.add_column(no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(Text(mark, style), Text(safe(words), style))
    return row


def _to_follow(found: FoundFailure) -> Iterator[str]:
    """Yield the line of code, other lines that the same case shows, and what to paste into a shell."""
    if found.counterexample.verdict.site:
        yield safe(f"at {found.counterexample.verdict.site}")
    yield from (safe(f"also at {name.partition(' ')[2]}") for name in found.counterexample.also if has_place(name))
    if found.path and found.followed and not found.known:
        for command in ("explain", "replay"):
            yield command_for(command, Path(found.path), found.counterexample)


def cause(found: FoundFailure) -> str:
    """Return in one sentence what the kernel did wrong, or what was seen if no cause is known."""
    verdict = found.counterexample.verdict
    words = (verdict.explanation.partition(" (in a larger case: ")[0] or verdict.message).partition("\n")[0]
    words = words.replace(f" at {verdict.site}", "") if verdict.site else words
    others = others_in_words(found.counterexample)
    return "; ".join(filter(None, (words, verdict.only_with, others and f"also {others}")))


def rows_of(failures: Sequence[FoundFailure]) -> Iterator[tuple[FoundFailure, int, str]]:
    """Yield a failure, its cases and its status for each row; those of a class that were only seen have one row.

    Failures of contracts come after the others.
    """
    ordered = sorted(failures, key=is_of_contract)
    yield from ((found, found.cases, status_of(found)) for found in ordered if found.followed)
    only_seen: dict[str, list[FoundFailure]] = {}
    for found in ordered:
        if not found.followed:
            only_seen.setdefault(class_of(found.counterexample.verdict), []).append(found)
    for same in only_seen.values():
        files = count(sum(bool(found.path) for found in same), "file")
        yield same[0], sum(found.cases for found in same), f"{NOT_FOLLOWED}, {files}"


def failure_in_words(found: FoundFailure) -> str:
    """Return what failed, and where in the output."""
    verdict = found.counterexample.verdict
    place = f", {verdict.where.replace('_', ' ')}" if verdict.where else ""
    return f"{verdict.what}{place}"


def smallest_case(found: FoundFailure) -> str:
    """Return the size and the features of the smallest case."""
    case = found.counterexample.case
    operation = operation_of(case)
    return ", ".join((*operation.sizes_in_words(case), *operation.features_of(case)))


def status_of(found: FoundFailure) -> str:
    """Return the status of a failure's file, and how sure the failure is."""
    counterexample = found.counterexample
    status = "regressed" if counterexample.status == "fixed" else counterexample.status
    doubt = {
        "confirmed": "" if found.done and counterexample.shrunk else "not shrunk fully",
        "state": "state",
        "flaky": f"flaky ({counterexample.failed} of {counterexample.tries})",
        "unconfirmed": "unconfirmed",
    }[counterexample.confirmation]
    doubt = doubt if found.followed else NOT_FOLLOWED
    return ", ".join(filter(None, (status if found.path else "not saved", _place(found), doubt)))


def _place(found: FoundFailure) -> str:
    """Return where a failure of a GPU shows, unless in the simulator too, as far as it is known."""
    elsewhere = found.counterexample.elsewhere
    if elsewhere is None or not found.followed:
        return ""
    if elsewhere.outcome == "fails":
        larger = f"smaller cases pass on {found.counterexample.environment.backend}"
        return larger if elsewhere.shrunk_case == "larger" else ""
    return only_here(found.counterexample) or f"not judged in the {elsewhere.backend}"
