"""Which failures are one bug: by their class, their trigger, and the poison that reaches the output."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.contract_trial import ContractTrial, Form
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, LaunchHints, PageLayout, Sequence
from fuzz_attn.case.recipes import PoisonRecipe, SinkRecipe
from fuzz_attn.counterexamples import Elsewhere, environment_of
from fuzz_attn.engine.failures.reduction import is_simpler, trigger_of
from fuzz_attn.engine.failures.triage import (
    KnownFailure,
    KnownFailures,
    does_without,
    is_same,
    may_be_together,
    merged,
    trigger_in,
)
from fuzz_attn.engine.orders import Order
from fuzz_attn.oracle.verdict import Kind, Verdict

PLAIN = AttentionCase((Sequence(1, 16),), softmax_scale=0.25)
WINDOW = AttentionCase((Sequence(1, 16),), softmax_scale=0.25, window=4)
FP8 = AttentionCase((Sequence(1, 16),), softmax_scale=0.25, window=4, dtypes=DTypes(out="float8_e4m3fn"))


def failure(
    case: AttentionCase, kind: Kind, trigger: tuple[str, ...], poison: tuple[str, ...] = (), *, complete: bool = True
) -> KnownFailure:
    found = counterexamples.signed("t", "unified", None, case, Verdict("oracle", kind, "wrong", poison=poison))
    return KnownFailure(0, 0, found, "", frozenset(trigger), complete)


@pytest.mark.parametrize(
    ("known", "new", "same"),
    [
        (failure(WINDOW, "nan", ("sliding window",)), failure(WINDOW, "mismatch", ("sliding window",)), True),
        (failure(WINDOW, "nan", ("sliding window",)), failure(PLAIN, "mismatch", ("more than 4 keys",)), False),
        (failure(WINDOW, "nan", ("sliding window",)), failure(WINDOW, "unwritten", ("sliding window",)), False),
        (failure(WINDOW, "nan", ("sliding window",)), failure(FP8, "unwritten", ("fp8 output",)), True),
        (failure(PLAIN, "nan", ("a context",), ("keys",)), failure(PLAIN, "nan", ("sinks",), ("keys",)), True),
        (failure(WINDOW, "nan", ("sliding window", "sinks")), failure(WINDOW, "nan", ("sliding window",)), True),
        (failure(WINDOW, "nan", ("sinks",)), failure(WINDOW, "nan", ("sliding window",)), False),
        (failure(PLAIN, "nan", ("softcap",), ("keys",)), failure(PLAIN, "nan", ("sinks",), ("values",)), False),
    ],
)
def test_two_failures_are_one_bug(known: KnownFailure, new: KnownFailure, same: bool) -> None:
    assert is_same(known, new) is same


def of_contract(form: Form, role: str, **fields: Any) -> KnownFailure:
    trial = ContractTrial(form, role)
    verdict = Verdict("contract", "mismatch", f"{trial.subject}: a form is accepted")
    found = counterexamples.signed("t", "unified", None, replace(PLAIN, contract=trial), verdict)
    usual = {"confirmation": "confirmed", "trigger": (f"contract: {trial.subject}",)}
    found = msgspec.structs.replace(found, **{**usual, **fields})
    return KnownFailure(0, 0, found, f"{form}-{role}.json", trigger_in(found))


MARKED = {"status": "known", "reference": "#7", "because": "callers have dense ones"}
NAMING = {**MARKED, "also": ("contract strides of block_table",)}


@pytest.mark.parametrize(
    ("known", "new", "same"),
    [
        (of_contract("stepped", "seq_lens"), of_contract("stepped", "block_table"), True),
        (of_contract("stepped", "seq_lens"), of_contract("expanded", "query_lens"), True),
        (of_contract("swapped", "query"), of_contract("swapped", "new_keys"), True),
        (of_contract("stepped", "seq_lens"), of_contract("swapped", "query"), False),
        (of_contract("type", "seq_lens"), of_contract("type", "block_table"), False),
        (of_contract("offset", "seq_lens"), of_contract("offset", "block_table"), False),
        (of_contract("stepped", "seq_lens"), failure(PLAIN, "mismatch", ()), False),
        (of_contract("stepped", "seq_lens"), of_contract("stepped", "block_table", confirmation="flaky"), False),
        (of_contract("stepped", "seq_lens", **MARKED), of_contract("stepped", "block_table"), False),
        (of_contract("stepped", "block_table"), of_contract("stepped", "seq_lens", **MARKED), False),
        (of_contract("stepped", "seq_lens", **NAMING), of_contract("stepped", "block_table"), True),
        (of_contract("stepped", "seq_lens", **NAMING), of_contract("stepped", "sinks"), False),
    ],
)
def test_contracts_of_one_way_are_one_row_unless_a_mark_does_not_name_them(
    known: KnownFailure, new: KnownFailure, same: bool
) -> None:
    assert is_same(known, new) is same


def test_each_argument_of_a_row_is_recognised_again() -> None:
    known, strides = of_contract("stepped", "seq_lens"), "contract strides of block_table"
    assert not known.shown_by(strides, frozenset({"contract: strides of block_table"}))
    known.widen(of_contract("stepped", "block_table"))
    assert known.shown_by(strides, frozenset({"contract: strides of block_table"}))
    assert known.shown_by("contract strides of seq_lens", frozenset({"contract: strides of seq_lens"}))
    assert not known.shown_by("contract strides of sinks", frozenset({"contract: strides of sinks"}))


def test_a_simpler_case_of_another_argument_does_not_take_a_row() -> None:
    lengths, table = of_contract("stepped", "seq_lens").found, of_contract("stepped", "block_table").found
    longer = msgspec.structs.replace(lengths, case=replace(lengths.case, sequences=(Sequence(1, 90),)))
    assert is_simpler(lengths, longer)
    assert not is_simpler(table, longer)


def with_outcome(outcome: Literal["fails", "passes", "unknown"]) -> KnownFailure:
    """Return a failure that a GPU found and that does so in the simulator."""
    known = failure(WINDOW, "nan", ("sliding window",))
    elsewhere = Elsewhere("simulator", outcome, found_as=("output", "crash"))
    known.found = msgspec.structs.replace(known.found, environment=environment_of("cuda", ()), elsewhere=elsewhere)
    return known


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("fails", "fails", True),
        ("fails", "passes", False),
        ("passes", "fails", False),
        ("passes", "passes", True),
        ("unknown", "passes", True),
        ("fails", "unknown", True),
    ],
)
def test_what_passes_in_the_simulator_is_no_bug_of_logic(
    one: Literal["fails", "passes", "unknown"], other: Literal["fails", "passes", "unknown"], same: bool
) -> None:
    assert is_same(with_outcome(one), with_outcome(other)) is same


def test_a_failure_of_a_gpu_is_known_by_the_classes_that_it_had_there() -> None:
    order, other, failures = Order(WINDOW), Order(PLAIN), KnownFailures()
    failures.add(with_outcome("fails"))
    crash = Verdict("oracle", "crash", "broke the device")
    assert failures.matching(order, crash) is not None
    assert failures.matching(order, crash, there=True) is None, "it has one class in the simulator"
    assert failures.matching(other, crash) is None, "it has not its trigger"


def test_in_the_simulator_nothing_is_taken_for_a_failure_of_the_gpu_only() -> None:
    order, failures, wrong = Order(WINDOW), KnownFailures(), Verdict("oracle", "mismatch", "wrong")
    failures.add(with_outcome("passes"))
    assert failures.matching(order, wrong) is not None
    assert failures.matching(order, wrong, there=True) is None


def test_a_failure_with_harmless_poison_is_not_the_one_that_needs_nan() -> None:
    needs = failure(WINDOW, "nan", ("sliding window", "NaN or Inf in dead values"), ("values",))
    harmless = replace(WINDOW, poison=PoisonRecipe(values="zero"))
    other = failure(harmless, "mismatch", ("sliding window", "scores not normal"), ("values",))
    assert not is_same(needs, other)
    assert not is_same(other, needs)
    assert is_same(needs, failure(WINDOW, "mismatch", ("sliding window", "scores not normal"), ("values",)))


def test_a_bug_is_recognised_by_each_of_its_triggers() -> None:
    known = failure(PLAIN, "nan", ("sinks",), ("keys",))
    assert not known.shown_by("output", frozenset({"fp8 cache", "a context"}))
    known.widen(failure(PLAIN, "nan", ("fp8 cache",), ("keys",)))
    assert known.shown_by("output", frozenset({"fp8 cache", "a context"}))
    assert not known.shown_by("output", frozenset({"a context"}))


@pytest.mark.parametrize(
    ("relation", "same"), [("absent_sinks", True), ("zero_bias", False), ("determinism", False), (None, False)]
)
def test_a_feature_that_a_relation_switches_on_counts(relation: str | None, same: bool) -> None:
    known = failure(replace(PLAIN, sinks=SinkRecipe(), window=4), "nan", ("sliding window", "sinks"))
    failures = KnownFailures()
    failures.add(known)
    found = failures.matching(Order(WINDOW, relation), Verdict(relation or "oracle", "nan", "wrong"))
    assert found is (known if same else None)
    assert failures.avoids(Order(WINDOW, relation)) is same


@pytest.mark.parametrize(
    ("trigger", "keys", "values"),
    [
        (("sliding window", "NaN or Inf in dead values"), "nan", "zero"),
        (("NaN or Inf in dead keys", "NaN or Inf in dead values"), "zero", "zero"),
        (("sliding window", "large numbers in dead keys"), "zero", "nan"),
        (("sinks", "NaN or Inf in dead values"), "nan", "nan"),
    ],
)
def test_harmless_poison_leads_around_a_failure_that_needs_worse(
    trigger: tuple[str, ...], keys: str, values: str
) -> None:
    failures = KnownFailures()
    failures.add(failure(WINDOW, "nan", trigger))
    milder = failures.around(Order(WINDOW, "determinism"))
    assert milder is not None
    assert (milder.case.poison.keys, milder.case.poison.values, milder.relation) == (keys, values, "determinism")
    assert not failures.avoids(milder)


def test_harmless_poison_still_leads_around_a_failure_that_shows_with_large_numbers_too() -> None:
    both = ("NaN or Inf in dead values", "large numbers in dead values")
    known = failure(WINDOW, "nan", ("sliding window", *both), ("values",))
    failures = KnownFailures()
    failures.add(known)
    huge = replace(WINDOW, poison=PoisonRecipe(values="huge"))
    same = failure(huge, "nan", ("sliding window", "large numbers in dead values", "more than 4 keys"), ("values",))
    assert failures.same_as(same) is known
    known.widen(same)
    assert failures.avoids(Order(huge))
    for order in (Order(WINDOW), Order(huge)):
        milder = failures.around(order)
        assert milder is not None
        assert milder.case.poison.values == "zero"
        assert failures.matching(milder, Verdict("oracle", "mismatch", "wrong")) is None


def test_a_failure_is_shrunk_without_the_poison_that_another_needs() -> None:
    failures = KnownFailures()
    failures.add(failure(WINDOW, "nan", ("sliding window", "NaN or Inf in dead values")))
    failures.add(failure(WINDOW, "unwritten", ("NaN or Inf in dead keys",)))
    order = Order(PLAIN, "poison_independence")
    harmless = failures.beside(order, "output")
    assert (harmless.case.poison.keys, harmless.case.poison.values, harmless.relation) == ("nan", "zero", None)
    assert failures.beside(order, "crash") == order


def test_nothing_leads_around_a_failure_of_any_poison() -> None:
    failures = KnownFailures()
    failures.add(failure(WINDOW, "nan", ("sliding window",)))
    assert failures.around(Order(WINDOW, None)) is None


def test_of_two_files_of_one_bug_the_shrunk_one_is_kept() -> None:
    shrunk, cut_off = (
        counterexamples.signed("t", "unified", None, WINDOW, Verdict("oracle", "nan", "wrong")) for _ in range(2)
    )
    fields = {"confirmation": "confirmed", "trigger": ("sliding window",)}
    files = [("cut_off", cut_off, False), ("shrunk", shrunk, True)]
    found = [(path, msgspec.structs.replace(one, shrunk=complete, **fields)) for path, one, complete in files]
    assert merged(found) == {"cut_off": "shrunk"}


def test_what_the_end_cut_off_is_the_bug_that_needs_least() -> None:
    """The first two have a feature each that the other lacks."""
    sinks = replace(PLAIN, sinks=SinkRecipe())
    files = [
        ("window", replace(sinks, window=4), ("sinks", "sliding window")),
        ("softcap", replace(sinks, softcap=1.0), ("sinks", "softcap")),
        ("neither", sinks, ("sinks",)),
    ]
    found = [
        (path, msgspec.structs.replace(failure(case, "timeout", ()).found, confirmation="confirmed", trigger=trigger))
        for path, case, trigger in files
    ]
    assert merged(found) == {"window": "neither", "softcap": "neither"}


def caused(cause: str, trigger: tuple[str, ...], output: str = "") -> KnownFailure:
    """Return a wrong output of which the kernel's mistake is known in words."""
    found = failure(WINDOW, "mismatch", trigger)
    verdict = msgspec.structs.replace(found.found.verdict, cause=cause, output=output)
    found.found = msgspec.structs.replace(found.found, verdict=verdict)
    return found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (caused("causal: sees a key", ()), caused("causal: sees a key", ("sinks",), "lse"), True),
        (caused("causal: sees a key", ("sinks", "soft cap")), caused("causal: sees a key", ("sinks",), "lse"), True),
        (caused("causal: sees a key", ("sinks",)), caused("causal: sees a key", ("soft cap",)), False),
        (caused("causal: sees a key", ("sinks",)), caused("tail: sees a key", ("sinks",), "lse"), False),
        (caused("", ()), caused("", ("sinks",), "lse"), False),
    ],
)
def test_one_cause_in_words_is_one_bug_whatever_output_shows_it(
    one: KnownFailure, other: KnownFailure, same: bool
) -> None:
    assert is_same(one, other) is is_same(other, one) is same


