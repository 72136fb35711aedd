"""The IR of a kernel as a tree: functions, blocks and operations, their types, attributes and places in the source.

The parser makes it from the text of a TTIR module, as Triton 3.6 to 3.9 print it.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np

from fuzz_attn.errors import SimulatorError, UnsupportedOperation


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a kernel's source; line 0 means that the IR names none."""

    file: str = "<unknown>"
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


UNKNOWN_LOCATION = Location()


_KEYWORD: Final = re.compile(r"\s*(\w+)")
_ATTRIBUTE: Final = re.compile(r'(\w+) = ("[^"]*"|array<[^>]*>|[^\s,}]+)')
_STRING: Final = re.compile(r'"([^"]*)"')
_CONSTANT: Final = re.compile(r"\s*(?:\{[^}]*\}\s*)?(?:dense<(.*?)>|(\S+))(?: : |$)")
_HINT: Final = re.compile(r"tt\.(divisibility|contiguity|constancy)(?:_arg(\d+))? = dense<\[?([^\]>]*)\]?>")
_INTEGER: Final = re.compile(r"-?\d+")
_FP8: Final = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
_FLOAT_BITS: Final = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of one operation, read from `text`: what stands behind its name."""

    text: str

    @property
    def keyword(self) -> str:
        """The first word: the predicate of a comparison, the axis of a program id, the kind of an atomic."""
        return _first(_KEYWORD.match(self.text))

    @property
    def string(self) -> str:
        """The first text in quotes."""
        return _first(_STRING.search(self.text))

    @property
    def constant(self) -> str:
        """The text of a constant's value."""
        return _first(_CONSTANT.match(self.text))

    @property
    def named(self) -> Mapping[str, str]:
        """The text of each attribute that is written `name = value`."""
        return {name: value.strip('"') for name, value in _ATTRIBUTE.findall(self.text)}

    def hints(self, rank: int, argument: int | None = None) -> Hints | None:
        """Return the hints on a result with so many axes, or on an argument of the operation's block; None for none."""
        wanted = "" if argument is None else str(argument)
        found: dict[str, tuple[int, ...]] = {}
        for kind, number, values in _HINT.findall(self.text):
            if number == wanted:
                sizes = tuple(int(value) for value in values.split(",") if value.strip())
                found[kind] = sizes * max(rank, 1) if len(sizes) == 1 else sizes
        return Hints(**found) if found else None

    def integer(self, name: str, default: int = 0) -> int:
        """Return a named integer."""
        return int(self.named.get(name, default))

    def integers(self, name: str) -> list[int]:
        """Return a named array of integers, such as `array<i32: 1, 0>`; an absent one is empty."""
        return [int(found) for found in _INTEGER.findall(self.named.get(name, "").partition(":")[2])]


@dataclass(frozen=True, slots=True)
class Hints:
    """What a kernel promises the compiler of a value, a number for each axis; empty where it promises nothing.

    They come from `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy`.
    """

    divisibility: tuple[int, ...] = ()
    contiguity: tuple[int, ...] = ()
    constancy: tuple[int, ...] = ()


def _first(match: re.Match[str] | None) -> str:
    return next(filter(None, match.groups()), "") if match else ""


def parse_literal(text: str, element: str) -> int | float | bool | None:
    """Return the number written `text` in the IR, or None if it is not one number."""
    if text in ("true", "false"):
        return text == "true"
    try:
        if element.startswith("i"):
            return int(text)
        return _parse_bits(int(text, 16), element) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def _parse_bits(bits: int, element: str) -> float:
    if element in _FLOAT_BITS:
        packed, unpacked = _FLOAT_BITS[element]
        return float(struct.unpack(unpacked, struct.pack(packed, bits))[0])
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    if element in _FP8:
        return float(np.uint8(bits).view(_FP8[element]))
    raise ValueError(f"{bits=} of {element=}")


_FILE = re.compile(r'^"(.*)":(\d+):\d+(?: to .*)?$')
_NAME_OF = re.compile(r'^"([^"]*)"\(')
_NAMED = re.compile(r'^"[^"]*"\((.*)\)$')
_LIBRARY = ("/triton/language/", "<unknown>")


