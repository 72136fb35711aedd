"""Counterexample files: what is saved is loaded again, and every bad file raises an error of one line that names it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.counterexamples import (
    LARGEST_BYTES,
    SCHEMA,
    Counterexample,
    Environment,
    environment_of,
    files_in,
    load,
    overwrite,
    rename,
    save,
    signed,
)
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.oracle.verdict import Element, Verdict
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
CASE = AttentionCase((Sequence(2, 3),), window=2, sinks=SinkRecipe(), seed=5)
ELEMENT = Element(1, 0, 3, 0, 1, "nan", "0.5", "0.001")
VERDICT = Verdict("oracle", "nan", "1 element is NaN", None, "tail_rows", 1, 32, (ELEMENT,))
ENVIRONMENT = Environment("interpreter", ("bfloat16_dot",), {"torch": "2.13.0"})
FOUND = msgspec.structs.replace(
    signed("unified", "unified", "poison_independence", CASE, VERDICT),
    digest="0123456789abcdef",
    environment=ENVIRONMENT,
)

GOLDEN = """{
 "schema": 2,
 "status": "open",
 "target": "unified",
 "family": "unified",
 "signature": "oracle-nan-auto-window+sinks-tail_rows",
 "relation": "poison_independence",
 "case": {
  "sequences": [
   {
    "query_len": 2,
    "context_len": 3
   }
  ],
  "window": 2,
  "sinks": {},
  "seed": 5
 },
 "verdict": {
  "property_name": "oracle",
  "kind": "nan",
  "message": "1 element is NaN",
  "where": "tail_rows",
  "wrong": 1,
  "elements": 32,
  "worst": [
   {
    "token": 1,
    "head": 0,
    "column": 3,
    "sequence": 0,
    "query_index": 1,
    "actual": "nan",
    "expected": "0.5",
    "bound": "0.001"
   }
  ]
 },
 "digest": "0123456789abcdef",
 "environment": {
  "backend": "interpreter",
  "shims": [
   "bfloat16_dot"
  ],
  "versions": {
   "torch": "2.13.0"
  }
 },
 "reference": "",
 "because": "",
 "confirmation": "unconfirmed",
 "failed": 0,
 "tries": 0,
 "sequence": [],
 "shrunk": false,
 "trigger": [],
 "also": [],
 "binding": null,
 "elsewhere": null
}
"""
"""Schema version 2."""


def found_in(case: AttentionCase) -> Counterexample:
    return msgspec.structs.replace(FOUND, case=case)


def test_golden_file_of_schema_version_2(tmp_path: Path) -> None:
    path = save(FOUND, tmp_path / "unified")
    assert path == tmp_path / "unified" / "oracle-nan-auto-window+sinks-tail_rows.json"
    assert path.read_text() == GOLDEN
    assert load(path) == FOUND
    assert FOUND.schema == SCHEMA


@QUIET
@given(
    case=cases(Domain(paths=("auto", "2d", "3d"), tile_hint=True)),
    ratio=st.none() | st.floats(1.0, 1e300),
    relation=st.none() | st.sampled_from(("determinism", "poison_independence")),
    text=st.text(max_size=30),
)
def test_saved_file_loads_unchanged(
    tmp_path: Path, case: AttentionCase, ratio: float | None, relation: str | None, text: str
) -> None:
    verdict = Verdict("oracle", "mismatch", text, ratio, "everywhere", 7, 9, (ELEMENT, ELEMENT))
    found = msgspec.structs.replace(signed(text, "unified", relation, case, verdict), environment=ENVIRONMENT)
    path = save(found, tmp_path)
    again = load(path)
    path.unlink()
    assert again == found


def test_new_counterexample_is_open_and_signed() -> None:
    assert (FOUND.schema, FOUND.status, FOUND.signature) == (SCHEMA, "open", "oracle-nan-auto-window+sinks-tail_rows")


def test_environment_names_the_versions_that_matter() -> None:
    environment = environment_of("simulator", ("one", "two"))
    assert (environment.backend, environment.shims) == ("simulator", ("one", "two"))
    assert set(environment.versions) == {"python", "fuzz-attn", "torch", "triton", "numpy", "hypothesis"}
    assert all(environment.versions.values())


def test_another_failure_of_the_same_signature_is_another_file(tmp_path: Path) -> None:
    first, second = save(FOUND, tmp_path), save(found_in(replace(CASE, seed=6)), tmp_path)
    assert (load(first), load(second).case.seed) == (FOUND, 6)
    assert second.name == f"{FOUND.signature}-2.json"


def test_a_smaller_case_replaces_the_file(tmp_path: Path) -> None:
    path = save(FOUND, tmp_path)
    smaller = found_in(replace(CASE, sequences=(Sequence(1),)))
    overwrite(smaller, path)
    assert load(path) == smaller
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_renamed_to_its_signature(tmp_path: Path) -> None:
    path, other = save(FOUND, tmp_path), msgspec.structs.replace(FOUND, signature="oracle-nan-auto-plain")
    overwrite(other, path)
    renamed = rename(path, other)
    assert (renamed.name, load(renamed)) == ("oracle-nan-auto-plain.json", other)
    assert list(tmp_path.iterdir()) == [renamed]
    assert rename(renamed, other) == renamed


def test_a_known_failure_needs_a_reference_and_a_reason(tmp_path: Path) -> None:
    for missing in ("reference", "because"):
        fields = {"status": "known", "reference": "#12", "because": "fixed upstream"} | {missing: " "}
        with pytest.raises(CounterexampleError, match=f"{missing}='' must not be empty for status='known'"):
            msgspec.structs.replace(FOUND, **fields)
    path = tmp_path / "known.json"
    path.write_text(edited(status="known", reference="#12"))
    with pytest.raises(CounterexampleError, match="because='' must not be empty"):
        load(path)


def test_another_signature_is_another_file(tmp_path: Path) -> None:
    other = signed("unified", "unified", None, replace(CASE, launch=LaunchHints("3d")), VERDICT)
    assert len({save(FOUND, tmp_path), save(other, tmp_path)}) == 2


def test_file_can_be_read_by_others(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(save(FOUND, tmp_path).stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, f"No space left on device for {len(data)} bytes")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device"):
        save(FOUND, tmp_path)
    assert list(tmp_path.iterdir()) == []


def save_many(folder: Path) -> list[Path]:
    return [save(FOUND, folder) for _ in range(30)]


def test_concurrent_saves_never_share_a_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as savers:
        one, two = savers.map(save_many, (tmp_path, tmp_path))
    assert len({*one, *two}) == 60 == len(list(tmp_path.iterdir()))
    assert all(load(path) == FOUND for path in (*one, *two))


def edited(**changes: object) -> str:
    return json.dumps(json.loads(GOLDEN) | changes)


def edited_case(**changes: object) -> str:
    return edited(case=json.loads(GOLDEN)["case"] | changes)


def without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(GOLDEN).items() if key != name})


BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", r"is cut off or not JSON: Input data was truncated"),
    (GOLDEN[:1], r"is cut off or not JSON: Input data was truncated"),
    (GOLDEN[:300], r"is cut off or not JSON: Input data was truncated"),
    (GOLDEN[:-3], r"is cut off or not JSON: Input data was truncated"),
    (GOLDEN + "}", r"is cut off or not JSON: JSON is malformed: trailing characters"),
    (GOLDEN.replace('"window": 2', '"window": NaN'), r"is cut off or not JSON: JSON is malformed: invalid character"),
    (GOLDEN.replace("{", "[", 1), r"is not a counterexample: Expected `object`, got `array`"),
    (b"\xff\xfe\x00", r"is cut off or not JSON: JSON is malformed"),
    (GOLDEN.encode().replace(b"element is", b"\xff"), r"is cut off or not JSON: "),
    (b"\x80\x04\x95", r"is cut off or not JSON: JSON is malformed"),
    ('{"schema": 2, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", r"is cut off or not JSON: "),
    ("[]", r"is not a counterexample: Expected `object`, got `array`"),
    ("null", r"is not a counterexample: Expected `object`, got `null`"),
    ("{}", r"is not a counterexample: Object missing required field `schema`"),
    (edited(schema=1), r"schema=1 is older than 2, the only one that can be read"),
    ('{"schema": 3, "everything": "else"}', r"schema=3 is newer than 2, the only one that can be read"),
    (edited(schema=0), r"schema=0 is older than 2, the only one that can be read"),
    (edited(schema="1"), r"is not a counterexample: Expected `int`, got `str` - at `\$\.schema`"),
    (edited(schema=10**40), r"schema=10{40} is newer than 2, the only one that can be read"),
    (edited(colour="red"), r"is not a counterexample: Object contains unknown field `colour`"),
    (edited(status="closed"), r"is not a counterexample: Invalid enum value 'closed' - at `\$\.status`"),
    (edited(family="split"), r"is not a counterexample: Invalid enum value 'split' - at `\$\.family`"),
    (edited(digest=5), r"is not a counterexample: Expected `str`, got `int` - at `\$\.digest`"),
    (edited(case=None), r"is not a counterexample: Expected `object`, got `null` - at `\$\.case`"),
    (without("digest"), r"is not a counterexample: Object missing required field `digest`"),
    (without("case"), r"is not a counterexample: Object missing required field `case`"),
    (edited_case(window=-1), r"is not a counterexample: Expected `int` >= 0 - at `\$\.case\.window`"),
    (edited_case(softcap=-1.0), r"is not a counterexample: softcap=-1.0 must be .* - at `\$\.case`"),
    (edited_case(sequences=[[1, 2]]), r"Expected `object`, got `array` - at `\$\.case\.sequences\[0\]`"),
    (edited_case(dtypes={"q": "float16"}), r"dtypes.kv='float32' must be .* - at `\$\.case`"),
    (edited_case(heads={"num_kv_heads": 2**20}, padded_tokens=2**20), r"query of the case would hold \d+ elements"),
    (edited(verdict={}), r"Object missing required field `property_name` - at `\$\.verdict`"),
    ("", r"is cut off or not JSON: Input data was truncated"),
    ("\ufeff" + GOLDEN, r"is cut off or not JSON: JSON is malformed"),
    (GOLDEN.encode("utf-16"), r"is cut off or not JSON: JSON is malformed"),
    (GOLDEN + GOLDEN, r"is cut off or not JSON: JSON is malformed: trailing characters"),
    (edited_case(seed=float("inf")), r"is cut off or not JSON: JSON is malformed"),
    (edited_case(seed=-1), r"is not a counterexample: Expected `int` >= 0 - at `\$\.case\.seed`"),
    (edited_case(seed=2**200), r"is not a counterexample: "),
    (edited_case(sequences=[{"query_len": 1, "context_len": 2**62}]), r"is not a counterexample: "),
    (edited_case(sequences=[{"query_len": True}]), r"Expected `int`, got `bool` - at "),
    (edited(relation=[]), r"Expected `str \| null`, got `array` - at `\$\.relation`"),
    (edited(target={"module": "os"}), r"Expected `str`, got `object` - at `\$\.target`"),
    (edited(verdict={"property_name": "oracle", "kind": "[bold]"}), r"Invalid enum value '\[bold\]' - at "),
    (edited(trigger=["x"] * 301), r"Expected `array` of length <= 300 - at `\$\.trigger`"),
    (edited(trigger=["x" * 301]), r"Expected `str` of length <= 300 - at `\$\.trigger\[0\]`"),
    (edited(environment={"backend": "cuda"}), r"Object missing required field `shims` - at `\$\.environment`"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_file_is_refused_in_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "edited by hand.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CounterexampleError, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "cannot be read: is no file"),
        (os.mkfifo, "cannot be read: is no file"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: is no file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("gone"), "cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(bytes(LARGEST_BYTES + 1)), "cannot be read: has more than 16777216 bytes"),
    ],
    ids=["folder", "pipe", "device", "circle", "dangling link", "huge"],
)
def test_what_is_no_file_is_refused_in_one_line(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(CounterexampleError, match=f"^{re.escape(f'{path}: {message}')}$"):
        load(path)


def test_a_name_with_a_null_character_is_refused_in_one_line() -> None:
    with pytest.raises(CounterexampleError, match=r"cannot be read: embedded null byte$"):
        load(Path("a\0b.json"))


def test_many_bad_files_are_tried() -> None:
    assert len(BAD_FILES) >= 40


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "truncated.json"
    for length in range(len(GOLDEN.rstrip())):
        path.write_text(GOLDEN[:length])
        with pytest.raises(
            CounterexampleError, match=r"truncated\.json: is (cut off or not JSON|not a counterexample)"
        ):
            load(path)


def rubbish(value: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of copies of plain JSON with one part replaced by something else."""
    other: st.SearchStrategy[Any] = st.sampled_from((None, -1, 2**60, 1e300, "x", [], {}, True, [[]], float("inf")))
    if isinstance(value, dict) and value:
        names = st.sampled_from(sorted(value))
        return other | names.flatmap(lambda name: rubbish(value[name]).map(lambda part: value | {name: part}))
    if isinstance(value, list) and value:
        return other | rubbish(value[0]).map(lambda part: [part, *value[1:]])
    return other