def test_a_bug_is_recognised_by_the_other_output_that_shows_it() -> None:
    known, other = caused("causal: sees a key", ()), caused("causal: sees a key", ("sinks",), "lse")
    traits = frozenset({"sinks"})
    assert not known.shown_by("output lse", traits)
    known.widen(other)
    assert known.shown_by("output lse", traits)
    assert does_without(known, other)
    assert not does_without(other, known)


def found_at(
    line: str, trigger: tuple[str, ...], case: AttentionCase = PLAIN, *, complete: bool = True
) -> KnownFailure:
    """Return a sanitizer's finding at a line."""
    verdict = Verdict("sanitizers", "out_of_bounds", "out-of-bounds load", site=line)
    found = counterexamples.signed("t", "unified", None, case, verdict)
    return KnownFailure(0, 0, found, "", frozenset(trigger), complete)


EMPTY = ("sequences without query tokens",)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (found_at("k.py:3", EMPTY), found_at("k.py:9", EMPTY), True),
        (found_at("k.py:3", EMPTY), found_at("other.py:9", EMPTY), False),
        (found_at("k.py:3", EMPTY), found_at("k.py:9", EMPTY, WINDOW), False),
        (found_at("k.py:3", EMPTY), found_at("k.py:9", ("sinks",)), False),
        (found_at("k.py:3", EMPTY), found_at("k.py:9", EMPTY, complete=False), False),
        (found_at("k.py:3", ()), found_at("k.py:9", ()), False),
    ],
)
def test_two_lines_of_one_smallest_case_are_one_bug(one: KnownFailure, other: KnownFailure, same: bool) -> None:
    assert is_same(one, other) is is_same(other, one) is same


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (found_at("k.py:3", EMPTY), found_at("k.py:9", ("sinks",)), True),
        (found_at("k.py:3", ()), found_at("k.py:9", ()), True),
        (found_at("k.py:3", EMPTY), found_at("k.py:9", EMPTY, complete=False), True),
        (found_at("k.py:3", EMPTY), found_at("other.py:9", EMPTY, complete=False), False),
        (found_at("k.py:3", EMPTY), caused("out_of_bounds at k.py:3", EMPTY), False),
        (caused("page: reads a page", ()), caused("page: reads a page", ()), False),
    ],
)
def test_only_findings_and_what_follows_from_them_may_be_one_bug_by_their_cases(
    one: KnownFailure, other: KnownFailure, together: bool
) -> None:
    assert may_be_together(one, other) is may_be_together(other, one) is together


