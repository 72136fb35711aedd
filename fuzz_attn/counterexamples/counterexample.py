"""Counterexample: one failure as one JSON file, which replays years later, named by the signature of its bug."""

from __future__ import annotations

import math
import platform
import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Annotated, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.plain import FileName, Plain, Whole
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.foreign_files import content_of, write_new
from fuzz_attn.operations.registry import AnyCase, FamilyName, HoldsCases, operation_of
from fuzz_attn.oracle.verdict import Verdict


def signature_of(case: AnyCase, verdict: Verdict) -> str:
    """Return property, kind, output, launch path, features, place in it, and size of the error, joined by dashes."""
    operation = operation_of(case)
    features = "+".join(operation.features_of(case)) or "plain"
    kind, where = (verdict.property_name, verdict.kind, verdict.output), (verdict.where, _decade(verdict))
    parts = [*kind, operation.launch_path(case), features, *where]
    return "-".join(part for part in parts if part)


def _decade(verdict: Verdict) -> str:
    """Return the power of ten of a mismatch in units of the bound; an empty string for other kinds."""
    if verdict.kind != "mismatch" or verdict.ratio is None or not math.isfinite(verdict.ratio):
        return ""
    return f"1e{int(math.log10(max(verdict.ratio, 1.0)))}"


SCHEMA: Final = 2
"""The only version that is read. It goes up when an old file would mean something else, also by changed defaults."""


ON_CPU: Final = ("simulator", "interpreter")
"""The backends that run kernels on a CPU."""
LARGEST_BYTES: Final = 16 * 2**20
"""No counterexample is larger; a file that is may be a model, a log or a core dump."""
MOST_TRAITS, LONGEST_TRAIT = 300, 300
"""No trigger has more traits, nor one of more characters: to show a million of them takes hours."""


class Environment(Plain, frozen=True, omit_defaults=False):
    """Where a failure was seen: backend, the shims it ran with, and package versions."""

    backend: str
    shims: tuple[str, ...]
    versions: dict[str, str]


class Step(HoldsCases, frozen=True):
    """One case that ran before the failing one in the same process, with its relation."""

    case: AnyCase
    relation: str | None = None


class Elsewhere(Plain, frozen=True):
    """What a failure does on another ``backend`` than the one that found it, which explains it if it can.

    - ``outcome``: ``fails`` where it fails there in the same way, so that it is a bug of logic, and was shrunk there;
      ``passes`` where only the backend that found it shows it; ``unknown`` where it was not judged there, for a
      ``reason`` in words.
    - ``found_as``: the classes that the failure had on the backend that found it.
    - ``shrunk_case``: what the case of the file does on the backend that found it: it ``fails``; it fails and is
      ``larger``, because it passes with the smallest one; it ``passes``, as the case does that was found first; or
      ``unknown``.
    """

    backend: str
    outcome: Literal["fails", "passes", "unknown"] = "unknown"
    reason: str = ""
    found_as: tuple[str, ...] = ()
    shrunk_case: Literal["fails", "larger", "passes", "unknown"] = "unknown"


class Counterexample(HoldsCases, frozen=True, omit_defaults=False):
    """A failing case with everything needed to replay it. ``digest`` is that of the case's tensors.

    - ``status``: ``open``; ``known``, with a ``reference`` (a tracker's number or address) and a reason in ``because``;
      or ``fixed``.
    - ``confirmation``: ``confirmed`` where the case fails in a fresh process; ``state`` where it fails only after the
      cases of ``sequence``; ``flaky`` where it failed ``failed`` times of ``tries``; ``unconfirmed`` where the time was
      up before any of this was known.
    - ``shrunk``: whether nothing simpler was found to fail before the time of shrinking was up.
    - ``trigger``: the traits that the failure needs (:mod:`fuzz_attn.case.aspects`).
    - ``binding``: how the target was called; None where the names of its parameters tell it.
    - ``also``: the classes of further failures of the case, which follow from this one, and those of contracts of other
      arguments, each with a case of its own, that are read wrongly in the same way.
    - ``environment``: where the failure was found.
    - ``elsewhere``: what it does in the simulator where a GPU found it; None where one backend found and shrunk it.
    """

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    status: Literal["open", "known", "fixed"]
    target: str
    family: FamilyName
    signature: FileName
    relation: str | None
    case: AnyCase
    verdict: Verdict
    digest: str
    environment: Environment
    reference: str = ""
    because: str = ""
    confirmation: Literal["confirmed", "state", "flaky", "unconfirmed"] = "confirmed"
    failed: Whole = 0
    tries: Whole = 0
    sequence: tuple[Step, ...] = ()
    shrunk: bool = True
    trigger: Annotated[tuple[Annotated[str, Meta(max_length=LONGEST_TRAIT)], ...], Meta(max_length=MOST_TRAITS)] = ()
    also: tuple[str, ...] = ()
    binding: Binding | None = None
    elsewhere: Elsewhere | None = None

    @property
    def only_here(self) -> bool:
        """Whether only the backend that found the failure shows it: it passes elsewhere."""
        return self.elsewhere is not None and self.elsewhere.outcome == "passes"

    @property
    def is_logic(self) -> bool:
        """Whether a backend on the CPU shows the failure."""
        if self.elsewhere is not None:
            return self.elsewhere.outcome == "fails"
        return self.environment.backend in ON_CPU

    def unseen_on(self, backend: str) -> str:
        """Return why a pass on a backend does not mean that the failure is fixed; an empty string if it does."""
        elsewhere, found_on = self.elsewhere, self.environment.backend
        if elsewhere is None:
            return ""
        if self.only_here and backend != found_on:
            needs = "a GPU" if found_on == "cuda" else f"the {found_on}"
            passed = f"it passed in the {elsewhere.backend} when it was saved"
            return f"only {found_on} shows this failure, so that a replay needs {needs}: {passed}"
        if self.passes_where_found and backend == found_on:
            return f"this case passed on {found_on} when it was saved, and failed in the {elsewhere.backend}"
        return ""

    @property
    def passes_where_found(self) -> bool:
        """Whether the case of the file is not known to fail on the backend that found the failure."""
        elsewhere = self.elsewhere
        return elsewhere is not None and self.is_logic and elsewhere.shrunk_case in ("passes", "unknown")

    def __post_init__(self) -> None:
        """Refuse a known failure that does not say why it is known."""
        super().__post_init__()
        for name in ("reference", "because"):
            if self.status == "known" and not getattr(self, name).strip():
                raise CounterexampleError(f"{name}='' must not be empty for status='known'")


