"""The report of one failure: the reason, the minimal case, the worst elements, the command that replays it, and why.

What the kernel did wrong is explained in words, and the weights that show it are drawn as a heatmap.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuzz_attn.counterexamples import Counterexample, needs_trust
from fuzz_attn.engine.failures.triage import others_in_words
from fuzz_attn.forensics.explanation import Explanation, FirstOperation, Heatmap
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Element, Verdict
from fuzz_attn.report.printing import count, text_of, whole


def render(found: Counterexample, path: Path | None = None, headline: str = "FAILED") -> RenderableType:
    """Return the report of a failure, for rich to print."""
    parts: list[RenderableType] = [reason(found, headline), Text(certainty(found))]
    if found.verdict.explanation:
        parts.append(whole("Why: ", "bold").append(found.verdict.explanation, "default not bold"))
    if found.verdict.only_with:
        parts.append(Text(f"It is {found.verdict.only_with}."))
    if found.verdict.hint:
        parts.append(Text(found.verdict.hint))
    if others := others_in_words(found):
        parts.append(Text(f"Read wrongly in the same way, each in a case of its own: {others}"))
    parts += needs_lines(found)
    parts.append(case_table(found))
    if found.verdict.worst:
        parts.append(elements_table(found.verdict.worst))
    if path is not None:
        parts += [Text("Replay it"), whole(f" {replay_command(path, found)}", style="bold")]
    return Group(*parts)


def plain_text(found: Counterexample, path: Path | None = None) -> str:
    """Return the report of a failure of a run as text without colours, wrapped to 110 columns."""
    return text_of(render(found, path, run_headline(found)))


def run_headline(found: Counterexample) -> str:
    """Return what a failure of a run is: a file that was marked as fixed has regressed."""
    return "REGRESSED" if found.status == "fixed" else "FAILED"


def known_line(found: Counterexample, path: str) -> Text:
    """Return one line for a known failure: its file, what fails, and why that is accepted."""
    why = f"{found.because} ({found.reference})"
    return whole("KNOWN ", "bold yellow").append(f"{path}: {found.verdict.what}: {why}", "default not bold")


_WORSE: Final = {
    "large numbers in dead keys": "NaN or Inf in dead keys",
    "large numbers in dead values": "NaN or Inf in dead values",
}


def needs_lines(found: Counterexample) -> list[RenderableType]:
    """Return what a shrunk case needs to fail, as a line; none where nothing was tried, or nothing is needed."""
    return [Text(f"Needs: {needs(found)}")] if found.trigger and found.shrunk else []


def needs(found: Counterexample) -> str:
    """Return the traits that a failing case needs, as a list in words; the worst poison stands for milder ones."""
    names = (name for name in found.trigger if _WORSE.get(name) not in found.trigger)
    return ", ".join(name.replace("more than 1 ", "at least 2 ") for name in names)


def certainty(found: Counterexample) -> str:
    """Return how the failure was confirmed, and what another backend says of it where a GPU found it."""
    return ". ".join(filter(None, (_confirmed(found), elsewhere_in_words(found))))


def elsewhere_in_words(found: Counterexample) -> str:
    """Return what a failure does on the backend that explains it; an empty string where only one was asked."""
    elsewhere, here = found.elsewhere, found.environment.backend
    if elsewhere is None:
        return ""
    there = elsewhere.backend
    if elsewhere.outcome == "unknown":
        return f"Found on {here}, and not judged in the {there}: {elsewhere.reason}"
    if elsewhere.outcome == "passes":
        causes = "the compiler, a race within a program, timing, or memory that happened to be mapped"
        return f"{only_here(found)}: it passes in the {there}. Causes may be {causes}"
    shrunk_case = {
        "fails": "This case fails on both",
        "larger": f"Smaller cases that fail there pass on {here}: this is the smallest one found that fails on both",
        "passes": f"This case passes on {here}, and so did the case found there when it was run again",
        "unknown": f"This case was not run on {here}",
    }
    logic = f"A bug of logic: found on {here}, and shrunk in the {there}, where it fails in the same way"
    return f"{logic}. {shrunk_case[elsewhere.shrunk_case]}"


def only_here(found: Counterexample) -> str:
    """Return in words that only the backend that found a failure shows it; an empty string of others."""
    if not found.only_here:
        return ""
    backend = found.environment.backend
    return "GPU only" if backend == "cuda" else f"only on {backend}"


def _confirmed(found: Counterexample) -> str:
    """Return how the failure was confirmed."""
    if found.confirmation == "state":
        if not found.sequence:
            return "State: it fails only in a process that has judged other cases, which are not known"
        cases = count(len(found.sequence), "case")
        return f"State: it fails only after {cases} before it in the same process, which the file contains"
    if found.confirmation == "flaky":
        return f"Flaky: it failed {found.failed} times of {found.tries}"
    if found.confirmation == "unconfirmed":
        doubt = "; this does not fail the run" if found.verdict.kind == "timeout" else ""
        return f"Unconfirmed: it was seen, and did not run again{doubt}"
    return "Confirmed in a fresh process" + ", not shrunk fully" * (not found.shrunk)


def replay_command(path: Path, found: Counterexample) -> str:
    """Return the command that replays the failure on its target, for the current folder."""
    return command_for("replay", path, found)


def command_for(command: str, path: Path, found: Counterexample) -> str:
    """Return a command for the file of a failure, such as ``explain``, for the current folder."""
    return f"{program()} {command} {shlex.quote(str(path))}" + " --trust" * needs_trust(found)


def program() -> str:
    """Return the command ``fuzz-attn`` as the shell finds it: its name, its path, or a call of the module."""
    script = Path(sys.executable).with_name("fuzz-attn")
    found = shutil.which("fuzz-attn")
    if found and Path(found).resolve() == script.resolve():
        return "fuzz-attn"
    if script.exists():
        return shlex.quote(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script))
    return f"{shlex.quote(sys.executable)} -m fuzz_attn.cli.main"


def reason(found: Counterexample, status: str = "FAILED") -> RenderableType:
    """Return the status, the target and the backend, then the property that failed and its message."""
    verdict = found.verdict
    headline = whole("")
    headline.append(f"{status} ", "bold red").append(found.target, "bold")
    headline.append(f" on {found.environment.backend}" if found.environment.backend else "")
    message = Text(f"{verdict.property_name} ({verdict.kind.replace('_', ' ')}): {verdict.message}")
    if verdict.where:
        message.append(f" [{verdict.where.replace('_', ' ')}]")
    return Group(headline, message)


def headline(found: Counterexample, verdict: Verdict) -> RenderableType:
    """Return what a saved failure does now: how it fails, or that it passes and how it failed when it was saved."""
    if not verdict.passed:
        same = verdict.what == found.verdict.what
        return reason(found if same else msgspec.structs.replace(found, verdict=verdict))
    where = "in a fresh process" if found.confirmation == "state" else "now"
    saved = f"{found.verdict.what}: {found.verdict.message}"
    passes = whole("PASSES ", "bold green").append(found.target, "bold")
    return Group(passes, Text(f"The case passes {where}. When it was saved, it failed: {saved}"))


def case_table(found: Counterexample) -> Table:
    """Return the case in words."""
    table = Table(box=None, show_header=False, padding=(0, 1), title="The case", title_justify="left")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, words in lines_of(found):
        table.add_row(what, words)
    return table


def lines_of(found: Counterexample) -> list[tuple[str, str]]:
    """Return the case in words, one line for each part, with its few numbers and its relation."""
    operation = operation_of(found.case)
    lines = [*operation.described(found.case), *operation.numbers(found.case)]
    return [*lines, ("relation", operation.relation_in_words(found.relation))] if found.relation else lines


def elements_table(worst: tuple[Element, ...]) -> Table:
    """Return the worst elements: their places, actual and expected values, and the bound on the error."""
    table = Table(box=None, padding=(0, 1), title="Worst elements", title_justify="left")
    for heading in ("sequence", "query", "head", "column", "actual", "expected", "bound"):
        table.add_column(heading, justify="right")
    for element in worst:
        place = (element.sequence, element.query_index, element.head, element.column)
        numbers = (f"{float(element.actual):.9g}", f"{float(element.expected):.9g}", f"{float(element.bound):.3g}")
        table.add_row(*(str(number) if number >= 0 else "" for number in place), *numbers)
    return table


BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""Weights by their share of the largest weight of the row."""
Weights: TypeAlias = tuple[float, ...]
"""The weights of a row."""
NOTHING: Final = "·"
HIDDEN: Final = " "
UNREAD: Final = "?"
EDGE: Final = "│"
SAME: Final = 0.02
"""Weights closer than this share of the row's largest one are drawn as equal."""


