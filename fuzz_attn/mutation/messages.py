"""What an audit's workers and their parent say to each other. Plain data, one JSON line each."""

from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.mutation.results import Outcome
from fuzz_attn.mutation.subjects import Subject


class Start(Plain, frozen=True):
    """What a worker is set up with. ``place`` is the file that says where it is, for when it dies."""

    target: str
    family: Family | None
    seed: int
    museum: str
    place: str


class Survey(Plain, frozen=True, tag="survey"):
    """Asks for every mutant of the kernels that the first ``cases`` launch."""

    cases: int


class Batch(Plain, frozen=True, tag="batch"):
    """Subjects to examine on the first ``cases``; with ``rules``, until these have found them too.

    With ``enough``, until they ran their changed operation in so many cases, which is then watched.
    """

    subjects: tuple[Subject, ...]
    cases: int
    rules: tuple[str, ...] = ()
    enough: int = 0


class Started(Plain, frozen=True, tag="started"):
    """A worker is set up."""

    target: str
    family: Family


class Surveyed(Plain, frozen=True, tag="surveyed"):
    """Every mutant, in the order of their names."""

    subjects: tuple[Subject, ...]


class Finished(Plain, frozen=True, tag="finished"):
    """What came of one subject."""

    outcome: Outcome


class Progress(Plain, frozen=True, tag="progress"):
    """Where a batch is: cases done, subjects left."""

    case: int
    alive: int


class Alarms(Plain, frozen=True, tag="alarms"):
    """A batch is done. ``places`` says by rule where the healthy target failed so far, "" for the properties."""

    places: dict[str, tuple[int, ...]]
    cases: int