class Locations:
    """The location aliases of a module. A location in Triton's own library counts as that of its caller."""

    def __init__(self, text: str) -> None:
        defined = (line.partition(" = loc(") for line in text.splitlines() if line.startswith("#loc"))
        self._aliases = {name: location[:-1] for name, _, location in defined}
        self._known: dict[str, Location] = {}
        self._chains: dict[str, tuple[Location, ...]] = {}
        self._names: dict[str, str] = {}

    def resolve(self, text: str) -> Location:
        """Return the source line of a location, given what stands between the brackets of `loc(...)`."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._resolve(text)
        return known

    def chain(self, text: str) -> tuple[Location, ...]:
        """Return the source line of a location and those of the calls around it, the innermost first."""
        known = self._chains.get(text)
        if known is None:
            known = self._chains[text] = self._chain(text)
        return known

    def _chain(self, text: str) -> tuple[Location, ...]:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return () if target is None else self.chain(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return (*self.chain(callee), *self.chain(caller))
        place = self.resolve(text)
        return () if any(part in place.file for part in _LIBRARY) else (place,)

    def name(self, text: str) -> str:
        """Return the name that the source gives what is computed at a location; empty for a part of an expression."""
        known = self._names.get(text)
        if known is None:
            known = self._names[text] = self._name(text)
        return known

    def _name(self, text: str) -> str:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return "" if target is None else self.name(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return (
                self.name(caller) if any(part in self.resolve(callee).file for part in _LIBRARY) else self.name(callee)
            )
        named = _NAME_OF.match(text)
        return named.group(1) if named and not _FILE.match(text) else ""

    def _resolve(self, text: str) -> Location:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return UNKNOWN_LOCATION if target is None else self.resolve(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            inner = self.resolve(callee)
            return self.resolve(caller) if any(part in inner.file for part in _LIBRARY) else inner
        file = _FILE.match(text)
        if file:
            return Location(file.group(1), int(file.group(2)))
        named = _NAMED.match(text)
        return self.resolve(named.group(1)) if named else UNKNOWN_LOCATION


def _split_callsite(text: str) -> tuple[str, str]:
    if "(" not in text:
        callee, _, caller = text.partition(" at ")
        return callee, caller or "unknown"
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and text.startswith(" at ", position):
            return text[:position], text[position + 4 :]
    return text, "unknown"


_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*?)(?:, #.*)?>$")
_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:, \d+)?>$")
_INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
FLOATS = frozenset({"f64", "f32", "bf16", "f16", "f8E4M3FN", "f8E5M2"})


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: its element (`i32`, `bf16`, ...), the tile's shape, and whether it points at elements."""

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False

    @property
    def is_float(self) -> bool:
        """Whether it is a float or a tile of floats."""
        return not self.pointer and self.element in FLOATS

    @property
    def bits(self) -> int:
        """Width of an integer element."""
        return _INTEGERS[self.element]


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Return the `Type` of its text, such as `tensor<16x!tt.ptr<bf16>>`; an unknown type is its own element."""
    tensor = _TENSOR.match(text)
    if tensor:
        inner = parse_type(tensor.group(2))
        shape = tuple(int(size) for size in tensor.group(1).split("x")[:-1])
        return Type(inner.element, shape, inner.pointer)
    pointer = _POINTER.match(text)
    if pointer:
        return Type(pointer.group(1), (), True)
    return Type(text)


class Value:
    """One SSA value; two values are the same only if they are the same object."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type_: Type) -> None:
        self.name = name
        self.type = type_

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(slots=True, eq=False)
class Operation:
    """One operation: name, operands, results, the text that holds its attributes, and nested regions.

    ``inlined`` is its whole location as the IR writes it, with what reads it: a function that was called there leaves
    its own lines.
    """

    name: str
    operands: list[Value]
    results: list[Value] = field(default_factory=list)
    text: str = ""
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)
    location: Location = UNKNOWN_LOCATION
    inlined: tuple[Locations, str] | None = None

    @property
    def callers(self) -> tuple[Location, ...]:
        """The lines of the calls that lead to the operation's own line, the innermost first."""
        return () if self.inlined is None else self.inlined[0].chain(self.inlined[1])[1:]

    @property
    def variable(self) -> str:
        """The name that the source gives the result, or what the result is a part of; empty without one."""
        return "" if self.inlined is None else self.inlined[0].name(self.inlined[1])

    @property
    def attributes(self) -> Attributes:
        """What the text says beside operands and types."""
        return Attributes(self.text)


@dataclass(slots=True, eq=False)
class Block:
    """A straight sequence of operations, with the arguments that it takes."""

    label: str
    arguments: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Function:
    """A kernel: name, parameters by their Python names, and its blocks."""

    name: str
    parameters: list[Value]
    blocks: list[Block]


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
