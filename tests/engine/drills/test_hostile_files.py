"""Hostile files: valid files of every kind, mutated by a grammar, are read by every command that reads such files.

Each gives a clear line and an exit status of the documents: no traceback, no process, no connection, and nothing
written but the output. ``FUZZ_ATTN_HOSTILE_FILES=2000`` tries so many instead of 120.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn.backends.kernel_coverage import CoverageFile, Mask, TargetCoverage
from fuzz_attn.binding.binding import Binding, read_binding
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.recipes import AlibiRecipe, SinkRecipe
from fuzz_attn.cli.main import main
from fuzz_attn.cli.remote_output import SENT, _unsent
from fuzz_attn.counterexamples import Counterexample, Elsewhere, Environment, Step, signed
from fuzz_attn.engine import events
from fuzz_attn.engine.failures.saved import play_saved
from fuzz_attn.engine.listeners.distributions import Distributions
from fuzz_attn.engine.listeners.event_log import LOG_NAME, DistributionsLine, StatisticsLine
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Statistics
from fuzz_attn.engine.orders import Answer, Order, Ready
from fuzz_attn.engine.run_folder import covered_keys
from fuzz_attn.errors import FuzzAttnError, TargetError
from fuzz_attn.oracle.verdict import Element, Refusal, Verdict
from fuzz_attn.settings import load_settings
from fuzz_attn.targets.wheel import Wheel

EXAMPLES: Final = int(os.environ.get("FUZZ_ATTN_HOSTILE_FILES", "120"))
PARTS: Final = 4
"""The examples are so many tests."""
MOST_GROWTH: Final = 2**30
"""Bytes by which the memory of the process may grow."""

TARGETS: Final = (
    "stranger.py:attend",
    "stranger:attend",
    "./stranger.py:attend",
    "subprocess:run",
    "subprocess:Popen.communicate",
    "os:system",
    "builtins:exec",
    "stranger::pkg.mod:attend",
    "evil==1.0:stranger:attend",
    "",
    ":",
)
TEXTS: Final = (
    *TARGETS,
    "../../../escaped",
    "/escaped",
    "..",
    "a/b",
    "",
    "\0",
    "a\nb",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe",
    "::error::pwned",
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "| a | [b](javascript:alert(1)) `c`",
    "\ud800",
    "x" * 100_000,
    "%s%n{0.__class__}",
    "nan",
    "touch canary",
)
NUMBERS: Final = (
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63,
    2**64,
    -(2**63),
    10**30,
    1e308,
    -1e308,
    0.5,
    float("nan"),
    float("inf"),
)
RAW: Final = ("1e999", "-1e999", "9" * 5000, "[" * 100_000 + "]" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, "tru")
OTHERS: Final[tuple[Any, ...]] = (None, True, [], {}, [[]], {"": ""}, [None], {"__class__": "x"})
FREE: Final = (
    " target relation message property_name site hint explanation backend digest reference because path ratio wrong "
    "elements text reason error seconds time workers system operation file line kernel ordinal cases failed tries "
    "outcomes number of max_time shard failure query_index location source combination same which same_as "
)
"""Fields that hold any text or number, in which most mutations are made: they are read, and must harm nobody."""
MARK: Final = "@raw-"
TOML: Final = {
    "binding.toml": 'layout = "rows"\nwindow = "keys"\noff = {window = [-1, -1]}\n[roles]\na = "query"\n'
    '[constants]\nb = 1\n[tensors.c]\nshape = ["num_tokens", 4]\n[domain]\nfp8 = true\n[rounding]\np = "half"\n',
    "pyproject.toml": '[tool.fuzz_attn]\ntarget = "stranger.py:attend"\nmax-time = 3\nworkers = "auto"\nout = "r"\n',
}
LOG_OF_EVERYTHING: Final = "everything.jsonl"


class Guard:
    """Notes what the process does outside of a folder while it is armed."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.armed = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"):
            self.seen.append(f"{event} {arguments[:2]}")
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.chmod"):
            first, last = {"os.rename": (0, 2), "os.link": (1, 2), "os.symlink": (1, 2)}.get(event, (0, 1))
            places = arguments[first:last]
            for place in places:
                exists = event == "os.mkdir" and os.path.isdir(place)
                if isinstance(place, str | bytes | os.PathLike) and not exists:
                    path = os.path.realpath(os.path.dirname(os.fsdecode(place)) or ".")
                    if not f"{path}/".startswith(self.allowed):
                        self.seen.append(f"{event} {os.fsdecode(place)[:200]!r}")


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    """Return the guard of this process, which cannot be removed."""
    guard = Guard()
    yield guard
    guard.armed = False


