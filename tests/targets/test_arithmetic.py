"""What a target rounds is read from the lowered kernels, unless the target states it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import fuzz_attn
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.aspects import FEATURES_OF
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.orders import Order
from fuzz_attn.mutation.edited_kernels import target_with, target_with_seeded_bug
from fuzz_attn.mutation.seeded_bugs import Edit, SeededBug
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relation_launches import other_family
from fuzz_attn.targets.arithmetic import ArithmeticReader, readings
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target
from fuzz_attn.ttir.ir import Location
from fuzz_attn.ttir.kernel_arithmetic import Dot, KernelArithmetic, Kind, Normalisation, Operand, Rounding

TABLES = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"


def _case(q: str, kv: str = "", out: str = "", family: Family = "unified") -> AttentionCase:
    dtypes = DTypes(q, kv or q, out or q)  # type: ignore[arg-type]  # names of types
    return AttentionCase(family=family, sequences=(Sequence(1, 20),), heads=HeadLayout(head_size=16), dtypes=dtypes)


FLOAT32, FLOAT16, BFLOAT16 = _case("float32"), _case("float16"), _case("bfloat16")
HALF_OVER_FP8, ALL_FP8 = _case("float16", "float8_e4m3fn"), _case("float8_e4m3fn", "float8_e4m3fn", "bfloat16")


@pytest.fixture
def in_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Our unified attention without input_precision, which states nothing of how it rounds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    target = target_with_seeded_bug(TABLES, "dots_in_tf32", "unified")
    return dataclasses.replace(target, rounding=None)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Target]:
    """Return a function that returns our unified attention with edited text, which states nothing of how it rounds."""

    def with_edit(file: str, anchor: str, replacement: str) -> Target:
        bug = SeededBug(("unified",), "wrong", "shown", (Edit(file, anchor, replacement),), name="edited")
        return dataclasses.replace(target_with(bug, "unified", tmp_path), rounding=None)

    return with_edit


def _roundings(notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return what notes say of roundings; that our kernels divide last is told of all of them."""
    return tuple(note for note in notes if not note.startswith("Its kernels divide by the softmax denominator once"))


def test_what_the_lowered_kernels_say_is_allowed_and_told_once(in_tf32: Target) -> None:
    judge = CaseJudge(in_tf32, SimulatorBackend())
    assert not _roundings(judge.judge(Order(BFLOAT16)).notes)
    first, second = judge.judge(Order(FLOAT32)), judge.judge(Order(FLOAT32))
    assert first.verdict.passed, first.verdict.message
    assert second.verdict.passed
    (note,) = _roundings(first.notes)
    assert note.startswith("Its kernels multiply float32 in dots as 'tf32' at ")
    assert note.endswith("so the bounds allow it; rounding.input_precision = 'ieee' in a binding forbids it.")
    assert not second.notes


@pytest.mark.parametrize("where", ["binding", "target"])
def test_a_target_that_states_its_precision_is_held_to_it(where: str, in_tf32: Target) -> None:
    if where == "target":
        target = dataclasses.replace(in_tf32, rounding=RoundingModel())
    else:
        target = dataclasses.replace(in_tf32, binding={"rounding": {"input_precision": "ieee"}})
    answer = CaseJudge(target, SimulatorBackend()).judge(Order(FLOAT32))
    assert (answer.verdict.property_name, answer.verdict.kind) == ("oracle", "mismatch")
    assert not _roundings(answer.notes)


@pytest.mark.parametrize(
    ("lowered", "expected"),
    [
        ((), "ieee"),
        (("ieee",), "ieee"),
        (("tf32x3", "ieee"), "tf32x3"),
        (("tf32x3", "tf32"), "tf32"),
        (("new",), "ieee"),
    ],
)
def test_the_coarsest_precision_counts(lowered: tuple[str, ...], expected: str) -> None:
    reader = ArithmeticReader(dataclasses.replace(load_target("unified"), rounding=None))
    kernels = {KernelArithmetic(tuple(Dot(precision=name) for name in lowered))}
    assert reader.target_for(kernels, FLOAT32.dtypes).rounding_model.input_precision == expected


HALF, BRAIN, SINGLE, FP8 = "f16", "bf16", "f32", "f8E4M3FN"


def _kernel(
    q: str = HALF,
    kv: str = HALF,
    *,
    query: tuple[str, ...] = (),
    scaled: bool = True,
    weights: tuple[str, ...] = (),
    total: str = "f32",
) -> KernelArithmetic:
    """Return a kernel that loads q and K in these types and rounds scaled q and P."""

    def rounded(names: tuple[str, ...]) -> tuple[Rounding, ...]:
        return tuple(Rounding(name, Location("kernel.py", line)) for line, name in enumerate(names, 1))

    keys = Operand(HALF, (kv,), 1, clear=True, roundings=rounded((HALF,) * (kv == FP8)))
    queries = Operand(HALF, (q,), 0, scaled=bool(query) and scaled, roundings=rounded(query), clear=True)
    products = Operand(HALF, exponential=True, roundings=rounded(weights), clear=True)
    return KernelArithmetic((Dot(queries, keys, "f32", ""), Dot(products, keys, total, "")))


