"""Parser: from the text of a TTIR module, as Triton 3.6 to 3.9 print it, to a tree of operations."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from fuzz_attn.errors import SimulatorError, UnsupportedOperation
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Block, Function, Location, Locations, Operation, Type, Value, parse_type

_NAME = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_QUOTED = re.compile(r'"[^"]*"')
_RESULTS = re.compile(r"^((?:%[\w$.\-]+(?::\d+)?(?:, )?)+) = ")
_OPERATION = re.compile(r'^"?([a-z_]+\.[\w.]+)"?')
_FUNCTION = re.compile(r"^tt\.func (public |private )?@([\w$.\-\"]+)\((.*)\)(?: -> .*?)?(?: attributes .*)? \{$")
_ARGUMENT = re.compile(r"(%[\w$.\-]+): ")
_BLOCK = re.compile(r"^\^(\w+)(?:\((.*)\))?:")
_SUCCESSOR = re.compile(r"\^(\w+)(?:\(([^)]*)\))?")
_PAIR = re.compile(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)")
_CLOSERS = ("}", "})")
_TERMINATORS = frozenset(
    {"scf.yield", "scf.condition", "tt.return", "tt.reduce.return", "tt.scan.return", "cf.br", "cf.cond_br"}
)


def parse_module(text: str) -> Function:
    """Return the kernel of a module printed by Triton, locations included.

    Raises UnsupportedOperation for a module with functions that were not inlined.
    """
    functions = _Parser(text).functions()
    if len(functions) != 1:
        raise UnsupportedOperation("tt.call (noinline function)", UNKNOWN_LOCATION)
    return functions[0]


class _Parser:
    """A recursive descent over lines. MLIR never shadows a visible name, so one table of values is enough."""

    def __init__(self, text: str) -> None:
        self._locations = Locations(text)
        self._lines: Iterator[str] = iter(line.strip() for line in text.splitlines())
        self._values: dict[str, Value] = {}

    def functions(self) -> list[Function]:
        found = []
        for raw in self._lines:
            if raw.startswith("tt.func"):
                found.append(self._function(_strip_locations(raw)[0]))
        return found

    def _function(self, line: str) -> Function:
        match = _FUNCTION.match(line)
        if match is None:
            raise SimulatorError(f"cannot parse the function header {line!r}")
        parameters = self._arguments(match.group(3))
        return Function(match.group(2), parameters, self._region()[0])

    def _arguments(self, text: str) -> list[Value]:
        pieces = _ARGUMENT.split(text)[1:]
        types = (piece.split(" {")[0].strip().rstrip(",") for piece in pieces[1::2])
        return [self._define(name, parse_type(type_)) for name, type_ in zip(pieces[::2], types, strict=True)]

    def _define(self, name: str, type_: Type) -> Value:
        value = self._values[name] = Value(name, type_)
        return value

    def _use(self, name: str) -> Value:
        return self._values[name]

    def _region(self, arguments: list[Value] | None = None) -> tuple[list[Block], str]:
        """Return the blocks up to the closing brace, and the text of the line that closes them."""
        blocks = [Block("bb0", arguments or [])]
        for raw in self._lines:
            if raw.startswith(_CLOSERS):
                if not blocks[-1].operations or blocks[-1].operations[-1].name not in _TERMINATORS:
                    blocks[-1].operations.append(Operation("scf.yield", []))  # not printed when it yields nothing
                return blocks, raw
            if raw.startswith("^"):
                self._open_block(raw, blocks)
            elif raw:
                blocks[-1].operations.append(self._operation(raw))
        raise SimulatorError("a region of the module is not closed")

    def _open_block(self, raw: str, blocks: list[Block]) -> None:
        match = _BLOCK.match(_strip_locations(raw)[0])
        if match is None:
            raise SimulatorError(f"cannot parse the block header {raw!r}")
        arguments = self._arguments(match.group(2) or "")
        if len(blocks) == 1 and not blocks[0].operations and not blocks[0].arguments:
            blocks[0] = Block(match.group(1), arguments)
        else:
            blocks.append(Block(match.group(1), arguments))

    def _operation(self, raw: str) -> Operation:
        """Return the operation that starts with a line.

        Raises UnsupportedOperation for text of an unknown form, whatever part of it is unknown.
        """
        try:
            return self._parsed(raw)
        except SimulatorError:
            raise
        except Exception as error:
            line, location_text = _strip_locations(raw)
            what = f"{_name_of(line)} ({type(error).__name__} while its text is parsed)"
            raise UnsupportedOperation(what, self._location(location_text)) from error

    def _parsed(self, raw: str) -> Operation:
        line, location_text = _strip_locations(raw)
        results = _RESULTS.match(line)
        names = _expand_results(results.group(1)) if results else []
        body = line[results.end() :] if results else line
        match = _OPERATION.match(body)
        if match is None:
            raise UnsupportedOperation(body.split(" ")[0], self._location(location_text))
        name = match.group(1)
        rest = body[match.end() :]
        if name == "scf.for":
            return self._for(rest, names)
        if name == "scf.while":
            return self._while(rest, names)
        if name == "scf.if":
            return self._if(rest, names)
        if name in ("tt.reduce", "tt.scan"):
            return self._combining(name, rest, names)
        location = self._location(location_text)
        if rest.endswith("{"):
            raise UnsupportedOperation(name, location if location_text else self._closing_location(self._region()[1]))
        operation = Operation(name, [], text=rest, location=location, inlined=(self._locations, location_text))
        if name in ("cf.br", "cf.cond_br"):
            self._branch(operation, rest)
            return operation
        plain = _QUOTED.sub("", rest) if '"' in rest else rest  # assembly has names of its own
        operation.operands = [self._use(found) for found in _NAME.findall(plain)]
        operation.results = [self._define(*pair) for pair in zip(names, _typed(name, rest, len(names)), strict=True)]
        return operation

    def _location(self, text: str) -> Location:
        return self._locations.resolve(text) if text else UNKNOWN_LOCATION

    def _branch(self, operation: Operation, rest: str) -> None:
        head = rest.split("^", 1)[0]
        operation.operands = [self._use(name) for name in _NAME.findall(head)]
        for label, arguments in _SUCCESSOR.findall(rest):
            operation.successors.append((label, [self._use(name) for name in _NAME.findall(arguments)]))

    def _closing_location(self, closer: str) -> Location:
        return self._location(_strip_locations(closer)[1])

    def _for(self, rest: str, names: list[str]) -> Operation:
        bounds, _, carried = rest.partition("iter_args(")
        induction, *limits = _NAME.findall(bounds)
        pairs = _PAIR.findall(carried)
        operands = [self._use(name) for name in limits + [source for _, source in pairs]]
        induction_type = parse_type(rest.rsplit(" : ", 1)[1].removesuffix(" {")) if " : " in rest else Type("i32")
        arguments = [self._define(induction, induction_type)]
        arguments += [self._define(name, self._use(source).type) for name, source in pairs]
        blocks, closer = self._region(arguments)
        results = [self._define(name, value.type) for name, value in zip(names, operands[3:], strict=True)]
        text = "unsigned" if bounds.lstrip().startswith("unsigned") else ""
        text += closer if "_arg" in closer else ""  # hints on carried values
        return Operation("scf.for", operands, results, text, [blocks], location=self._closing_location(closer))

    def _while(self, rest: str, names: list[str]) -> Operation:
        pairs = _PAIR.findall(rest.split(" : ", maxsplit=1)[0])
        operands = [self._use(source) for _, source in pairs]
        before, _ = self._region([self._define(name, self._use(source).type) for name, source in pairs])
        after, closer = self._region()
        forwarded = before[0].operations[-1].operands[1:]
        results = [self._define(name, value.type) for name, value in zip(names, forwarded, strict=True)]
        return Operation("scf.while", operands, results, "", [before, after], location=self._closing_location(closer))

    def _if(self, rest: str, names: list[str]) -> Operation:
        condition = self._use(_NAME.findall(rest)[0])
        regions = []
        blocks, closer = self._region()
        regions.append(blocks)
        if closer.startswith("} else {"):
            blocks, closer = self._region()
            regions.append(blocks)
        yielded = regions[0][0].operations[-1].operands if names else []
        results = [self._define(name, value.type) for name, value in zip(names, yielded, strict=True)]
        return Operation("scf.if", [condition], results, "", regions, location=self._closing_location(closer))

    def _combining(self, name: str, rest: str, names: list[str]) -> Operation:
        operands = [self._use(found) for found in _NAME.findall(rest)]
        blocks, closer = self._region()
        tail, location = _strip_locations(closer)
        types = _result_types(tail, len(names))
        results = [self._define(*pair) for pair in zip(names, types, strict=True)]
        inlined = (self._locations, location)
        return Operation(name, operands, results, rest, [blocks], location=self._location(location), inlined=inlined)


def _name_of(line: str) -> str:
    """Return the name of the operation in a line of any form."""
    found = re.search(r"[a-z_]+\.\w+", line)
    return found.group() if found else line


def _expand_results(text: str) -> list[str]:
    """Return the names of all results: `%r:2` defines `%r#0` and `%r#1`."""
    if ":" not in text and "," not in text:
        return [text]
    names = []
    for piece in text.split(", "):
        name, _, count = piece.partition(":")
        names += [name] if not count or count == "1" else [f"{name}#{i}" for i in range(int(count))]
    return names


def _strip_locations(line: str) -> tuple[str, str]:
    """Return the line without any `loc(...)`, and the text of the last one."""
    rest, found, last = line.rpartition(" loc(")
    if found and " loc(" not in rest and last.find(")") == len(last) - 1 and "(" not in last:
        return rest, last[:-1]
    last = ""
    start = line.find(" loc(")
    while start >= 0:
        depth, end = 1, start + 5
        while depth:
            depth += (line[end] == "(") - (line[end] == ")")
            end += 1
        last = line[start + 5 : end - 1]
        line = line[:start] + line[end:]
        start = line.find(" loc(", start)
    return line, last


def _result_types(rest: str, count: int) -> list[Type]:
    """Return the types of an operation's results, from the type signature behind its last colon."""
    if not count:
        return []
    return list(_types_of_signature(rest.rsplit(" : ", 1)[-1], count))


