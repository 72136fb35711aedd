"""The first operation that differs from a healthy kernel: which line it is on, and what is said where there is none."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import save, signed
from fuzz_attn.engine.replay import explanation_of
from fuzz_attn.forensics.first_operation import first_operation
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMED = {
    # a comparison on the edited line, one element of a tile
    "causal_or_equal": ("scores.py", "mask = key[None, :] <= causal_limit[:, None]", "False"),
    # a mask that only the healthy kernel has
    "block_table_read_past_its_row": ("paged_cache.py", "key // BLOCK_SIZE).to(tl.int64)", "mask of the load"),
    # an address relative to its tensor
    "sink_of_the_kv_head": ("softmax.py", "tl.load(sinks_ptr + head", r"element 0 of `scores.sinks_ptr` at \[1\]"),
    # the second of two launches
    "merge_in_base_2": ("segments.py", "denominator = tl.sum(segm_expsum * weight, axis=0)", "product"),
    # an argument of the launch
    "values_strided_like_keys": ("paged_cache.py", "slot * cache.stride_slot", "is 16, in the healthy kernel 17"),
    # another number of programs
    "last_blocks_never_run": ("unified_attention.py", "kernel_unified_attention_3d", "only in the healthy kernel"),
}
UNNAMED = {
    "itself": "no operation differs: (\\d+) of \\1 values in the kernel's text can be compared, and are the same",
    "another": "the kernels are too different: only \\d of \\d+ operations have a partner in the healthy kernel",
    "unlaunched": "this kernel was not launched, so there is nothing to compare",
    "refused": "the healthy kernel fails this case too: the target raised ValueError: this kernel supports",
}


@pytest.fixture(scope="module")
def answers(run_program: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Return what one process says of all of them: the simulator is not the backend of this process."""
    program, cases = HERE / "first_operation_program.py", HERE / "seeded_bug_cases.json"
    done = run_program(program, cases, *NAMED, *UNNAMED)
    assert done.returncode == 0, done.stderr
    return {row["bug"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("bug", NAMED)
def test_the_operation_is_on_the_edited_line_or_the_first_that_uses_it(
    bug: str, answers: dict[str, dict[str, Any]]
) -> None:
    found, (file, source, words) = answers[bug], NAMED[bug]
    assert Path(found["site"].rpartition(":")[0]).name == file
    assert source in found["source"]
    assert re.search(words, found["words"])


@pytest.mark.parametrize("pair", UNNAMED)
def test_where_no_operation_is_named_one_sentence_says_why(pair: str, answers: dict[str, dict[str, Any]]) -> None:
    found = answers[pair]
    assert "site" not in found
    assert re.match(UNNAMED[pair], found["words"]), found["words"]


def test_the_line_of_an_edit_that_the_value_comes_from_is_named(answers: dict[str, dict[str, Any]]) -> None:
    lines = answers["causal_or_equal"]
    assert [line.rpartition("/")[2].partition(":")[0] for line in lines["own_lines"]] == ["scores.py"]
    arguments = answers["values_strided_like_keys"]["notes"]
    assert any("`values.stride_slot` 16, in the healthy kernel 17" in note for note in arguments)


def test_only_the_simulator_records_operations() -> None:
    experiment = Experiment(AttentionCase((Sequence(1),)), load_target("unified"), InterpreterBackend())
    found = first_operation(experiment, None, load_target("unified"))
    assert found.words == "only the simulator records operations, and this ran with backend='interpreter'"


@pytest.mark.slow
def test_two_versions_of_a_file_are_compared_each_with_its_own_modules(tmp_path: Path) -> None:
    """Both files and what they import have the same names, as two checkouts of one project have."""
    kernel = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    limit = "position = seq_len - query_len + index"
    assert f"{limit} + 1" in kernel
    for folder, text in (("new", kernel), ("old", kernel.replace(f"{limit} + 1", limit))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "its_kernel.py").write_text(text, encoding="utf-8")
        (tmp_path / folder / "version.py").write_text("from its_kernel import my_attention\n", encoding="utf-8")
    case = AttentionCase((Sequence(2),))
    verdict = Verdict("oracle", "mismatch", "16 of 32 elements wrong")
    failure = signed(f"{tmp_path}/new/version.py:my_attention", "unified", None, case, verdict)
    stated = msgspec.structs.replace(failure, binding=Binding(layout="rows"))
    file = save(stated, tmp_path)
    found = explanation_of(file, backend="simulator", healthy=f"{tmp_path}/old/version.py:my_attention").explanation
    assert found.operation is not None
    assert found.operation.source == "visible = (keys < seq_len) & (keys <= position)", found.operation.words
    assert found.operation.site.startswith(f"{tmp_path}/new/its_kernel.py:")
    assert [line.partition(": ")[2].partition("  #")[0] for line in found.operation.own_lines] == [f"{limit} + 1"]
