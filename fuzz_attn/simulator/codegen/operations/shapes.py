"""Emission of program ids, ranges, pointers and changes of shape."""

from __future__ import annotations

import re

from fuzz_attn.simulator.codegen.emission import axis_of, full, track_exactly, track_result
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.frontend.ir import Operation, Type

_RANGE = re.compile(r"end = (\d+) : i32, start = (\d+)")


_ORDER = re.compile(r"order = array<i32: ([\d, ]+)>")


_AXES = {"x": 0, "y": 1, "z": 2}


def _program_id(emitter: Emitter, operation: Operation) -> None:
    axis = _AXES[operation.text.split()[0]]
    region = emitter.region
    while region.parent is not None and region.parent.scope is region.scope:
        region = region.parent
    name = emitter.fresh()
    region.lines.append(f"{name} = run.program_ids({region.scope.lanes}, {axis})")
    term = Term(name, (), True, region, "i32", range=f"run.id_ranges[{axis}]")
    emitter.define(operation.results[0], term)


def _num_programs(emitter: Emitter, operation: Operation) -> None:
    axis = _AXES[operation.text.split()[0]]
    term = emitter.assign(f"np.array([run.grid[{axis}]], np.int32)", [], (), "i32")
    track_exactly(emitter, Operation("", []), term)
    emitter.define(operation.results[0], term)


def _make_range(emitter: Emitter, operation: Operation) -> None:
    match = _RANGE.search(operation.text)
    if match is None:
        raise emitter.unsupported("tt.make_range")
    end, start = int(match.group(1)), int(match.group(2))
    term = emitter.assign(f"np.arange({start}, {end}, dtype=np.int32)[None]", [], (end - start,), "i32", affine=True)
    term.range, term.start = f"({start}, {end - 1}, ())", start
    emitter.define(operation.results[0], term)


def _each_term(emitter: Emitter, operation: Operation, change: object) -> None:
    """Apply a change of shape to every term of a value, which stays a sum, a conjunction or a pointer."""
    source = emitter.val(operation.operands[0])
    result = operation.results[0]
    assert callable(change)
    memo: dict[Term, Term] = {}

    def changed(term: Term) -> Term:
        if term not in memo:
            memo[term] = change(term)
        return memo[term]

    groups = tuple(
        Val(Type(group.type.element, result.type.shape), tuple(map(changed, group.terms)), range=group.range)
        for group in source.groups
    )
    val = emitter.define(result, *map(changed, source.terms), base=source.base, groups=groups)
    val.range = source.range


def _splat(emitter: Emitter, operation: Operation) -> None:
    rank = len(operation.results[0].type.shape)
    index = "[:, " + ", ".join(["None"] * rank) + "]"

    def change(term: Term) -> Term:
        shape = (1,) * rank
        if term.literal is not None:
            return emitter.literal(term.literal, shape, term.element)
        if term.bare:
            return Term(term.name, shape, False, term.region, term.element, range=term.range)
        spread = emitter.assign(f"{{0}}{index}", [term], shape, term.element)
        spread.range = _reshaped(emitter, spread, term, index)
        return spread

    _each_term(emitter, operation, change)


def _reshaped(emitter: Emitter, target: Term, source: Term, index: str) -> str | None:
    """Return the companion range of a term whose taints, if any, are indexed like the term."""
    if source.range is None or emitter.is_clean(source.range):
        return source.range
    inside = index[1:-1].replace(":", "slice(None)") + ","
    template = f"ranges.reshaped({{0}}, {source.shape}, ({inside})) if {{0}}[2] else {{0}}"
    return emitter.ranged(template, [source.range], target.region)


def _expand_dims(emitter: Emitter, operation: Operation) -> None:
    axis, rank = axis_of(operation), len(operation.operands[0].type.shape)
    index = "[" + ", ".join([":"] * (axis + 1) + ["None"] + [":"] * (rank - axis)) + "]"

    def change(term: Term) -> Term:
        shape = (*term.shape[:axis], 1, *term.shape[axis:])
        if term.literal is not None:
            return emitter.literal(term.literal, shape, term.element)
        if term.bare:
            return Term(term.name, shape, False, term.region, term.element, range=term.range)
        expanded = emitter.assign(f"{{0}}{index}", [term], shape, term.element, affine=term.affine)
        expanded.range = _reshaped(emitter, expanded, term, index)
        expanded.start, expanded.prefix = term.start, term.prefix
        return expanded

    _each_term(emitter, operation, change)


