"""The page of one run: one HTML file without scripts and without addresses of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fuzz_attn.binding.conventions import parameters_of
from fuzz_attn.case import not_drawn
from fuzz_attn.engine.listeners.results import RunReport
from fuzz_attn.errors import OutputError
from fuzz_attn.foreign_files import write_new
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.outcome import confidence
from fuzz_attn.report.page import sections
from fuzz_attn.report.page.run_log import RunLog
from fuzz_attn.report.page.sections import MOST_FAILURES, Table, by_kind, number, table
from fuzz_attn.report.page.sources import source_files
from fuzz_attn.report.printing import count, safe, visible

PAGE_NAME: Final = "report.html"


@dataclass(frozen=True)
class Verdict:
    """The result of a run in words; ``mark`` is the style: ``bad``, ``good`` or ``open``."""

    mark: str
    headline: str
    words: str


@cache
def environment() -> Environment:
    """Return the templates, in which every value is escaped, and characters that are not seen are made visible."""
    made = Environment(
        loader=PackageLoader("fuzz_attn.report.page"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = number
    return made


def render(template: str, **values: Any) -> str:
    """Return the text of a template, with the style sheet."""
    style = Markup(environment().get_template("style.css").render())  # noqa: S704 - a file of this package
    return environment().get_template(template).render(style=style, **values)


def save(text: str, path: Path) -> Path:
    """Write a page and return its path; raises :class:`OutputError` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def run_page(logs: Sequence[RunLog], made: float, *, live: bool = False) -> str:
    """Return the page of a run, whose targets each have a log; it says that it was made at a time.

    A ``live`` one renews itself while it is served.
    """
    runs = [_run(log, f"t{index}-" if len(logs) > 1 else "") for index, log in enumerate(logs)]
    title = logs[0].target if len(logs) == 1 else count(len(logs), "target")
    return render("run.html", title=safe(title), runs=runs, live=live, made=moment(made))


