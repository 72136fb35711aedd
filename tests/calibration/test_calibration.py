"""Calibration: easy cases settle conventions, and tell a wrong binding from a defect of the target."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding, binding_of, read_binding
from fuzz_attn.calibration.easy_cases import plain_case, sizes
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.errors import BindingError, FuzzAttnError

FOLDER: Final = Path(__file__).parents[1] / "sample_targets"
FILE: Final = FOLDER / "invented_names.py"
STATED: Final = FOLDER / "invented_names.toml"
ROLES: Final = read_binding(STATED).roles
WHOLE: Final[dict[str, Any]] = {
    "roles": ROLES,
    "layout": "heads_first",
    "window": "left",
    "scales": "float",
    "scale_direction": "divide",
    "fp8": "typed",
}
"""All that there is to say of ``ragged_paged``."""


def ready_of(name: str, stated: dict[str, Any] | Binding) -> Ready:
    """Return what a worker says of a launcher of the sample file once it is calibrated."""
    return load(Setup(f"{FILE}:{name}", backend="interpreter", binding=binding_of(stated))).ready()


def test_names_alone_are_stated_in_less_than_ten_lines() -> None:
    assert len(STATED.read_text().splitlines()) < 10
    ready = ready_of("ragged_paged", read_binding(STATED))
    binding = ready.binding
    found = (binding.layout, binding.output, binding.window, binding.scales, binding.scale_direction, binding.fp8)
    assert found == ("heads_first", "returned", "left", "float", "divide", "typed")
    assert binding.whole
    assert not ready.published
    assert ready.reasons["asks"] == "stated"
    assert ready.reasons["sinks"] == "name"
    assert ready.notes == (
        "Caches are [num_blocks, num_kv_heads, block_size, head_size] (HND) (calibrated).",
        "A window counts the keys before a row's own (calibrated).",
        "Fp8 caches have torch's fp8 types (calibrated).",
        "Scales divide (calibrated).",
    )


def test_what_is_stated_is_not_calibrated() -> None:
    assert ready_of("ragged_paged", WHOLE).notes == ()


def test_whole_binding_is_taken_as_it_is() -> None:
    wrong = msgspec.structs.replace(ready_of("ragged_paged", WHOLE).binding, window="keys")
    assert ready_of("ragged_paged", wrong).binding == wrong


def test_published_interface_is_not_calibrated() -> None:
    ready = load(Setup("unified", backend="interpreter")).ready()
    assert ready.published
    assert not any("calibrated" in note for note in ready.notes)


def swapped(first: str, second: str, roles: dict[str, str] = ROLES) -> dict[str, str]:
    """Return the roles with those of two parameters exchanged."""
    return {**roles, first: roles[second], second: roles[first]}


SCALES: Final = {**ROLES, "k_scale": "k_scale", "v_scale": "v_scale"}
WRONG: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "keys and values swapped": (
        "ragged_paged",
        {"roles": swapped("key_pages", "value_pages")},
        "right where key_pages is the key_cache, value_pages is the value_cache",
    ),
    "window one key too long": (
        "ragged_paged",
        {"window": "keys"},
        "says: a window counts keys, a row's own included; but its output is right where a window counts the",
    ),
    "window one key too short": (
        "counts_own",
        {},
        "says: a window counts the keys before a row's own; but its output is right where a window counts keys",
    ),
    "window as a pair": ("ragged_paged", {"window": "pair"}, "right where a window counts the keys before a row's own"),
    "layout of rows": (
        "ragged_paged",
        {"layout": "rows"},
        "right where caches are [num_blocks, num_kv_heads",
    ),
    "split layout": (
        "ragged_paged",
        {"layout": "split"},
        "right where caches are [num_blocks, num_kv_heads",
    ),
    "scales that multiply": ("ragged_paged", {"scale_direction": "multiply"}, "right where scales divide"),
    "scales swapped": (
        "ragged_paged",
        {"roles": swapped("k_scale", "v_scale", SCALES)},
        "right where k_scale is the k_scale, v_scale is the v_scale",
    ),
    "lengths of the context": (
        "ragged_paged",
        {"roles": {**ROLES, "lens": "context_lens"}},
        "right where lens is the seq_lens",
    ),
    "caches as bytes": ("ragged_paged", {"fp8": "bytes"}, "right where fp8 caches have torch's fp8 types"),
    "another value for off": ("ragged_paged", {"off": {"window": 0}}, "right where window is off as -1"),
    "offsets and lengths swapped": (
        "ragged_paged",
        {"roles": swapped("token_offsets", "lens")},
        "right where token_offsets is the query_start_loc, lens is the seq_lens",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_binding_is_named(name: str) -> None:
    launcher, changes, message = WRONG[name]
    with pytest.raises(BindingError, match="is not called as its binding says") as raised:
        ready_of(launcher, WHOLE | changes)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_defect_of_a_target_is_no_wrong_binding() -> None:
    notes = ready_of("half_too_large", WHOLE | {"roles": ROLES}).notes
    assert notes[0] == "The target is wrong on an easy case without any feature, however it is called: a defect of it."


@pytest.mark.parametrize(
    ("launcher", "stated", "message"),
    [
        (
            "half_too_large",
            {"roles": ROLES},
            "is wrong on an easy case with every layout that was tried (it gives",
        ),
        (
            "takes_both",
            {"roles": ROLES, "off": {"window": 0}},
            "fits both window = 'pair' and window = 'keys' on",
        ),
    ],
)
def test_what_no_case_settles_must_be_stated(launcher: str, stated: dict[str, Any], message: str) -> None:
    with pytest.raises(BindingError, match=re.escape(message)):
        ready_of(launcher, stated)


def test_correct_launcher_passes_a_campaign(campaign: Callable[..., Any]) -> None:
    results = campaign("", setup=Setup(f"{FILE}:ragged_paged", binding=read_binding(STATED)), max_cases=60)
    assert results.statistics.cases == 60
    assert not results.failures


def test_counterexample_replays_with_the_binding_that_found_it(campaign: Callable[..., Any], tmp_path: Path) -> None:
    stated = binding_of({"roles": ROLES, "layout": "heads_first", "window": "left"})
    results = campaign("", setup=Setup(f"{FILE}:half_too_large", binding=stated), max_cases=5)
    path = Path(results.failures[0].path)
    saved = counterexamples.load(path).binding
    assert saved is not None
    assert saved.whole
    assert saved.roles["asks"] == "query"
    assert [each.status for each in replay((path,), backend="interpreter", in_process=True)] == ["FAILED"]


DOUBLED = """
import importlib.util, sys
import torch