@QUIET
@given(document=rubbish(json.loads(GOLDEN)))
def test_edited_file_is_a_counterexample_or_refused_in_one_line(tmp_path: Path, document: object) -> None:
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    try:
        again = load(path)
    except CounterexampleError as error:
        refusal = str(error)
    else:
        assert msgspec.json.decode(msgspec.json.encode(again), type=Counterexample) == again
        return
    assert refusal.startswith(f"{path}: ")
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_file_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], None], reason: str) -> None:
    path = tmp_path / "there.json"
    make(path)
    with pytest.raises(CounterexampleError, match=rf"there\.json: cannot be read: {reason}$"):
        load(path)


def test_files_in_folders_and_by_name(tmp_path: Path) -> None:
    names = ("b/two.json", "b/one.json", "a/deep/three.json", "a/notes.txt", "a/four.json.part", "five.txt")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [str(path.relative_to(tmp_path)) for path in files_in((tmp_path,))]
    assert found == ["a/deep/three.json", "b/one.json", "b/two.json"]
    chosen = (tmp_path / "five.txt", tmp_path / "b")
    assert [path.name for path in files_in(chosen)] == ["five.txt", "one.json", "two.json"]
    assert list(files_in(())) == []


def test_place_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CounterexampleError, match=r"nowhere: does not exist$"):
        list(files_in((tmp_path / "nowhere",)))


def test_place_without_files(tmp_path: Path) -> None:
    with pytest.raises(CounterexampleError, match=r": holds no \.json file$"):
        list(files_in((tmp_path,)))
