"""Assembly in a kernel, in PTX: the instructions that published kernels use, on the bits of whole tiles.

A register is an array of unsigned integers. Instructions that act on memory or on other threads, guarded ones, labels
and loops are refused by name, and so is each form of an instruction that is not known here. Approximate functions are
computed as well as numpy can.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.errors import UnknownInstructionError
from fuzz_attn.simulator.runtime.elementwise import fused_to_odd, multiply_high, reciprocal_root
from fuzz_attn.simulator.runtime.float_formats import CONTAINER, STORAGE, cut_to_tf32, from_bits, round_to, to_storage

Array = npt.NDArray[Any]
Operand = str | tuple[str, ...]

PROCESSORS: Final = 132
"""The multiprocessors of an H100, on which programs are said to run in turn."""

_COMMENTS: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\([0-9A-Fa-f]{2}|\\)")
_OPERAND: Final = re.compile(r"\{([^}]*)\}|([^,{}]+)")
_DECLARED: Final = re.compile(r"([%\w$]+)(?:<(\d+)>)?")
_CONSTRAINTS: Final = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
_TYPE: Final = re.compile(r"([busf]|bf)(8|16|32|64)(x2)?")
_FP8: Final = {"e4m3x2": "f8E4M3FN", "e5m2x2": "f8E5M2"}
_SILENT: Final = ("griddepcontrol", "nanosleep", "membar", "fence", "bar", "barrier")
"""Instructions that change no value: waits, and barriers, which the simulator takes this whole operation for."""
_TIMES: Final = frozenset({"%globaltimer", "%globaltimer_lo", "%clock", "%clock64"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name, the words behind it (`.rn`, `.f32`), and its operands; a tuple is a vector."""

    text: str
    name: str
    words: tuple[str, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Instructions, the width of each register that is declared or an operand, and how elements lie in registers."""

    instructions: tuple[Instruction, ...]
    widths: dict[str, int]
    outputs: int
    pack: int

    @property
    def varies(self) -> bool:
        """Whether it reads a clock or the number of a processor."""
        return any(word in _TIMES or word == "%smid" for one in self.instructions for word in one.operands)


@functools.lru_cache(maxsize=256)
def assembly_of(text: str, constraints: str, pack: int) -> Assembly:
    """Return what the text of an operation says. Raises UnknownInstructionError for what has another form."""
    source = _COMMENTS.sub(" ", _ESCAPE.sub(_unescaped, text))
    widths: dict[str, int] = {}
    instructions = []
    letters = [one.strip() for one in constraints.split(",") if one.strip() and not one.strip().startswith("~")]
    for number, letter in enumerate(letters):
        width = _CONSTRAINTS.get(letter.lstrip("=&"))
        if width is None:
            raise UnknownInstructionError(f"a constraint {letter!r}")
        widths[f"${number}"] = width
    for statement in source.split(";"):
        stripped = statement.strip().lstrip("{} \t\n")
        if stripped.startswith(".reg"):
            _, kind, names = stripped.split(maxsplit=2)
            width = 1 if kind == ".pred" else _width(kind.removeprefix("."), stripped)
            for name, count in _DECLARED.findall(names):
                widths |= {f"{name}{index}": width for index in range(int(count))} if count else {name: width}
        elif stripped:
            instructions.append(_instruction(" ".join(stripped.split())))
    return Assembly(tuple(instructions), widths, sum(letter.startswith("=") for letter in letters), pack)


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    return "\\" if code == "\\" else chr(int(code, 16))


def _instruction(text: str) -> Instruction:
    opcode, _, rest = text.partition(" ")
    name, *words = opcode.split(".")
    operands: list[Operand] = []
    for vector, single in _OPERAND.findall(rest):
        if vector:
            operands.append(tuple(part.strip() for part in vector.split(",")))
        elif single.strip():
            operands.append(single.strip())
    return Instruction(text, name, tuple(words), tuple(operands))


def _width(type_: str, text: str) -> int:
    match = _TYPE.fullmatch(type_)
    if match is None:
        raise UnknownInstructionError(text)
    return int(match.group(2)) * (2 if match.group(3) else 1)


def check(assembly: Assembly, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise UnknownInstructionError unless the assembly can be run on elements of these types."""
    zeros = [np.zeros((1, 1), CONTAINER[element]) for element in inputs]
    with np.errstate(all="ignore"):
        assembled(assembly, tuple(inputs), tuple(outputs), np.zeros(1, np.int64), *zeros)


def assembled(
    assembly: Assembly, inputs: tuple[str, ...], outputs: tuple[str, ...], lanes: Array, *values: Array
) -> tuple[Array, ...]:
    """Return the results of the assembly on tiles of one shape; a scalar for each program if there are no tiles."""
    tiles = np.broadcast_arrays(*values)  # some may be the same in all programs
    pack, shape = assembly.pack, tiles[0].shape if tiles else (lanes.size,)
    count = int(np.prod(shape[1:], dtype=np.int64))
    machine = _Machine(assembly, (shape[0], -(-count // pack)), lanes)
    number = assembly.outputs
    for value, element in zip(tiles, inputs, strict=True):
        bits = _packed(value.reshape(shape[0], count), element, pack)
        for register in bits:
            machine.set(f"${number}", register)
            number += 1
    machine.run()
    results, number = [], 0
    for element in outputs:
        width = _bits_of(element)
        each = min(max(32 // width, 1), pack)
        registers = [machine.output(f"${number + place}") for place in range(-(-pack // each))]
        number += len(registers)
        parts = [register >> np.uint64(width * place) for register in registers for place in range(min(each, pack))]
        flat = np.stack(parts[:pack], axis=-1).reshape(shape[0], -1)[:, :count]
        results.append(_elements(flat, element).reshape(shape))
    if number != assembly.outputs:
        raise UnknownInstructionError(f"{assembly.outputs} registers for {number} results")
    return tuple(results)


def _bits_of(element: str) -> int:
    if element == "i1":
        raise UnknownInstructionError("truth values")
    return STORAGE[element].itemsize * 8


def _packed(values: Array, element: str, pack: int) -> list[Array]:
    """Return the registers that hold elements, several in 32 bits where they are narrower and `pack` says so."""
    width = _bits_of(element)
    bits = to_storage(np.ascontiguousarray(values), element).view(f"u{width // 8}").astype(np.uint64)
    groups = np.pad(bits, ((0, 0), (0, -bits.shape[1] % pack))).reshape(bits.shape[0], -1, pack)
    each = min(max(32 // width, 1), pack)
    registers = []
    for first in range(0, pack, each):
        register = groups[:, :, first]
        for place in range(1, min(each, pack - first)):
            register = register | groups[:, :, first + place] << np.uint64(width * place)
        registers.append(register)
    return registers


def _elements(bits: Array, element: str) -> Array:
    """Return the elements in the low bits of 64-bit numbers."""
    stored = np.ascontiguousarray(bits.astype(f"u{_bits_of(element) // 8}")).view(STORAGE[element])
    return from_bits(stored, element)


class _Machine:
    """The registers of one run. Each holds 64-bit numbers, of which the upper bits beyond its width are 0."""

    def __init__(self, assembly: Assembly, shape: tuple[int, int], lanes: Array) -> None:
        self._assembly, self._shape, self._lanes = assembly, shape, lanes
        self._registers: dict[str, Array] = {}

    def run(self) -> None:
        for one in self._assembly.instructions:
            if one.name not in _SILENT:
                function = _INSTRUCTIONS.get(one.name)
                if function is None:
                    raise UnknownInstructionError(one.text)
                try:
                    function(self, one)
                except UnknownInstructionError:
                    raise
                except Exception as error:
                    raise UnknownInstructionError(one.text) from error

    def set(self, name: str, bits: Array) -> None:
        """Store the low bits of 64-bit numbers in a register."""
        if name != "_":
            width = self._assembly.widths[name]
            self._registers[name] = bits if width == 64 else bits & np.uint64((1 << width) - 1)

    def output(self, name: str) -> Array:
        """Return a register of the operation; one that waits only is 0."""
        if name not in self._registers:
            if not self._assembly.instructions or any(one.name not in _SILENT for one in self._assembly.instructions):
                raise UnknownInstructionError(f"no value for {name}")
            return np.zeros(self._shape, np.uint64)
        return np.broadcast_to(self._registers[name], self._shape)

    def width(self, name: str) -> int:
        return self._assembly.widths[name]

    def bits(self, operand: Operand, width: int, one: Instruction, *, wider: bool = False) -> Array:
        """Return an operand as 64-bit numbers; a register must have the width, or may be `wider`."""
        if isinstance(operand, tuple):
            raise UnknownInstructionError(one.text)
        if operand in self._assembly.widths:
            own = self.width(operand)
            if operand not in self._registers or (own < width if wider else own != width):
                raise UnknownInstructionError(one.text)
            return self._registers[operand] & np.uint64((1 << width) - 1)
        return np.full((1, 1), _immediate(operand, width, one), np.uint64)

    def special(self, name: str) -> Array | None:
        """Return a special register: a clock or the number of a processor."""
        if name in _TIMES:
            return np.full(self._shape, time.monotonic_ns(), np.uint64)
        if name == "%smid":
            return (self._lanes % PROCESSORS).astype(np.uint64)[:, None]
        return None

    def read(self, operand: Operand, type_: str, one: Instruction, *, wider: bool = False) -> Array:
        """Return an operand as numbers of a type; those of a pair along a new last axis."""
        return _decoded(self.bits(operand, _width(type_, one.text), one, wider=wider), type_)

    def write(self, name: Operand, values: Array, type_: str, one: Instruction, *, wider: bool = False) -> None:
        """Store numbers of a type; a wider register gets the sign of signed ones."""
        width = _width(type_, one.text)
        if not isinstance(name, str) or (self.width(name) < width if wider else self.width(name) != width):
            raise UnknownInstructionError(one.text)
        self.set(name, _encoded(values, type_))


def _immediate(text: str, width: int, one: Instruction) -> int:
    if re.fullmatch(r"0[fF][0-9A-Fa-f]{8}|0[dD][0-9A-Fa-f]{16}", text):
        return int(f"0x{text[2:]}", 0)
    try:
        return int(text.rstrip("Uu"), 0) & ((1 << width) - 1)
    except ValueError:
        pass
    try:
        number = np.array(float(text), np.float32 if width == 32 else np.float64)
    except ValueError:
        raise UnknownInstructionError(one.text) from None
    if width not in (32, 64):
        raise UnknownInstructionError(one.text)
    return int(number.view(f"u{width // 8}"))


def _decoded(bits: Array, type_: str) -> Array:
    if type_.endswith("x2"):
        half = np.uint64(32 if type_ == "f32x2" else 16)
        return np.stack([_decoded(part, type_[:-2]) for part in (bits, bits >> half)], axis=-1)
    kind, width = type_.rstrip("0123456789"), int(re.sub(r"\D", "", type_))
    raw = np.ascontiguousarray(bits.astype(f"u{width // 8}"))
    if kind in ("f", "bf"):
        return from_bits(raw.view(STORAGE[type_]), type_)
    return raw.view(f"i{width // 8}") if kind == "s" else raw


def _encoded(values: Array, type_: str) -> Array:
    """Return the bits of numbers that the type has, as 64-bit numbers."""
    if type_.endswith("x2"):
        low, high = (_encoded(values[..., place], type_[:-2]) for place in (0, 1))
        both: Array = low | high << np.uint64(32 if type_ == "f32x2" else 16)
        return both
    if type_[0] in "fb" and type_[:2] != "b8" and type_ in STORAGE:
        width = STORAGE[type_].itemsize
        bits: Array = to_storage(np.ascontiguousarray(values), type_).view(f"u{width}").astype(np.uint64)
        return bits
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def _is_float(type_: str) -> bool:
    return type_.startswith(("f", "bf"))


def _flushed(values: Array) -> Array:
    """Return float32 numbers without subnormal ones."""
    tiny = np.abs(values) < np.float32(np.finfo(np.float32).tiny)
    return np.where(tiny, np.copysign(np.float32(0), values), values)


Compute = Callable[..., Array]
Run = Callable[[_Machine, Instruction], None]


def _arithmetic(compute: dict[str, Compute], *accepted: str) -> Run:
    """Return the function of instructions `name.words.type d, a, ...`; `compute` has "f" and "i", and integers wrap."""

    def run(machine: _Machine, one: Instruction) -> None:
        *words, type_ = one.words
        kind = "f" if _is_float(type_) else "i"
        words_left = set(words) - set(accepted) - ({"rn", "ftz", "sat"} if kind == "f" else set())
        if words_left or kind not in compute:
            raise UnknownInstructionError(one.text)
        target, *sources = one.operands
        operands = [machine.read(source, type_, one) for source in sources]
        flush = "ftz" in words and type_ in ("f32", "f32x2")
        if flush:
            operands = [_flushed(operand) for operand in operands]
        result = compute[kind](*operands)
        if kind == "f":
            result = _round(result, type_.removesuffix("x2"))
            if "sat" in words:
                result = np.fmin(np.fmax(result, np.float32(0)), np.float32(1))
            result = _flushed(result) if flush else result
        machine.write(target, result, type_, one)

    return run


def _round(values: Array, element: str) -> Array:
    if element == "f16" and values.dtype == np.float64:
        return values.astype(np.float16).astype(np.float32)
    return round_to(values, element)


def _fused(left: Array, right: Array, addend: Array) -> Array:
    wide = left.dtype == np.float64
    return left * right + addend if wide else fused_to_odd(left, right, addend)


def _shift_left(values: Array, count: Array) -> Array:
    wide = count.astype(np.uint64)
    return np.where(wide < 64, values.astype(np.uint64) << np.minimum(wide, np.uint64(63)), np.uint64(0))


def _shift(machine: _Machine, one: Instruction) -> None:
    (type_,) = one.words
    target, source, by = one.operands
    values, count = machine.read(source, type_, one), machine.bits(by, 32, one)
    if one.name == "shl":
        machine.write(target, _shift_left(values, count), type_, one)
    else:
        most = np.minimum(count, np.uint64(values.itemsize * 8 - 1)).astype(values.dtype)
        gone = (count >= values.itemsize * 8) & (values.dtype.kind == "u")
        machine.write(target, np.where(gone, values.dtype.type(0), values >> most), type_, one)


def _integer_product(machine: _Machine, one: Instruction) -> None:
    how, type_ = one.words
    target, left, right, *rest = one.operands
    a, b = (machine.read(operand, type_, one) for operand in (left, right))
    if how == "wide":
        type_ = f"{type_[0]}{2 * int(type_[1:])}"
        wide = f"{a.dtype.kind}{2 * a.itemsize}"
        product = a.astype(wide) * b.astype(wide)
    elif how == "lo":
        product = a * b
    elif how == "hi" and a.dtype.kind == "u":
        product = multiply_high(*np.broadcast_arrays(a, b))
    else:
        raise UnknownInstructionError(one.text)
    for operand in rest:
        product = product + machine.read(operand, type_, one)
    machine.write(target, product, type_, one)


def _multiply(machine: _Machine, one: Instruction) -> None:
    (_times if _is_float(one.words[-1]) else _integer_product)(machine, one)


def _multiply_add(machine: _Machine, one: Instruction) -> None:
    (_fma if _is_float(one.words[-1]) else _integer_product)(machine, one)


def _move(machine: _Machine, one: Instruction) -> None:
    (type_,) = one.words
    target, source = one.operands
    width = _width(type_, one.text)
    if isinstance(target, tuple):
        bits, place = machine.bits(source, width, one), 0
        for part in target:
            own = width // len(target)
            if part != "_" and machine.width(part) != own:
                raise UnknownInstructionError(one.text)
            machine.set(part, bits >> np.uint64(place))
            place += own
        return
    special = machine.special(source) if isinstance(source, str) else None
    if isinstance(source, tuple):
        own = width // len(source)
        parts = [machine.bits(part, own, one) << np.uint64(own * place) for place, part in enumerate(source)]
        bits = functools.reduce(np.bitwise_or, parts)
    else:
        bits = machine.bits(source, width, one) if special is None else special
    if machine.width(target) != width:
        raise UnknownInstructionError(one.text)
    machine.set(target, bits)


def _look_up(machine: _Machine, one: Instruction) -> None:
    """`lop3`: any function of three bits, as a table of eight."""
    target, *sources, table = one.operands
    if one.words != ("b32",) or isinstance(table, tuple):
        raise UnknownInstructionError(one.text)
    a, b, c = (machine.bits(source, 32, one) for source in sources)
    result = np.zeros((1, 1), np.uint64)
    for place in range(8):
        if _immediate(table, 8, one) >> place & 1:
            result = result | (a if place & 4 else ~a) & (b if place & 2 else ~b) & (c if place & 1 else ~c)
    machine.write(target, result & np.uint64(0xFFFFFFFF), "b32", one)


def _permute(machine: _Machine, one: Instruction) -> None:
    """`prmt`: four bytes of eight, each by a nibble, whose highest bit spreads the byte's sign."""
    target, low, high, chosen = one.operands
    if one.words != ("b32",):
        raise UnknownInstructionError(one.text)
    both = machine.bits(low, 32, one) | machine.bits(high, 32, one) << np.uint64(32)
    nibbles = machine.bits(chosen, 32, one)
    result = np.zeros((1, 1), np.uint64)
    for place in range(4):
        nibble = nibbles >> np.uint64(4 * place) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        result = result | np.where(nibble & np.uint64(8), sign, byte) << np.uint64(8 * place)
    machine.write(target, result, "b32", one)


_COMPARISONS: Final[dict[str, Compute]] = {
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _compare(machine: _Machine, one: Instruction) -> None:
    how, type_ = one.words
    target, left, right = one.operands
    holds = _COMPARISONS[how](machine.read(left, type_, one), machine.read(right, type_, one))
    if not isinstance(target, str) or machine.width(target) != 1:
        raise UnknownInstructionError(one.text)
    machine.set(target, holds.astype(np.uint64))


def _select(machine: _Machine, one: Instruction) -> None:
    (type_,) = one.words
    target, left, right, test = one.operands
    width = _width(type_, one.text)
    sides = [machine.bits(operand, width, one) for operand in (left, right)]
    if not isinstance(target, str) or machine.width(target) != width:
        raise UnknownInstructionError(one.text)
    machine.set(target, np.where(machine.bits(test, 1, one) != 0, *sides))


_INTEGER_ROUNDING: Final[dict[str, Compute]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil
}  # fmt: skip


def _convert(machine: _Machine, one: Instruction) -> None:
    """`cvt`: between floats, integers, and pairs of narrow floats, of which the first operand is the upper one."""
    *words, to, source = one.words
    target, *operands = one.operands
    if to.endswith("x2") or source.endswith("x2"):
        _convert_pair(machine, one)
        return
    if to == "tf32" and source == "f32" and words == ["rna"]:
        bits = machine.bits(operands[0], 32, one)
        rounded = (bits + np.uint64(0x1000)).astype(np.uint32).view(np.float32)
        values = machine.read(operands[0], "f32", one)
        machine.write(target, np.where(np.isfinite(values), cut_to_tf32(rounded), values), "f32", one)
        return
    values = machine.read(operands[0], source, one, wider=True)
    rounding = set(words) - {"ftz", "sat"}
    if len(rounding) > 1:
        raise UnknownInstructionError(one.text)
    if "ftz" in words:
        if source != "f32":
            raise UnknownInstructionError(one.text)
        values = _flushed(values)
    if _is_float(to):
        if "sat" in words or not rounding <= {"rn"}:
            raise UnknownInstructionError(one.text)
        wide = np.float64 if to == "f64" or values.dtype.kind != "f" else values.dtype
        machine.write(target, _round(values.astype(wide), to), to, one)
    elif _is_float(source):
        (how,) = rounding
        limits = np.iinfo(f"{'i' if to[0] == 's' else 'u'}{int(to[1:]) // 8}")
        whole = np.nan_to_num(_INTEGER_ROUNDING[how](values.astype(np.float64)), nan=0.0)
        if limits.bits > 32 or source == "f64":  # NaN is another number then
            raise UnknownInstructionError(one.text)
        machine.write(target, np.clip(whole, limits.min, limits.max).astype(limits.dtype), to, one, wider=True)
    elif words:
        raise UnknownInstructionError(one.text)
    else:
        kept = _decoded(_encoded(values, source), to)
        machine.write(target, kept, to, one, wider=True)


def _convert_pair(machine: _Machine, one: Instruction) -> None:
    *words, to, source = one.words
    target, *operands = one.operands
    narrow = to in _FP8 or to == "e2m1x2"
    if set(words) - {"satfinite"} != {"rn"} or (narrow and "satfinite" not in words) or ("satfinite" in words) > narrow:
        raise UnknownInstructionError(one.text)
    if source in _FP8:
        bits = machine.bits(operands[0], 16, one)
        halves = [from_bits((bits >> np.uint64(8 * place)).astype(np.uint8), _FP8[source]) for place in (0, 1)]
    elif source == "e2m1x2":
        bits = machine.bits(operands[0], 8, one)
        halves = [_FP4_VALUES[bits >> np.uint64(4 * place) & np.uint64(15)] for place in (0, 1)]
    elif source == "f32":
        high, low = operands
        halves = [machine.read(low, "f32", one), machine.read(high, "f32", one)]
    else:
        pair = machine.read(operands[0], source, one)
        halves = [pair[..., 0], pair[..., 1]]
    halves = list(np.broadcast_arrays(*halves))
    if to in _FP8:
        element = _FP8[to]
        codes = [to_storage(round_to(half, element), element).astype(np.uint64) for half in halves]
        machine.write(target, codes[0] | codes[1] << np.uint64(8), "b16", one)
    elif to == "e2m1x2":
        machine.write(target, _fp4_codes(halves[0]) | _fp4_codes(halves[1]) << np.uint64(4), "b8", one)
    else:
        element = to.removesuffix("x2")
        machine.write(target, np.stack([round_to(half, element) for half in halves], axis=-1), to, one)


_FP4: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4_VALUES: Final = np.concatenate([_FP4, -_FP4])


def _fp4_codes(values: Array) -> Array:
    """Return floats as e2m1, rounded to nearest even; NaN is the largest number."""
    size = np.nan_to_num(np.abs(values), nan=6.0)
    middles = (_FP4[1:] + _FP4[:-1]) / 2
    codes = np.zeros(size.shape, np.uint64)
    for place, middle in enumerate(middles):
        codes += (size >= middle) if place % 2 else (size > middle)
    return codes | (np.signbit(values) & ~np.isnan(values)).astype(np.uint64) << np.uint64(3)


def _unary(function: Compute, *accepted: str) -> Run:
    return _arithmetic({"f": function}, "approx", *accepted)


_fma: Final = _arithmetic({"f": _fused})
_times: Final = _arithmetic({"f": np.multiply})
_INSTRUCTIONS: Final[dict[str, Run]] = {
    "abs": _arithmetic({"f": np.abs, "i": np.abs}),
    "neg": _arithmetic({"f": np.negative, "i": np.negative}),
    "add": _arithmetic({"f": np.add, "i": np.add}),
    "sub": _arithmetic({"f": np.subtract, "i": np.subtract}),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _fma,
    "div": _arithmetic({"f": np.divide}, "approx", "full"),
    "min": _arithmetic({"f": np.fmin, "i": np.minimum}),
    "max": _arithmetic({"f": np.fmax, "i": np.maximum}),
    "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(reciprocal_root),
    "rcp": _unary(np.reciprocal),
    "ex2": _unary(np.exp2),
    "lg2": _unary(np.log2),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "tanh": _unary(np.tanh),
    "and": _arithmetic({"i": np.bitwise_and}),
    "or": _arithmetic({"i": np.bitwise_or}),
    "xor": _arithmetic({"i": np.bitwise_xor}),
    "not": _arithmetic({"i": np.invert}),
    "shl": _shift,
    "shr": _shift,
    "lop3": _look_up,
    "prmt": _permute,
    "mov": _move,
    "cvt": _convert,
    "setp": _compare,
    "selp": _select,
}