def counterexample_of(target: str) -> bytes:
    """Return a counterexample that has everything."""
    case = AttentionCase((Sequence(2, 9), Sequence(1, 3)), window=4, alibi=AlibiRecipe(), sinks=SinkRecipe())
    element = Element(0, 0, 0, 0, 0, "1.5", "-2e-05", "nan")
    verdict = Verdict("oracle", "mismatch", "wrong", 12.5, "tail_rows", 3, 4, (element,), "a.py:3", ("NaN",), "h", "e")
    binding = Binding(whole=True, constants={"args": "touch canary", "shell": True}, instance={"args": "touch canary"})
    found = signed(target, "unified", None, case, verdict)
    return msgspec.json.encode(
        msgspec.structs.replace(
            found,
            binding=binding,
            sequence=(Step(case, "determinism"),),
            trigger=("window",),
            also=("nan",),
            digest="d",
            environment=Environment("cuda", ("a shim",), {"triton": "3"}),
            elsewhere=Elsewhere("simulator", "passes", "a reason", ("output",), "larger"),
        )
    )


def lines_of_everything(target: str) -> list[bytes]:
    """Return the lines of a log with every event."""
    found = msgspec.json.decode(counterexample_of(target), type=Counterexample)
    order, refusal = Order(found.case), Refusal("host", "ValueError", "no", "f:1", "raise")
    mask = Mask("a.py", 3, "kernel", "load", 0, "x = load()", True, ("all true",))
    counts = Statistics(
        target, "simulator", 1, 2, 3.0, 4, compile_keys={7: 4}, features={"window": 4}, ratios={"float32": 0.5},
        refusals=(CountedRefusal(refusal, 2, (("window",),)),), unsupported={"tl.sort": 1}, masks=(mask,), outcomes=1,
    )  # fmt: skip
    spread = Distributions(
        {"window": {"window": 3}}, {"auto": {"auto": 3, "window": 1}}, {"float32": {-1: 3}}, {"keys": {4: 3}},
        {"sequences": {2: 3}}, {"q": {"float32": 3}}, {"search": 1.0},
    )  # fmt: skip
    log: list[Any] = [
        events.Started(target, 7, 1, 1.0e9, 60.0, 100, events.Part(1, 1), {"triton": "3"}, "a machine"),
        events.WorkerReady(0, Ready(target, "slug", "unified", "simulator", notes=("a note",), reasons={"q": "name"})),
        events.CaseJudged(0, "search", order, (found.verdict,), 0.5, (mask,)),
        events.CaseRefused(0, "search", order, refusal),
        events.RefusalReduced(0, refusal, ("window",)),
        events.CaseUnsupported(0, "search", order, "tl.sort", "interpreter"),
        events.CaseUnfinished(0, order, 1.0),
        events.RoundCompiled(-1, 0, 1, 2, 3, True, 4.0),
        events.FailureFound(0, 0, found, "../../precious.json", 1.0),
        events.FailureSeenAgain(0, "../../precious.json", 3, (0, 0)),
        events.FailureChanged(0, 0, found, "../../precious.json", done=True),
        events.FailureFound(0, 1, found, "c.json", 1.0),
        events.FailureChanged(0, 1, found, "c.json", done=True, same_as="../../precious.json", same=(0, 0)),
        events.SavedPassed(0, found, "b.json"),
        events.WorkerLost(0, "died"),
        events.Note(0, "a note"),
        StatisticsLine(counts),
        DistributionsLine(spread),
        events.Finished(0, 3.0, "it broke"),
        events.Finished(-1, 3.0, stopped_by=15),
    ]
    return [msgspec.json.encode(line) for line in log]


