"""The simulator beside Triton's interpreter, in one run: cold and warm launches.

Four batches in bfloat16, each with two kernels: a sample of tests/simulator, which works on 16 rows in a program, and
the project's unified attention. CPU times in milliseconds, the best of several launches. A cold launch makes the
kernel's program, in a simulator that has run another kernel before, as in a campaign. ``--json FILE`` also writes the
rows.
"""

# ruff: noqa: PLC0415
# Reason: torch's threads are set before anything of ours is imported.

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # as in a campaign's workers; numpy's BLAS reads it when it is loaded

import torch

SAMPLES = Path(__file__).parents[1] / "simulator"


@dataclass(frozen=True)
class Case:
    """A batch: (query length, context length) of each sequence, heads and their size."""

    name: str
    sequences: tuple[tuple[int, int], ...]
    heads: tuple[int, int]
    head_size: int


CASES = [
    Case("1 token, 1 head of 16", ((1, 16),), (1, 1), 16),
    Case("3 sequences, 4/2 heads of 24", ((1, 30), (5, 12), (3, 0)), (4, 2), 24),
    Case("4 sequences, 8/2 heads of 64", ((20, 10), (1, 60), (15, 0), (25, 30)), (8, 2), 64),
    Case("5 sequences, 16/4 heads of 128", ((40, 20), (1, 110), (50, 0), (25, 60), (20, 90)), (16, 4), 128),
]
PAGE, TILE = 16, 32