def _broadcast(emitter: Emitter, operation: Operation) -> None:
    _each_term(emitter, operation, lambda term: term)


def _transpose(emitter: Emitter, operation: Operation) -> None:
    match = _ORDER.search(operation.text)
    if match is None:
        raise emitter.unsupported("tt.trans")
    order = [int(axis) for axis in match.group(1).split(",")]
    axes = (0, *(axis + 1 for axis in order))

    def change(term: Term) -> Term:
        shape = tuple(term.shape[axis] for axis in order)
        if term.literal is not None or term.bare:
            return Term(term.name, shape, False, term.region, term.element, term.literal, range=term.range)
        moved = emitter.assign(f"{{0}}.transpose{axes}", [term], shape, term.element, affine=term.affine)
        moved.start, moved.prefix = term.start, term.prefix
        if term.range is not None:
            moved.range = term.range if term.range.startswith("(") else f"ranges.exact({moved.name}, {term.range})"
        return moved

    _each_term(emitter, operation, change)


def _reshape(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    source = emitter.operand(operation, 0)
    rank = len(result.type.shape)
    if source.literal is not None:
        emitter.define(result, emitter.literal(source.literal, result.type.shape, source.element))
        return
    if source.bare:
        term = Term(source.name, (1,) * rank, False, source.region, source.element, range=source.range)
        emitter.define(result, term)
        return
    spread = emitter.spread(source, operation.operands[0].type.shape)
    term = emitter.assign(f"{{0}}.reshape((-1, *{result.type.shape}))", [spread], result.type.shape, source.element)
    emitter.define(result, term)
    if result in emitter.tracked:
        track_exactly(emitter, operation, term)


def _join(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, index) for index in (0, 1)]
    result = operation.results[0]
    name = "stack" if operation.name == "tt.join" else "concatenate"
    emitter.define(result, emitter.assign(f"{name}({{0}}, {{1}})", operands, result.type.shape, result.type.element))
    track_result(emitter, operation, result)


def _split(emitter: Emitter, operation: Operation) -> None:
    source = full(emitter, operation, 0)
    for index, result in enumerate(operation.results):
        emitter.define(result, emitter.assign(f"{{0}}[..., {index}]", [source], result.type.shape, result.type.element))
        track_result(emitter, operation, result)


def _nothing(emitter: Emitter, operation: Operation) -> None:
    """Barriers, prints and compiler hints: no effect on values."""


def _add_pointer(emitter: Emitter, operation: Operation) -> None:
    pointer, offset = (emitter.val(operand) for operand in operation.operands)
    group = Val(offset.type, offset.terms, range=offset.range)
    groups = (*pointer.groups, group) if len(offset.terms) > 1 and offset.type.element == "i32" else pointer.groups
    terms = tuple(term for term in (*pointer.terms, *offset.terms) if term.literal != 0)
    emitter.define(operation.results[0], *terms, base=pointer.base, groups=groups)


def _assert(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.operand(operation, 0)
    message = operation.text.split('"')[1] if '"' in operation.text else ""
    lanes, test = emitter.region.scope.lanes, emitter.name(emitter.array(condition))
    emitter.line(f"run.device_assert({emitter.site()}, {lanes}, {test}, {message!r})")


HANDLERS: dict[str, Handler] = {
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.make_range": _make_range,
    "tt.splat": _splat,
    "tt.unsplat": _reshape,
    "tt.expand_dims": _expand_dims,
    "tt.broadcast": _broadcast,
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
    "tt.join": _join,
    "tt.cat": _join,
    "tt.split": _split,
    "tt.addptr": _add_pointer,
    "tt.assert": _assert,
    **dict.fromkeys(["tt.print", "ttg.barrier", "gpu.barrier", "tt.return", "llvm.intr.assume"], _nothing),
}
