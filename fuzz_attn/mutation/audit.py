"""A whole audit: which subjects, both passes over them, the table while it runs, and the file at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.live import Live

from fuzz_attn.case.families import Family
from fuzz_attn.counterexamples.counterexample import environment_of
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.mutation import report, results
from fuzz_attn.mutation.fixed_tolerances import RULES
from fuzz_attn.mutation.messages import Batch, Start
from fuzz_attn.mutation.pool import Crew
from fuzz_attn.mutation.results import Audit, Outcome, State
from fuzz_attn.mutation.seeded.bugs import load_museum
from fuzz_attn.mutation.subjects import Subject
from fuzz_attn.report.plain_text import PIPE_SECONDS, show, whole

SURVEY_CASES: Final = 480
"""Two rounds of a campaign: their compile keys are where mutants are looked for, however few cases are asked for."""

CASES_EACH: Final = 12
"""How many cases of the stream a second look takes at most for each that must have run the changed operation: a feature
is in one case of five, and half of the cases run another kernel."""

_SAMPLE: Final = 61


@dataclass(frozen=True)
class Request:
    """What the user asked for, in the words of the command line.

    ``museum`` None asks for mutants of the IR, else for the specimens of that folder. ``only`` are parts of names, one
    of which a subject's has to hold; none lets all through. ``sample`` and ``max_cases`` count subjects and cases;
    ``enough`` is after how many cases that ran it a survivor counts as equivalent, 0 for never.
    """

    target: str
    family: Family | None
    museum: Path | None
    only: tuple[str, ...]
    sample: int | None
    max_cases: int
    enough: int
    rules: bool
    seed: int
    workers: int
    folder: Path


def audit(request: Request, console: Console) -> Audit:
    """Run an audit, show it while it runs, save and return it.

    Raises :class:`FuzzAttnError` where the target cannot be set up or there is nothing to examine.
    """
    started = time.monotonic()
    museum = str(request.museum or "")
    with Crew(Start(request.target, request.family, request.seed, museum, ""), request.workers) as crew:
        subjects = _subjects(request, crew)
        board = report.Board(len(subjects), request.max_cases)
        with _shown(board, console) as refresh:
            first = Batch(tuple(subjects), request.max_cases, RULES if request.rules else ())
            found = _examined(crew, first, board, refresh)
            found = _second_look(request, crew, found, board, refresh)
        done = Audit(
            target=crew.started.target,
            family=crew.started.family,
            seed=request.seed,
            cases=request.max_cases,
            seconds=time.monotonic() - started,
            workers=request.workers,
            versions=environment_of("simulator", ()).versions,
            outcomes=tuple(found[subject] for subject in subjects),
            ruled=request.rules,
            false_alarms={rule: tuple(sorted(places)) for rule, places in crew.false_alarms.items()},
            healthy_cases=crew.healthy_cases,
        )
    results.save(done, request.folder / "audit.json")
    return done


def _subjects(request: Request, crew: Crew) -> Sequence[Subject]:
    if request.museum is None:
        subjects = crew.survey(max(request.max_cases, SURVEY_CASES))
    else:
        specimens = (entry for entry in load_museum(request.museum) if crew.started.family in entry.families)
        subjects = tuple(Subject(entry.name) for entry in specimens)
    if not subjects:
        raise FuzzAttnError(f"target={request.target!r} has nothing to examine: no specimen, or no kernel of Triton's")
    for part in request.only:
        if not any(part in subject.name for subject in subjects):
            raise FuzzAttnError(f"only={part!r} is in no name of what is examined")
    if request.only:
        subjects = tuple(subject for subject in subjects if any(part in subject.name for part in request.only))
    return sampled(subjects, request.sample, request.seed)


def sampled(subjects: Sequence[Subject], sample: int | None, seed: int) -> Sequence[Subject]:
    """Return so many subjects, chosen by the seed, in their own order; all of them for None."""
    if sample is None or sample >= len(subjects):
        return subjects
    chosen = sorted(Stream(seed, _SAMPLE).permutation(len(subjects))[:sample].tolist())
    return [subjects[index] for index in chosen]


def _examined(
    crew: Crew,
    batch: Batch,
    board: report.Board,
    refresh: Callable[[], None],
) -> dict[Subject, Outcome]:
    """Return the outcome of every subject of a batch, which the crew cuts and spreads."""
    found = {}
    for outcome in crew.examine(batch):
        if outcome is not None:
            found[outcome.subject] = outcome
            board.add(outcome)
        board.places = [(member.progress.case, member.progress.alive) for member in crew.members]
        refresh()
    return found


def _second_look(
    request: Request, crew: Crew, found: dict[Subject, Outcome], board: report.Board, refresh: Callable[[], None]
) -> dict[Subject, Outcome]:
    """Return the outcomes after a longer look at the survivors: which are equivalent, and what the others show."""
    survivors = tuple(subject for subject, outcome in found.items() if outcome.state == "survived" and subject.mutant)
    if not request.enough or not survivors:
        return found
    board.look_again(len(survivors))
    batch = Batch(survivors, CASES_EACH * request.enough, enough=request.enough)
    looked = _examined(crew, batch, board, refresh)
    return found | {subject: together(found[subject], looked[subject], request.enough) for subject in survivors}


def together(first: Outcome, second: Outcome, enough: int) -> Outcome:
    """Return a survivor's outcome after its second look: equivalent, or survived with what was seen since."""
    evidence = second.evidence
    state: State = "equivalent" if evidence.reached >= enough and not evidence.changed else "survived"
    message = second.message
    if second.state == "killed":
        message = f"found by {second.property_name} ({second.kind}) after {second.case} cases: {second.message}"
    return msgspec.structs.replace(first, state=state, message=message, evidence=evidence)


@contextmanager
def _shown(board: report.Board, console: Console) -> Iterator[Callable[[], None]]:
    """Show the table while the context lasts; on a plain pipe, a line every ten seconds."""
    if console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4, get_renderable=board.render):
            yield lambda: None
        return
    told = time.monotonic()

    def tell() -> None:
        nonlocal told
        if time.monotonic() - told > PIPE_SECONDS:
            told = time.monotonic()
            show(console, whole(board.line()))

    yield tell
