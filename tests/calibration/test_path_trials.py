"""Optional arguments that no role names: what another value does on easy cases, and what a binding states of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from rich.console import Console

from fuzz_attn.binding.binding import Binding, binding_of, read_binding
from fuzz_attn.calibration import calibrate
from fuzz_attn.case.domain import Domain
from fuzz_attn.cli.targets import print_binding
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.errors import BindingError, TargetError
from fuzz_attn.targets.loading import load_target

FILE: Final = Path(__file__).parents[1] / "sample_targets" / "with_flags.py"


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials end on a machine that is busy, too."""
    monkeypatch.setattr(calibrate, "SECONDS", 300.0)


def ready_of(name: str, stated: dict[str, Any] | Binding | None = None) -> Ready:
    return _ready(name) if stated is None else load(_setup(name, binding_of(stated))).ready()


@cache
def _ready(name: str) -> Ready:
    """Return what is found without a stated binding; to try all optional arguments takes two seconds."""
    return load(_setup(name, None)).ready()


def _setup(name: str, binding: Binding | None) -> Setup:
    return Setup(f"{FILE}:{name}", backend="interpreter", binding=binding)


def test_values_that_change_nothing_are_drawn_and_the_others_are_listed() -> None:
    ready = ready_of("decode")
    assert isinstance(ready.domain, Domain)
    assert ready.domain.arguments == (("wide_loads", (True,)), ("order", ("backward",)))
    unknown, changes, refused = ready.unexercised
    assert changes == "absolute=True changes the result: a convention or feature that no role names"
    assert unknown == "chunk=-1"
    assert refused.startswith("use_unknown=True is refused: raised ValueError: use_unknown needs another GPU at ")


def test_an_argument_that_changes_some_problems_only_is_no_path() -> None:
    ready = ready_of("decode_with_slopes")
    assert isinstance(ready.domain, Domain)
    assert {"alibi", "empty_sequences"} <= ready.domain.features
    assert ready.domain.arguments == (("wide_loads", (True,)),)
    assert ready.unexercised == (
        "no_far_slopes=True changes the result: a convention or feature that no role names",
        "leave_parts=True leaves an output unwritten: a convention that no role names",
    )


@pytest.mark.slow
def test_bind_lists_paths_and_what_is_not_exercised(capsys: pytest.CaptureFixture[str]) -> None:
    print_binding(ready_of("decode"), Console(width=200))
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["wide_loads", "a path, also True", "the same result on easy cases"] in lines
    assert ["order", "a path, also 'backward'", "the same result on easy cases"] in lines
    assert ["chunk", "left at its default"] in lines
    assert ["optional arguments", "wide_loads=True, order='backward'"] in lines
    assert ["not exercised", "chunk=-1"] in lines


def test_a_whole_binding_states_its_paths_and_nothing_is_tried() -> None:
    whole = ready_of("decode").binding
    assert whole.whole
    assert whole.paths == {"wide_loads": (True,), "order": ("backward",)}
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Binding) == whole
    ready = ready_of("decode", whole)
    assert isinstance(ready.domain, Domain)
    assert ready.domain.arguments == (("wide_loads", (True,)), ("order", ("backward",)))
    assert ready.unexercised == ("absolute=False, chunk=-1, use_unknown=False",)


@pytest.mark.slow
def test_a_user_states_paths_in_a_file_also_those_that_change_the_result(tmp_path: Path) -> None:
    path = tmp_path / "binding.toml"
    path.write_text('paths = {absolute = [false, true], chunk = [-1, 64, "None"]}\n')
    ready = ready_of("decode", read_binding(path))
    assert isinstance(ready.domain, Domain)
    expected = {"absolute": (True,), "chunk": (64, None), "wide_loads": (True,), "order": ("backward",)}
    assert dict(ready.domain.arguments) == expected
    assert [words.partition("=")[0] for words in ready.unexercised] == ["use_unknown"]


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"paths": {"wide_loads": []}}, BindingError, "paths.wide_loads=[] must have 1 to 16 values"),
        ({"paths": {"wide_loads": [*range(17)]}}, BindingError, "must have 1 to 16 values"),
        ({"paths": {f"p{n}": [1] for n in range(9)}}, BindingError, "must name at most 8 arguments"),
        ({"paths": {"wide_loads": ["tma", "tma"]}}, TargetError, "must have different values, and 1 equals true"),
        ({"paths": {"wide": [True]}}, TargetError, "paths.wide must be a parameter with a default: wide_loads, order"),
        ({"paths": {"query": [True]}}, TargetError, "parameter 'query' must be in one of roles, constants, tensors"),
        ({"paths": {"chunk": [1]}, "constants": {"chunk": 1}}, BindingError, "'chunk' must be in one of roles, const"),
    ],
)
def test_wrong_paths_are_one_line(stated: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        load_target(f"{FILE}:decode", None, binding_of(stated))
