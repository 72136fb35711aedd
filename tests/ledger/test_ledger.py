"""The ledger: its table, its replay on wheels in a folder, its pages, and the README's table."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.case.recipes import QQBiasRecipe
from fuzz_attn.cli.main import main
from fuzz_attn.engine.replay import InProcess
from fuzz_attn.errors import LedgerError
from fuzz_attn.ledger import replaying
from fuzz_attn.ledger.defects import OWN, TABLE, load_table
from fuzz_attn.ledger.summaries import counts_in_markdown, open_bugs_in_markdown, page_name, word_of, words_in_markdown
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.targets.wheel import Wheel

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "sample_targets" / "torch_attention.py"
MODULE = "published_sample.attention"

LEDGER = """
[launchers.sample]
package = "published-sample"
function = "unified_attention"
family = "unified"
modules = { "1.0" = "published_sample.attention", "2.0" = "published_sample.attention" }

[rows.a-row]
launcher = "sample"
state = "found"
title = "The last row is not written"
kernel = "unified_attention"
line = "attention.py:1"
cause = "A cause."
why = "A reason."
versions = { "1.0" = "FAILED", "2.0" = "passes" }
"""

WITHOUT_BIAS = """
def unified_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, block_table,
    softcap, q_descale, k_descale, v_descale,
):
    raise RuntimeError("must not be called")
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, case: AttentionCase) -> Write:
    """Return a function that writes a ledger with one row, with some of its text replaced, and returns its folder."""

    def written(changes: dict[str, str] | None = None, kind: str = "unwritten", family: str = "unified") -> Path:
        text = LEDGER
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        folder = tmp_path / "ledger"
        (folder / "cases").mkdir(parents=True)
        (folder / TABLE).write_text(text)
        own = case if family == "unified" else AttentionCase(sequences=(Sequence(1),), family="context")
        found = counterexamples.signed("t", own.family, None, own, Verdict("oracle", kind, "as it was"))  # type: ignore[arg-type] # a parameter
        (folder / "cases" / "a-row.json").write_bytes(msgspec.json.encode(found))
        return folder

    return written


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Return a function that puts wheels into the cache: for each version the target of torch_attention.py in it."""
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def put(targets: dict[str, str]) -> None:
        for version, name in targets.items():
            folder = Wheel("published-sample", version).folder
            folder.mkdir(parents=True)
            with zipfile.ZipFile(folder / "published_sample.whl", "w") as archive:
                if name:
                    source = KERNELS.read_text() + f"\n\nunified_attention = {name}\n"
                    archive.writestr("published_sample/attention.py", source)
                archive.writestr("published_sample/other.py", "")

    return put


class WorkerHere(InProcess):
    """A worker in this process, which imports its version anew and needs no other process for the next order."""

    def __enter__(self) -> Self:
        for name in [name for name in sys.modules if name.partition(".")[0] == "published_sample"]:
            del sys.modules[name]
        return super().__enter__()

    def renew(self) -> None: ...


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge each version in this process: a worker process takes seconds to start, and the outcome is the same."""
    monkeypatch.setattr(replaying, "IsolatedWorker", WorkerHere)


def ledger(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["ledger", *map(str, arguments)])


def test_the_matrix_of_stated_outcomes(write: Write, wheels: Callable[[dict[str, str]], None]) -> None:
    wheels({"1.0": "last_row_unwritten", "2.0": "unified_attention"})
    result = ledger("--replay", "--backend", "interpreter", "--ledger", write())
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].split() == ["a-row", "FAILED", "FIXED"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("targets", "words", "message"),
    [
        (
            {"1.0": "unified_attention", "2.0": "unified_attention"},
            ["passes", "!", "FIXED"],
            "passes, stated is FAILED",
        ),
        ({"1.0": "last_row_unwritten", "2.0": "last_row_unwritten"}, ["FAILED", "FAILED", "!"], "FAILED, stated is"),
        ({"1.0": "last_row_unwritten", "2.0": ""}, ["FAILED", "absent", "!"], "absent, stated is passes"),
    ],
)
def test_an_outcome_that_is_not_stated(
    targets: dict[str, str],
    words: list[str],
    message: str,
    write: Write,
    wheels: Callable[[dict[str, str]], None],
) -> None:
    wheels(targets)
    result = ledger("--replay", "--backend", "interpreter", "--ledger", write())
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split() == ["a-row", *words]
    assert message in result.stderr


