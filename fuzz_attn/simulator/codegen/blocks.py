"""Emission of the blocks of a function: early returns and other branches that lead forwards."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.carried import indented
from fuzz_attn.simulator.codegen.emission import cover
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term
from fuzz_attn.simulator.frontend.ir import Block, Value


def emit_blocks(emitter: Emitter, blocks: list[Block]) -> list[str]:
    """Return the lines of a function's blocks, each behind all that lead to it; loops of blocks are not supported."""
    useful = {
        block.label for block in blocks[1:] if block.arguments or [op.name for op in block.operations] != ["tt.return"]
    }
    lines = [f"edges_{label} = []" for label in sorted(useful)]
    if len(useful) < len(blocks) - 1:
        lines.append("edges_return = []")
    ordered = _in_order(emitter, blocks)
    _block(emitter, ordered[0], useful)
    lines += emitter.region.lines
    for block in ordered[1:]:
        if block.label in useful:
            lines += _later_block(emitter, block, useful)
    return lines


def _in_order(emitter: Emitter, blocks: list[Block]) -> list[Block]:
    """Blocks in an order in which every branch leads forwards."""
    by_label = {block.label: block for block in blocks}
    finished: list[Block] = []
    state: dict[str, bool] = {}

    def visit(block: Block) -> None:
        state[block.label] = False
        for label, _ in block.operations[-1].successors:
            if label not in state:
                visit(by_label[label])
            elif not state[label]:
                emitter.location = block.operations[-1].location
                raise emitter.unsupported("a branch backwards")
        state[block.label] = True
        finished.append(block)

    visit(blocks[0])
    return finished[::-1]


def _later_block(emitter: Emitter, block: Block, useful: set[str]) -> list[str]:
    scope = Scope(None, emitter.fresh("lanes"))
    region = emitter.region = Region(None, scope)
    names = []
    for argument in block.arguments:
        name = emitter.fresh("x")
        names.append(name)
        term = Term(name, argument.type.shape, True, region, argument.type.element)
        emitter.define(argument, term)
        if argument in emitter.tracked:
            term.range = emitter.fresh("r")
            region.lines.append(f"{term.range} = ranges.exact({name})")
    _block(emitter, block, useful)
    by_home: dict[str, list[tuple[str, str]]] = {}
    for outer, inner, home in scope.captures.values():
        by_home.setdefault(home, []).append((outer, inner))
    lines = [f"{scope.lanes}, ({''.join(f'{name}, ' for name in names)}) = join(edges_{block.label})"]
    for home, pairs in by_home.items():
        inner = ", ".join(pair[1] for pair in pairs)
        outer = ", ".join(pair[0] for pair in pairs)
        lines.append(f"{inner}, = narrow({home}, {scope.lanes}, {outer})")
    return [f"if edges_{block.label}:", *indented([*lines, *region.lines])]


def _block(emitter: Emitter, block: Block, useful: set[str]) -> None:
    last = block.operations[-1]
    emitter.emit(block.operations[:-1])
    emitter.location = last.location
    if last.name == "cf.br":
        label, arguments = last.successors[0]
        if label in useful:
            emitter.line(f"edges_{label}.append(({emitter.region.scope.lanes}, {_edge(emitter, arguments)}))")
    elif last.name == "cf.cond_br":
        condition = emitter.array(emitter.operand(last, 0))
        if emitter.coverage:
            cover(emitter, "branch", condition)
        (first, left), (second, right) = last.successors
        targets = [f"edges_{label if label in useful else 'return'}" for label in (first, second)]
        edges = f"{_edge(emitter, left)}, {_edge(emitter, right)}, {', '.join(targets)}"
        emitter.line(f"branch({emitter.name(condition)}, {emitter.region.scope.lanes}, {edges})")
    elif last.name != "tt.return":
        raise emitter.unsupported(last.name)


def _edge(emitter: Emitter, arguments: list[Value]) -> str:
    for value in arguments:
        if value.type.pointer:
            raise emitter.unsupported("a pointer passed between blocks")
    sources = [emitter.exact(emitter.single(emitter.val(value)), value.type.shape, True) for value in arguments]
    return f"({''.join(f'{source}, ' for source in sources)})"
