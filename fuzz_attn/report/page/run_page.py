"""The page of one run: one HTML file with one short script of its own, and without addresses of a network.

Its surroundings: where it lies, the run before and the trend to link to, how lines of source are linked.

It answers in the order of the questions of a reader: what is wrong, where, how often, what next; then what was covered,
and last the counters.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.binding.binding import parameters_of
from fuzz_attn.case import aspect_table
from fuzz_attn.engine.listeners.results import LEAST_JUDGED
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.errors import OutputError
from fuzz_attn.foreign_files import write_new
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.outcome import Sentence, rows_of, verdict_of
from fuzz_attn.report.page import sections
from fuzz_attn.report.page.failures import MOST_FAILURES, ShownFailure, shown_failures
from fuzz_attn.report.page.run_log import RunLog, run_before
from fuzz_attn.report.page.sections import Table, number, share, table
from fuzz_attn.report.page.sources import Places, source_files
from fuzz_attn.report.printing import count, safe, visible

PAGE_NAME: Final = "report.html"
PAGE_OF_RUNS: Final = "trend.html"


@dataclass(frozen=True)
class Surroundings:
    """What lies around a page: its folder, the addresses of other pages, and how the source is linked to.

    A page that is served lies in no ``folder``, and links to no file.
    ``before`` has the address of the run before, of each target that has one; ``trend`` is empty where there is none.
    """

    folder: Path | None = None
    before: dict[str, str] = field(default_factory=dict)
    trend: str = ""
    places: Places = field(default_factory=Places)


def surroundings(
    run: Path, targets: Iterable[str], page: Path, *, link: str = "", trend: Path | None = None
) -> Surroundings:
    """Return what lies around the page of a run's folder: only pages that exist, and a ``trend`` that is made later."""
    place = page.absolute().parent
    before = {target: earlier / PAGE_NAME for target in targets if (earlier := run_before(run, target)) is not None}
    later = run.absolute().parent / PAGE_OF_RUNS
    found = trend or (later if later.is_file() else None)
    return Surroundings(
        place,
        {target: _address(path, place) for target, path in before.items() if path.is_file()},
        _address(found, place) if found else "",
        Places(link),
    )


def _address(path: Path, place: Path) -> str:
    return quote(os.path.relpath(path.absolute(), place))


_LONG_NUMBER: Final = re.compile(r"\d{5,}")
_STATES: Final = ("new", "regressed", "open", "known")


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
    """Return the text of a template, with the style sheet and the script, which its digest allows to run."""
    style, script = (Markup(environment().get_template(name).render()) for name in ("style.css", "page.js"))  # noqa: S704 - files of this package
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment().get_template(template).render(style=style, script=script, digest=digest, **values)


def save(text: str, path: Path) -> Path:
    """Write a page and return its path; raises :class:`OutputError` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def run_page(logs: Sequence[RunLog], made: float, *, live: bool = False, around: Surroundings | None = None) -> str:
    """Return the page of a run, whose targets each have a log; it says that it was made at a time.

    A ``live`` one renews itself while it is served.
    """
    around = around or Surroundings()
    runs = [_run(log, f"t{index}-" if len(logs) > 1 else "", around) for index, log in enumerate(logs)]
    title = logs[0].target if len(logs) == 1 else count(len(logs), "target")
    return render("run.html", title=safe(title), runs=runs, live=live, made=moment(made), trend=around.trend)


def moment(seconds: float) -> str:
    """Return a time in seconds since 1970 in words."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _run(log: RunLog, prefix: str, around: Surroundings) -> dict[str, Any]:
    """Return everything that the template shows of one target."""
    statistics = log.statistics
    failures = shown_failures(log.report.failures, prefix, around.places, statistics.masks, around.folder)
    return {
        "prefix": prefix,
        "target": safe(log.target),
        "verdict": verdict_in_words(log),
        "facts": _facts(log),
        "cause": _only_cause(failures),
        "next": _next(log, failures),
        "before": around.before.get(log.target, ""),
        "problems": [safe(problem[:1].upper() + problem[1:]) for problem in _problems(log)],
        "failures": failures,
        "states": [(state, times) for state in _STATES if (times := sum(each.state == state for each in failures))],
        "failures_left": max(0, len(list(rows_of(log.report.failures))) - MOST_FAILURES),
        "refused": _refused(log, around.places),
        "covered": _covered(log) if statistics.cases else None,
        "details": _details(log),
    }


