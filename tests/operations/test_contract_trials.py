"""Contract trials: their forms, which cases become one, and what is found of targets that take them wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

import fuzz_attn
from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.call import OneDevice, UnusualCall
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.contract_trial import TRAIT, ContractTrial, Form, OtherType
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe
from fuzz_attn.counterexamples import Counterexample, signed
from fuzz_attn.counterexamples import load as load_file
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.failures.triage import class_of, contracts_of
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.contract_draws import SHARES, ContractDraws
from fuzz_attn.operations.merge_states.state_case import StateCase, StateDomain
from fuzz_attn.operations.registry import load_target, operation_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.outcome import cause

SAMPLES = Path(__file__).parents[1] / "sample_targets"
BREAKING = SAMPLES / "breaking_contracts.py"
LENGTHS = Sequence(2, 45), Sequence(1, 23), Sequence(3, 30)
CASE = AttentionCase(LENGTHS, heads=HeadLayout(2, 2, 32), alibi=AlibiRecipe(), softmax_scale=0.25)
DECODE = AttentionCase((Sequence(1, 45), Sequence(1, 23)), family="paged", softmax_scale=0.25)
ALIKE = AttentionCase((Sequence(1, 23),) * 3, family="paged", softmax_scale=0.25)
STATES, WRITE = StateCase(2, 3, 2), WriteCase(5)
DENSE = {f"contract strides of {name}" for name in ("seq_lens", "query_start_loc", "block_table")}
INT64 = ContractTrial("type", "block_table", "int64")

WRONG: dict[str, tuple[Any, ContractTrial, str]] = {
    "strided_lengths": (DECODE, ContractTrial("stepped", "seq_lens"), "strides of seq_lens"),
    "table_of_int64": (CASE, INT64, "type of block_table"),
    "slopes_of_float64": (CASE, ContractTrial("type", "alibi_slopes", "float64"), "type of alibi_slopes"),
    "unaligned_starts": (CASE, ContractTrial("offset", "query_start_loc"), "address of query_start_loc"),
    "table_elsewhere": (CASE, ContractTrial("device", "block_table"), "device of block_table"),
    "overwritten_queries": (CASE, ContractTrial("in_place", "query"), "output in place of query"),
    "garbage_without_sequences": (
        msgspec.structs.replace(CASE, sequences=(), padded_tokens=2),
        ContractTrial("empty"),
        "an empty batch",
    ),
    "merge_early": (STATES, ContractTrial("in_place", "second_output"), "output in place of second_output"),
    "write_slots_of_int64": (WRITE, ContractTrial("type", "slot_mapping", "int32"), "type of slot_mapping"),
}
RIGHT = {"unified_attention": CASE, "refusing": CASE, "merge": STATES, "write": WRITE}
FORMS: tuple[tuple[Form, OtherType], ...] = (
    *((form, "") for form in ("stepped", "expanded", "swapped", "offset", "device", "in_place")),
    *(("type", to) for to in ("wider", "int32", "int64", "uint8", "float16", "float64")),
)


def on_trial(case: Any, trial: ContractTrial) -> Any:
    return msgspec.structs.replace(case, contract=trial)


def test_a_file_holds_a_trial_of_each_operation() -> None:
    for case in (CASE, STATES, WRITE):
        trial = on_trial(case, INT64)
        found = signed("fake", "unified", None, trial, Verdict("contract", "mismatch", "wrong", ratio=3.0))
        assert msgspec.json.decode(msgspec.json.encode(found), type=Counterexample) == found
        operation = operation_of(trial)
        assert operation.features_of(trial)[0] == "contract"
        assert f"{TRAIT}type of block_table" in operation.traits_of(trial)
        assert ("contract, type of block_table", "int64") in operation.described(trial)
        assert len(dict(operation.described(trial))) == len(operation.described(case)) + 1


# What a target gets, and what is taken back


class Seen:
    """A callable that keeps the tensors that it gets, and writes ``number`` to the first elements of ``out``."""

    def __init__(self, number: float = 3.0) -> None:
        self.given: dict[str, torch.Tensor] = {}
        self._number = number

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.given = {"x": x, "out": out}
        out[0] = self._number
        return out


def called(trial: ContractTrial, x: torch.Tensor, out: torch.Tensor, seen: Seen | None = None) -> Seen:
    """Call with a trial of x, which has the role of queries and lengths, or of out."""
    seen = seen or Seen()
    roles = {"query": "x", "seq_lens": "x", "key_cache": "x", "output": "out"}
    call = UnusualCall(seen, trial, roles, [OutputTensor(out, 0)])
    assert call(x=x, out=out) is out
    assert not call.beyond
    return seen


def test_each_form_holds_the_same_numbers() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    expected: dict[Form, tuple[int, ...]] = {"stepped": (24, 8, 2), "swapped": (4, 8, 1), "offset": (12, 4, 1)}
    for form, strides in expected.items():
        given = called(ContractTrial(form, "query"), x, torch.zeros(2)).given["x"]
        assert given.stride() == strides
        assert given.equal(x)
        assert given.data_ptr() != x.data_ptr()
        assert (given.data_ptr() % 16 == 4) == (form == "offset")
    lengths = torch.tensor([5, 5, 5])
    given = called(ContractTrial("expanded", "seq_lens"), lengths, torch.zeros(2)).given["x"]
    assert given.stride() == (0,)
    assert given.equal(lengths)


@pytest.mark.parametrize("lengths", [[5, 6], [5, 6, 7]])
def test_lengths_that_are_read_as_dense_are_others(lengths: list[int]) -> None:
    given = called(ContractTrial("stepped", "seq_lens"), torch.tensor(lengths), torch.zeros(2)).given["x"]
    dense = given.as_strided(given.shape, (1,)).tolist()
    assert set(dense) <= set(lengths), "a launcher may take them without a word"
    assert dense != lengths


@pytest.mark.parametrize(
    ("tensor", "to", "dtype"),
    [
        (torch.tensor([1, 2], dtype=torch.int32), "int64", torch.int64),
        (torch.tensor([1, 2], dtype=torch.int32), "int32", None),
        (torch.tensor([1, 2**40]), "int32", None),
        (torch.tensor([0.5, 2.0]), "float16", torch.float16),
        (torch.tensor([0.5, 2.0**-30]), "float16", None),
        (torch.tensor([0.5, float("nan")], dtype=torch.bfloat16), "wider", torch.float32),
        (torch.tensor([True, False]), "uint8", torch.uint8),
        (torch.tensor([1.0]).to(torch.float8_e4m3fn), "wider", None),
        (torch.tensor([1.0]), "int32", None),
    ],
)
def test_another_type_holds_the_numbers_exactly(tensor: torch.Tensor, to: OtherType, dtype: torch.dtype | None) -> None:
    given = called(ContractTrial("type", "key_cache", to), tensor, torch.zeros(2)).given["x"]
    assert given.dtype == (dtype or tensor.dtype)
    assert given.double().nan_to_num(7.0).equal(tensor.double().nan_to_num(7.0))


def test_what_is_written_to_an_output_is_taken_back() -> None:
    for trial in (ContractTrial("stepped", "output"), ContractTrial("type", "output", "wider")):
        out = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(torch.bfloat16)
        called(trial, torch.zeros(2), out)
        assert out.tolist() == [[3.0, 3.0], [3.0, 4.0]]


def test_an_output_in_place_leaves_the_input_alone() -> None:
    x, out = torch.zeros(2, 2), torch.full((2, 2), 9.0)
    seen = called(ContractTrial("in_place", "query"), x, out, Seen(0.0))
    assert seen.given["x"] is seen.given["out"]
    assert out.tolist() == [[0.0, 0.0], [0.0, 0.0]]  # also what has the bits of the input
    assert not x.any()
    called(ContractTrial("in_place", "query"), x, torch.zeros(2, 3))  # of another shape: as usual


def test_a_write_around_an_argument_is_noticed() -> None:
    def beside(x: torch.Tensor) -> None:
        x.as_strided((1,), (1,), x.storage_offset() + 1).fill_(9.0)

    call = UnusualCall(beside, ContractTrial("stepped", "query"), {"query": "x"}, [])
    call(x=torch.zeros(3))
    assert call.beyond == ("x",)


def test_tensors_of_two_devices_are_refused_together() -> None:
    index, table = torch.tensor([0, 1]), torch.ones(4, device="meta")
    with OneDevice(), pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        table[index]
    with OneDevice():
        assert (table + table).is_meta


# Which cases become a trial


def draws(domain: Any, *roles: str, on_gpu: bool = False) -> ContractDraws:
    binding = Binding(roles={role: role for role in roles})
    return ContractDraws(operation_of(domain), domain, binding, Random(1), on_gpu=on_gpu)


def trials_of(drawn: ContractDraws, case: Any, count: int) -> Counter[ContractTrial]:
    found = (drawn.trial_of(case) for _ in range(count))
    return Counter(trial.contract for trial in found if trial is not None)


def test_each_trial_is_tried_before_any_is_tried_again() -> None:
    roles = ("query", "output", "key_cache", "value_cache", "block_table", "seq_lens", "sinks", "alibi_slopes")
    drawn = draws(Domain(), *roles)
    found = trials_of(drawn, CASE, round(12 / SHARES[0]))
    assert {trial.role for trial in found} == {"query", "key_cache", "block_table", "seq_lens", "alibi_slopes"}
    assert set(found.values()) == {1}
    assert INT64 in found
    assert ContractTrial("in_place", "query") in found
    assert sum(trials_of(drawn, CASE, 40_000).values()) == pytest.approx(40_000 * SHARES[-1], rel=0.5)


def test_few_indices_wait_for_a_case_that_tells() -> None:
    one_page = AttentionCase((Sequence(1, 3), Sequence(1, 2)))
    assert not trials_of(draws(Domain(), "block_table", "seq_lens"), one_page, 2000)


def test_forms_that_ordinary_cases_have_are_no_trials() -> None:
    swapped = ContractTrial("swapped", "query")
    assert swapped not in trials_of(draws(Domain(), "query"), CASE, 2000)
    dense = msgspec.structs.replace(Domain(), features=frozenset({"alibi"}))
    assert swapped in trials_of(draws(dense, "query"), CASE, 2000)
    assert ContractTrial("empty") in trials_of(draws(dense, "query"), CASE, 2000)
    assert ContractTrial("empty") not in trials_of(draws(Domain(), "query"), CASE, 2000)


def test_numbers_of_16_bits_are_not_wider_where_kernels_multiply_them() -> None:
    half = msgspec.structs.replace(CASE, dtypes=DTypes("float16", "float16", "float16"))
    for case, roles in ((half, set()), (CASE, {"query", "key_cache"})):
        found = trials_of(draws(Domain(), "query", "key_cache"), case, 4000)
        assert {trial.role for trial in found if trial.to == "wider"} == roles
    merges = draws(StateDomain(), "first_output")
    assert any(trial.to == "wider" for trial in trials_of(merges, StateCase(2, 3, 2, dtype="float16"), 4000))


def test_numbers_of_wider_types_are_no_trial_on_a_gpu() -> None:
    found = trials_of(draws(Domain(), "query", on_gpu=True), CASE, 20_000)
    assert found
    assert not any(trial.to == "wider" for trial in found)


# What is found


@pytest.fixture(scope="module")
def judged() -> Iterator[Callable[..., Any]]:
    """Returns the answer of a target to a case."""
    workers: dict[str, IsolatedWorker] = {}

    def judge(target: str, case: Any, **asked: Any) -> Any:
        if target not in workers:
            workers[target] = IsolatedWorker(Setup(target, backend="simulator")).__enter__()
        return workers[target].judge(Order(case, **asked))

    yield judge
    for worker in workers.values():
        worker.__exit__(None, None, None)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_taken_wrongly_fails_and_is_named(name: str, judged: Callable[..., Any]) -> None:
    case, trial, subject = WRONG[name]
    verdict = judged(f"{BREAKING}:{name}", on_trial(case, trial)).verdict
    assert verdict.property_name == "contract"
    assert class_of(verdict) == f"contract {subject}"
    assert "is accepted, and" in verdict.message
    if trial.form != "empty":
        assert judged(f"{BREAKING}:{name}", case).verdict.passed
    explanation = judged(f"{BREAKING}:{name}", on_trial(case, trial), forensics=True).explanation
    assert explanation.cause == f"contract: {subject}"


def test_equal_lengths_may_be_expanded(judged: Callable[..., Any]) -> None:
    verdict = judged(f"{BREAKING}:strided_lengths", on_trial(ALIKE, ContractTrial("expanded", "seq_lens"))).verdict
    assert class_of(verdict) == "contract strides of seq_lens"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_or_refused_passes(name: str, judged: Callable[..., Any]) -> None:
    case, target = RIGHT[name], f"{BREAKING}:{name}"
    verdicts = [
        judged(target, on_trial(case, ContractTrial(form, role, to))).verdict
        for role in operation_of(case).tensor_roles
        for form, to in FORMS
    ]
    assert not [verdict for verdict in verdicts if not verdict.passed]
    assert any(verdict.message.startswith("refused: ") for verdict in verdicts) or name in ("merge", "write")


def test_a_wrong_number_is_no_failure_of_a_contract(judged: Callable[..., Any]) -> None:
    target, case = f"{SAMPLES}/torch_attention.py:window_one_too_long", msgspec.structs.replace(CASE, window=3)
    assert not judged(target, case).verdict.passed
    verdict = judged(target, on_trial(case, ContractTrial("offset", "query"))).verdict
    assert verdict.passed
    assert verdict.message == "it fails with the usual arguments too"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["unified", "merge_states", "cache_write", "paged", "context", "extend"])
def test_our_own_launchers_are_right_or_refuse(family: str, judged: Callable[..., Any]) -> None:
    target = load_target(family, None, None)
    operation = operation_of(target.domain)
    easy = operation.easy_case(target.domain)
    for role in operation.tensor_roles:
        for form, to in FORMS:
            verdict = judged(family, on_trial(easy, ContractTrial(form, role, to))).verdict
            assert verdict.passed, (role, form, to, verdict.message)


def test_the_rounding_of_other_types_is_not_that_of_the_target(judged: Callable[..., Any]) -> None:
    half = msgspec.structs.replace(CASE, dtypes=DTypes("float16", "float16", "float16"))
    for trial in (ContractTrial("type", "query", "wider"), ContractTrial("type", "key_cache", "wider")):
        assert judged(f"{BREAKING}:unified_attention", on_trial(half, trial)).verdict.passed
        assert judged(f"{BREAKING}:unified_attention", half).verdict.passed


def test_a_run_finds_one_failure_that_replays_and_is_fixed_in_a_right_target(tmp_path: Path) -> None:
    report = fuzz_attn.verify(f"{BREAKING}:table_of_int64", max_cases=120, max_time=60, workers=1, seed=2, out=tmp_path)
    (row,) = report.failures
    found = row.counterexample
    assert found.case.contract == INT64
    assert found.confirmation == "confirmed"
    assert len(found.case.sequences) == 1
    assert f"{TRAIT}type of block_table" in found.trigger
    assert report.statistics.contracts["failed"] > 0
    (again,) = replay((Path(row.path),))
    assert not again.verdict.passed
    (fixed,) = replay((Path(row.path),), target=f"{BREAKING}:refusing")
    assert fixed.verdict.passed


@pytest.mark.slow
def test_arguments_that_are_read_as_dense_are_one_row_that_names_them(tmp_path: Path) -> None:
    target = f"{BREAKING}:dense_metadata"
    report = fuzz_attn.verify(target, max_cases=300, max_time=300, workers=1, seed=1, out=tmp_path)
    (row,) = report.failures
    assert set(contracts_of(row.counterexample)) == DENSE
    assert load_file(Path(row.path)) == row.counterexample, "the file names them too"
    assert cause(row).count("strides of ") == len(DENSE)


@pytest.mark.parametrize("target", [f"{BREAKING}:refusing", f"{BREAKING}:merge"])
def test_a_binding_ends_all_trials(target: str) -> None:
    for stated, tried in ((None, True), (Binding(contracts=False), False)):
        assert load(Setup(target, backend="interpreter", binding=stated)).ready().contracts is tried
