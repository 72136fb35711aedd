"""Every counterexample saved in this repository passes."""

from functools import cache
from pathlib import Path

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.engine.replay import Replayed, replay

FOLDER = Path(__file__).parent.parent / "counterexamples"
FILES = tuple(counterexamples.files_in((FOLDER,)))


def test_there_are_counterexamples_to_replay() -> None:
    assert FILES, f"{FOLDER} holds no counterexample"


@cache
def answers() -> dict[Path, Replayed]:
    """Return every file replayed, by one worker for each target."""
    return {replayed.path: replayed for replayed in replay(FILES)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_counterexample_passes(path: Path) -> None:
    replayed = answers()[path]
    assert replayed.verdict.passed, replayed.verdict.message
    assert not replayed.drifted, "the tensors differ from those that the case was saved with"
