"""From a parsed kernel to its program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz_attn.simulator.codegen.blocks import emit_blocks
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.operations.table import HANDLERS
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.codegen.tree.expressions import RUN, Group, Name, method
from fuzz_attn.simulator.codegen.tree.pruning import Pruner
from fuzz_attn.simulator.codegen.tree.statements import Assign, Define, Return, Statement, printed
from fuzz_attn.ttir.barriers import exchanges_of
from fuzz_attn.ttir.ir import Function, Operation, Value
from fuzz_attn.ttir.kernel_arithmetic import arithmetic_of, largest_operand
from fuzz_attn.ttir.value_graph import tracked_values, walk

_STORES: Final = frozenset({"tt.store", "tt.atomic_rmw", "tt.atomic_cas"})
_LOADS: Final = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas"})


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
        sequential=any(operation.name == "tt.atomic_cas" for operation in operations),
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