def tensors(case: Case) -> dict[str, torch.Tensor]:
    """The tensors of a case, shared by both kernels."""
    generator = torch.Generator().manual_seed(0)
    queries = [query for query, _ in case.sequences]
    lengths = [sum(pair) for pair in case.sequences]
    pages = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(pages), generator=generator).to(torch.int32)
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    for row, (used, start) in enumerate(zip(pages, torch.tensor([0, *pages]).cumsum(0).tolist(), strict=False)):
        table[row, :used] = order[start : start + used]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    query_heads, kv_heads = case.heads
    return {
        "q": normal(sum(queries), query_heads, case.head_size),
        "k": normal(sum(pages), PAGE, kv_heads, case.head_size),
        "v": normal(sum(pages), PAGE, kv_heads, case.head_size),
        "out": torch.zeros(sum(queries), query_heads, case.head_size, dtype=torch.bfloat16),
        "starts": torch.tensor([0, *queries], dtype=torch.int32).cumsum(0).to(torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "table": table,
    }


def sample_launch(case: Case, t: dict[str, torch.Tensor]) -> tuple[tuple[int, ...], list[Any], dict[str, Any]]:
    """Grid, arguments and constexprs of the sample kernel."""
    group = case.heads[0] // case.heads[1]
    block_q = 16 // group
    grid = (t["q"].shape[0] // block_q + len(case.sequences), case.heads[1])
    scale = torch.ones(1)
    arguments = [
        t["out"], t["q"], t["k"], t["v"], t["table"], t["lengths"], t["starts"],
        case.head_size**-0.5, scale, len(case.sequences),
        t["table"].stride(0), t["q"].stride(0), t["q"].stride(1), t["k"].stride(0), t["k"].stride(1), t["k"].stride(2),
    ]  # fmt: skip
    padded = max(16, 1 << (case.head_size - 1).bit_length())
    constants = {
        "HEAD_SIZE": case.head_size, "HEAD_SIZE_PADDED": padded, "PAGE": PAGE, "TILE": TILE, "GROUP": group,
        "BLOCK_M": 16, "BLOCK_Q": block_q, "WINDOW": 0, "SOFTCAP": 0.0,
    }  # fmt: skip
    return grid, arguments, constants


def unified_keywords(case: Case, t: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Keyword arguments of the project's launcher, 2D."""
    return {
        "q": t["q"], "k": t["k"], "v": t["v"], "out": t["out"], "cu_seqlens_q": t["starts"],
        "max_seqlen_q": max(query for query, _ in case.sequences), "seqused_k": t["lengths"],
        "max_seqlen_k": max(map(sum, case.sequences)), "softmax_scale": case.head_size**-0.5, "causal": True,
        "window_size": (-1, -1), "block_table": t["table"], "softcap": 0.0, "q_descale": None, "k_descale": None,
        "v_descale": None, "num_segments": 0,
    }  # fmt: skip


def best(call: Callable[[], object], before: Callable[[], object] = lambda: None, seconds: float = 1.0) -> float:
    """Milliseconds of the fastest of the calls that fit the time, at least three; `before` each one runs untimed."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        before()
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def simulated(launch: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of (cold launch, warm launch); each opens a session of its own.

    `other` launches another kernel. A simulator that keeps only one program drops the program of `launch` for it.
    """
    from fuzz_attn.simulator.session import simulate
    from fuzz_attn.simulator.simulator import Simulator

    def once(simulator: Simulator, call: Callable[[], object] = launch) -> None:
        with simulate(simulator) as session:
            call()
        assert not session.findings, session.findings

    forgetful, warm = Simulator(most_programs=1), Simulator()
    cold = best(lambda: once(forgetful), before=lambda: once(forgetful, other))
    return cold, best(lambda: once(warm))


def loaded(name: str) -> Any:
    """A module of tests/simulator, by the path of its file."""
    specification = importlib.util.spec_from_file_location(Path(name).stem, SAMPLES / name)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def row(name: str, programs: int, interpreter: float, times: tuple[float, float]) -> str:
    """One line of the table."""
    cold, warm = times
    return f"{name:40} {programs or '':>8} {interpreter:12.1f} {cold:9.1f} {warm:9.2f} {interpreter / warm:8.0f}"


def cells(name: str, interpreter: float, times: tuple[float, float]) -> dict[str, str]:
    """One row of the file."""
    ratio = f"{interpreter / times[1]:.0f}"
    return {"kernel and batch": name, "interpreter": f"{interpreter:.0f}", "warm": f"{times[1]:.2f}", "ratio": ratio}


def main(file: Path | None) -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from fuzz_attn.kernels.unified_attention import unified_attention
    from fuzz_attn.simulator.session import simulate

    samples, worker_module = loaded("kernels/sample_kernels.py"), loaded("interpreter_worker.py")

    def add() -> None:
        samples.add_kernel[(1,)](torch.zeros(4), torch.zeros(4), torch.zeros(4), 4, BLOCK=4)

    with simulate():  # imports and the first use of Triton's front end are no part of any case
        add()
    columns = f"{'interpreter':>12} {'cold':>9} {'warm':>9} {'ratio':>8}"
    print(f"{'case':40} {'programs':>8} {columns}")
    ratios, rows = [], []
    with worker_module.InterpreterWorker() as worker:
        for case in CASES:
            t = tensors(case)
            grid, arguments, constants = sample_launch(case, t)
            path = samples.__file__
            worker.launch(path, "paged_attention_kernel", grid, *arguments, **constants)
            seconds = min(
                worker.launch(path, "paged_attention_kernel", grid, *arguments, **constants)[1]
                for _ in range(3 if grid[0] < 20 else 1)
            )
            times = simulated(lambda: samples.paged_attention_kernel[grid](*arguments, **constants), add)  # noqa: B023 - called at once
            print(row(case.name, grid[0] * grid[1], seconds * 1e3, times), flush=True)
            rows.append(cells(f"16 rows per program: {case.name}", seconds * 1e3, times))
            ratios.append(seconds * 1e3 / times[1])
        for case in CASES:
            t = tensors(case)
            keywords = unified_keywords(case, t)
            name = "fuzz_attn.kernels.unified_attention:unified_attention"
            worker.call(name, **keywords)
            seconds = min(worker.call(name, **keywords)[1] for _ in range(3 if case is not CASES[3] else 1))
            times = simulated(lambda: unified_attention(**keywords), add)  # noqa: B023 - called at once
            print(row(f"unified: {case.name}", 0, seconds * 1e3, times), flush=True)
            rows.append(cells(f"unified: {case.name}", seconds * 1e3, times))
            ratios.append(seconds * 1e3 / times[1])
    print(f"median ratio {statistics.median(ratios):.0f}")
    if file:
        file.write_text(json.dumps({"rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    main(parser.parse_args().json)