def render_heatmap(heatmap: Heatmap) -> RenderableType:
    """Return both grids, the weights that the kernel used above the right ones, with what they show."""
    scores = ", with all scores equal" * heatmap.uniform
    title = f"Weights of head {heatmap.head} in sequence {heatmap.sequence}{scores}"
    legend = (
        f"A column is a key, a bar its weight beside the largest of the row, {NOTHING} a weight of 0; {EDGE} is the "
        "edge of what the row sees. Red bars are wrong."
    )
    return Group(
        Text(title, "bold"),
        *_grid(heatmap, heatmap.actual, "used"),
        *_grid(heatmap, heatmap.expected, "right"),
        Text(legend, "dim"),
    )


def _grid(heatmap: Heatmap, weights: tuple[Weights, ...], name: str) -> list[RenderableType]:
    lines: list[RenderableType] = [_axis(heatmap, name)]
    for number, query in enumerate(heatmap.queries):
        rows = heatmap.actual[number], heatmap.expected[number]
        largest = max((*rows[0], *rows[1]), default=0.0)
        lines.append(_row(f"query {query}", weights[number], rows, heatmap.visible[number], largest))
    return lines


def _axis(heatmap: Heatmap, name: str) -> Text:
    """Return the numbers of the keys, one in eight, above their columns."""
    columns = len(heatmap.expected[0]) if heatmap.expected else 0
    numbers = ""
    for column in range(columns):
        key = heatmap.first_key + column
        if key % 8 == 0 or column == 0:
            numbers = numbers.ljust(2 * column + 1)[: 2 * column + 1] + str(key)
    return whole(f"{name:>10} ", "cyan").append(numbers, "dim not bold")


