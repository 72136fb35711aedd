"""The reports: a failure, a summary, the progress of a run."""

import io
import os
import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.counterexamples import Counterexample, Step
from fuzz_attn.engine.events import WHOLE_RUN, CaseJudged, CaseNotCompiled, Finished, RoundCompiled
from fuzz_attn.engine.listeners.statistics import PLAIN, CountedRefusal, Statistics, Tally, merged
from fuzz_attn.engine.orders import Order
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Element, Refusal, Verdict
from fuzz_attn.report import failure, summary
from fuzz_attn.report.printing import count, show, text_of, whole

SMALL = AttentionCase(
    sequences=(Sequence(2, 3),),
    heads=HeadLayout(head_size=4),
    pages=PageLayout(block_size=4),
    softmax_scale=0.5,
    window=2,
)

WRONG = Verdict(
    "oracle",
    "mismatch",
    "2 of 8 elements wrong, worst 12.3 times the bound",
    ratio=12.3,
    where="tail_rows",
    wrong=2,
    elements=8,
    worst=(
        Element(1, 0, 2, 0, 1, actual="nan", expected="-0.18180808424949646", bound="1.5171321086883978e-07"),
        Element(1, 0, 3, 0, 1, actual="0.546875", expected="0.5416977405548096", bound="0.0005003"),
    ),
)

REPORT = """\
FAILED some.package.attention:unified_attention
oracle (mismatch): 2 of 8 elements wrong, worst 12.3 times the bound [tail rows]
Unconfirmed: it was seen, and did not run again
The case
 sequence 0  2 query tokens, 3 in the cache before
 heads       1 query head on 1 KV head (group of 1), head size 4
 types       q, cache and output float32
 pages       4 slots each
 scale       softmax_scale 0.5, 1 / sqrt(head size)
 mask        causal, window of 2 keys
 numbers     scores normal (spread 1), values normal, seed 0
 launch      the launcher's choice
 relation    determinism: a second launch on the same input gives the same bits
Worst elements
 sequence  query  head  column    actual      expected     bound
        0      1     0       2       nan  -0.181808084  1.52e-07
        0      1     0       3  0.546875   0.541697741    0.0005
Replay it
 {program} replay 'tests/counter examples/x.json' --trust"""


@pytest.fixture
def found() -> Counterexample:
    return counterexamples.signed("some.package.attention:unified_attention", "unified", "determinism", SMALL, WRONG)


def test_failure_report(found: Counterexample) -> None:
    text = failure.plain_text(found, Path("tests/counter examples/x.json"))
    assert text == REPORT.format(program=failure.program())


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"confirmation": "confirmed"}, ["Confirmed in a fresh process, not shrunk fully"]),
        (
            {"confirmation": "confirmed", "shrunk": True, "trigger": ("window", "more than 2 keys")},
            ["Confirmed in a fresh process", "Needs: window, more than 2 keys"],
        ),
        (
            {"confirmation": "confirmed", "shrunk": True, "trigger": ("more than 1 keys", "more than 16 keys")},
            ["Confirmed in a fresh process", "Needs: at least 2 keys, more than 16 keys"],
        ),
        (
            {
                "confirmation": "confirmed",
                "shrunk": True,
                "trigger": ("large numbers in dead keys", "NaN or Inf in dead values", "large numbers in dead values"),
            },
            ["Confirmed in a fresh process", "Needs: large numbers in dead keys, NaN or Inf in dead values"],
        ),
        (
            {"confirmation": "state", "sequence": (Step(SMALL), Step(SMALL))},
            ["State: it fails only after 2 cases before it in the same process, which the file contains"],
        ),
        ({"confirmation": "flaky", "failed": 3, "tries": 12}, ["Flaky: it failed 3 times of 12"]),
    ],
)
def test_the_report_says_how_a_failure_was_confirmed(
    found: Counterexample, fields: dict[str, object], lines: list[str]
) -> None:
    text = failure.plain_text(msgspec.structs.replace(found, **fields)).splitlines()
    assert text[2 : text.index("The case")] == lines


def test_the_report_prints_a_hint(found: Counterexample) -> None:
    hint = "It passes with rounding.scores = 'query', and so do similar launches."
    verdict = msgspec.structs.replace(found.verdict, hint=hint)
    assert hint in failure.plain_text(msgspec.structs.replace(found, verdict=verdict)).splitlines()