def verdict_in_words(log: RunLog) -> Sentence:
    """Return the verdict of a run as its page says it: not over yet while the log has no end."""
    found = verdict_of(log.report)
    more = safe(found.more[:1].upper() + found.more[1:])
    found = found._replace(words=_LONG_NUMBER.sub(lambda digits: number(int(digits[0])), found.words))
    if log.finished:
        return Sentence(found.mark, safe(found.words), more)
    words = "Nothing judged yet" if not log.statistics.cases else f"So far: {found.words[0].lower()}{found.words[1:]}"
    return Sentence("bad" if found.mark == "bad" else "open", safe(words), more)


def _problems(log: RunLog) -> Sequence[str]:
    """Return what is wrong with the run itself, beside what the verdict and the list of refusals say."""
    report = log.report
    return report.errors or ([report.reason] if report.reason and not report.refusals and log.finished else [])


def _only_cause(failures: Sequence[ShownFailure]) -> str:
    """Return in words what is wrong where one failure is all, for the place below the verdict."""
    if len(failures) != 1:
        return ""
    reason, title = failures[0].reason, failures[0].title
    return f"{reason}: {title}" if reason else str(title)


def _facts(log: RunLog) -> list[str]:
    """Return in short words how the run was made."""
    statistics = log.statistics
    ended = "" if log.finished else "The log has no end: the run still goes on, or was killed"
    took = f"{statistics.seconds:.0f} s" if statistics.seconds < 600 else f"{statistics.seconds / 60:.0f} min"
    began = [moment(log.started.time)[:16] + " UTC"] if log.started else []
    return [
        *filter(None, (ended,)),
        *began,
        f"{took} on {safe(statistics.backend or 'no backend')}",
        f"seed {statistics.seed}",
        *([f"{_of_cases(statistics)} failed"] if statistics.failing else []),
    ]


def _of_cases(statistics: Statistics) -> str:
    """Return how many of the cases failed: a failure is a bug that several of them may show, or a saved file."""
    few = statistics.failing <= statistics.cases
    of = f"{number(statistics.failing)} of {count(statistics.cases, 'case')}"
    return of if few else count(statistics.failing, "case")


def _next(log: RunLog, failures: Sequence[ShownFailure]) -> tuple[str, str]:
    """Return what to do next in words, and a command to paste."""
    statistics = log.statistics
    first = next((each for each in failures if each.fails and each.commands), None)
    if first is not None:
        return f"See why failure {first.index} is wrong, launch by launch:", first.commands[0][1]
    if log.report.problems and statistics.judged_share >= LEAST_JUDGED and statistics.cases:
        return "Read what ended the run, below, and run again.", ""
    if statistics.refused and (not statistics.cases or statistics.judged_share < LEAST_JUDGED):
        words = (
            "Say in a binding what the target takes, so that nothing else is drawn (docs/targets.md). It is called so:"
        )
        return words, f"fuzz-attn bind {shlex.quote(log.target)}"
    if not log.finished or not statistics.cases:
        return "Wait for the end of the run, or give it more time.", ""
    if lines := sections.unseen_lines(log):
        return (
            f"Nothing to mend. {count(len(lines), 'line')} of the kernels had a mask that was not seen both ways.",
            "",
        )
    return "Nothing to mend. A longer run rules out rarer failures.", ""