@pytest.mark.parametrize(
    ("case", "kernel", "taken", "told"),
    [
        (FLOAT16, _kernel(weights=(HALF,)), {}, {}),
        (FLOAT16, _kernel(query=(HALF,)), {"scaled_query": "query"}, {}),
        (FLOAT16, _kernel(query=(BRAIN,)), {}, {"scaled_query": "bfloat16"}),
        (FLOAT16, _kernel(query=(HALF, HALF)), {}, {}),
        (FLOAT16, _kernel(query=(BRAIN,), scaled=False), {}, {"query": "bfloat16"}),
        (HALF_OVER_FP8, _kernel(HALF, FP8, query=(FP8,), scaled=False), {}, {"query": "cache"}),
        (FLOAT16, _kernel(weights=(BRAIN,)), {}, {"probability": "bfloat16"}),
        (FLOAT16, _kernel(weights=(FP8,)), {}, {"probability": "float8_e4m3fn"}),
        (FLOAT16, _kernel(weights=(HALF, FP8)), {}, {}),
        (FLOAT16, _kernel(total="f16"), {"accumulate": "float16"}, {}),
        (BFLOAT16, _kernel(BRAIN, BRAIN, weights=(HALF,)), {}, {}),
        (BFLOAT16, _kernel(BRAIN, BRAIN, total="f16"), {}, {"accumulate": "float16"}),
        (BFLOAT16, _kernel(query=(HALF,), weights=(FP8,), total="f16"), {}, {}),
        (FLOAT32, _kernel(SINGLE, SINGLE, weights=(BRAIN,)), {}, {"probability": "bfloat16"}),
        (HALF_OVER_FP8, _kernel(HALF, FP8, weights=(FP8,)), {}, {"probability": "float8_e4m3fn"}),
        (HALF_OVER_FP8, _kernel(HALF, "i8", weights=(HALF,)), {"rounds_dequantised": False}, {}),
        (ALL_FP8, _kernel(FP8, FP8, weights=(FP8,)), {"probability": "float8_e4m3fn"}, {}),
        (ALL_FP8, _kernel(FP8, FP8, query=(BRAIN,), weights=(HALF,)), {"scaled_query": "query"}, {}),
    ],
)
def test_what_is_read_and_what_the_bounds_take_of_it(
    case: AttentionCase, kernel: KernelArithmetic, taken: dict[str, object], told: dict[str, object]
) -> None:
    found = list(readings({kernel}, case.dtypes))
    assert {each.name: each.value for each in found if each.taken} == taken
    assert {each.name: each.value for each in found if not each.taken} == told


def test_nothing_is_read_where_an_operand_is_not_followed() -> None:
    scores, output = _kernel(query=(HALF,), weights=(FP8,)).dots
    unclear = Operand(HALF, ("f16",), 0, scaled=True, roundings=scores.left.roundings)
    kernel = KernelArithmetic((Dot(unclear, scores.right, "f32"), output), Normalisation("last"))
    assert not list(readings({kernel}, FLOAT16.dtypes))


def test_a_query_that_is_not_told_from_keys_is_not_read() -> None:
    scores, output = _kernel(query=(HALF,)).dots
    kernel = KernelArithmetic((Dot(scores.left, scores.left, "f32"), output), Normalisation("last"))
    assert not list(readings({kernel}, FLOAT16.dtypes))


def _normalising(kind: Kind, file: str = "/one/kernels/kernel.py", q: str = HALF) -> KernelArithmetic:
    dots = _kernel(q, q).dots if kind in ("", "last", "later") else ()
    return KernelArithmetic(dots, Normalisation(kind, Location(file, 7)))


@pytest.mark.parametrize(
    ("kernels", "last"),
    [
        ((_normalising("last"),), True),
        ((_normalising("last"), _normalising("nothing")), True),
        ((_normalising("last"), _normalising("later"), _normalising("merging")), True),
        ((_normalising("later"), _normalising("merging")), True),
        ((_normalising("later"), _normalising("merging", "/one/merges/other.py")), True),
        ((), False),
        ((_normalising(""),), False),
        ((_normalising("last"), _normalising("")), False),
        ((_normalising("nothing"), _normalising("merging")), False),
        ((_normalising("later"),), False),
        ((_normalising("later"), _normalising("merging", "/two/kernels/kernel.py")), False),
        ((_normalising("last", q=BRAIN),), False),
        ((_normalising("last", q=BRAIN), _normalising("last")), True),
    ],
)
def test_that_all_kernels_divide_last_must_be_said_of_each(kernels: tuple[KernelArithmetic, ...], last: bool) -> None:
    found = [each for each in readings(set(kernels), FLOAT16.dtypes) if each.name == "normalises_last"]
    assert bool(found) == last
    reader = ArithmeticReader(dataclasses.replace(load_target("unified"), rounding=None))
    assert reader.target_for(set(kernels), FLOAT16.dtypes).rounding_model.normalises_last == last