def _row(
    name: str,
    weights: tuple[float, ...],
    both: tuple[tuple[float, ...], tuple[float, ...]],
    visible: str,
    largest: float,
) -> Text:
    line = whole(f"{name:>10} ", "default")
    before = "0"
    for weight, used, right, seen in zip(weights, *both, visible, strict=True):
        line.append(EDGE if seen != before else " ", "yellow")
        wrong = abs(used - right) > SAME * largest
        line.append(_glyph(weight, largest, seen), "bold red" if wrong else "green")
        before = seen
    return line.append(EDGE if before == "1" else "", "yellow")


def _glyph(weight: float, largest: float, seen: str) -> str:
    if weight < 0:
        return UNREAD
    share = weight / largest if largest > 0 else 0.0
    if share < 0.01:
        return NOTHING if seen == "1" else HIDDEN
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def render_explanation(explanation: Explanation) -> RenderableType:
    """Return the findings, the most telling first, the larger case that they are about, if so, and the weights."""
    parts: list[RenderableType] = []
    for number, finding in enumerate(explanation.findings):
        title = "Why" if number == 0 else "Also"
        parts.append(whole("").append(f"{title}: {finding.reason}", "bold red" if number == 0 else "bold"))
        parts.append(Text(f"  {finding.words}"))
    if explanation.repair is not None:
        parts.append(Text(f"{explanation.repair.sentence}."))
        parts.append(Text(f"  {explanation.repair.source}", "dim"))
    if explanation.longer:
        parts.append(Text(f"Seen in a larger case of the same kind: {explanation.longer}"))
    if explanation.only_with:
        parts.append(Text(f"It is {explanation.only_with}."))
    if explanation.operation is not None:
        parts += _operation(explanation.operation)
    if explanation.heatmap is not None:
        parts.append(render_heatmap(explanation.heatmap))
    parts.append(Text(f"Found with {count(explanation.launches, 'more launch', 'more launches')}.", "dim"))
    return Group(*parts)


def _operation(found: FirstOperation) -> Iterator[RenderableType]:
    """Yield the first operation that differs from a healthy kernel, or why none is named."""
    title = "Compared with the healthy kernel"
    if found.site:
        title = f"First operation that differs: {_short(found.site)}"
        yield whole("").append(title, "bold").append(f", {found.where}")
        yield Text(f"  {found.source}")
    else:
        yield whole("").append(title, "bold")
    yield Text(f"  {found.words}")
    for words, lines in (("Only here", found.own_lines), ("Only in the healthy kernel", found.healthy_lines)):
        for line in lines:
            yield Text(f"  {words}: {_short(line)}")
    for note in found.notes:
        yield Text(f"  Also: {note}")


def _short(line: str) -> str:
    """Return a line with the last part of its file's path only."""
    place, colon, text = line.partition(": ")
    return place.rpartition("/")[2] + colon + text