class _Header(msgspec.Struct):
    schema: int


def environment_of(backend: str, shims: tuple[str, ...]) -> Environment:
    """Return the environment of this process."""
    return Environment(backend, shims, {"python": platform.python_version(), **_versions()})


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {}
    for package in ("fuzz-attn", "torch", "triton", "numpy", "hypothesis"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def load(path: Path) -> Counterexample:
    """Return the counterexample in a file.

    Raises :class:`CounterexampleError`, in one line that names the file, when it does not exist, is cut off, has
    another schema version, or holds an impossible case.
    """
    text = _text_of(path)
    try:
        schema = msgspec.json.decode(text, type=_Header).schema
        if schema != SCHEMA:
            age = "newer" if schema > SCHEMA else "older"
            raise CounterexampleError(f"{path}: schema={schema} is {age} than {SCHEMA}, the only one that can be read")
        return msgspec.json.decode(text, type=Counterexample)
    except msgspec.ValidationError as error:
        raise CounterexampleError(f"{path}: is not a counterexample: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CounterexampleError(f"{path}: is cut off or not JSON: {error}") from error


def _text_of(path: Path) -> bytes:
    """Return the bytes of a file; raises :class:`CounterexampleError` for a device, a pipe and a huge file."""
    try:
        return content_of(path, LARGEST_BYTES)
    except OSError as error:
        raise CounterexampleError(f"{path}: cannot be read: {error.strerror}") from error


def save(found: Counterexample, folder: Path) -> Path:
    """Write a counterexample into a new file of a folder, named by its signature, with a number where that is taken.

    The file appears whole or not at all, and never replaces another, also when two processes save at once. Returns
    its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = _written(found, folder)
    try:
        return _linked(temporary, found.signature, folder)
    finally:
        temporary.unlink(missing_ok=True)


def overwrite(found: Counterexample, path: Path) -> None:
    """Replace the counterexample in a file, all of it or nothing."""
    write_new(path, _encoded(found))


def rename(path: Path, found: Counterexample) -> Path:
    """Give a file the name of its signature, with a number where that is taken; return its path."""
    if re.fullmatch(rf"{re.escape(found.signature)}(-\d+)?\.json", path.name):
        return path
    renamed = _linked(path, found.signature, path.parent)
    path.unlink(missing_ok=True)
    return renamed


def _written(found: Counterexample, folder: Path) -> Path:
    """Return a new temporary file with a counterexample."""
    temporary = folder / f".{uuid4().hex}.part"
    write_new(temporary, _encoded(found))
    return temporary


def _encoded(found: Counterexample) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def _linked(file: Path, name: str, folder: Path) -> Path:
    """Return a second name of a file, which no other file has."""
    for number in count(1):
        path = folder / f"{name}{f'-{number}' if number > 1 else ''}.json"
        try:
            path.hardlink_to(file)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if path.exists():
                continue
            shutil.copyfile(file, path)
        return path
    raise AssertionError("count() has no end")


def signed(target: str, family: str, relation: str | None, case: AnyCase, verdict: Verdict) -> Counterexample:
    """Return a new open counterexample, not confirmed yet, with an empty digest and environment."""
    return Counterexample(
        schema=SCHEMA,
        status="open",
        target=target,
        family=family,
        signature=signature_of(case, verdict),
        relation=relation,
        case=case,
        verdict=verdict,
        digest="",
        environment=environment_of("", ()),
        confirmation="unconfirmed",
        shrunk=False,
    )


def files_in(places: tuple[Path, ...]) -> Iterator[Path]:
    """Yield each given file, and every ``.json`` file below each given folder, in order.

    Raises :class:`CounterexampleError` for a place that does not exist and for a folder without such files.
    """
    for place in places:
        if place.is_dir():
            found = sorted(place.rglob("*.json"))
            if not found:
                raise CounterexampleError(f"{place}: holds no .json file")
            yield from found
        elif place.exists():
            yield place
        else:
            raise CounterexampleError(f"{place}: does not exist")