def test_a_binding_overrules_that_kernels_divide_last() -> None:
    target = dataclasses.replace(load_target("unified"), rounding=None)
    for value in (False, True):
        stated = dataclasses.replace(target, binding={"rounding": {"normalises_last": value}})
        read = ArithmeticReader(stated).target_for({_normalising("last")}, FLOAT16.dtypes)
        assert read.rounding_model.normalises_last == value


def test_where_kernels_divide_last_is_told_with_how_to_overrule_it() -> None:
    reader = ArithmeticReader(dataclasses.replace(load_target("unified"), rounding=None))
    reader.target_for({_normalising("last")}, FLOAT16.dtypes)
    (note,) = reader.new_notes()
    assert note == (
        "Its kernels divide by the softmax denominator once, after all sums, at /one/kernels/kernel.py:7 as Triton "
        "lowered them, so sums that are exact in any order must be exact; rounding.normalises_last = False in a "
        "binding overrules it."
    )


FILE = "common/query_blocks.py"
SCORE = 'score = factors.score * tl.dot(q_tile, k_tile, input_precision="ieee")'
SCALED_QUERY = 'score = tl.dot((q_tile * factors.score).to(q_tile.dtype), k_tile, input_precision="ieee")'


def _judged(target: Target, case: AttentionCase) -> tuple[bool, tuple[str, ...]]:
    answer = CaseJudge(target, SimulatorBackend()).judge(Order(case))
    return answer.verdict.passed, _roundings(answer.notes)


def test_a_query_scaled_in_its_own_type_is_allowed_and_told(edited: Callable[..., Target]) -> None:
    target = edited(FILE, SCORE, SCALED_QUERY)
    passed, (note,) = _judged(target, BFLOAT16)
    assert passed
    assert note.startswith("Its kernels round scaled q to bfloat16 before its dot with K at ")
    assert note.endswith("so the bounds allow it; rounding.scaled_query = 'float32' in a binding forbids it.")
    stated = dataclasses.replace(target, binding={"rounding": {"scaled_query": "float32"}})
    assert not _judged(stated, BFLOAT16)[1]


def test_weights_in_fp8_are_told_and_not_allowed(edited: Callable[..., Target]) -> None:
    target = edited(FILE, "tl.dot(weights.to(PV_DTYPE", "tl.dot(weights.to(tl.float8e4nv).to(PV_DTYPE")
    passed, (note,) = _judged(target, FLOAT16)
    assert not passed
    assert note.startswith("Its kernels round P to float8_e4m3fn before its dot with V at ")
    assert note.endswith(
        "which is coarser than the types that they are given, so the bounds do not allow it; "
        "rounding.probability = 'float8_e4m3fn' in a binding declares it."
    )
    stated = dataclasses.replace(target, binding={"rounding": {"probability": "float8_e4m3fn"}})
    assert _judged(stated, FLOAT16) == (True, ())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_our_own_kernels_read_as_what_they_promise(family: Family) -> None:
    target = dataclasses.replace(load_target(family), rounding=None)
    names = ("float32", "float16", "bfloat16")
    pairs = [(name, name) for name in names]
    pairs += [(name, "float8_e4m3fn") for name in names if "fp8_kv" in FEATURES_OF[family]]
    pairs += [("float8_e4m3fn", "float8_e4m3fn")] * (family == "unified")
    judge = CaseJudge(target, SimulatorBackend())
    for q, kv in pairs:
        answer = judge.judge(Order(_case(q, kv, "bfloat16" if q.startswith("float8") else q, family)))
        assert (answer.verdict.passed, _roundings(answer.notes)) == (True, ())
        kernels = judge.backend.arithmetic()
        dots = [dot for kernel in kernels for dot in kernel.dots]
        assert len([dot for dot in dots if dot.left.clear and dot.right.clear]) > 1
        found = readings(kernels, DTypes(q, kv))  # type: ignore[arg-type]  # names of types
        splits = family in ("mla_decode", "token_decode")  # they divide in each split
        last = {} if splits else {"normalises_last": True}
        assert {each.name: each.value for each in found} == last


def test_kernels_of_the_preflight_are_not_read() -> None:
    """Their dots have no exponential, so nothing would be concluded of any target."""
    backend = SimulatorBackend()
    backend.preflight()
    assert not backend.arithmetic()


def test_kernels_of_other_targets_that_a_relation_launches_are_not_read() -> None:
    """Else a target in torch would be read as our own kernels are."""
    name = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"
    case = AttentionCase((Sequence(1, 20),), heads=HeadLayout(head_size=16))
    experiment = Experiment(case, load_target(f"{name}:unified_attention"), SimulatorBackend())
    assert not other_family(experiment).launch.error
    assert not experiment.backend.arithmetic()