spec = importlib.util.spec_from_file_location("correct", {path!r})
correct = sys.modules["correct"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(correct)

def my_attention(q, k_cache, v_cache, block_table, query_start_loc, seq_lens, max_query_len, softmax_scale):
    out = torch.empty_like(q)
    options = (softmax_scale, True, (-1, -1), block_table, 0.0, None, None, None)
    longest = int(seq_lens.max())
    correct.unified_attention(q, k_cache, v_cache, out, query_start_loc, max_query_len, seq_lens, longest, *options)
    return {factor} * out
"""
"""A target that is wrong in every case, where the factor is not 1."""


@pytest.mark.slow
def test_a_saved_failure_is_played_where_calibration_fails(campaign: Callable[..., Any], tmp_path: Path) -> None:
    file, path = tmp_path / "doubled.py", str(FOLDER / "torch_attention.py")
    file.write_text(DOUBLED.format(path=path, factor=2))
    setup = Setup(f"{file}:my_attention")
    with pytest.raises(FuzzAttnError, match="is wrong on an easy case with every layout that was tried"):
        campaign("", setup=setup, max_cases=3)
    stated = msgspec.structs.replace(setup, binding=binding_of({"layout": "rows"}))
    (found,) = campaign("", setup=stated, max_cases=3).failures
    again = campaign("", setup=setup, max_cases=3)
    (played,) = again.failures
    assert (played.saved, played.path) == (True, found.path)
    assert any(note.startswith(f"it is called as {found.path} says, because target=") for note in again.notes)
    saved = counterexamples.load(Path(found.path))
    for beside in ({"constants": {"softmax_scale": 1.0}}, {"rounding": {"p": "half"}}, {"domain": {"fp8": False}}):
        counterexamples.overwrite(
            msgspec.structs.replace(saved, binding=binding_of({"layout": "rows", **beside})), Path(found.path)
        )
        with pytest.raises(FuzzAttnError, match="is not used, because it chooses values or what counts as wrong"):
            campaign("", setup=setup, max_cases=3)
    counterexamples.overwrite(saved, Path(found.path))
    file.write_text(DOUBLED.format(path=path, factor=1))
    assert not campaign("", setup=setup, max_cases=3).failures


def test_a_launcher_of_packed_keys_passes_a_campaign_by_its_names(campaign: Callable[..., Any]) -> None:
    launcher = f"{FOLDER / 'varlen_in_torch.py'}:flash_attn_varlen_func"
    results = campaign("", setup=Setup(launcher), max_cases=60)
    assert results.statistics.cases == 60
    assert not results.failures


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_easy_cases_of_all_sizes(family: Family) -> None:
    for domain in (Domain(family), Domain(family, head_sizes=(16, 16))):
        for size in sizes(domain):
            case = plain_case(family, size)
            assert (case.family, case.heads.head_size) == (family, size.head_size)
