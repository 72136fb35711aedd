"""Order within a program: which loads may follow a store of other threads, with no barrier between them.

The IR names one barrier only, `tl.debug_barrier`; the compiler adds others where threads exchange values. So all that
may make it exchange some counts as a barrier, and only the rest is certain: values made of aranges, program ids and
scalars are computed by each thread that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fuzz_attn.ttir.ir import Block, Function, Operation, Value
from fuzz_attn.ttir.value_graph import walk

_LOCAL: Final = frozenset(
    [
        *("tt.splat", "tt.make_range", "tt.expand_dims", "tt.broadcast", "tt.addptr", "tt.bitcast"),
        *("tt.fp_to_fp", "tt.get_program_id", "tt.get_num_programs"),
    ]
)
_LOOPS: Final = frozenset({"scf.for", "scf.while"})
_SILENT: Final = frozenset({"tt.return", "scf.yield", "scf.condition", "llvm.intr.assume", "cf.br", "cf.cond_br"})


class _Ordering:
    """The operations of a kernel in which a load may follow a store."""

    def __init__(self, function: Function) -> None:
        self._makers = {result: operation for operation in walk(function.blocks) for result in operation.results}
        self._anywhere: dict[Value, bool] = {}

    def may_exchange(self, operation: Operation) -> bool:
        """Return whether threads may meet at a barrier in an operation, apart from those in its regions."""
        name = operation.name
        if name in _SILENT:
            return False
        if name == "tt.load":
            return not all(map(self._is_anywhere, operation.operands))
        if operation.regions and not name.startswith("tt."):  # control flow
            return any(value.type.shape for value in (*operation.results, *operation.operands))
        if not _is_local(operation):
            return True
        if all(map(self._is_anywhere, operation.results)):
            return False
        # Tiles that were loaded in different layouts are brought into one.
        tiles = [value for value in operation.operands if not self._is_anywhere(value)]
        return name == "tt.expand_dims" or len(tiles) > 1

    def _is_anywhere(self, value: Value) -> bool:
        """Return whether each thread can compute the elements of a value that it needs."""
        if not value.type.shape:
            return True
        known = self._anywhere.get(value)
        if known is None:
            maker = self._makers.get(value)
            known = self._anywhere[value] = (
                maker is not None and _is_local(maker) and all(map(self._is_anywhere, maker.operands))
            )
        return known


def _is_local(operation: Operation) -> bool:
    """Return whether each thread makes its elements of the result from its elements of the operands."""
    return operation.name in _LOCAL or operation.name.startswith(("arith.", "math."))


def exchanges_of(function: Function) -> Callable[[Operation], bool] | None:
    """Return which operations may be barriers, for a kernel in which some load of a tile may follow a store of one."""
    _, found = _after_store(function.blocks, stored=False)
    return _Ordering(function).may_exchange if found else None


def _after_store(blocks: Iterable[Block], *, stored: bool) -> tuple[bool, bool]:
    """Return whether a tile was stored before or within blocks, and whether one is loaded afterwards."""
    found = False
    for operation in (operation for block in blocks for operation in block.operations):
        if operation.name == "tt.store" and operation.operands[0].type.shape:
            stored = True
        elif operation.name == "tt.load" and operation.operands[0].type.shape:
            found |= stored
        for _ in range(2 if operation.name in _LOOPS else 1):  # a loop's second iteration follows its first
            for region in operation.regions:
                stored, inner = _after_store(region, stored=stored)
                found |= inner
    return stored, found