def test_the_summary_counts_known_failures_apart() -> None:
    text = text_of(summary.render(shard(known=("a.json",)), everything=True))
    assert " failures             0, and 1 known" in text.splitlines()


def test_few_slopes_biases_and_sinks_are_listed() -> None:
    biased = replace(
        SMALL,
        heads=HeadLayout(2, 2, 4),
        alibi=AlibiRecipe(),
        qq_bias=QQBiasRecipe("diagonal"),
        sinks=SinkRecipe(1.0, 0.0),
    )
    assert operation_of(biased).numbers(biased) == [
        ("slopes", "0.25, 0.0625, 0.015625, 0.00390625"),
        ("bias values", "0, -inf; -inf, 0"),
        ("sink values", "1, 1, 1, 1"),
    ]
    many = replace(biased, heads=HeadLayout(1, 17, 4), sequences=(Sequence(5),))
    assert operation_of(many).numbers(many) == []
    text = failure.plain_text(counterexamples.signed("mine", "unified", None, biased, WRONG))
    assert " sink values  1, 1, 1, 1\n" in text


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_paths_and_commands_are_never_wrapped(width: int, found: Counterexample) -> None:
    path = Path("/".join(["a-rather-long-folder-name"] * 8)) / "x.json"
    lines = text_of(failure.render(found, path), width).splitlines()
    assert f" {failure.program()} replay {path} --trust" in lines
    assert "FAILED some.package.attention:unified_attention" in lines
    assert all(len(line) <= width or "replay" in line or "FAILED" in line for line in lines)


def test_replay_command_is_found_by_the_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("fuzz-attn")
    monkeypatch.setenv("PATH", str(script.parent))
    assert failure.program() == "fuzz-attn"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert failure.program() == shlex.quote(str(script))
    monkeypatch.chdir(script.parents[2])
    assert failure.program() == os.path.relpath(script)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert failure.program() == f"{tmp_path / 'python'} -m fuzz_attn.cli.main"


def shard(**changes: object) -> Statistics:
    fields = {
        "target": "unified",
        "backend": "interpreter",
        "seed": 9,
        "seconds": 10.0,
        "cases": 100,
        "served": 9,
        "compile_keys": {1: 60, 2: 40},
        "features": {"window": 30, PLAIN: 20, "sinks": 40},
        "relations": {"determinism": 5, "page_permutation": 7},
        "ratios": {"float32": 0.25, "bfloat16": 0.5},
    }
    return Statistics(**{**fields, **changes})  # type: ignore[arg-type] # a table of any fields


def test_summary_counts_compiled_kernels() -> None:
    assert "kernels compiled" not in text_of(summary.render(shard(), everything=True))
    compiled = text_of(summary.render(shard(cases=100, shrinking=20, kernels_compiled=10), everything=True))
    assert "kernels compiled     10, 12.0 cases each" in compiled
    together = merged([shard(cases=100, kernels_compiled=10, kernels_loaded=5), shard(cases=50, kernels_loaded=10)])
    assert together is not None
    assert "10, 15 more from Triton's cache, 6.0 cases each" in text_of(summary.render(together, everything=True))


def test_the_summary_of_a_second_night_says_how_few_kernels_it_compiled() -> None:
    tally = Tally()
    for number, (compiled, loaded) in enumerate(((2, 0), (0, 30), (1, 7))):
        tally(RoundCompiled(WHOLE_RUN, number, compiled, loaded, failed=0, complete=True, seconds=1.0))
    tally(CaseJudged(0, "search", Order(SMALL), (Verdict("oracle"),), 7.0, compiled=1, loaded=39, compiling=1.0))
    tally(CaseNotCompiled(0))
    tally(Finished(0, 10.0, waited=2.5))
    both = merged([msgspec.structs.replace(tally.statistics(), seconds=10.0), shard(cases=40)])
    assert both is not None
    text = " ".join(text_of(summary.render(both, everything=True)).split())
    assert (
        "kernels 41: 4 compiled (3 ahead of their cases, 1 while judging), 37 by earlier runs; 1.0 cases each" in text
    )
    assert (
        "workers judged 30.0% of the time, waited 12.5% for kernels and compiled 5.0%; "
        "1 case dropped that needed another kernel"
    ) in text