EXPLAINED = {'why = "A reason."': 'why = "A reason."\nexplained = { reason = "unwritten", part = "never written" }'}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("part", "code"), [("never written", 0), ("key 12", 1)])
def test_a_failure_that_is_explained_in_other_words(
    part: str, code: int, write: Write, wheels: Callable[[dict[str, str]], None]
) -> None:
    wheels({"1.0": "last_row_unwritten", "2.0": "unified_attention"})
    folder = write({old: new.replace("never written", part) for old, new in EXPLAINED.items()})
    result = ledger("--replay", "--backend", "interpreter", "--ledger", folder)
    assert result.exit_code == code, result.output
    assert f"{1 - code} of 1 failure explained as the ledger states." in result.stderr
    assert ("a-row on 1.0: explained as unwritten: " in result.stderr) == bool(code)


@pytest.mark.usefixtures("in_process")
def test_a_failure_of_another_kind_is_not_the_row(write: Write, wheels: Callable[[dict[str, str]], None]) -> None:
    wheels({"1.0": "last_row_unwritten", "2.0": "unified_attention"})
    result = ledger("--replay", "--backend", "interpreter", "--ledger", write(kind="written_outside"))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split() == ["a-row", "OTHER", "!", "FIXED"]
    assert "fails in another way" in result.stderr


@pytest.mark.usefixtures("in_process")
def test_a_version_whose_signature_lacks_a_feature_of_the_case(
    write: Write, wheels: Callable[[dict[str, str]], None], case: AttentionCase
) -> None:
    wheels({"1.0": "last_row_unwritten", "2.0": "unified_attention"})
    folder = write()
    path = folder / "cases" / "a-row.json"
    found = counterexamples.load(path)
    biased = msgspec.structs.replace(case, qq_bias=QQBiasRecipe())
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, case=biased)))
    source = Wheel("published-sample", "2.0").folder / "published_sample.whl"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("published_sample/attention.py", WITHOUT_BIAS)
    result = ledger("--replay", "--backend", "interpreter", "--ledger", folder)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split() == ["a-row", "FAILED", "absent", "!"]
    assert "the target does not promise bias between new tokens" in result.stderr


@pytest.mark.usefixtures("in_process")
def test_versions_whose_signature_lacks_an_argument_of_the_case(
    write: Write, wheels: Callable[[dict[str, str]], None], case: AttentionCase
) -> None:
    wheels({"1.0": "last_row_unwritten", "2.0": "unified_attention"})
    folder = write()
    path = folder / "cases" / "a-row.json"
    flagged = msgspec.structs.replace(case, launch=LaunchHints(arguments=(("use_td", True),)))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(counterexamples.load(path), case=flagged)))
    result = ledger("--replay", "--backend", "interpreter", "--ledger", folder)
    assert result.stdout.splitlines()[-1].split() == ["a-row", "absent", "!", "absent", "!"]
    assert "the target does not promise the argument use_td" in result.stderr


def test_a_version_that_cannot_be_downloaded(write: Write, wheels: Callable[[dict[str, str]], None]) -> None:
    wheels({"1.0": "last_row_unwritten"})
    result = ledger("--replay", "--backend", "interpreter", "--json", "--ledger", write())
    assert result.exit_code == 2
    outcomes = json.loads(result.stdout)["outcomes"]
    assert [each["outcome"] for each in outcomes] == ["FAILED", "missing"]
    assert [each["surprising"] for each in outcomes] == [False, False]
    assert "published-sample==2.0 cannot be downloaded" in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'launcher = "sample"': 'launcher = "other"'}, "launcher='other' must be one of sample"),
        ({', "2.0" = "passes"': ""}, r"versions=\['1.0'\] must be \['1.0', '2.0'\]"),
        ({'"found"': '"found again"'}, "state='found again' contradicts reference=''"),
        ({'"1.0" = "FAILED"': '"1.0" = "passes"'}, "needs a version that FAILED"),
        ({'cause = "A cause."': 'cause = "A cause."\ncases = 3'}, "cases=3 needs found_in"),
        ({'"found"': '"seen"'}, "Invalid enum value 'seen'"),
        ({"cause": "casue"}, "contains unknown field `casue`"),
        ({"[launchers.sample]": "[launchers.sample"}, "ledger.toml: "),
    ],
)
def test_a_table_that_contradicts_itself_is_one_line(changes: dict[str, str], message: str, write: Write) -> None:
    with pytest.raises(LedgerError, match=message):
        load_table(write(changes))


