"""The cuda backend on a GPU: the same cases, properties and files as on a CPU, and failures of a device."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
import triton

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.engine.schedule import ON_GPU, play_round
from fuzz_attn.inputs.tensors import digest_of, materialise
from fuzz_attn.oracle.reference import attend
from fuzz_attn.properties.relations import relations_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True).in_memory()
"""Far addresses would take all memory of the GPU, and from the other tests."""
ROOT = Path(__file__).parents[2]
HALF = DTypes("float16", "float16", "float16")
SHORT, LONG = (AttentionCase(sequences=(Sequence(1, keys - 1),), dtypes=HALF) for keys in (4, 40))


def spec_of(name: str, file: str = "on_gpu.py") -> str:
    return f"{ROOT / 'tests' / 'sample_targets' / file}:{name}"


def drawn(domain: Domain, count: int, seed: int) -> list[Order]:
    orders: list[Order] = []
    play_round(domain, seed, count, lambda case, relation: orders.append(Order(case, relation)), ON_GPU)
    return orders


@pytest.fixture
def worker() -> Iterator[IsolatedWorker]:
    with IsolatedWorker(Setup("unified", backend="cuda")) as worker:
        yield worker


@pytest.mark.parametrize("family", get_args(Family))
def test_drawn_cases_pass_with_their_relations(family: str) -> None:
    with IsolatedWorker(Setup(family, backend="cuda")) as worker:
        ready = worker.ready
        assert (ready.family, ready.backend, ready.device, ready.shims) == (family, "cuda", "cuda", ())
        for order in drawn(ready.domain, 40, seed=11):
            verdict = worker.judge(order).verdict
            assert verdict.passed, (verdict, order)


def test_every_relation_passes(worker: IsolatedWorker) -> None:
    case = AttentionCase(
        sequences=(Sequence(5, 30), Sequence(1, 9)),
        heads=HeadLayout(2, 2, 40),
        pages=PageLayout(block_size=8, spare_blocks=1),
        dtypes=HALF,
    )
    relations = relations_of(case, worker.ready.domain)
    assert len(relations) > 4
    for relation in relations:
        assert worker.judge(Order(case, relation)).verdict.passed, relation


def test_kernels_are_counted(worker: IsolatedWorker) -> None:
    case = AttentionCase(sequences=(Sequence(3, 5),), heads=HeadLayout(1, 1, 56), launch=LaunchHints(path="2d"))
    first, second = worker.judge(Order(case)), worker.judge(Order(case))
    assert first.compiled + first.loaded == 1
    assert second.compiled + second.loaded == 0


def test_tensors_are_the_same_bits_as_on_a_cpu() -> None:
    for order in drawn(FULL, 30, seed=12):
        assert digest_of(materialise(order.case, "cuda")) == digest_of(materialise(order.case))


def test_the_oracle_agrees_with_itself_on_a_cpu() -> None:
    for order in drawn(FULL, 30, seed=13):
        here, there = attend(materialise(order.case)), attend(materialise(order.case, "cuda"))
        assert there["out"].value.device.type == "cuda"
        if not here["out"].value.numel():
            continue
        finite, also = (answer["out"].bound.cpu().isfinite() for answer in (here, there))
        certain = here["out"].judged & there["out"].judged.cpu()
        assert torch.equal(finite, also)
        assert float((here["out"].judged != there["out"].judged.cpu()).double().mean()) < 0.01
        finite &= certain
        error = ((there["out"].value.cpu() - here["out"].value).abs() / here["out"].bound)[finite]
        assert not error.numel() or float(error.max()) < 0.01
        apart = ((there["out"].bound.cpu() - here["out"].bound).abs() / here["out"].bound)[finite]
        assert not apart.numel() or float(apart.max()) < 1e-3


def test_an_illegal_address_is_a_crash_and_the_next_case_is_judged() -> None:
    with IsolatedWorker(Setup(spec_of("stores_outside"), "unified", "cuda")) as worker:
        server = worker.process
        for deaths in (1, 2, 3):
            verdict = worker.judge(Order(LONG)).verdict
            assert verdict.kind == "crash"
            assert verdict.message.startswith("broke the device for its process; it last printed:")
            assert "illegal memory access" in verdict.message
            assert worker.deaths == deaths
            started = time.monotonic()
            assert worker.judge(Order(SHORT)).verdict.passed
            assert time.monotonic() - started < 30.0, "a shrink over crashes must fit its budget"
        assert worker.process is server, "torch and the target would be imported anew"


def test_a_hanging_kernel_is_a_verdict_and_the_next_case_is_judged() -> None:
    with IsolatedWorker(Setup(spec_of("spins"), "unified", "cuda")) as worker:
        assert worker.judge(Order(SHORT)).verdict.passed
        worker.launch_seconds = 6.0
        assert worker.judge(Order(LONG)).verdict.kind == "timeout"
        worker.launch_seconds = 120.0
        assert worker.judge(Order(SHORT)).verdict.passed


@pytest.mark.parametrize(
    ("target", "case", "expected"),
    [
        ("stores_behind_scratch", LONG, ("sanitizers", "written_outside")),
        ("stores_before_output", LONG, ("nothing_else_written", "written_outside")),
        ("reads_scratch", LONG, ("oracle", "nan")),
        ("reads_scratch", replace(LONG, dtypes=DTypes("float16", "float16", "float8_e5m2")), ("oracle", "nan")),
    ],
)
def test_guards_and_poison_reveal_defects(target: str, case: AttentionCase, expected: tuple[str, str]) -> None:
    with IsolatedWorker(Setup(spec_of(target), "unified", "cuda")) as worker:
        verdict = worker.judge(Order(case)).verdict
        assert (verdict.property_name, verdict.kind) == expected
        assert worker.judge(Order(SHORT)).verdict.passed


def test_a_missing_barrier_of_inline_assembly_is_a_wrong_output() -> None:
    case = replace(LONG, sequences=(Sequence(16, 24),), heads=HeadLayout(2, 4, 32))
    with IsolatedWorker(Setup(spec_of("lacks_a_barrier", "compiler_faults.py"), "unified", "cuda")) as worker:
        verdict = worker.judge(Order(case)).verdict
    assert (verdict.property_name, verdict.kind) == ("oracle", "mismatch")


@pytest.mark.skipif(not triton.__version__.startswith(("3.5", "3.6")), reason="Triton 3.5 and 3.6 compile it wrongly")
def test_what_triton_compiles_wrongly_is_a_wrong_output() -> None:
    case = replace(LONG, sequences=(Sequence(16, 24),), heads=HeadLayout(2, 4, 128))
    with IsolatedWorker(Setup(spec_of("merges_in_two_warps", "compiler_faults.py"), "unified", "cuda")) as worker:
        assert not worker.judge(Order(case)).verdict.passed


def test_a_counterexample_from_a_cpu_replays_on_a_gpu() -> None:
    files = tuple(sorted((ROOT / "tests" / "counterexamples" / "unified").glob("*.json")))
    assert files
    for replayed in replay(files, backend="cuda"):
        assert not replayed.still_fails, replayed
        assert not replayed.drifted


def test_a_counterexample_from_a_gpu_replays_on_a_cpu(campaign: Callable[..., Results]) -> None:
    outcome = campaign(
        "",
        setup=Setup(spec_of("window_too_long"), "unified", "cuda"),
        max_time=60.0,
        max_cases=2000,
        seed=3,
        until_failure=True,
    )
    assert outcome.path is not None
    assert outcome.statistics.kernels_compiled + outcome.statistics.kernels_loaded > 0
    for backend in ("cuda", "simulator"):
        (replayed,) = replay((outcome.path,), backend=backend)
        assert (replayed.status, replayed.drifted) == ("FAILED", False)


BUG = """
[narrow]
families = ["unified"]
wrong = "The offset of an element of the scratch is computed in 32 bits."
shown_by = "A scratch beyond 2^31 elements."