def moment(seconds: float) -> str:
    """Return a time in seconds since 1970 in words."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _run(log: RunLog, prefix: str) -> dict[str, Any]:
    """Return everything that the template shows of one target."""
    statistics, distributions = log.statistics, log.distributions
    return {
        "prefix": prefix,
        "target": safe(log.target),
        "verdict": verdict_of(log),
        "summary": _summary(log),
        "notes": [safe(note) for note in (*log.report.errors, *log.report.notes)],
        "deaths": [safe(reason) for reason in dict.fromkeys(log.deaths)][:20],
        "failures": by_kind(log.report.failures, prefix),
        "failures_left": max(0, len(log.report.failures) - MOST_FAILURES),
        "refusals": sections.refusals_table(statistics.refusals) if statistics.refusals else None,
        "features": sections.features_table(log),
        "shares": _shares(log),
        "pairs": sections.pairs_table(log),
        "pairs_words": sections.pairs_in_words(log),
        "relations": _relations(log),
        "recorded": distributions is not None,
        "masks_words": mask_gaps.summary_line(statistics.masks, log.target) if statistics.masks else "",
        "fallback": safe(statistics.fallback),
        "sources": list(source_files(statistics.masks, log.target)),
        "ratios": list(sections.ratio_figures(log)),
        "lengths": list(sections.length_figures(log)),
        "sizes": list(sections.size_figures(log)),
        "speed": [figure for figure in _speed(log) if figure],
        "key_figure": sections.keys_figure(log),
        "environment": _environment(log),
        "binding": _binding(log),
    }


def _speed(log: RunLog) -> tuple[Any, ...]:
    return sections.speed_figure(log), sections.time_figure(log), sections.outcomes_figure(log)


def verdict_of(log: RunLog) -> Verdict:
    """Return the result of a run in words."""
    report, cases = log.report, log.statistics.cases
    failures = [found for found in report.failures if found.fails]
    others = _others(report)
    going_on = "" if log.finished else " The log has no end: the run still goes on, or was killed."
    judged = f"{count(cases, 'case')} judged."
    if failures:
        words = f"{judged} {others} beside." if others else judged
        return Verdict("bad", count(len(failures), "failure"), words + going_on)
    if report.errors or (report.problems and log.finished):
        return Verdict("bad", "Something is wrong", safe(" ".join(report.problems)) + going_on)
    if not cases:
        return Verdict("open", "Nothing judged yet", going_on.strip())
    known = f"{others} and no other. " if others else ""
    limit = "" if report.failures else f" {confidence(cases).capitalize()}."
    headline = "No failure" if log.finished else "No failure so far"
    return Verdict("good" if log.finished else "open", headline, f"{known}{judged}{limit}{going_on}")


def _others(report: RunReport) -> str:
    """Return the failures that do not fail the run, in words."""
    known = sum(found.known for found in report.failures)
    doubtful = sum(not found.fails and not found.known for found in report.failures)
    counted = (known, "known failure"), (doubtful, "unconfirmed timeout")
    return " and ".join(count(number, what) for number, what in counted if number)


def _summary(log: RunLog) -> list[tuple[str, str]]:
    statistics = log.statistics
    rate = statistics.cases / statistics.seconds if statistics.seconds else 0.0
    rows = [
        ("backend", statistics.backend or "none: no worker was ready"),
        ("seed", f"{statistics.seed}, split over {count(statistics.shards, 'shard')}"),
        ("cases", f"{number(statistics.cases)} in {statistics.seconds:.0f} s, {rate:.1f} a second"),
        ("confirming and shrinking", f"{number(statistics.shrinking)} cases more"),
        ("compile keys", number(len(statistics.compile_keys))),
        ("refused", f"{number(statistics.refused)} cases, not among those above"),
        (
            "unsupported",
            safe("; ".join(f"{what}: {number(times)}" for what, times in statistics.unsupported.items())) or "none",
        ),
        ("worker deaths", number(statistics.deaths)),
        ("not drawn", safe("; ".join(not_drawn.sentences(statistics.not_drawn))) or "nothing"),
        ("mask coverage", _coverage(log)),
        ("largest err / bound", _ratios(log)),
    ]
    if statistics.kernels_ahead or statistics.kernels_kept:
        compiled = statistics.kernels_ahead + statistics.kernels_compiled
        rows.insert(5, ("kernels compiled", f"{compiled}, {statistics.kernels_kept} by earlier runs"))
    elif statistics.kernels_compiled or statistics.kernels_loaded:
        rows.insert(5, ("kernels compiled", f"{statistics.kernels_compiled}, {statistics.kernels_loaded} from a cache"))
    if statistics.unfinished:
        rows.append(("unfinished", f"{statistics.unfinished}, for at most {statistics.unfinished_seconds:.1f} s"))
    return rows


def _coverage(log: RunLog) -> str:
    masks = log.statistics.masks
    if masks:
        return mask_gaps.summary_line(masks, log.target)
    return "not recorded: only the simulator records masks, and only those of Triton kernels"


def _ratios(log: RunLog) -> str:
    ratios = sorted(log.statistics.ratios.items())
    return ", ".join(f"{dtype} {ratio:.3f}" for dtype, ratio in ratios) or "none measured"


def _shares(log: RunLog) -> Table | None:
    """Return the features of signatures, which every log has."""
    features = sorted(log.statistics.features.items(), key=lambda item: -item[1])
    if not features or log.distributions is not None:
        return None
    return table("Cases with each feature", ("feature", "cases"), features, numbers=[1])


def _relations(log: RunLog) -> Table | None:
    most_first = sorted(log.statistics.relations.items(), key=lambda item: (-item[1], item[0]))
    rows = ((name.replace("_", " "), number(cases)) for name, cases in most_first)
    return table("Cases of each metamorphic relation", ("relation", "cases"), rows, numbers=[1]) if most_first else None


def _environment(log: RunLog) -> list[tuple[str, str]]:
    started, statistics = log.started, log.statistics
    unknown = "not recorded"
    versions = started.versions if started else {}
    limits = [f"{started.max_time:.0f} s"] if started and started.max_time else []
    limits += [f"{number(started.max_cases)} cases"] if started and started.max_cases else []
    return [
        ("began", moment(started.time) if started else unknown),
        ("limits", ", ".join(limits) or "none"),
        ("workers", str(started.workers) if started else unknown),
        ("machine", safe(started.system) if started and started.system else unknown),
        ("versions", safe(", ".join(f"{name} {version}" for name, version in versions.items())) or unknown),
        ("shims", safe(", ".join(statistics.shims)) or "none"),
        ("run folder", safe(str(log.folder))),
    ]


def _binding(log: RunLog) -> Table | None:
    """Return the role of each parameter of the target; None where no worker was ready."""
    if log.ready is None:
        return None
    rows = ([safe(text) for text in row] for row in parameters_of(log.ready.binding, log.ready.reasons))
    return table("How the target is called", ("parameter", "role", "reason"), rows)
