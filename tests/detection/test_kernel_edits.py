"""Single edits of the kernels, each a bug: found, shrunk, saved and replayed.

Each edit is made in a copy of kernels/, imported under another name, and fuzzed as a target of its own.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuzz_attn.campaign import Campaign, Plan
from fuzz_attn.messages import Setup
from fuzz_attn.replay import replay

KERNELS = Path(__file__).parents[2] / "kernels"
MAX_SECONDS = 120.0


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file, and what replaces it."""

    name: str
    file: str
    before: str
    after: str


EDITS = (
    Edit("causal_or_equal", "masks.py", "mask = key[None, :] < causal_limit", "mask = key[None, :] <= causal_limit"),
    Edit("window_too_long", "masks.py", "key[None, :] < window)", "key[None, :] <= window)"),
    Edit("window_too_short", "masks.py", "key[None, :] < window)", "key[None, :] < window - 1)"),
    Edit(
        "scales_swapped",
        "query_blocks.py",
        "k_scale = load_scale(k_scale_ptr)\n        v_scale = load_scale(v_scale_ptr)",
        "k_scale = load_scale(v_scale_ptr)\n        v_scale = load_scale(k_scale_ptr)",
    ),
    Edit(
        "value_tail_unmasked",
        "query_blocks.py",
        "mask=key_mask[:, None] & dim_mask[None, :]",
        "mask=dim_mask[None, :]",
    ),
    Edit("denominator_not_rescaled", "softmax.py", "new_sum = row_sum * alpha + ", "new_sum = row_sum + "),
    Edit("sink_in_every_segment", "query_blocks.py", "if segment == 0:", "if segment >= 0:"),
    Edit(
        "head_mapping_swapped",
        "query_blocks.py",
        "query = first_query + row // NUM_QUERIES_PER_KV\n"
        "    head = kv_head * NUM_QUERIES_PER_KV + row % NUM_QUERIES_PER_KV",
        "query = first_query + row % NUM_QUERIES_PER_KV\n"
        "    head = kv_head * NUM_QUERIES_PER_KV + row // NUM_QUERIES_PER_KV",
    ),
    Edit("store_beyond_head", "unified_2d.py", "mask=row_mask[:, None] & dim_mask[None, :]", "mask=row_mask[:, None]"),
)

TARGET = """
from fuzz_attn.targets import Target, built_in
from edited_kernels.unified_attention import unified_attention

healthy = built_in("unified")
edited = Target(name="edited", call=unified_attention, domain=healthy.domain, model=healthy.model)
"""


def edited_target(edit: Edit, folder: Path) -> str:
    """Write the edited kernels and a target over them into a folder; return how to name it."""
    package = folder / "edited_kernels"
    shutil.copytree(KERNELS, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / edit.file).read_text()
    found = text.count(edit.before)
    assert found == 1, f"{edit.name}: its anchor occurs {found} times in {edit.file}"
    (package / edit.file).write_text(text.replace(edit.before, edit.after))
    for path in package.glob("*.py"):
        path.write_text(path.read_text().replace("fuzz_attn.kernels", "edited_kernels"))
    (folder / "edited.py").write_text(TARGET)
    return f"{folder / 'edited.py'}:edited"


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_is_found_shrunk_saved_and_replayed(edit: Edit, tmp_path: Path) -> None:
    spec = edited_target(edit, tmp_path)
    plan = Plan(Setup(spec), 0, 1, 0, MAX_SECONDS, None, tmp_path / "run", tmp_path / "counterexamples")
    outcome = Campaign(plan).run()
    assert outcome.failure is not None, f"not found in {outcome.statistics.cases} cases"
    assert outcome.path is not None
    case = outcome.failure.case
    assert len(case.sequences) <= 2
    assert case.total_keys <= 64
    assert [entry.status for entry in replay((outcome.path,))] == ["FAILED"]
    assert [entry.status for entry in replay((outcome.path,), target="unified")] == ["FIXED"]