@pytest.mark.parametrize(
    "cause", ["overflow: offsets in 32 bits", "address: the strides of the key cache are not used"]
)
def test_one_mistake_of_several_lines_is_one_row_unless_an_output_is_wrong_too(cause: str) -> None:
    first, second = (found_at(place, EMPTY) for place in ("k.py:3", "l.py:9"))
    assert not is_same(first, second)
    for line in (first, second):
        verdict = msgspec.structs.replace(line.found.verdict, cause=cause)
        line.found = msgspec.structs.replace(line.found, verdict=verdict)
    assert is_same(first, second)
    assert not is_same(first, caused(cause, EMPTY))
    first.found = msgspec.structs.replace(first.found, also=("output",))
    assert is_same(first, caused(cause, EMPTY))
    assert is_same(caused(cause, EMPTY), first)


@pytest.mark.parametrize(("size", "least", "needed"), [(17, 0, set()), (3, 0, set()), (17, 13, {"large pages"})])
def test_a_side_of_a_size_is_needed_only_if_the_other_side_passes(size: int, least: int, needed: set[str]) -> None:
    """Pages of 16 slots are neither large nor of an odd size, so that they do not tell which of both is needed."""

    def judged(order: Order) -> Literal["passes", "fails"]:
        block: int = order.case.pages.block_size
        odd = block & (block - 1) != 0
        return "fails" if odd and block >= least and order.case.max_seq_len > block else "passes"

    order = Order(AttentionCase((Sequence(1, size),), pages=PageLayout(size), softmax_scale=0.25))
    sides = {"small pages", "large pages"}
    trigger = set(trigger_of(order, judged, Domain()))
    assert trigger & sides == needed
    assert "page size no power of two" in trigger


@pytest.mark.parametrize(
    ("launch", "words"), [(LaunchHints("2d"), "2D path"), (LaunchHints("3d", num_segments=3), "3D path")]
)
def test_a_path_is_needed_only_if_the_other_one_passes(launch: LaunchHints, words: str) -> None:
    """No case of such a target lets it choose."""
    order, domain = Order(replace(PLAIN, launch=launch)), Domain(paths=("2d", "3d"))

    def in_this_path(order: Order) -> Literal["passes", "fails"]:
        return "fails" if order.case.launch.path == launch.path else "passes"

    assert words in trigger_of(order, in_this_path, domain)
    assert words not in trigger_of(order, lambda order: "fails", domain)


def test_a_place_is_the_cause_of_outputs_only() -> None:
    """A finding elsewhere is that bug if each of their cases shows it, and a wrong output may follow from several."""
    cause = "out_of_bounds at k.py:3"
    assert is_same(caused(cause, ()), caused(cause, ("sinks",), "lse"))
    line = found_at("k.py:9", ())
    line.found = msgspec.structs.replace(line.found, verdict=msgspec.structs.replace(line.found.verdict, cause=cause))
    assert not is_same(line, caused(cause, ()))
    assert may_be_together(line, caused(cause, ()))