@functools.lru_cache(maxsize=4096)
def _types_of_signature(signature: str, count: int) -> tuple[Type, ...]:
    if " -> " in signature:
        tail = signature.rsplit(" -> ", 1)[1]
    elif " to " in signature:
        tail = signature.rsplit(" to ", 1)[1]
    else:
        tail = signature
    pieces = [parse_type(piece) for piece in _split_types(tail.strip().removeprefix("(").removesuffix(")"))]
    return tuple(pieces if len(pieces) == count else [pieces[-1]] * count)


def _typed(name: str, rest: str, count: int) -> list[Type]:
    """Return the types of an operation's results; some signatures name the types of operands instead."""
    if name in ("arith.cmpi", "arith.cmpf"):
        return [Type("i1", parse_type(rest.rsplit(" : ", 1)[-1]).shape)]
    if name == "tt.addptr":
        return [parse_type(_split_types(rest.rsplit(" : ", 1)[-1])[0])]
    if name == "arith.constant" and " : " not in rest:  # a truth value is printed without its type
        return [Type("i1")]
    types = _result_types(rest, count)
    if name == "tt.load":
        return [Type(type_.element, type_.shape) for type_ in types]
    return types


def _split_types(text: str) -> list[str]:
    pieces, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            pieces.append(text[start:position].strip())
            start = position + 1
    return [*pieces, text[start:].strip()]
