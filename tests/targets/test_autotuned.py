"""The configurations of the kernels that a target may launch are known once it is loaded."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import triton

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.domain import Domain
from fuzz_attn.errors import TargetError
from fuzz_attn.targets.built_in import BUILT_IN_NAMES, built_in
from fuzz_attn.targets.loading import configurations_of, load_target
from fuzz_attn.ttir.triton_compat import configurations_in

FOLDER = Path(__file__).parents[1] / "sample_targets"


@triton.heuristics({"EXACT": lambda arguments: True})
@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32, 64)], key=[])
@triton.jit
def tuned_kernel(out_ptr, BLOCK, EXACT):  # type: ignore[no-untyped-def]
    pass


kernels = ModuleType("kernels")
kernels.tuned = tuned_kernel  # type: ignore[attr-defined]
table = {"kernel": tuned_kernel}


def launch() -> None:
    tuned_kernel[1](None)


def through_a_module() -> object:
    return [kernels.tuned for _ in range(1)]


def through_a_table() -> object:
    return table["kernel"]


def inner() -> Callable[[], None]:
    """Return a function that knows another one as a variable of an outer function."""
    outer = launch

    def call() -> None:
        outer()

    return call


class Launcher:
    """A callable object, as a module of torch is."""

    def __call__(self) -> None:
        launch()


@pytest.mark.parametrize("call", [launch, through_a_module, Launcher(), inner()])
def test_kernels_are_found_through_functions_modules_and_objects(call: object) -> None:
    assert callable(call)
    assert configurations_of(call) == 3


@pytest.mark.parametrize("call", [through_a_table, len, lambda: None])
def test_others_have_one_configuration(call: object) -> None:
    assert callable(call)
    assert configurations_of(call) == 1


def test_only_an_autotuner_has_configurations() -> None:
    assert [configurations_in(each) for each in (tuned_kernel, launch, SimpleNamespace(fn=tuned_kernel), 3)] == [
        3,
        0,
        0,
        0,
    ]


def test_a_target_knows_them_unless_its_binding_limits_them() -> None:
    spec = f"{FOLDER / 'autotuned.py'}:decode"
    assert load_target(spec).domain.configurations == 12
    assert load_target(spec, None, Binding(domain={"configurations": 1})).domain.configurations == 1
    assert not any(target.autotuned for name in BUILT_IN_NAMES if (target := built_in(name)) is not None)


def test_options_of_the_compiler_are_those_of_a_configuration() -> None:
    assert Domain().on_gpu().launch_options
    assert not Domain(configurations=12).on_gpu().launch_options
    with pytest.raises(TargetError, match=r"domain\.configurations=0 must be 1 to 1024"):
        load_target(f"{FOLDER / 'autotuned.py'}:decode", None, Binding(domain={"configurations": 0}))
