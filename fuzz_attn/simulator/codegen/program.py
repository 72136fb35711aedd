"""From a parsed kernel to a Python function that runs all programs of a grid at once."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

from fuzz_attn.simulator.codegen.blocks import emit_blocks
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.operations.table import HANDLERS
from fuzz_attn.simulator.codegen.pruning import assigned_and_used, pruned
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.findings import Location
from fuzz_attn.simulator.frontend.ir import Block, Function, Operation, Type, Value
from fuzz_attn.simulator.runtime import arithmetic, atomics, columns, float_formats, lanes, ranges, tiles
from fuzz_attn.simulator.runtime.select import select
from fuzz_attn.simulator.sanitizers.mask_coverage import Masks, cover


@dataclass(slots=True)
class Plan:
    """What launches with the same scalar arguments and the same grid share.

    `scalars` has an array for each scalar argument and None for each tensor; `prepared` is what the generated code
    makes of them, once a launch has asked for it.
    """

    scalars: list[Any]
    prepared: tuple[Any, ...] | None = None


MOST_PLANS = 4


@dataclass(slots=True)
class Program:
    """A kernel ready to run: source, the source lines its numbers stand for, and what it does to its arguments.

    `parameters` are the types of the arguments that are not constexprs, in order; `coverage_sites` are its
    masks: kind, line, and whether the mask has several elements; `elements` is the size of its largest tile.
    """

    name: str
    source: str
    sites: list[Location]
    coverage_sites: list[tuple[str, Location, bool]]
    parameters: list[tuple[str, Type]]
    stored: frozenset[str]
    loaded: frozenset[str]
    elements: int
    sequential: bool
    code: CodeType | None = None
    function: Callable[..., None] | None = None
    prepare: Callable[..., tuple[Any, ...]] | None = None
    plans: dict[object, Plan] = field(default_factory=dict)

    def plan(self, key: object, scalars: Callable[[], list[Any]]) -> Plan:
        """Return the plan of a launch; the last few are kept, for a case is run several times."""
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = self.plans[key] = Plan(scalars())
        return plan

    def compiled(self) -> CodeType:
        """Return the code object of the source."""
        if self.code is None:
            digest = hashlib.sha256(self.source.encode()).hexdigest()
            self.code = compile(self.source, f"<simulated {self.name} {digest[:16]}>", "exec")
        return self.code

    def forget(self) -> None:
        """Let go of the source that tracebacks would show; for whoever drops the program."""
        if self.code is not None:
            linecache.cache.pop(self.code.co_filename, None)

    def ready(self, masks: Masks) -> Callable[..., None]:
        """Return the function that runs programs of a grid, and records what their masks show."""
        if self.function is None:
            code = self.compiled()
            filename = code.co_filename
            linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
            module = dict(NAMESPACE)
            module["seen"], module["slots"] = masks.seen, masks.slots(self.name, self.coverage_sites)
            exec(code, module)  # noqa: S102 - running generated code is what this is for
            self.function, self.prepare = module["kernel"], module["prepare"]
        return self.function


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {
        "np": np,
        "ranges": ranges,
        "select": select,
        "cover": cover,
        "EVERY": np.zeros(1, np.int64),
        "inf": float("inf"),
        "nan": float("nan"),
        "DTYPES": float_formats.CONTAINER,
    }
    for module in (arithmetic, atomics, float_formats, columns, lanes, tiles):
        names.update(
            {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
        )
    return names


NAMESPACE = _namespace()


def generate(function: Function, coverage: bool) -> Program:
    """Return the program of a parsed kernel. Raises UnsupportedOperation for what the simulator does not know."""
    emitter = Emitter(HANDLERS, tracked_values(function), coverage)
    arguments = []
    parameters = []
    for index, parameter in enumerate(function.parameters):
        name = f"A{index}"
        parameters.append((parameter.name.removeprefix("%"), parameter.type))
        arguments.append(name)
        _define_parameter(emitter, parameter, name)
    source = _assembled(emitter, arguments, emit_blocks(emitter, function.blocks))
    operations = list(walk(function.blocks))
    return Program(
        name=function.name,
        source=source,
        sites=emitter.sites,
        coverage_sites=emitter.coverage_sites,
        parameters=parameters,
        stored=_touched(emitter, operations, ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")),
        loaded=_touched(emitter, operations, ("tt.load", "tt.atomic_rmw", "tt.atomic_cas")),
        elements=_largest_tile(operations),
        sequential=any(operation.name == "tt.atomic_cas" for operation in operations),
    )


def _assembled(emitter: Emitter, arguments: list[str], lines: list[str]) -> str:
    """Return a module's text: constants, what a launch prepares from its scalars, the kernel over all programs."""
    constants = emitter.constants.lines
    body = [*(f"    {line}" for line in emitter.launch.lines), _BORDER, *(f"    {line}" for line in lines)]
    kept = pruned([*constants, _BORDER, *body])
    first = kept.index(_BORDER)
    second = kept.index(_BORDER, first + 1)
    prepared, run = kept[first + 1 : second], kept[second + 1 :]
    shared = assigned_and_used(prepared, run)
    names = "".join(f"{name}, " for name in shared)
    return "\n".join(
        [
            *kept[:first],
            f"def prepare(run, {', '.join(arguments)}):",
            *prepared,
            f"    return ({names})",
            f"def kernel(run, lanes, prepared, {', '.join(arguments)}):",
            *([f"    {names}= prepared"] if shared else []),
            *run,
            "    return\n",
        ]
    )


