"""Markdown and annotations for the page of a job: what a target says cannot be markup or a command there."""

from __future__ import annotations

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.counterexamples import signed
from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report import run_documents

HOSTILE = "a | <img src=x>\n::error::no `code`, [link](x) 100%\x1b[0m"


def report_of(case: AttentionCase, status: str = "open", message: str = HOSTILE) -> RunReport:
    found = signed("mine.py:f", "unified", None, case, Verdict("oracle", "nan", message))
    known = {"status": status, "reference": "#7", "because": "it waits"} if status == "known" else {}
    found = msgspec.structs.replace(found, **known)
    statistics = Statistics("mine.py:f", "simulator", 7, 2, 3.0, 30)
    return RunReport(statistics, (FoundFailure(found, "c/a b.json", 1.0, 5, done=True),), ("a *note*",))


def test_a_message_stays_in_its_cell(case: AttentionCase) -> None:
    text = run_documents.markdown_of_run([report_of(case)], 1)
    lines = text.splitlines()
    assert lines[0] == "## fuzz-attn: 1 failure"
    assert "30 cases in 3 s (10.0 cases/s), 0 compile keys, seed 7, on simulator." in lines
    (row,) = (line for line in lines if line.startswith("| oracle"))
    assert row.replace("\\|", "").count("|") == 6
    assert "\\<img src=x\\> ::error::no \\`code\\`, \\[link\\](x) 100%\\\\x1b\\[0m" in row
    assert "- a \\*note\\*" in lines


def test_a_run_without_failures_says_so() -> None:
    assert run_documents.markdown_of_run([RunReport(Statistics("t", cases=3))], 0).startswith(
        "## fuzz-attn: 0 failures\n"
    )
    nothing = run_documents.markdown_of_run([RunReport(Statistics("t"))], 2)
    assert nothing.startswith("## fuzz-attn: exit status 2\n")
    assert "- **Error:** no case was judged" in nothing


def test_an_annotation_is_one_line(case: AttentionCase) -> None:
    (line,) = run_documents.annotations_of_run([report_of(case)])
    place = "::error file=c/a b.json,title=mine.py%3Af%3A oracle (nan)::"
    assert line == place + "a | <img src=x>%0A::error::no `code`, [link](x) 100%25\\x1b[0m"


def test_a_known_failure_is_a_notice(case: AttentionCase) -> None:
    (line,) = run_documents.annotations_of_run([report_of(case, "known")])
    assert line == "::notice file=c/a b.json,title=known%3A mine.py%3Af%3A oracle (nan)::#7"
    assert run_documents.markdown_of_run([report_of(case, "known")], 0).startswith("## fuzz-attn: 0 failures\n")


def test_an_error_is_annotated() -> None:
    (line,) = run_documents.annotations_of_run([RunReport(Statistics("t"))])
    assert line.startswith("::error title=fuzz-attn%3A t::no case was judged")


def test_a_command_to_copy_is_one_word_for_each_name(case: AttentionCase) -> None:
    report = report_of(case)
    (found,) = report.failures
    hostile = msgspec.structs.replace(found, path="a b\n# heading; rm -rf `x` | y.json")
    text = run_documents.markdown_of_run([msgspec.structs.replace(report, failures=(hostile,))], 1)
    (row,) = (line for line in text.splitlines() if line.startswith("| oracle"))
    assert "replay 'a b # heading; rm -rf x \\| y.json' --trust` |" in row
    assert not [line for line in text.splitlines() if line.startswith("# heading")]


def test_a_message_makes_no_link(case: AttentionCase) -> None:
    text = run_documents.markdown_of_run(
        [report_of(case, message="see https://evil.example and www.evil.example/x\u202e")], 1
    )
    assert "https://" not in text
    assert r"https\://evil.example and www\.evil.example/x\\u202e" in text