def _refused(log: RunLog, places: Places) -> dict[str, Any] | None:
    """Return what was refused, in short for the first screen, and whether that is most of the run."""
    counts = log.statistics
    if not counts.refusals:
        return None
    mostly = not counts.cases or counts.judged_share < LEAST_JUDGED
    rows = [sections.refusal(each, counts, places) for each in counts.refusals]
    most = 12 if mostly else 3
    judged = f"{number(counts.cases)} of {number(counts.cases + counts.refused + counts.not_judged)} cases were judged."
    return {"rows": rows[:most], "more": max(0, len(rows) - most), "words": judged}


def _covered(log: RunLog) -> dict[str, Any]:
    """Return the strip of what was covered: each part with a number, its words and a drawing."""
    statistics = log.statistics
    pairs, masks = sections.covered_pairs(log), statistics.masks
    seen = len(masks) - sum(not gap.because for gap in mask_gaps.gaps(masks, log.target))
    return {
        "pairs": (f"{pairs[0]} of {pairs[1]}", share(*pairs), sections.pairs_drawing(log)) if pairs else None,
        "served": (number(statistics.served), share(statistics.served, statistics.cases)),
        "masks": (f"{seen} of {len(masks)}", 100 * seen / len(masks), len(sections.unseen_lines(log)))
        if masks
        else None,
        "compile_keys": (number(len(statistics.compile_keys)), sections.keys_drawing(log)),
        "cases": statistics.cases,
        "not_recorded": not_recorded(log),
    }


def not_recorded(log: RunLog) -> str:
    """Return why a run has no masks."""
    if log.statistics.backend == "simulator":
        return "none: no Triton kernel with a mask was launched"
    return "not recorded: only the simulator sees the masks of Triton kernels"


def _details(log: RunLog) -> dict[str, Any]:
    """Return the counters."""
    statistics = log.statistics
    return {
        "summary": _summary(log),
        "notes": [safe(note) for note in (*log.report.errors, *log.report.notes)],
        "deaths": [safe(reason) for reason in dict.fromkeys(log.deaths)][:20],
        "refusals": sections.refusals_table(statistics.refusals) if statistics.refusals else None,
        "features": sections.features_table(log),
        "shares": _shares(log),
        "pairs": sections.pairs_table(log),
        "pairs_words": sections.pairs_in_words(log),
        "relations": _relations(log),
        "masks_words": mask_gaps.summary_line(statistics.masks, log.target) if statistics.masks else "",
        "fallback": safe(statistics.fallback),
        "sources": list(source_files(statistics.masks, log.target)),
        "ratios": list(sections.ratio_tables(log)),
        "lengths": [*sections.length_tables(log), *sections.size_tables(log)],
        "time": sections.time_table(log),
        "speed": [figure for figure in (sections.speed_figure(log), sections.outcomes_figure(log)) if figure],
        "compile_keys": sections.keys_table(log),
        "environment": _environment(log),
        "binding": _binding(log),
    }


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
        ("not drawn", safe("; ".join(aspect_table.sentences(statistics.not_drawn))) or "nothing"),
        ("mask coverage", _coverage(log)),
        ("largest err / bound", _ratios(log)),
    ]
    if statistics.kernels_ahead or statistics.kernels_kept:
        compiled = statistics.kernels_ahead + statistics.kernels_compiled
        rows.insert(5, ("kernels compiled", f"{compiled}, {statistics.kernels_kept} by earlier runs"))
    elif statistics.kernels_compiled or statistics.kernels_loaded:
        rows.insert(5, ("kernels compiled", f"{statistics.kernels_compiled}, {statistics.kernels_loaded} from a cache"))
    if statistics.configurations:
        rows.append(("configurations", safe(kernel_coverage.covered(statistics.configurations))))
    if statistics.unexercised:
        rows.append(("not exercised", safe("; ".join(statistics.unexercised))))
    if statistics.unfinished:
        rows.append(("unfinished", f"{statistics.unfinished}, for at most {statistics.unfinished_seconds:.1f} s"))
    return rows


def _coverage(log: RunLog) -> str:
    masks = log.statistics.masks
    if masks:
        return mask_gaps.summary_line(masks, log.target)
    return not_recorded(log)


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
