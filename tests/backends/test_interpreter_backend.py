"""The interpreter backend: the preflight finds what this Triton computes wrongly, and the shims fix it.

Triton's language is patched while a launch runs, so this file decides nothing about Triton's mode: the suite runs with
TRITON_INTERPRET=1.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from fuzz_attn.backends import backend_named, preflight, shims
from fuzz_attn.backends.interpreter import InterpreterBackend, needed_shims
from fuzz_attn.backends.simulator import SimulatorBackend, check_arithmetic
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, LaunchHints
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.errors import BackendError
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.targets.loading import load_target

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

HALVES = (torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ALL_SHIMS = tuple(shims._SHIMS)


@triton.jit
def cast_kernel(source_ptr, target_ptr, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets).to(target_ptr.dtype.element_ty))


@triton.jit
def binary_kernel(a_ptr, b_ptr, target_ptr, OPERATION: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    if OPERATION == "add":
        result = a + b
    elif OPERATION == "subtract":
        result = a - b
    elif OPERATION == "multiply":
        result = a * b
    elif OPERATION == "maximum":
        result = tl.maximum(a, b)
    elif OPERATION == "less":
        result = (a < b).to(tl.bfloat16)
    else:
        result = tl.where(a == b, a, b)
    tl.store(target_ptr + offsets, result)


@triton.jit
def unary_kernel(a_ptr, target_ptr, OPERATION: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    a = tl.load(a_ptr + offsets)
    result = -a if OPERATION == "negative" else tl.abs(a)
    tl.store(target_ptr + offsets, result)


@triton.jit
def dot_kernel(a_ptr, b_ptr, target_ptr, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places), input_precision="ieee")
    tl.store(target_ptr + places, product)


@contextmanager
def corrected() -> Iterator[None]:
    with np.errstate(all="ignore"), shims.applied(ALL_SHIMS):
        yield


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.zeros(source.shape, dtype=dtype)
    with corrected():
        cast_kernel[(1,)](source, target, SIZE=source.numel())
    return target


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert the same bits; any NaN equals any other."""
    both_nan = actual.float().isnan() & expected.float().isnan()
    different = (bits(actual) != bits(expected)) & ~both_nan
    assert not bool(different.any()), (actual[different][:8], expected[different][:8])


def every(dtype: torch.dtype) -> torch.Tensor:
    """Return every bit pattern of a type."""
    width = 8 * dtype.itemsize
    patterns = torch.arange(1 << width, dtype=torch.int32)
    return patterns.to({8: torch.uint8, 16: torch.int16}[width]).view(dtype)