[[narrow.edits]]
file = "{file}"
anchor = "partials.output_ptr + index[:, None]"
replacement = "partials.output_ptr + index.to(tl.int32)[:, None]"
"""
FAR_SCRATCH = Path(__file__).with_name("far_scratch_program.py")
SCRATCH_BYTES = 66 * 512 * 256 * 256 * 4
A_HANG = 1800.0


def far_scratch(folder: Path, file: str) -> tuple[str, str]:
    """Return what the program prints with an offset in 32 bits in a file of the kernels; with "" they are healthy."""
    folder.mkdir()
    (folder / "bugs.toml").write_text(BUG.format(file=file))
    command = [sys.executable, str(FAR_SCRATCH), *((str(folder),) if file else ())]
    environment = {**os.environ, "TMPDIR": str(folder)}  # for the edited kernels
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=A_HANG, check=False)
    print(file, done.stdout, done.stderr)
    assert done.stdout.startswith("small: pass")
    assert "out of memory" not in done.stdout + done.stderr
    return done.stdout, done.stderr


def test_an_offset_in_32_bits_into_a_scratch_beyond_2_to_the_31_fails(tmp_path: Path) -> None:
    if torch.cuda.get_device_properties().total_memory < 2.5 * SCRATCH_BYTES:
        pytest.skip("needs a GPU with 22 GB, for the scratch and its poisoned copy")
    assert "far: pass" in far_scratch(tmp_path / "healthy", "")[0]
    for file in ("unified/kernel_3d.py", "unified/segments.py"):
        printed, errors = far_scratch(tmp_path / Path(file).stem, file)
        assert "far: pass" not in printed
        assert "far: " in printed or "illegal memory access" in errors
