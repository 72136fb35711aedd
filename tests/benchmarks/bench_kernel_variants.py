"""The number of cases for each kernel that Triton would compile, for rounds of several sizes.

It runs no kernel. It records what Triton would specialise each launch for: constants, which pointers are None, types
and alignment of pointers, and integers that are 1 or divisible by 16.
"""

from typing import Any

import torch

from fuzz_attn.backends import backend_named
from fuzz_attn.case.attention_case import AttentionCase

backend_named("simulator").prepare()

from fuzz_attn.engine.schedule import ON_CPU, ON_GPU, RoundSize, derived_seed, play_round  # noqa: E402 - as above
from fuzz_attn.inputs.tensors import materialise  # noqa: E402 - as above
from fuzz_attn.kernels import unified_attention  # noqa: E402 - kernels are decorated once the backend is prepared
from fuzz_attn.targets.loading import load_target  # noqa: E402 - as above

CASES = 2400
SIZES = (ON_CPU, RoundSize(cases=960, keys=8), RoundSize(cases=960, keys=8, layouts=2), ON_GPU)
KERNELS = ("kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments")


class Recorder:
    """Replaces a kernel and records its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.parameters = {parameter.name: parameter for parameter in kernel.params}
        self.seen: set[tuple[object, ...]] = set()

    def __getitem__(self, grid: object) -> Any:
        """Return a function that records a launch."""
        return lambda **given: self.seen.add(
            tuple((name, self.specialised(name, given[name])) for name in sorted(given))
        )

    def specialised(self, name: str, value: Any) -> object:
        """Return the part of an argument that Triton compiles into the kernel."""
        parameter = self.parameters.get(name)
        if isinstance(value, torch.Tensor):
            return value.dtype, value.data_ptr() % 16 == 0
        if parameter is None or parameter.is_constexpr or value is None:
            return repr(value)
        if isinstance(value, float) or parameter.do_not_specialize:
            return type(value)
        return value == 1, value % 16 == 0


def main() -> None:
    """Print a line for each size."""
    target = load_target("unified")

    def play(case: AttentionCase, relation: str | None) -> None:
        target.run(materialise(case))

    kernels = {name: getattr(unified_attention, name) for name in KERNELS}
    for size in SIZES:
        recorders = [Recorder(kernel) for kernel in kernels.values()]
        for name, recorder in zip(kernels, recorders, strict=True):
            setattr(unified_attention, name, recorder)
        for number in range(CASES // size.cases):
            seed = derived_seed(1, 0, number)
            play_round(target.domain, seed, size.cases, play, size)
        made, compiled = CASES // size.cases * size.cases, sum(len(recorder.seen) for recorder in recorders)
        print(f"{size}: {made} cases, {compiled} kernels, {made / compiled:.2f} cases per kernel", flush=True)


if __name__ == "__main__":
    main()
