"""From a parsed kernel to its program, block by block, through early returns and other branches that lead forwards.

The table of handlers says which function emits which operation of the IR: all that the simulator knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz_attn.simulator.codegen.carried import unpacked
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, cover
from fuzz_attn.simulator.codegen.operations import (
    assertions,
    control_flow,
    memory_operations,
    number_operations,
    tile_operations,
)
from fuzz_attn.simulator.codegen.operations.memory_operations import exchanges_of
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.source_tree import (
    RUN,
    Assign,
    Define,
    Do,
    Group,
    If,
    ListOf,
    Name,
    Pruner,
    Return,
    Statement,
    call,
    method,
    printed,
)
from fuzz_attn.simulator.codegen.terms import Region, RunRange, Scope, Term, range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Block, Function, Operation, Value
from fuzz_attn.ttir.kernel_arithmetic import arithmetic_of, largest_operand
from fuzz_attn.ttir.value_graph import tracked_values, walk

_HANDLERS: dict[str, Handler] = {
    **number_operations.HANDLERS,
    **tile_operations.HANDLERS,
    **memory_operations.HANDLERS,
    **control_flow.HANDLERS,
    **assertions.HANDLERS,
}

HANDLERS: dict[str, Handler] = {
    name: memory_operations.with_order(assertions.with_hints(handler)) for name, handler in _HANDLERS.items()
}


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


_STORES: Final = frozenset({"tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_store"})
_LOADS: Final = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_load", "tt.atomic_poll"})
_WAITS: Final = frozenset({"tt.atomic_cas", "tt.atomic_poll"})


@dataclass(frozen=True)
class Extension:
    """Operations that are not Triton's, for one program: their handlers, and what their code may call."""

    handlers: Mapping[str, Handler] = field(default_factory=dict)
    namespace: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


NO_EXTENSION: Final = Extension()


def generate(function: Function, coverage: bool, extension: Extension = NO_EXTENSION) -> Program:
    """Return the program of a parsed kernel. Raises UnsupportedOperation for what the simulator does not know."""
    emitter = Emitter({**HANDLERS, **extension.handlers}, tracked_values(function), coverage)
    emitter.exchanges = exchanges_of(function)
    arguments = [Name(f"A{index}") for index in range(len(function.parameters))]
    for parameter, name in zip(function.parameters, arguments, strict=True):
        _define_parameter(emitter, parameter, name)
    statements = _assembled(emitter, arguments, emit_blocks(emitter, function.blocks))
    lines = list(printed(statements))
    operations = list(walk(function.blocks))
    return Program(
        name=function.name,
        source="".join(f"{text}\n" for text, _ in lines),
        origins=[origin for _, origin in lines],
        sites=emitter.sites,
        coverage_sites=emitter.coverage_sites,
        parameters=[(parameter.name.removeprefix("%"), parameter.type) for parameter in function.parameters],
        stored=_accessed(emitter, operations, _STORES),
        loaded=_accessed(emitter, operations, _LOADS),
        elements=_largest_tile(operations),
        sequential=any(operation.name in _WAITS for operation in operations),
        arithmetic=arithmetic_of(function),
        undefined=emitter.undefined,
        shared=largest_operand(function),
        namespace=extension.namespace,
    )


def _define_parameter(emitter: Emitter, parameter: Value, name: Name) -> None:
    if parameter.type.pointer:
        emitter.define(parameter, base=name)
        emitter.elements[name] = parameter.type.element
        return
    term = Term(name, (), False, emitter.launch, parameter.type.element)
    if parameter in emitter.tracked:
        term.range = emitter.range_variable(method(RUN, "argument_range", name), emitter.launch, clean=True)
    emitter.define(parameter, term)


def _assembled(emitter: Emitter, arguments: Sequence[Name], body: list[Statement]) -> list[Statement]:
    """Return a module: constants, what a launch prepares from its scalars, the kernel over all programs."""
    pruner = Pruner()
    run = pruner.pruned(body)
    shared = Group(tuple(Name(name) for name in pruner.read_later(emitter.launch.statements)))
    prepared = pruner.pruned(emitter.launch.statements)
    constants = pruner.pruned(emitter.constants.statements)
    unpack = [Assign(shared, _PREPARED)] if shared.items else []
    return [
        *constants,
        Define(Name("prepare"), (RUN, *arguments), [*prepared, Return(shared)]),
        Define(Name("kernel"), (RUN, Name("lanes"), _PREPARED, *arguments), [*unpack, *run]),
    ]


_PREPARED: Final = Name("prepared")


def _accessed(emitter: Emitter, operations: list[Operation], names: frozenset[str]) -> frozenset[str]:
    """Return the arguments that operations of these names access."""
    vals = (emitter.values.get(one.operands[0]) for one in operations if one.name in names)
    return frozenset(val.base.name for val in vals if val is not None and val.base is not None)


def _largest_tile(operations: list[Operation]) -> int:
    """Return the number of elements of the largest tile."""
    return max([1, *(math.prod(value.type.shape) for operation in operations for value in operation.results)])