def test_statistics_of_shards_merge() -> None:
    other = shard(
        cases=50, seconds=12.0, compile_keys={2: 50}, ratios={"float32": 0.75}, deaths=2, counterexamples=("b",)
    )
    together = merged([shard(counterexamples=("a", "b")), other])
    assert together is not None
    assert (together.shards, together.cases, together.seconds, together.deaths) == (2, 150, 12.0, 2)
    assert together.compile_keys == {1: 60, 2: 90}
    assert together.features == {"window": 60, PLAIN: 40, "sinks": 80}
    assert together.ratios == {"float32": 0.75, "bfloat16": 0.5}
    assert together.counterexamples == ("a", "b")
    assert merged([]) is None


def test_summary_without_failures() -> None:
    assert text_of(summary.render(shard(shards=2, shims=("a_shim",)), everything=True)).splitlines() == [
        "Summary of unified",
        " backend              interpreter (shims: a_shim)",
        " seed                 9, split over 2 shards",
        " cases                100 in 10 s, 10.0 cases/s",
        " compile keys         2, 50.0 cases each",
        " failures             0",
        " features             sinks 40%, window 30%, none of these 20%",
        " like serving         9 cases (9%), in the sizes of the model and in the batch",
        " relations            12 cases: page permutation 7, determinism 5",
        " largest err / bound  bfloat16 0.500, float32 0.250",
        " mask coverage        none: only the simulator records masks, and only those of Triton kernels",
    ]


def test_how_a_run_went_is_for_those_who_ask() -> None:
    rows = [line.split("  ")[0].strip() for line in text_of(summary.render(shard())).splitlines()[1:]]
    assert rows == ["backend", "seed", "cases", "compile keys", "failures", "mask coverage"]


def test_summary_with_everything_that_can_go_wrong() -> None:
    text = text_of(
        summary.render(
            shard(shrinking=1, deaths=3, unfinished=2, unfinished_seconds=14.2, counterexamples=("x",), ratios={}),
            everything=True,
        )
    )
    for line in (
        " shrinking            1 attempt",
        " worker deaths        3",
        " unfinished           2 launches had run for 14 s at the time limit; journal-*.json holds the cases",
        " failures             1",
        " largest err / bound  none measured",
    ):
        assert line in text.splitlines()


def test_summary_of_no_cases() -> None:
    assert text_of(summary.render(shard(cases=0))).splitlines()[-1] == " failures      0"


@pytest.mark.parametrize(
    ("statistics", "time_left", "line"),
    [
        (Statistics("unified"), 60.0, "loading the target"),
        (shard(seconds=5.0), None, "100 cases, 20.0 cases/s, 2 compile keys, 0 failures"),
        (
            shard(
                cases=1,
                seconds=1.0,
                compile_keys={5: 1},
                refusals=(CountedRefusal(Refusal("host", "ValueError", "no"), 2),),
            ),
            3.4,
            "1 case, 1.0 cases/s, 1 compile key, 0 failures, 2 refused, 3 s left",
        ),
        (
            shard(shrinking_now=1, shrinking=7, counterexamples=("x", "y")),
            -2.0,
            "100 cases, 10.0 cases/s, 2 compile keys, 2 failures, shrinking (7 attempts), 0 s left",
        ),
    ],
)
def test_progress_line(statistics: Statistics, time_left: float | None, line: str) -> None:
    assert summary.progress_line(statistics, time_left) == line


@pytest.mark.parametrize("terminal", [True, False])
def test_colours_are_for_terminals(terminal: bool, found: Counterexample) -> None:
    out = io.StringIO()
    show(Console(file=out, force_terminal=terminal, width=80, color_system="standard"), failure.render(found))
    assert ("\x1b[" in out.getvalue()) == terminal
    assert terminal or all(line == line.rstrip() for line in out.getvalue().splitlines())


def test_nouns_are_counted() -> None:
    assert [count(number, "case") for number in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]
    assert count(2, "launch", "launches") == "2 launches"
    assert text_of(whole("x" * 300), 80) == "x" * 300
