"""Counterexample: one failure as one JSON file, which replays years later, named by the signature of its bug.

Trust says which code such a file may have run.

Without the user's word only targets run that the user has: built-in ones, installed entry points, and those that the
command line or the settings name. What a file says of the call is used if it cannot choose what the target does: roles,
layouts and conventions are, constants and the arguments of a constructor are not.
"""

from __future__ import annotations

import json
import math
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distributions, version
from itertools import count
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec
from msgspec import Meta

from fuzz_attn.binding.binding import Binding, Constant
from fuzz_attn.case.plain import FileName, Plain, Whole
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.foreign_files import content_of, target_points, write_new
from fuzz_attn.operations.registry import FAMILIES, AnyCase, FamilyName, HoldsCases, operation_of
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


_INSTALLED: Final = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")
)


def trusted_call(
    path: Path,
    found: Counterexample,
    target: str | None,
    binding: Binding | None,
    *,
    trust: bool,
    named: Collection[str] = (),
) -> tuple[str, Binding | None]:
    """Return the target and the binding to use for a file; nothing of the file is imported or made before.

    ``target`` and ``binding`` are the user's own and win. With ``trust`` the file's own are used. ``named`` are targets
    that the user names elsewhere, as in the settings. Raises :class:`CounterexampleError`, in one line that says what
    to type, for a target or a binding that the user must decide about.
    """
    if target is None and not (trust or found.target in named or is_installed(found.target)):
        raise CounterexampleError(
            f"{path}: names target={found.target!r}, and a file does not choose what code runs: add --target "
            f"{shlex.quote(found.target)}, or --trust if you trust the file, or name the target in [tool.fuzz_attn]"
        )
    replaced = target in FAMILIES and target != found.target  # by a built-in target, which the file's does not fit
    own = None if replaced else found.binding
    chosen = () if trust or binding is not None or own is None else tuple(chosen_values(own))
    if chosen:
        raise CounterexampleError(
            f"{path}: its binding chooses what the target gets ({', '.join(chosen)}): add --binding FILE with your "
            "own, or --trust if you trust the file"
        )
    return target or found.target, binding or own


def needs_trust(found: Counterexample) -> bool:
    """Return whether a file runs only with the user's word."""
    return not is_installed(found.target) or (found.binding is not None and any(chosen_values(found.binding)))


def only_says_how(binding: Binding) -> bool:
    """Return whether a run may call its target as a saved file says: without values, and without excusing the target.

    A domain limits what a target is tested on, and a rounding model what counts as wrong.
    """
    return not (any(chosen_values(binding)) or binding.domain or binding.rounding)


def chosen_values(binding: Binding) -> Iterator[str]:
    """Yield the places of a binding with values that go to the target's code as they are."""
    yield from (f"constants.{name}" for name in binding.constants)
    yield from ("instance" for _ in (binding.instance,) if binding.instance is not None)
    yield from (f"off.{role}" for role, value in binding.off.items() if not _is_number(value))


def _is_number(value: Constant) -> bool:
    """Return whether a constant is a number, several, or Python's None."""
    if isinstance(value, tuple | list):
        return all(map(_is_number, value))
    return value is None or value == "None" or isinstance(value, int | float)


def is_installed(target: str) -> bool:
    """Return whether a target is built in or an entry point of an installed package, which the user has chosen so."""
    if target in FAMILIES:
        return True
    points = [point for point in target_points() if point.name == target]
    return bool(points) and all(map(_is_installed_point, points))


def _is_installed_point(point: EntryPoint) -> bool:
    """Return whether both an entry point and the module that it names are installed."""
    return point.dist is not None and _is_below(str(point.dist.locate_file(""))) and _is_installed_module(point.module)


def _is_installed_module(module: str) -> bool:
    """Return whether the first package of a module's name is found among the installed packages, and nowhere before."""
    top = module.partition(".")[0]
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)  # not of sys.modules: a worker imports it anew
    found = next((spec for spec in specs if spec is not None), None)
    if found is None:
        return False
    places = list(found.submodule_search_locations or ()) or [found.origin or ""]
    return all(map(_is_below, places))


def _is_below(place: str) -> bool:
    path = Path(place).resolve()
    return any(map(path.is_relative_to, _INSTALLED)) or any(map(path.is_relative_to, _editable_folders()))


@lru_cache(maxsize=1)
def _editable_folders() -> tuple[Path, ...]:
    """Return the folders of packages that are installed in editable mode, as pip records them."""
    folders = []
    for package in distributions(path=[str(folder) for folder in _INSTALLED]):
        record = json.loads(package.read_text("direct_url.json") or "{}")
        if record.get("dir_info", {}).get("editable"):
            folders.append(Path(unquote(urlsplit(record["url"]).path)).resolve())
    return tuple(folders)
