"""Counterexample: one failure as one JSON file, which replays years later without Hypothesis and its database."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Annotated, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.counterexamples.signature import signature_of
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.oracle.verdict import Verdict

SCHEMA: Final = 2
"""The only version that is read. It goes up when an old file would mean something else, also by changed defaults."""


class Environment(Plain, frozen=True, omit_defaults=False):
    """Where a failure was seen: backend, the shims it ran with, and package versions."""

    backend: str
    shims: tuple[str, ...]
    versions: dict[str, str]


class Counterexample(Plain, frozen=True, omit_defaults=False):
    """A failing case with everything needed to replay it. ``digest`` is that of the case's tensors."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    status: Literal["open", "fixed"]
    target: str
    family: Family
    signature: str
    relation: str | None
    case: AttentionCase
    verdict: Verdict
    digest: str
    environment: Environment

    @property
    def size(self) -> tuple[int, int, int]:
        """How much a person has to read: sequences, keys, bytes of JSON. Smaller is better."""
        return len(self.case.sequences), self.case.total_keys, len(msgspec.json.encode(self.case))


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
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CounterexampleError(f"{path}: cannot be read: {error.strerror}") from error
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


def save(found: Counterexample, folder: Path) -> Path:
    """Write a counterexample into its target's folder, unless a smaller one of the same signature exists.

    A file whose bug was fixed stays unchanged, and the new file gets a number. The file appears whole or not at all,
    also when two workers save the same bug. Returns its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = _place_of(found, folder)
    if path.exists() and _is_smaller(path, found):
        return path
    text = msgspec.json.format(msgspec.json.encode(found), indent=1)
    temporary = folder / f".{uuid4().hex}.part"
    try:
        temporary.write_bytes(text + b"\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _place_of(found: Counterexample, folder: Path) -> Path:
    """Return the file of the signature, or the next number where the bug of that file was fixed."""
    for number in count(1):
        path = folder / f"{found.signature}{f'-{number}' if number > 1 else ''}.json"
        if not path.exists() or not _is_fixed(path):
            break
    return path


def _is_fixed(path: Path) -> bool:
    try:
        return load(path).status == "fixed"
    except CounterexampleError:
        return False


def _is_smaller(path: Path, found: Counterexample) -> bool:
    try:
        return load(path).size <= found.size
    except CounterexampleError:
        return False


def signed(target: str, family: Family, relation: str | None, case: AttentionCase, verdict: Verdict) -> Counterexample:
    """Return a new open counterexample with an empty digest and environment."""
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
    )


def files_in(places: tuple[Path, ...]) -> Iterator[Path]:
    """Yield each given file, and every ``.json`` file below each given folder, in order.

    Raises :class:`CounterexampleError` for a place that does not exist.
    """
    for place in places:
        if place.is_dir():
            yield from sorted(place.rglob("*.json"))
        elif place.exists():
            yield place
        else:
            raise CounterexampleError(f"{place}: does not exist")
