"""Options of Triton's compiler that a case chooses: every launch gets them, and a failure that needs them says so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from triton.runtime import JITFunction, OutOfResources

from fuzz_attn.backends.backend import Watch
from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.aspect_table import TABLE
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.orders import Order
from fuzz_attn.errors import DomainError
from fuzz_attn.strategies.compile_keys import key_pool, value_pairs
from fuzz_attn.targets.loading import load_target
from fuzz_attn.ttir.compiler_compat import options_chosen

FILE = Path(__file__).parents[1] / "sample_targets" / "with_options.py"
PLAIN = AttentionCase(sequences=(Sequence(2, 5),))
TWO_WARPS = replace(PLAIN, launch=LaunchHints(num_warps=2, num_stages=1))


class OfTwoWarps(InterpreterBackend):
    """A GPU whose compiler is wrong with two warps: the last argument of each launch becomes larger by 1."""

    launched: list[dict[str, Any]]

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Note the options of each launch of a compiled kernel, and do what it would do."""
        self.launched = []

        def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
            self.launched.append(keywords)
            arguments[-1].add_(float(keywords["num_warps"] == 2))

        with super().running() as watch, mock.patch.object(JITFunction, "run", run):
            yield watch


def judge_of(name: str) -> CaseJudge:
    return CaseJudge(load_target(f"{FILE}:{name}"), OfTwoWarps())


def test_each_launch_gets_the_options_of_the_case() -> None:
    judge = judge_of("attend")
    backend = judge.backend
    assert isinstance(backend, OfTwoWarps)
    judge.judge(Order(PLAIN))
    assert backend.launched == [{"num_warps": 8}]
    judge.judge(Order(replace(PLAIN, launch=LaunchHints(num_stages=1))))
    assert backend.launched == [{"num_warps": 8, "num_stages": 1}]


def test_a_failure_names_the_options_that_it_needs() -> None:
    judge = judge_of("attend")
    assert judge.judge(Order(PLAIN)).verdict.passed
    verdict = judge.judge(Order(TWO_WARPS, explain=True)).verdict
    assert not verdict.passed
    assert verdict.hint.startswith(
        "It fails with num_warps=2 and num_stages=1 and passes with the launcher's own num_warps=8 and num_stages=3 of "
        "add_nothing. Only the compiler, or a kernel that depends on its threads, tells them apart."
    )


def test_a_failure_that_has_nothing_to_do_with_the_options_does_not_name_them() -> None:
    verdict = judge_of("always_wrong").judge(Order(TWO_WARPS, explain=True)).verdict
    assert not verdict.passed
    assert "num_warps" not in verdict.hint


@pytest.mark.parametrize(("names", "gluon"), [(("x_ptr", "num_warps"), False), (("x_ptr",), True)])
def test_kernels_that_depend_on_the_options_keep_their_own(names: tuple[str, ...], gluon: bool) -> None:
    given: list[dict[str, Any]] = []
    kernel = SimpleNamespace(arg_names=names, is_gluon=lambda: gluon, __name__="kernel")
    run: Callable[..., None] = lambda kernel, **keywords: given.append(keywords)  # noqa: E731 - replaces a method
    with mock.patch.object(JITFunction, "run", run), options_chosen({"num_warps": 2}) as own:
        JITFunction.run(kernel, num_warps=8)
    assert (given, own) == ([{"num_warps": 8}], {})


def test_a_cpu_draws_no_options_and_a_gpu_covers_them_in_pairs_with_the_rest() -> None:
    domain = Domain(head_sizes=(16, 64, 128), block_sizes=(16, 64, 128), group_sizes=(1, 4, 8))
    on_cpu, on_gpu = key_pool(domain), key_pool(domain.on_gpu())
    assert {(key.launch.num_warps, key.launch.num_stages) for key in on_cpu} == {(0, 0)}
    pairs = frozenset().union(*map(value_pairs, on_gpu))
    options = [("num_warps", warps) for warps in (1, 2, 4, 8)] + [("num_stages", stages) for stages in (1, 2, 3)]
    values = [("window", True), ("sinks", True), ("head_size", 128), ("block_size", 64), ("num_queries_per_kv", 8)]
    for option in options:
        for value in values:
            assert (option, value) in pairs or (value, option) in pairs


def test_many_keys_leave_the_options_to_the_launcher() -> None:
    """What it chooses runs in production."""
    keys = key_pool(Domain().on_gpu())
    own = [key for key in keys if key.launch.num_warps == key.launch.num_stages == 0]
    assert len(own) >= 0.35 * len(keys)


def test_a_domain_may_limit_the_options() -> None:
    pool = key_pool(Domain(num_warps=(), num_stages=(2,), head_sizes=(16, 32, 64)).on_gpu())
    assert {(key.launch.num_warps, key.launch.num_stages) for key in pool} == {(0, 0), (0, 2)}
    with pytest.raises(DomainError, match=r"domain\.num_warps=\(3,\) must have only numbers of 1, 2, 4, 8, 16, 32"):
        Domain(num_warps=(3,))  # type: ignore[arg-type] # wrong on purpose


def test_a_case_says_saves_and_drops_its_options() -> None:
    assert "num_warps" not in msgspec.json.encode(PLAIN).decode(), "an older version reads the file"
    assert msgspec.json.decode(msgspec.json.encode(TWO_WARPS), type=AttentionCase) == TWO_WARPS
    assert "num_warps=2, num_stages=1" in str(describe(TWO_WARPS))
    found = [trait for trait in TABLE.traits if trait.present(TWO_WARPS) and not trait.present(PLAIN)]
    assert [trait.words for trait in found] == ["another num_warps", "another num_stages"]
    simpler = TWO_WARPS
    for trait in found:
        simpler = trait.without(simpler)
    assert simpler == PLAIN
    assert unpromised(TWO_WARPS, Domain()) == "", "a CPU replays it without them"


class OfThreeStages(InterpreterBackend):
    """A GPU that has no room for three stages, and a small one has none for any kernel."""

    is_small = False

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Raise as Triton does when it loads a compiled kernel."""

        def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
            if keywords.get("num_stages", 1) > 2 or self.is_small:
                raise OutOfResources(274432, 232448, "shared memory")

        with super().running() as watch, mock.patch.object(JITFunction, "run", run):
            yield watch


@pytest.mark.parametrize("strict", [True, False])
def test_options_without_room_are_refused_if_the_case_chose_them(strict: bool) -> None:
    backend = OfThreeStages()
    judge = CaseJudge(load_target(f"{FILE}:attend"), backend, strict)
    refusal = judge.judge(Order(replace(PLAIN, launch=LaunchHints(num_stages=3)))).refusal
    assert refusal is not None
    assert (refusal.stage, refusal.error) == ("compile", "OutOfResources")
    assert judge.judge(Order(PLAIN)).refusal is None
    backend.is_small = True
    own = judge.judge(Order(PLAIN))
    assert (own.refusal is None) == strict, "the launcher's own options need too much"
    assert own.verdict.kind == ("exception" if strict else "ok")