def coverage_file() -> bytes:
    mask = Mask("a.py", 3, "kernel", "load", 0, "x = load()", True, ("all true",))
    return msgspec.json.encode(CoverageFile(1, (TargetCoverage("t", "simulator", "", 3, (mask,)),)))


# The grammar: a mutation of a tree, of the text of a file, or of what lies in the place of a file.


def places_of(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every node of a tree."""
    yield place
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, inner in items:
        yield from places_of(inner, (*place, key))


def hostile_value(chance: random.Random, old: object = None) -> Any:
    """Return any hostile value; most often of the type of an old one, as others are refused at once."""
    if chance.random() < 0.85 and isinstance(old, str):
        return chance.choice(TEXTS)
    if chance.random() < 0.85 and isinstance(old, int | float) and not isinstance(old, bool):
        return chance.choice(NUMBERS)
    kind = chance.randrange(10)
    if kind < 5:
        return chance.choice(TEXTS)
    if kind < 8:
        return chance.choice(NUMBERS)
    return f"{MARK}{chance.randrange(len(RAW))}" if kind == 8 else chance.choice(OTHERS)


def mutated_tree(tree: Any, chance: random.Random) -> Any:
    """Return a tree with a few nodes replaced, left out, repeated or added."""
    for _ in range(chance.choice((1, 1, 1, 1, 3))):
        places = [place for place in places_of(tree) if place] or [(None,)]
        free = [place for place in places if f" {place[-1]} " in FREE and place[-1]]
        *before, last = chance.choice(free if free and chance.random() < 0.6 else places)
        holder = tree
        for key in before:
            holder = holder[key]
        if last is None or not isinstance(holder, dict | list):
            return hostile_value(chance)
        action = chance.randrange(8)
        if action < 5 or f" {last} " in FREE:
            holder[last] = hostile_value(chance, holder[last])
        elif action == 5:
            del holder[last]
        elif isinstance(holder, dict):
            holder[chance.choice(TEXTS)] = hostile_value(chance)
        else:
            holder += [holder[last]] * chance.choice((1, 1000))
    return tree


def text_of(tree: Any) -> bytes:
    text = json.dumps(tree)
    for number, raw in enumerate(RAW):
        text = text.replace(f'"{MARK}{number}"', raw)
    return text.encode("utf-8", "surrogatepass")


def mutated_text(text: bytes, chance: random.Random) -> bytes:
    """Return a text that is cut off, doubled, or has other bytes somewhere."""
    place = chance.randrange(len(text) + 1)
    inserted = chance.choice(
        (b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"[" * 50_000, b"\xed\xa0\x80", b"9" * 5000)
    )
    return chance.choice(
        (
            text[:place],
            text[:place] + inserted + text[place:],
            b"\xef\xbb\xbf" + text,
            text.decode(errors="replace").encode("utf-16"),
            text + text,
            b"",
            text.replace(b'"schema":2', b'"schema":2,"schema":1'),
            bytes(chance.randrange(256) for _ in range(300)),
        )
    )


def mutated(text: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.15:
        return mutated_text(text, chance)
    try:
        return text_of(mutated_tree(json.loads(text), chance))
    except (ValueError, RecursionError):
        return mutated_text(text, chance)


def put(path: Path, content: bytes, chance: random.Random) -> None:
    """Write a file, or put something else in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = chance.randrange(30)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(chance.choice(("gone", path.name, "/dev/zero", "/etc/passwd", "../../precious.json")))
    else:
        path.write_bytes(content)
        path.chmod(0 if kind == 3 else 0o600)


# What reads the files.


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def check(result: Result, *statuses: int) -> None:
    """Check that a command ended with a status and one clear line for each error, without escape sequences."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in statuses, (result.exit_code, result.output[-500:])
    assert "Traceback" not in result.output
    unprintable = {character for character in result.output if ord(character) < 32 or 127 <= ord(character) < 160}
    assert unprintable <= {"\n", "\t"}
    if result.exit_code == 2 and not result.stdout:
        assert result.stderr.startswith("fuzz-attn: "), result.stderr
        assert result.stderr.count("\n") <= 2 or len(result.stderr) > 20_000, result.stderr


class Passing:
    """A shard all of whose cases pass, and what follows its failures."""

    shard = 0
    backend = "interpreter"

    def emit(self, event: events.Event) -> None:
        assert isinstance(event, events.Note | events.SavedPassed)

    def judge(self, order: Order, phase: events.Phase) -> Answer:
        return Answer()

    def renew(self) -> None:
        pass

    def take_unmet(self) -> None:
        pass


def read_counterexample(folder: Path, chance: random.Random) -> None:
    target = chance.choice(TARGETS)
    path = folder / "in" / "a.json"
    put(path, mutated(counterexample_of(target), chance), chance)
    check(run("show", path, "--svg", folder / "out" / "a.svg"), 0, 2)
    check(run("replay", path), 2)
    check(run("replay", path.parent, "--markdown", folder / "out" / "a.md", "--annotations"), 2)
    check(run("explain", path), 2)
    check(run("export", path, "--script", folder / "out" / "a.py"), 2)
    passing: Any = Passing()
    play_saved(passing, passing, [path], Domain())
    check(run("mark", path, chance.choice(("fixed", "open"))), 0, 2)
    check(run("mark", path, "known", "--because", "it is", "--reference", "#1"), 0, 2)


def read_log(folder: Path, chance: random.Random) -> None:
    lines = lines_of_everything(chance.choice(TARGETS) or "t")
    number = chance.randrange(len(lines))
    lines[number] = mutated(lines[number], chance)
    if chance.random() < 0.1:
        chance.shuffle(lines)
    put(folder / "in" / LOG_NAME, b"\n".join((*lines, b"")), chance)
    options = "--json", "--markdown", folder / "out" / "m.md", "--junit", folder / "out" / "j.xml", "--annotations"
    merged = run("merge", folder / "in", "--out", folder / "out" / "merged", *options)
    check(merged, 0, 1, 2, 143, *range(128, 256))
    if merged.stdout:
        check(run("merge", folder / "in", "--out", folder / "out" / "merged"), 0, 1, 2, *range(128, 256))
        check(run("coverage", folder / "out" / "merged"), 0, 2)
        for path in (folder / "out" / "merged" / "counterexamples").rglob("*.json"):
            check(run("replay", path), 2)
    if chance.random() < REPORTED:
        check(run("report", folder / "in", "--out", folder / "out" / "report.html"), 0, 2)
        page = folder / "out" / "report.html"
        text = page.read_text(encoding="utf-8", errors="replace") if page.exists() else ""
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "root:x:0" not in text


REPORTED: Final = 0.25
"""Drawing a page takes a second."""


def read_coverage(folder: Path, chance: random.Random) -> None:
    put(folder / "in" / "coverage.json", mutated(coverage_file(), chance), chance)
    check(run("coverage", folder / "in"), 0, 2)


def read_summary(folder: Path, chance: random.Random) -> None:
    text = msgspec.json.encode(Statistics("t", compile_keys={1: 2, 3: 4}))
    put(folder / "in" / "runs" / "summary.json", mutated(text, chance), chance)
    covered_keys(folder / "in" / "runs", "t")
    put(folder / "sent" / SENT, mutated(b'{"a":"b"}', chance), random.Random(9))
    assert _unsent(folder / "sent") == []


def read_toml(folder: Path, chance: random.Random) -> None:
    name = chance.choice(list(TOML))
    text = TOML[name]
    for _ in range(chance.choice((1, 1, 2))):
        lines = text.split("\n")
        line = chance.randrange(len(lines))
        value = chance.choice((json.dumps(hostile_value(chance)), chance.choice(RAW)))
        lines[line] = f"{lines[line].partition('=')[0] or 'x'} = {value}"
        text = "\n".join(lines)
    content = text.encode(errors="replace")
    put(folder / "in" / name, mutated_text(content, chance) if chance.random() < 0.3 else content, chance)
    error = ""
    try:
        if name == "binding.toml":
            read_binding(folder / "in" / name)
        else:
            load_settings(folder / "in")
    except FuzzAttnError as refused:
        error = str(refused)
    assert not error or error.startswith(str(folder / "in" / name))


def read_wheel(folder: Path, chance: random.Random) -> None:
    wheel = Wheel("evil", "1")
    wheel.folder = folder / "out" / "wheel"
    wheel.folder.mkdir(parents=True)
    path = wheel.folder / "evil-1.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("pkg/a.py", "pkg/../../../../escaped.py", "/escaped.py", "pkg/./b.py", "pkg/..\\..\\c.py"):
            archive.writestr(name, "open('canary', 'w')")
    content = path.read_bytes()
    if chance.random() < 0.7:
        path.write_bytes(mutated_text(content, chance))
    if chance.random() < 0.3:
        (wheel.folder / "names.json").write_bytes(mutated(b'["pkg/a.py","pkg/../../../../escaped.py"]', chance))
    with contextlib.suppress(TargetError):
        wheel.provide("pkg/")
        wheel.file("../escaped.py")


KINDS: Final[tuple[Callable[[Path, random.Random], None], ...]] = (
    read_counterexample,
    read_counterexample,
    read_counterexample,
    read_log,
    read_log,
    read_log,
    read_coverage,
    read_summary,
    read_toml,
    read_wheel,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a kernel that must never run, and a file that must stay as it is."""
    for name in ("here", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("stranger.py", "numpy.py", "torch.py"):
        (tmp_path / "here" / name).write_text(f"from pathlib import Path\nPath({str(tmp_path)!r}, 'canary').touch()\n")
    (tmp_path / "precious.json").write_text("{}")
    return tmp_path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_file_does_harm(part: int, folder: Path, guard: Guard) -> None:
    found, before = list[str](), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run("report", folder)  # imports the libraries of the page
    for number in range(part, EXAMPLES, PARTS):
        chance = random.Random(number)
        place = folder / "examples" / str(number)
        (place / "out").mkdir(parents=True)
        kind = KINDS[number // PARTS % len(KINDS)]
        surroundings = {path.name for path in (*folder.iterdir(), *(folder / "here").iterdir())}
        guard.allowed = (f"{os.path.realpath(place)}/", f"{os.path.realpath(folder / 'cache')}/")
        guard.seen.clear()
        guard.armed = True
        wrong: list[object] = []
        try:
            kind(place, chance)
        except Exception as error:  # noqa: BLE001 - what a finding is is reported, and the examples after it run, too
            wrong.append(f"{error!r} at {traceback.extract_tb(error.__traceback__)[-1]}")
        guard.armed = False
        wrong += (what for what in guard.seen if "/dev/null" not in what)
        names = {path.name for path in (*folder.iterdir(), *(folder / "here").iterdir())}
        wrong += names ^ surroundings
        wrong += [] if (folder / "precious.json").read_text() == "{}" else ["precious.json was changed"]
        found += (f"example {number} of {kind.__name__}: {what}" for what in wrong)
    assert not found, "\n".join(found)
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert growth < MOST_GROWTH
