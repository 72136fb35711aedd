"""A canary for each name of torch that its documentation does not promise; torch 2.11 to 2.13 have them all."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz_attn.simulator.torch_compat import DispatchMode, modes_disabled, written_arguments


class Recording(DispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_every_operator_unless_modes_are_disabled() -> None:
    with Recording() as mode:
        x = torch.empty(3)
        with modes_disabled():
            x.view(1, 3)
        x.zero_()
    assert mode.seen == ["aten::empty", "aten::zero_"]


def test_modes_decide_whether_torch_skips_its_compiler() -> None:
    assert "_should_skip_dynamo" in vars(TorchDispatchMode)
    assert not DispatchMode._should_skip_dynamo()


def test_an_operator_names_the_arguments_that_it_writes_to() -> None:
    assert written_arguments(torch.ops.aten.zero_.default) == ((0, "self"),)
    assert written_arguments(torch.ops.aten.add.out) == ((3, "out"),)
    assert written_arguments(torch.ops.aten.add.Tensor) == ()