_BORDER = "#"


def _define_parameter(emitter: Emitter, parameter: Value, name: str) -> None:
    if parameter.type.pointer:
        emitter.define(parameter, base=name)
        return
    term = Term(name, (), False, emitter.launch, parameter.type.element)
    if parameter in emitter.tracked:
        term.range = emitter.fresh("r")
        emitter.launch.lines.append(f"{term.range} = run.argument_range({name})")
        emitter.ranged_as(term.range, emitter.launch, clean=True)
    emitter.define(parameter, term)


def walk(blocks: list[Block]) -> Iterator[Operation]:
    """All operations of blocks, nested ones included."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            for region in operation.regions:
                yield from walk(region)


def _touched(emitter: Emitter, operations: list[Operation], names: tuple[str, ...]) -> frozenset[str]:
    bases = set()
    for operation in operations:
        if operation.name in names:
            val = emitter.values.get(operation.operands[0])
            if val is not None and val.base is not None:
                bases.add(val.base)
    return frozenset(bases)


def _largest_tile(operations: list[Operation]) -> int:
    """Elements of the largest tile, a dot product's operands and sum taken together."""
    sizes = [1]
    for operation in operations:
        for value in operation.results:
            size = 1
            for extent in value.type.shape:
                size *= extent
            sizes.append(size)
    return max(sizes)


_INTEGER_OPERATIONS = """
    addi subi muli divsi remsi divui remui extsi extui trunci maxsi minsi maxui minui andi ori xori shli shrsi shrui
    select
"""
_TILE_OPERATIONS = "splat unsplat broadcast expand_dims reshape trans addptr"
_THROUGH = frozenset(
    [f"arith.{name}" for name in _INTEGER_OPERATIONS.split()] + [f"tt.{name}" for name in _TILE_OPERATIONS.split()]
)
"""Operations whose result is an address, or part of one, when their operands are."""


def tracked_values(function: Function) -> set[Value]:
    """Integers that may reach an address: they carry a range along, by which 32-bit overflow is found."""
    sources = _sources(function)
    tracked: set[Value] = set()
    pending = [
        operand
        for operation in walk(function.blocks)
        if operation.name == "tt.addptr"
        for operand in operation.operands
    ]
    while pending:
        value = pending.pop()
        if value in tracked or value.type.is_float:
            continue
        if not value.type.pointer and value.type.element == "i1":
            continue
        tracked.add(value)
        pending += sources.get(value, [])
    return tracked


def _sources(function: Function) -> dict[Value, list[Value]]:
    """For each value the values that its elements come from."""
    sources: dict[Value, list[Value]] = {}
    arguments = {block.label: block.arguments for block in function.blocks}
    for operation in walk(function.blocks):
        for label, passed in operation.successors:
            for argument, value in zip(arguments[label], passed, strict=True):
                sources.setdefault(argument, []).append(value)
        if operation.name in _THROUGH:
            operands = operation.operands[1:] if operation.name == "arith.select" else operation.operands
            sources.setdefault(operation.results[0], []).extend(operands)
        elif operation.name == "scf.for":
            _link(
                sources,
                operation.regions[0][0].arguments[1:],
                operation.results,
                operation.operands[3:],
                operation.regions[0][0],
            )
            sources[operation.regions[0][0].arguments[0]] = operation.operands[:3]
        elif operation.name == "scf.if":
            for region in operation.regions:
                for result, value in zip(
                    operation.results, region[0].operations[-1].operands if region[0].operations else [], strict=False
                ):
                    sources.setdefault(result, []).append(value)
        elif operation.name == "scf.while":
            before, after = operation.regions[0][0], operation.regions[1][0]
            _link(sources, before.arguments, [], operation.operands, after)
            for result, argument, value in zip(
                operation.results, after.arguments, before.operations[-1].operands[1:], strict=True
            ):
                sources.setdefault(result, []).append(value)
                sources.setdefault(argument, []).append(value)
    return sources


def _link(
    sources: dict[Value, list[Value]], arguments: list[Value], results: list[Value], inits: list[Value], body: Block
) -> None:
    yielded = body.operations[-1].operands
    for index, argument in enumerate(arguments):
        sources.setdefault(argument, []).extend([inits[index], yielded[index]])
    for index, result in enumerate(results):
        sources.setdefault(result, []).extend([inits[index], yielded[index]])
