"""An output directory at an address: what a run finds is sent there, and later runs know it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

from fuzz_attn.cli.main import main
from fuzz_attn.cli.remote_output import SENT, remote_output
from fuzz_attn.engine.run_folder import counterexample_folder, new_run_folder
from fuzz_attn.errors import OutputError

TARGET = f"{Path(__file__).parents[1] / 'sample_targets' / 'torch_attention.py'}:last_row_unwritten"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address in this process's memory; local copies lie in a cache of their own."""
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    return f"memory://{uuid4().hex}/results"


def names_at(address: str) -> set[str]:
    files, root = fsspec.core.url_to_fs(address)
    return {path.removeprefix(root).lstrip("/") for path in files.find(root)}


def put(address: str, name: str, text: str) -> None:
    with fsspec.open(f"{address}/{name}", "w") as file:
        file.write(text)


def text_at(address: str, name: str) -> str:
    with fsspec.open(f"{address}/{name}") as file:
        return str(file.read().decode())


def test_a_folder_holds_what_a_run_reads_and_what_is_new_is_sent(address: str) -> None:
    for name in ("counterexamples/t/a.json", "runs/1/summary.json", "runs/1/t/summary.json", "runs/1/events.jsonl"):
        put(address, name, "old")
    with remote_output(address) as folder:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {SENT}
        assert found == {"counterexamples/t/a.json", "runs/1/summary.json", "runs/1/t/summary.json"}
        put(address, "runs/1/summary.json", "changed by somebody else")
        (folder / "counterexamples/t/a.json").write_text("new")
        for name in ("counterexamples/t/b.json", "runs/2/events.jsonl", "triton/kernel/kernel.cubin"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
    assert names_at(address) - found == {"runs/1/events.jsonl", "counterexamples/t/b.json", "runs/2/events.jsonl"}
    assert text_at(address, "counterexamples/t/a.json") == "new"
    assert text_at(address, "runs/1/summary.json") == "changed by somebody else"


def test_what_was_found_is_sent_after_an_error_too(address: str) -> None:
    def run() -> None:
        with remote_output(address) as folder:
            (folder / "counterexamples").mkdir(parents=True)
            (folder / "counterexamples" / "a.json").write_text("found")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert names_at(address) == {"counterexamples/a.json"}


def test_what_could_not_be_sent_is_kept_and_sent_by_the_next_run(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    def run() -> None:
        with remote_output(address) as folder:
            (folder / "counterexamples").mkdir()
            (folder / "counterexamples" / "a.json").write_text("found")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "put_file", full)
        with pytest.raises(OutputError, match="cannot be written: no space left; all is in "):
            run()
    assert names_at(address) == set()
    with remote_output(address) as folder:
        assert (folder / "counterexamples" / "a.json").read_text() == "found"
    assert names_at(address) == {"counterexamples/a.json"}


def test_a_file_that_is_gone_at_the_address_is_gone_in_the_copy(address: str) -> None:
    put(address, "counterexamples/a.json", "old")
    with remote_output(address):
        pass
    fsspec.core.url_to_fs(address)[0].rm(f"{address}/counterexamples/a.json")
    with remote_output(address) as folder:
        assert not list((folder / "counterexamples").rglob("*.json"))


@pytest.mark.parametrize("address", ["nope://bucket/folder", "http://[bad/folder"])
def test_an_address_that_is_not_known_is_refused(address: str) -> None:
    with pytest.raises(OutputError, match="--out="), remote_output(address):
        pass


@pytest.mark.parametrize("function", [new_run_folder, counterexample_folder])
def test_other_commands_take_folders_only(function: Callable[[str], Path]) -> None:
    with pytest.raises(OutputError, match=re.escape("out=s3://a/b: only `fuzz-attn run --out` takes an address")):
        function("s3://a/b")


def test_a_run_knows_what_an_earlier_one_saved_at_an_address(address: str) -> None:
    command = [
        "run",
        "--target",
        TARGET,
        "--max-cases",
        "3",
        "--workers",
        "1",
        "--seed",
        "1",
        "--out",
        address,
        "--json",
    ]
    first, second = (CliRunner().invoke(main, command) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (1, 1)
    assert first.stderr.endswith(f"Sent     {address}\n")
    saved = {name for name in names_at(address) if name.startswith("counterexamples/")}
    assert len(saved) == 1
    assert len([name for name in names_at(address) if name.endswith("/events.jsonl")]) == 2
    (failure,) = json.loads(second.stdout)["targets"][0]["failures"]
    assert failure["path"].endswith(saved.pop())


class Tricking(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A bucket whose keys lead out of the folder."""

    def find(self, path: str, *_: object, **__: object) -> list[str]:
        return [f"{path}/counterexamples/{name}" for name in ("../../../../escaped.json", "a.json", "..\\b.json")]

    def get_file(self, rpath: str, lpath: str, **_: object) -> None:
        Path(lpath).write_text(rpath)


def test_a_name_at_an_address_leads_to_no_other_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (Tricking(), url.removeprefix("memory:/")))
    with remote_output(address) as folder:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {SENT}
        assert found == {"counterexamples/a.json"}
        assert not list(tmp_path.rglob("escaped.json"))
        (folder / "counterexamples" / "a.json").unlink()  # nothing is sent to the bucket


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}'])
def test_a_list_of_sent_files_that_was_cut_off_is_no_error(text: str, address: str) -> None:
    with remote_output(address) as folder:
        (folder / "counterexamples").mkdir(parents=True)
        (folder / "counterexamples" / "a.json").write_text("found")
    (folder / SENT).write_text(text)
    with remote_output(address):
        pass
    assert names_at(address) == {"counterexamples/a.json"}
