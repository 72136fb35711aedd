"""The program of a run's fork server: it has imported what the processes of a run need, and they are forks of it.

None of it imports Triton, for which a worker chooses a backend first; that includes most of the simulator. Workers that
do not choose the interpreter are forks of a second server, which has imported both.
"""

from __future__ import annotations

import os
from typing import Final

from fuzz_attn.workers.fork_server import serve

PROGRAM: Final = "fuzz_attn.engine.preloaded"


def import_all() -> None:
    """Import torch, and what shards, workers and the compile stage run; read which targets are installed."""
    # ruff: noqa: F401, PLC0415 - imported for the forks, and nowhere else
    import torch

    import fuzz_attn.calibration.calibrate
    import fuzz_attn.engine.campaign
    import fuzz_attn.engine.run_plan
    import fuzz_attn.inputs.tensors
    import fuzz_attn.inputs.transforms
    import fuzz_attn.oracle.comparison
    import fuzz_attn.oracle.emulation
    import fuzz_attn.oracle.reference
    import fuzz_attn.properties.check
    import fuzz_attn.simulator.codegen.generator
    import fuzz_attn.simulator.execution
    import fuzz_attn.targets.arithmetic
    import fuzz_attn.targets.built_in
    import fuzz_attn.targets.keeping
    import fuzz_attn.targets.loading
    import fuzz_attn.workers.worker
    from fuzz_attn.foreign_files import target_points

    target_points()  # which the forks keep, and read again where something was installed since


def import_triton() -> None:
    """Import Triton, and what runs its kernels elsewhere than in its interpreter; let the simulator check itself."""
    # ruff: noqa: PLC0415 - as above
    os.environ.pop("TRITON_INTERPRET", None)  # Triton reads it when its own functions are decorated

    from fuzz_attn.backends.simulator import check_arithmetic

    check_arithmetic()


if __name__ == "__main__":
    serve(import_all, import_triton)
