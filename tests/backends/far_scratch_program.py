"""Judge a case with a scratch beyond 2^31 elements on a GPU: ``far_scratch_program.py [FOLDER]`` of bugs.

A case may not be so large, because the simulator would merge all of them, for a minute: the limit is lifted here. This
is a program of its own, because an illegal address breaks the GPU for its process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from fuzz_attn.case import attention_case
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, Sequence
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import InProcess

SMALL = AttentionCase(
    sequences=(Sequence(1, 4),) * 2,
    heads=HeadLayout(8, 64, 256),
    dtypes=DTypes("float16", "float16", "float16"),
    launch=LaunchHints(path="3d", num_segments=256),
)
TARGET = """
from pathlib import Path
from fuzz_attn.mutation.edited_kernels import target_with_seeded_bug

target = target_with_seeded_bug(Path({folder!r}), "narrow")
"""


def target_in(folder: str) -> str:
    """Return the target with the bug of a folder."""
    path = Path(folder) / "target.py"
    path.write_text(TARGET.format(folder=folder))
    return f"{path}:target"


with mock.patch.object(attention_case, "MAX_TOTAL_ELEMENTS", 2**32):
    target = target_in(sys.argv[1]) if sys.argv[1:] else "unified"
    with InProcess(Setup(target, "unified", "cuda")) as judge:
        for name, case in (("small", SMALL), ("far", replace(SMALL, sequences=SMALL.sequences[:1] * 66))):
            verdict = judge.judge(Order(case)).verdict
            print(f"{name}: {'pass' if verdict.passed else verdict.kind} {verdict.message}", flush=True)
