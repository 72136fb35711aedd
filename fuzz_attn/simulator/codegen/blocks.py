"""Emission of the blocks of a function: early returns and other branches that lead forwards."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz_attn.simulator.codegen.carried import unpacked
from fuzz_attn.simulator.codegen.coverage import cover
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.regions import Region, Scope
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.codegen.tree.expressions import Group, ListOf, Name, call, method
from fuzz_attn.simulator.codegen.tree.statements import Assign, Do, If, Statement
from fuzz_attn.simulator.codegen.tree.value_ranges import RunRange, range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Block, Operation, Value


def emit_blocks(emitter: Emitter, blocks: list[Block]) -> list[Statement]:
    """Return the statements of a function's blocks, each behind all that lead to it.

    Raises UnsupportedOperation for blocks that form a loop.
    """
    useful = {block.label for block in blocks[1:] if block.arguments or not _only_returns(block)}
    ordered = _in_order(emitter, blocks)
    labels = sorted(useful) + (["return"] if len(useful) < len(blocks) - 1 else [])
    statements: list[Statement] = [Assign(_edges(label), ListOf(), effect=True) for label in labels]
    _emit_block(emitter, ordered[0], useful)
    statements += emitter.region.statements
    for block in ordered[1:]:
        if block.label in useful:
            statements.append(_later_block(emitter, block, useful))
    return statements


def _only_returns(block: Block) -> bool:
    return [operation.name for operation in block.operations] == ["tt.return"]


def _edges(label: str) -> Name:
    """Return the variable of the lanes that arrive at a block, with their arguments."""
    return Name(f"edges_{label}")


def _in_order(emitter: Emitter, blocks: list[Block]) -> list[Block]:
    """Return the blocks in an order in which every branch leads forwards."""
    by_label = {block.label: block for block in blocks}
    finished: list[Block] = []
    state: dict[str, bool] = {}

    def visit(block: Block) -> None:
        state[block.label] = False
        for label, _ in block.operations[-1].successors:
            if label not in state:
                visit(by_label[label])
            elif not state[label]:
                emitter.start(block.operations[-1])
                raise emitter.unsupported("a branch backwards")
        state[block.label] = True
        finished.append(block)

    visit(blocks[0])
    return finished[::-1]


def _later_block(emitter: Emitter, block: Block, useful: set[str]) -> Statement:
    scope = Scope(None, emitter.fresh("lanes"))
    region = emitter.region = Region(None, scope)
    names = tuple(_define_argument(emitter, argument, region) for argument in block.arguments)
    _emit_block(emitter, block, useful)
    edges = _edges(block.label)
    entry: list[Statement] = [Assign(Group((scope.lanes, Group(names))), call("join", edges))]
    for home in dict.fromkeys(capture.home for capture in scope.captures.values()):
        captures = [capture for capture in scope.captures.values() if capture.home == home]
        rows = call("narrow", home, scope.lanes, *(capture.outer for capture in captures))
        entry.append(unpacked([capture.inner for capture in captures], rows))
    return If(edges, [*entry, *region.statements], origin=emitter.origin)


def _define_argument(emitter: Emitter, argument: Value, region: Region) -> Name:
    name = emitter.fresh("x")
    term = Term(name, argument.type.shape, True, region, argument.type.element)
    emitter.define(argument, term)
    if argument in emitter.tracked:
        found = emitter.fresh("r")
        term.range = RunRange(found)
        emitter.add_to(region, Assign(found, range_call(ranges.exact, name)))
    return name


def _emit_block(emitter: Emitter, block: Block, useful: set[str]) -> None:
    last = block.operations[-1]
    emitter.emit(block.operations[:-1])
    emitter.start(last)
    if last.name == "cf.br":
        label, arguments = last.successors[0]
        if label in useful:
            emitter.add(Do(method(_edges(label), "append", Group((emitter.lanes, _passed(emitter, arguments))))))
    elif last.name == "cf.cond_br":
        _emit_branch(emitter, last, useful)
    elif last.name != "tt.return":
        raise emitter.unsupported(last.name)


def _emit_branch(emitter: Emitter, operation: Operation, useful: set[str]) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    cover(emitter, "branch", condition)
    targets = [_edges(label if label in useful else "return") for label, _ in operation.successors]
    passed = [_passed(emitter, arguments) for _, arguments in operation.successors]
    emitter.add(Do(call("branch", emitter.read(condition), emitter.lanes, *passed, *targets)))


def _passed(emitter: Emitter, arguments: Sequence[Value]) -> Group:
    """Return the arguments that a branch passes to a block."""
    if any(value.type.pointer for value in arguments):
        raise emitter.unsupported("a pointer passed between blocks")
    arrays = [emitter.exact(emitter.single(emitter.val(value)), value.type.shape, True) for value in arguments]
    return Group(tuple(arrays))
