"""Mask coverage: records of a campaign, how they merge, what is missing, and how it is listed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from click.testing import CliRunner

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.backends.kernel_coverage import OUTCOMES, Mask, TargetCoverage
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.cli.main import main
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.listeners.statistics import Statistics, merged
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import CoverageError
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.printing import text_of
from fuzz_attn.report.summary import render

TARGETS = Path(__file__).parents[1] / "sample_targets"
BEYOND = TARGETS / "beyond_the_simulator.py"
STORE = Mask("k.py", 7, "kernel", "store", 0, "tl.store(x, y, mask=z)", True, ("all true",))


def changed(mask: Mask, **changes: object) -> Mask:
    made: Mask = msgspec.structs.replace(mask, **changes)
    return made


def test_outcomes_have_one_order() -> None:
    assert get_args(kernel_coverage.Outcome) == OUTCOMES


def test_records_of_a_mask_merge() -> None:
    other = changed(STORE, seen=("mixed",))
    assert kernel_coverage.merged([other, STORE]) == (changed(STORE, seen=("all true", "mixed")),)
    assert kernel_coverage.merged([STORE, STORE]) == (STORE,)


@pytest.mark.parametrize("change", [{"ordinal": 1}, {"kind": "load"}, {"line": 8}, {"kernel": "b"}, {"text": "moved"}])
def test_different_masks_stay_separate_in_source_order(change: dict[str, object]) -> None:
    other = changed(STORE, **change)
    assert kernel_coverage.merged([other, STORE]) == tuple(sorted((STORE, other), key=lambda mask: mask.place))


def test_missing_outcomes_are_listed() -> None:
    branch = changed(STORE, kind="branch", several=False, seen=("all true", "all false"))
    complete = changed(STORE, line=9, seen=OUTCOMES)
    (mask,) = kernel_coverage.missing([branch, STORE, complete])
    assert mask.missing == ("all false", "mixed")


def test_mask_can_be_mixed_if_one_compilation_has_several_elements() -> None:
    single = changed(STORE, several=False, seen=("all true", "all false"))
    assert kernel_coverage.missing([single]) == ()
    assert [mask.missing for mask in kernel_coverage.missing([single, STORE])] == [("mixed",)]


def test_worker_sends_only_new_outcomes() -> None:
    with IsolatedWorker(Setup("unified")) as worker:
        one = Order(AttentionCase(sequences=(Sequence(1, 3),)))
        first, again = worker.judge(one).masks, worker.judge(one).masks
        more = worker.judge(Order(AttentionCase(sequences=(Sequence(20, 100), Sequence(0, 5))))).masks
    assert {mask.kind for mask in first} >= {"load", "store", "select", "branch"}
    assert all(Path(mask.file).read_text().splitlines()[mask.line - 1].strip() == mask.text for mask in first)
    assert {Path(mask.file).parents[1].name for mask in first} == {"kernels"}
    assert again == ()
    assert more
    before = {mask.place: mask for mask in first}
    assert all(set(mask.seen) >= set(before[mask.place].seen) for mask in more if mask.place in before)


def test_campaign_keeps_the_outcomes_of_all_cases(campaign: Callable[..., Results]) -> None:
    statistics = campaign("unified", setup=Setup("unified"), max_cases=20).statistics
    (store,) = (mask for mask in statistics.masks if mask.kind == "store" and mask.kernel.endswith("_2d"))
    assert "mixed" in store.seen
    assert "all false" not in store.seen  # each program of a grid has a row
    together = merged([statistics, statistics])
    assert together is not None
    assert together.masks == statistics.masks
    assert f"of {len(statistics.masks)} masks seen" in text_of(render(statistics))


@pytest.mark.slow
def test_crash_of_a_worker_keeps_earlier_outcomes(tmp_path: Path) -> None:
    target = tmp_path / "dies.py"
    target.write_text(
        "import os\nfrom fuzz_attn.kernels.unified_attention import unified_attention as healthy\n\n"
        "def unified_attention(q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table, **others):\n"
        "    if len(seqused_k) > 2:\n        os._exit(1)\n"
        "    healthy(q=q, k=k, v=v, out=out, cu_seqlens_q=cu_seqlens_q, seqused_k=seqused_k,\n"
        "            softmax_scale=softmax_scale, block_table=block_table, **others)\n"
    )
    setup = Setup(f"{target}:unified_attention")
    outcome = Results()
    Campaign(Plan(setup, 0, 1, 1, None, 20, tmp_path / "run", tmp_path / "found"), outcome).run()
    assert outcome.failure is not None
    assert outcome.failure.verdict.kind == "crash"
    assert outcome.statistics.deaths
    assert any("mixed" in mask.seen for mask in outcome.statistics.masks)


def test_cases_outside_of_the_simulator_are_reported(campaign: Callable[..., Results]) -> None:
    statistics = campaign("unified_attention", setup=Setup(f"{BEYOND}:unified_attention"), max_cases=3).statistics
    assert "none: only the simulator records masks" in text_of(render(statistics))
    partly = msgspec.structs.replace(statistics, masks=(STORE,))
    assert "1 lacking (1 never mixed), without the cases that" in text_of(render(partly), 200)


def test_run_writes_a_file_and_the_command_lists_its_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = [
        "run",
        "--target",
        "unified",
        "--max-cases",
        "20",
        "--seed",
        "1",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "mask coverage" in done.output
    (file,) = tmp_path.rglob("coverage.json")
    assert file.name in done.output
    found = json.loads(file.read_text())
    assert found["schema"] == kernel_coverage.SCHEMA
    (target,) = found["targets"]
    assert (target["target"], target["backend"], target["cases"]) == ("unified", "simulator", 20)
    assert "masks" not in json.loads((file.parent / "summary.json").read_text())
    listed = [CliRunner().invoke(main, ["coverage", str(place)]) for place in (file, file.parent)]
    assert [result.exit_code for result in listed] == [0, 0]
    assert listed[0].output == listed[1].output
    assert "kernels/common/query_blocks.py\nline  kernel " in listed[0].output
    for mask, _, because in mask_gaps.gaps(kernel_coverage.load(file)[0].masks, "unified"):
        assert f"{mask.kernel}  " in listed[0].output
        assert f"  {because or mask.text}\n" in listed[0].output


def test_listing_has_line_kernel_kind_outcomes_and_source(tmp_path: Path) -> None:
    second = changed(STORE, ordinal=1, seen=())
    complete = changed(STORE, line=9, seen=OUTCOMES)
    place = kernel_coverage.save(
        [TargetCoverage("mine", "simulator", "no `f`", 1, (STORE, second, complete))], tmp_path
    )
    assert CliRunner().invoke(main, ["coverage", str(place)]).output == (
        "Mask coverage of mine, 1 case\n"
        "1 of 3 masks seen all true, all false and mixed; 2 lacking (2 never mixed)\n"
        "Incomplete: some cases ran outside of the simulator, which records the masks (no `f`).\n"
        "\n"
        "k.py\n"
        "line  kernel  kind     missing           source\n"
        "   7  kernel  store    all false, mixed  tl.store(x, y, mask=z)\n"
        "   7  kernel  store 2  not reached       tl.store(x, y, mask=z)\n"
    )


def test_backend_without_masks_is_named(tmp_path: Path) -> None:
    place = kernel_coverage.save([TargetCoverage("mine", "interpreter", "", 5, ())], tmp_path)
    assert "No masks from interpreter" in CliRunner().invoke(main, ["coverage", str(place)]).output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no coverage of a run"),
        ('{"schema": 2, "targets": []}', "is no coverage of a run: Expected `int` <= 1"),
        ('{"schema": 1, "targets": [], "more": 1}', "is no coverage of a run: Object contains unknown field `more`"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / kernel_coverage.FILE_NAME).write_text(text)
    with pytest.raises(CoverageError, match=message):
        kernel_coverage.load(tmp_path)
    result = CliRunner().invoke(main, ["coverage", str(tmp_path)])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)


def test_masks_of_statistics_survive_json() -> None:
    statistics = Statistics(target="mine", masks=(STORE,))
    assert msgspec.json.decode(msgspec.json.encode(statistics), type=Statistics) == statistics


def test_kernels_of_other_families_are_not_recorded() -> None:
    case = AttentionCase(sequences=(Sequence(1, 3), Sequence(1, 20)))
    with IsolatedWorker(Setup("unified")) as worker:
        alone, compared = (worker.judge(Order(case, relation)) for relation in (None, "other_family"))
    assert {mask.kernel for mask in alone.masks} == {"kernel_unified_attention_2d"}
    assert compared.verdict.passed
    assert {mask.kernel for mask in compared.masks} <= {"kernel_unified_attention_2d"}
