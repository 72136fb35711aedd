"""Owners: a line belongs to a library only where that library was imported from, whatever the folder's name is."""

import importlib.util
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fuzz_attn
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Setup
from fuzz_attn.owners import is_in_library, owner_of, without_callers

HARNESS = Path(fuzz_attn.__file__).parent
STANDARD = sysconfig.get_path("stdlib")


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (torch.nn.functional.__file__, "library"),
        (np.linalg.__file__, "library"),
        (os.__file__, "library"),
        ("<frozen runpy>", "library"),
        (str(HARNESS / "properties" / "check.py"), "harness"),
        (str(HARNESS / "kernels" / "unified" / "launch.py"), "target"),
        (str((HARNESS / "kernels").resolve() / "unified" / "launch.py"), "target"),
        ("/home/me/torch/kernel.py", "target"),
        ("/home/me/triton/runtime/kernel.py", "target"),
        ("/home/me/numpy/site-packages/torch/kernel.py", "target"),
        (f"{STANDARD}/site-packages/vllm/attention.py", "target"),
        (f"{STANDARD}/dist-packages/vllm/attention.py", "target"),
        (f"{torch.__path__[0]}_kernels/attention.py", "target"),
    ],
)
def test_owner_of_a_file(file: str, owner: str) -> None:
    assert owner_of(file) == owner


def test_watchers_of_torch_are_no_line_of_the_harness() -> None:
    watcher = str(HARNESS / "targets" / "gpu_answers.py")
    assert owner_of(watcher, "__torch_function__") == "library"
    assert owner_of("/home/me/kernel.py", "__torch_function__") == "target"


def test_parts_of_triton_are_those_of_the_installed_one() -> None:
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.submodule_search_locations is not None
    installed = found.submodule_search_locations[0]
    importlib.import_module("triton")
    assert is_in_library(f"{installed}/language/core.py", "triton", "language/", "_utils.py")
    assert not is_in_library(f"{installed}/compiler/compiler.py", "triton", "language/", "_utils.py")
    assert not is_in_library("/home/me/triton/language/core.py", "triton", "language/")


def test_callers_of_the_target_are_cut_off_a_printed_traceback() -> None:
    frames = [
        'Fatal Python error\n\nThread 0x1 (most recent call first):\n  File "/usr/lib/x.py", line 3 in inner',
        f'  File "{HARNESS}/simulator/run.py", line 3 in run',
        '  File "/home/me/triton/kernel.py", line 7 in attend',
        f'  File "{HARNESS}/targets/target.py", line 9 in run',
        '  File "<frozen runpy>", line 88 in _run_code',
    ]
    assert without_callers("\n".join(frames)) == "\n".join(frames[:3])
    assert without_callers("\n".join(frames[:2])) == frames[0]
    assert without_callers("printed\nonly") == "printed\nonly"


def test_the_text_of_an_exception_below_our_frames_is_kept() -> None:
    target = '  File "/home/me/kernel.py", line 7, in attend\n    raise ValueError("why")\nValueError: why'
    printed = f'Traceback (most recent call last):\n  File "{HARNESS}/targets/target.py", line 9, in run\n{target}'
    assert without_callers(printed) == printed


TWO_ERRORS = """
import torch

def unified_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
                      window_size, block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None,
                      qq_bias=None, sinks=None, **more):
    if q.dtype == torch.float32:
        raise RuntimeError("of float32")
    raise IndexError("of narrow types")
"""


def test_two_exceptions_in_a_folder_named_triton_are_two_failures(
    campaign: Callable[..., Results], tmp_path: Path
) -> None:
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "kernel.py").write_text(TWO_ERRORS)
    results = campaign("", setup=Setup(f"{folder / 'kernel.py'}:unified_attention"), max_cases=40)
    sites = {found.counterexample.verdict.site for found in results.failures}
    assert sites == {f"{folder / 'kernel.py'}:{line}" for line in (8, 9)}, results.failures