def test_a_case_of_another_family_is_an_error(write: Write, wheels: Callable[[dict[str, str]], None]) -> None:
    wheels({"1.0": "unified_attention", "2.0": "unified_attention"})
    table = load_table(write(family="context"))
    with pytest.raises(LedgerError, match="the case has family='context', must have 'unified'"):
        table.case(table.rows["a-row"])


def test_a_row_that_does_not_exist_is_one_line(write: Write) -> None:
    result = ledger("--ledger", write(), "nothing")
    assert result.exit_code == 2
    assert result.stderr == "fuzz-attn: row 'nothing' must be one of a-row\n"


def test_pages_are_written_once(write: Write, tmp_path: Path) -> None:
    folder = write()
    assert ledger("--ledger", folder, "--pages", "--out", tmp_path / "pages").exit_code == 0
    page = tmp_path / "pages" / "published-sample-a-row.md"
    assert page.read_text().startswith("# The last row is not written\n")
    page.write_text("finished by hand")
    assert ledger("--ledger", folder, "--pages", "--out", tmp_path / "pages").stdout == ""
    assert page.read_text() == "finished by hand"


OWN_TABLE = load_table()


def test_the_command_prints_every_row() -> None:
    result = ledger()
    assert result.exit_code == 0
    assert all(name in result.stdout for name in OWN_TABLE.rows)
    assert set(json.loads(ledger("--json").stdout)["rows"]) == set(OWN_TABLE.rows)


@pytest.mark.parametrize("name", OWN_TABLE.rows)
def test_each_case_loads_and_fails_as_the_row_says(name: str) -> None:
    row = OWN_TABLE.rows[name]
    found = OWN_TABLE.case(row)
    assert found.confirmation == "confirmed"
    assert found.sequence == ()
    assert not found.verdict.passed
    assert not found.verdict.site.startswith("/"), "a path of the machine that found it"


def test_each_row_states_how_it_is_explained() -> None:
    assert [name for name, row in OWN_TABLE.rows.items() if row.explained is None] == []


def test_each_case_belongs_to_a_row() -> None:
    assert {path.stem for path in (OWN / "cases").iterdir()} == set(OWN_TABLE.rows)


def test_a_pass_before_the_first_failure_is_not_called_fixed() -> None:
    row = OWN_TABLE.rows["unified-block-table"]
    assert word_of(row, "0.11.0") == "passes"
    assert word_of(OWN_TABLE.rows["unified-softcap-overflow"], "0.33.0") == "FIXED"


def test_the_first_table_of_the_readme_is_the_summary() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = text[text.index("\n|") + 1 :].partition("\n\n")[0] + "\n"
    assert first == counts_in_markdown(OWN_TABLE), "replace the table by the expected text"


def test_the_table_of_bugs_is_on_the_first_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    table = open_bugs_in_markdown(OWN_TABLE, f"../{FINDINGS.relative_to(ROOT)}")
    assert table.count("\n| [") >= 1
    assert f"\n{table}\n" in text, f"replace the table by:\n{table}"


def test_the_table_of_words_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    table = words_in_markdown(OWN_TABLE)
    assert table in text, f"replace the table by:\n{table}"


FINDINGS = ROOT / "reports" / "findings"


def test_each_confirmed_row_has_a_page() -> None:
    confirmed = {page_name(OWN_TABLE, row) for row in OWN_TABLE.rows.values() if row.confirmed}
    assert {path.name for path in FINDINGS.glob("*.md")} == {"README.md", *confirmed}


@pytest.mark.parametrize("name", [name for name, row in OWN_TABLE.rows.items() if row.confirmed])
def test_a_page_states_what_the_ledger_states(name: str) -> None:
    row = OWN_TABLE.rows[name]
    page = (FINDINGS / page_name(OWN_TABLE, row)).read_text(encoding="utf-8")
    assert page.startswith(f"# {row.title}\n")
    assert row.reference in page
    assert f"`{row.line}`" in page
    assert all(f"| {version} | {word_of(row, version)} |" in page for version in row.versions)
