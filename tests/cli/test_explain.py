"""``fuzz-attn explain`` on a target without a Triton kernel: it needs calls only."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from click.testing import CliRunner

from fuzz_attn import counterexamples
from fuzz_attn.cli.main import main

FAILURE = Path(__file__).parents[1] / "counterexamples" / "unified" / "window_too_long.json"


def test_explain_names_the_key_and_draws_a_picture(spec: Callable[[str], str], tmp_path: Path) -> None:
    picture = tmp_path / "why.svg"
    result = CliRunner().invoke(
        main, ["explain", str(FAILURE), "--target", spec("window_one_too_long"), "--svg", str(picture)]
    )
    words = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert "Why: window" in words
    assert "attends key 0: hidden by the window of 1 (distance 1, one too far)" in words
    shown = " ".join("".join(ElementTree.parse(picture).getroot().itertext()).split())
    assert "hidden by the window of 1" in shown


def test_a_case_that_passes_has_nothing_to_explain() -> None:
    result = CliRunner().invoke(main, ["explain", str(FAILURE)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert words.startswith("PASSES unified The case passes now. When it was saved, it failed: oracle (")
    assert "the case passes, so there is nothing to explain" in words
    assert "FAILED" not in words


def test_an_untrusted_target_is_not_imported(tmp_path: Path) -> None:
    found = msgspec.structs.replace(counterexamples.load(FAILURE), target="elsewhere.py:f")
    path = counterexamples.save(found, tmp_path)
    result = CliRunner().invoke(main, ["explain", str(path)])
    assert result.exit_code == 2
    assert "--trust" in result.stderr
