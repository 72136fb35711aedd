"""Emission of reductions, scans, dot products, histograms and gathers."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emission import axis_of, full, rounded, track_exactly, track_result
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term, Val, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Operation

_REDUCE = {
    "arith.addf": "np.add.reduce({0}, axis={axis}, dtype={0}.dtype)",
    "arith.addi": "np.add.reduce({0}, axis={axis}, dtype={0}.dtype)",
    "arith.mulf": "np.multiply.reduce({0}, axis={axis}, dtype={0}.dtype)",
    "arith.muli": "np.multiply.reduce({0}, axis={axis}, dtype={0}.dtype)",
    "arith.maxnumf": "reduce_ignoring_nan('fmax', {0}, {axis})",
    "arith.minnumf": "reduce_ignoring_nan('fmin', {0}, {axis})",
    "arith.maximumf": "reduce_maximum(np.maximum, {0}, {axis})",
    "arith.minimumf": "reduce_maximum(np.minimum, {0}, {axis})",
    "arith.maxsi": "np.maximum.reduce({0}, axis={axis})",
    "arith.minsi": "np.minimum.reduce({0}, axis={axis})",
    "arith.andi": "np.bitwise_and.reduce({0}, axis={axis})",
    "arith.ori": "np.bitwise_or.reduce({0}, axis={axis})",
    "arith.xori": "np.bitwise_xor.reduce({0}, axis={axis})",
}


_SCAN = {
    "arith.addf": "np.add.accumulate({0}, axis={axis}, dtype={0}.dtype)",
    "arith.addi": "np.add.accumulate({0}, axis={axis}, dtype={0}.dtype)",
    "arith.mulf": "np.multiply.accumulate({0}, axis={axis}, dtype={0}.dtype)",
    "arith.muli": "np.multiply.accumulate({0}, axis={axis}, dtype={0}.dtype)",
}


def _dot(emitter: Emitter, operation: Operation) -> None:
    left, right = full(emitter, operation, 0), full(emitter, operation, 1)
    addend = emitter.operand(operation, 2)
    result = operation.results[0]
    precise = "{0}", "{1}"
    if operation.operands[0].type.element.startswith("i"):
        precise = "{0}.astype(np.int32)", "{1}.astype(np.int32)"
    operands, last = [left, right], "None"
    if addend.literal != 0:
        operands.append(emitter.ranked(addend))
        last = "{2}"
    shape = result.type.shape
    template = rounded(f"dot({precise[0]}, {precise[1]}, {last})", result.type.element)
    emitter.define(result, emitter.assign(template, operands, shape, result.type.element))


def _simple_combine(operation: Operation) -> str | None:
    """Return the name of the one operation that combines two elements, and them alone, if there is just one."""
    block = operation.regions[0][0]
    body = block.operations
    if len(body) != 2 or len(operation.operands) != 1 or set(body[0].operands) != set(block.arguments):
        return None
    return body[0].name if body[1].operands == body[0].results else None


def _combine_function(emitter: Emitter, operation: Operation) -> str:
    """Emit a function of the region that combines elements; its operands are arrays of one shape."""
    block = operation.regions[0][0]
    function = emitter.fresh("combine")
    outer = emitter.region
    region = Region(None, Scope(None, "lanes"))
    names = [emitter.fresh("a") for _ in block.arguments]
    emitter.region = region
    for name, argument in zip(names, block.arguments, strict=True):
        emitter.values[argument] = Val(argument.type, (Term(name, (), False, region, argument.type.element),))
    emitter.emit(block.operations[:-1])
    returned = ", ".join(emitter.single(emitter.val(value)).name for value in block.operations[-1].operands)
    emitter.region = outer
    root = emitter.region
    root.lines.append(f"def {function}({', '.join(names)}):")
    root.lines += [f"    {line}" for line in region.lines]
    root.lines.append(f"    return ({returned},)")
    return function


def _define_reduced(emitter: Emitter, operation: Operation, terms: list[Term]) -> None:
    for value, term in zip(operation.results, terms, strict=True):
        emitter.define(value, term)
        if value in emitter.tracked:
            track_exactly(emitter, Operation("", []), term)


def _reduce(emitter: Emitter, operation: Operation) -> None:
    axis = axis_of(operation)
    sources = [_spread_axis(emitter, operation, index, axis) for index in range(len(operation.operands))]
    shape = broadcast_shape((source.shape for source in sources), len(sources[0].shape))
    reduced = (*shape[:axis], *shape[axis + 1 :])
    template = _REDUCE.get(_simple_combine(operation) or "")
    element = operation.results[0].type.element
    if template is not None and not (element == "i1" and "add" in template):
        text = rounded(template.replace("{axis}", str(axis + 1)), element)
        _define_reduced(emitter, operation, [emitter.assign(text, sources, reduced, element)])
        return
    sources = [emitter.spread(source, shape) for source in sources]
    _combine(emitter, operation, sources, reduced, "reduce_pairs", str(axis + 1))


def _combine(
    emitter: Emitter, operation: Operation, sources: list[Term], shape: tuple[int, ...], helper: str, how: str
) -> None:
    """Emit a call of `helper` with the function of the region; it stays in this region, where the function is."""
    function, together = _combine_function(emitter, operation), emitter.fresh()
    arrays = ", ".join(emitter.name(source) for source in sources)
    emitter.line(f"{together} = {helper}({function}, {how}, *np.broadcast_arrays({arrays}))")
    pinned = Term(together, (), any(source.varying for source in sources), emitter.region, "f32")
    terms = [
        emitter.assign(f"{{0}}[{i}]", [pinned], shape, value.type.element) for i, value in enumerate(operation.results)
    ]
    _define_reduced(emitter, operation, terms)


def _spread_axis(emitter: Emitter, operation: Operation, index: int, axis: int) -> Term:
    """Return an operand with its own elements along `axis`; other axes may stay lazily broadcast."""
    term = emitter.ranked(emitter.operand(operation, index))
    size = operation.operands[index].type.shape[axis]
    shape = (*term.shape[:axis], size, *term.shape[axis + 1 :])
    return emitter.spread(term, shape)


def _scan(emitter: Emitter, operation: Operation) -> None:
    axis, reverse = axis_of(operation), "reverse = true" in operation.text
    sources = [_spread_axis(emitter, operation, index, axis) for index in range(len(operation.operands))]
    shape = broadcast_shape((source.shape for source in sources), len(sources[0].shape))
    template = _SCAN.get(_simple_combine(operation) or "")
    element = operation.results[0].type.element
    if template is not None and element not in ("bf16", "f16", "i1"):
        text = template.replace("{axis}", str(axis + 1))
        if reverse:
            text = f"np.flip({text.replace('{0}', f'np.flip({{0}}, {axis + 1})', 1)}, {axis + 1})"
        _define_reduced(emitter, operation, [emitter.assign(text, sources, shape, element)])
        return
    sources = [emitter.spread(source, shape) for source in sources]
    _combine(emitter, operation, sources, shape, "scan", f"{axis + 1}, {reverse}")


def _histogram(emitter: Emitter, operation: Operation) -> None:
    bins = operation.results[0].type.shape[0]
    operands = [full(emitter, operation, index) for index in range(len(operation.operands))]
    mask = "{1}" if len(operands) > 1 else "None"
    term = emitter.assign(f"histogram({{0}}, {bins}, {mask})", operands, (bins,), "i32")
    emitter.define(operation.results[0], term)


def _gather(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, index) for index in (0, 1)]
    result = operation.results[0]
    template = f"gather({{0}}, {{1}}, {axis_of(operation) + 1})"
    emitter.define(result, emitter.assign(template, operands, result.type.shape, result.type.element))
    track_result(emitter, operation, result)


HANDLERS: dict[str, Handler] = {
    "tt.dot": _dot,
    "tt.reduce": _reduce,
    "tt.scan": _scan,
    "tt.histogram": _histogram,
    "tt.gather": _gather,
}