def hard_floats(dtype: torch.dtype) -> torch.Tensor:
    """Return float32 numbers that are hard to round to a narrow type.

    Every finite one of it, the ties between neighbours, a bit to either side of all these, numbers beyond the largest
    and below the smallest, and NaN, infinities, zeros.
    """
    known = every(dtype).float()
    known = known[known.isfinite()].sort().values
    ties = (known[1:].double() + known[:-1].double()).div(2).float()
    around = torch.cat([known, ties])
    around = torch.cat([around, *(torch.nextafter(around, torch.tensor(end)) for end in (torch.inf, -torch.inf))])
    beyond = torch.finfo(dtype).max * torch.tensor([1.001, 1.02, 1.05, 1.1, 1.5, 2.0])
    tiny = torch.finfo(dtype).smallest_normal * 2.0 ** -torch.arange(0.0, 30.0)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3e38, -3e38])
    numbers = torch.cat([around, beyond, -beyond, tiny, -tiny, special])
    size = 1 << (numbers.numel() - 1).bit_length()
    return torch.cat([numbers, torch.zeros(size - numbers.numel())])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_widen_exactly(dtype: torch.dtype) -> None:
    assert_same(cast(every(dtype), torch.float32), every(dtype).float())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_floats_round_to_halves(dtype: torch.dtype) -> None:
    numbers = hard_floats(dtype)
    assert_same(cast(numbers, dtype), numbers.to(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_survives_a_cast_to_float32_and_back(dtype: torch.dtype) -> None:
    assert_same(cast(cast(every(dtype), torch.float32), dtype), every(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_become_bfloat16(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    numbers = torch.cat([torch.arange(128), torch.tensor([limits.min, limits.max] * 64)]).to(dtype)
    assert_same(cast(numbers, torch.bfloat16), numbers.float().to(torch.bfloat16))


@pytest.mark.parametrize("wide", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_one_byte_types_widen_exactly(dtype: torch.dtype, wide: torch.dtype) -> None:
    assert_same(cast(every(dtype), wide), every(dtype).to(wide))


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_floats_round_to_one_byte_types_and_saturate(dtype: torch.dtype) -> None:
    numbers = hard_floats(dtype)
    largest = torch.finfo(dtype).max
    assert_same(cast(numbers, dtype), numbers.clamp(-largest, largest).to(dtype))


PAIRS = torch.tensor(
    list(itertools.product([1.0, 1.0078125, -3.0, 255.0, 2.0**-130, 3e38, -3e38, torch.inf], repeat=2))
)

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "maximum": torch.maximum,
    "less": torch.lt,
    "where": lambda a, b: torch.where(a == b, a, b),
}


@pytest.mark.parametrize("operation", BINARY)
def test_bfloat16_operations_use_values_and_not_bits(operation: str) -> None:
    a, b = PAIRS.to(torch.bfloat16).T.contiguous()
    actual = torch.zeros_like(a)
    with corrected():
        binary_kernel[(1,)](a, b, actual, OPERATION=operation, SIZE=a.numel())
    assert_same(actual, BINARY[operation](a, b).to(torch.bfloat16))


@pytest.mark.parametrize(("operation", "known"), [("negative", torch.neg), ("absolute", torch.abs)])
def test_bfloat16_operations_on_one_operand(operation: str, known: Any) -> None:
    numbers = every(torch.bfloat16)
    actual = torch.zeros_like(numbers)
    with corrected():
        unary_kernel[(1,)](numbers, actual, OPERATION=operation, SIZE=numbers.numel())
    zero = numbers == 0
    assert not actual[zero].any(), "Triton 3.6 negates 0 as 0 - 0, which has no sign, and later ones give it one"
    assert_same(actual[~zero], known(numbers)[~zero])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_dot_products_use_values_and_not_bits(dtype: torch.dtype) -> None:
    a, b = (torch.arange(256).reshape(16, 16) % modulus - modulus // 2 for modulus in (11, 7))
    actual = torch.zeros((16, 16))
    with corrected():
        dot_kernel[(1,)](a.to(dtype) / 8, b.to(dtype) / 4, actual, SIZE=16)
    assert torch.equal(actual, (a.double() / 8 @ (b.double() / 4)).float())


CONDITIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "and": lambda x, n: (x > 2) & (x < n),
    "or": lambda x, n: (x < 2) | (x > n),
    "not": lambda x, n: ~(x > n),
    "three": lambda x, n: (x > 2) & (x < n) & (x % 2 == 0),
    "mixed": lambda x, n: ((x > 2) & (x < n)) | ~(x < 12),
    "constant": lambda x, n: x > 2,
    "decided": lambda x, n: torch.ones_like(x, dtype=torch.bool),
    "scalar": lambda x, n: (x > 2) & torch.tensor(n > 5),
    "helper": lambda x, n: (x > 2) & (x < n),
}


@triton.jit
def within(x, low, high):
    return (x > low) and (x < high)


@triton.jit
def condition_kernel(target_ptr, n, CONDITION: tl.constexpr, SIZE: tl.constexpr):
    x = tl.arange(0, SIZE)
    if CONDITION == "and":
        result = (x > 2) and (x < n)
    elif CONDITION == "or":
        result = (x < 2) or (x > n)
    elif CONDITION == "not":
        result = not (x > n)
    elif CONDITION == "three":
        result = (x > 2) and (x < n) and (x % 2 == 0)
    elif CONDITION == "mixed":
        result = ((x > 2) and (x < n)) or not (x < 12)
    elif CONDITION == "constant":
        result = (x > 2) and SIZE == 16
    elif CONDITION == "decided":
        result = (SIZE == 16 or (x > 2)) & (x >= 0)
    elif CONDITION == "scalar":
        result = (x > 2) & (n > 5 and not (n < 3))
    else:
        result = within(x, 2, n)
    tl.store(target_ptr + x, result)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("n", [4, 9])
def test_operators_between_blocks_work_on_each_element(condition: str, n: int) -> None:
    actual = torch.zeros(16, dtype=torch.bool)
    with corrected():
        condition_kernel[(1,)](actual, n, CONDITION=condition, SIZE=16)
    assert torch.equal(actual, CONDITIONS[condition](torch.arange(16), n))


OPERATOR_DEFECTS = {
    "3.6": ["operator:and"],
    "3.7": ["operator:and"],
    "3.9": ["operator:and", "mask:scalar"],
}
"""Of Triton's versions that were looked at."""


def test_the_preflight_detects_wrong_operators() -> None:
    defects = list(preflight.operator_defects())
    version = triton.__version__.rpartition(".")[0]
    assert defects == OPERATOR_DEFECTS.get(version, defects)
    with corrected():
        assert not list(preflight.operator_defects())


@triton.jit
def skipping_kernel(slots_ptr, target_ptr, SIZE: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, SIZE)
    mask = (columns < SIZE - 1) & (tl.load(slots_ptr + row) >= 0)
    tl.store(target_ptr + row * SIZE + columns, 1, mask=mask)


def test_a_mask_may_join_the_condition_of_a_scalar() -> None:
    """A kernel that skips some of its rows, as writes to a cache do."""
    target = torch.zeros(3, 4, dtype=torch.int32)
    with corrected():
        skipping_kernel[(3,)](torch.tensor([5, -1, 0]), target, SIZE=4)
    assert target.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]


@pytest.fixture(autouse=True)
def _contained() -> Iterator[None]:
    """Restore Triton's language, which launches without the backend leave patched."""
    with shims.contained():
        yield


def test_a_launch_leaves_the_language_patched_unless_it_is_contained(case: AttentionCase) -> None:
    target, before = load_target("unified"), snapshot()
    with shims.contained():
        target.run(materialise(case))
        assert snapshot() != before, "Triton restores its language by now: shims.contained() can go"
    assert snapshot() == before


def snapshot() -> dict[str, object]:
    """Return every attribute of what the shims patch."""
    places: tuple[Any, ...] = (interpreter, interpreter.InterpreterBuilder, tl, tl.core)
    return {f"{place.__name__}.{name}": id(value) for place in places for name, value in vars(place).items()}


def test_nothing_stays_patched() -> None:
    backend = InterpreterBackend()
    backend.prepare()
    before = snapshot()
    backend.preflight()
    assert snapshot() == before
    with backend.running():
        during = snapshot()
    assert snapshot() == before
    assert {name for name in before if during[name] != before[name]} >= {
        "triton.runtime.interpreter._patch_lang",
        *(["triton.runtime.interpreter._convert_float"] * ("interpreter_float_casts" in backend.preflight())),
    }


def test_nothing_stays_patched_after_an_exception() -> None:
    before = snapshot()
    with pytest.raises(RuntimeError, match="of a kernel"), corrected(), shims.quick_device_calls():
        raise RuntimeError("of a kernel")
    assert snapshot() == before


def test_the_backend_applies_the_shims_that_the_preflight_needs() -> None:
    with np.errstate(all="ignore"):
        found = (*preflight.defects("cpu"), *preflight.operator_defects())
    assert InterpreterBackend().preflight() == shims.needed(found)


DEFECTS = {
    (): (),
    ("cast:float32->bfloat16",): ("interpreter_float_casts",),
    ("add:bfloat16",): ("interpreter_bfloat16_arithmetic",),
    ("dot:bfloat16", "cast:float32->float8_e5m2"): ("interpreter_float_casts", "interpreter_bfloat16_arithmetic"),
    ("operator:and",): ("interpreter_boolean_operators",),
    ("mask:scalar",): ("interpreter_scalar_conditions",),
    ("dot:float32",): (),
}


@pytest.mark.parametrize("defects", DEFECTS, ids=str)
def test_a_shim_is_applied_only_for_its_defects(defects: tuple[str, ...]) -> None:
    assert shims.needed(defects) == DEFECTS[defects]


@pytest.mark.parametrize(
    ("broken", "defect"),
    [
        ("_convert_float", "cast:float32->bfloat16"),
        ("binary_op", "add:float32"),
        ("create_dot", "dot:float16"),
    ],
)
def test_the_preflight_detects_a_broken_interpreter(broken: str, defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place: Any = interpreter if broken == "_convert_float" else interpreter.InterpreterBuilder
    original = getattr(place, broken)

    def off_by_one_bit(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        data = result.data if hasattr(result, "data") and not isinstance(result, np.ndarray) else result
        if data.dtype.kind in "fu" and data.size > 16:
            data.view(f"u{data.dtype.itemsize}")[...] ^= 1
        return result

    monkeypatch.setattr(place, broken, off_by_one_bit)
    with np.errstate(all="ignore"), shims.applied(() if broken == "_convert_float" else ALL_SHIMS[:1]):
        assert defect in set(preflight.defects("cpu"))


def test_arithmetic_that_no_shim_fixes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_dot_is_right", lambda dtype, device: dtype != torch.float32)
    needed_shims.cache_clear()
    with pytest.raises(BackendError, match=r"^backend='interpreter' computes wrongly, .* fixes it: dot:float32$"):
        InterpreterBackend().preflight()


def test_a_simulator_that_computes_wrongly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimulatorBackend()
    with monkeypatch.context() as wrong:
        wrong.setattr(preflight, "_add_is_right", lambda dtype, device: dtype != torch.float16)
        check_arithmetic.cache_clear()
        for _ in range(2):
            with pytest.raises(BackendError, match=r"^backend='simulator' computes wrongly: add:float16$"):
                backend.preflight()
    assert backend.preflight() == ()
    assert not backend.new_masks()
    assert not backend.arithmetic()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["2d", "3d"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quick_device_calls_change_no_bit(path: Any, dtype: Any, case: AttentionCase) -> None:
    changed = replace(
        case, dtypes=DTypes(dtype, dtype, dtype), window=7, sinks=SinkRecipe(), launch=LaunchHints(path=path)
    )
    target, outputs = load_target("unified"), []
    for quick in (True, False):
        tensors = materialise(changed)
        with corrected():
            if quick:
                with shims.quick_device_calls():
                    target.run(tensors)
            else:
                target.run(tensors)
        outputs.append(storage_bytes(tensors.output))
    assert outputs[0].equal(outputs[1])
    assert not outputs[0].equal(storage_bytes(materialise(changed).output))


def test_numpy_agrees_with_torch_on_the_types_that_the_shims_use() -> None:
    for dtype, known in ((torch.bfloat16, ml_dtypes.bfloat16), (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn)):
        widened = bits(every(dtype)).numpy().view(known).astype(np.float32)
        assert_same(torch.from_numpy(widened), every(dtype).float())


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(BackendError, match=r"^backend='gpu' must be one of: auto, simulator, interpreter, cuda$"):
        backend_named("gpu")


LATE = """
import fuzz_attn.kernels.unified_attention
from fuzz_attn.backends import backend_named
from fuzz_attn.errors import BackendError

try:
    backend_named("interpreter").prepare()
except BackendError as error:
    print(error)
"""


def test_a_kernel_that_was_imported_too_early_is_an_error(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE)
    said = run_program(program, without=("TRITON_INTERPRET",))
    assert said.stdout == "backend='interpreter' must be prepared before any kernel is imported\n"
