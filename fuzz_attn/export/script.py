"""The script of a counterexample: how it imports the target, its text and files. Calls neither target nor kernel."""

from __future__ import annotations

import ast
import base64
import sys
import textwrap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import torch

from fuzz_attn.backends.cuda import TENSOR_CORE_SLACK
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.contract_trial import trial_of
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import FuzzAttnError, OutputError
from fuzz_attn.export import recorded_calls
from fuzz_attn.export.recorded_calls import (
    Block,
    Expectation,
    RecordedExperiment,
    SameRows,
    View,
    WithinBound,
    expectations,
    expectations_of_calls,
)
from fuzz_attn.foreign_files import target_points
from fuzz_attn.operations.calls.call_case import CallSequence
from fuzz_attn.operations.registry import FAMILIES, operation_of
from fuzz_attn.targets.loading import WheelPlace, place_of
from fuzz_attn.targets.target import Target


class Source(NamedTuple):
    """A module, by its name or the path of its file, and the dotted name of the callable in it.

    ``place`` is where the module is if it is not installed here: a requirement for pip, or the folder of a checkout.
    """

    module: str
    name: str
    place: str = ""

    @property
    def needed(self) -> str:
        """What a script must be able to import, in words."""
        return f"{self.module} of {self.place}" if self.place else self.module

    def lines(self) -> list[str]:
        """Return the body of a function that imports and returns the callable."""
        if self.module.endswith(".py"):
            return [f"return function_of_file({str(Path(self.module).resolve())!r}, {self.name!r})"]
        folder = [f"sys.path.append({self.place!r})"] if Path(self.place).is_absolute() else []
        return [*folder, f"from {self.module} import {self.name.partition('.')[0]}", "", f"return {self.name}"]


def source_of(spec: str, target: Target) -> Source:
    """Return where a script finds the callable of the loaded target that ``spec`` names.

    A target that is declared as a :class:`Target` is found where its callable is defined, so that the script does not
    need this package; where that is no name of a module, the script takes it from the declaration.
    """
    own = Source(target.call.__module__, getattr(target.call, "__qualname__", ""))
    if spec in FAMILIES:
        return own
    named = _named(spec)
    loaded = f"fuzz_attn_target_{Path(named.module).stem}" if named.module.endswith(".py") else named.module
    if not isinstance(_found(Source(loaded, named.name)), Target):
        return named
    if _found(own) is not target.call:
        return Source(named.module, f"{named.name}.call")
    file = getattr(sys.modules[own.module], "__file__", None)
    return Source(str(file), own.name) if own.module.startswith("fuzz_attn_target_") else own


def _named(spec: str) -> Source:
    """Return module and name of a specification; see :func:`fuzz_attn.targets.loading.load_target`."""
    for point in target_points():
        if point.name == spec:
            return Source(point.module, point.attr)
    place = place_of(spec)
    if isinstance(place, WheelPlace):
        return Source(place.module, place.attribute, f"{place.package}=={place.version}")
    if place is not None:
        return Source(place.module, place.attribute, str(place.folder))
    module, _, name = spec.rpartition(":")
    return Source(module, name)


def _found(source: Source) -> object:
    """Return the object of that name in a module that is loaded, None where there is none."""
    found: object = sys.modules.get(source.module)
    for part in source.name.split("."):
        found = getattr(found, part, None)
    return found


INLINE: Final = 40_000
"""The most characters of data that a script holds itself; more goes to a file beside it."""
SHOWN: Final = 24
"""The most elements of a tensor that a comment lists."""
WIDTH: Final = 100


@dataclass(frozen=True)
class Script:
    """A script's text, and its tensors by name where they are too large for it: type, shape and bytes."""

    text: str
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]]

    def save(self, path: Path) -> tuple[Path, ...]:
        """Write the script and its tensors, and return the paths; raises :class:`OutputError` if that is impossible."""
        beside = path.with_suffix(".safetensors")
        try:
            path.write_text(self.text, encoding="utf-8")
            if self.tensors:
                recorded_calls.write_safetensors(beside, self.tensors)
        except OSError as error:
            raise OutputError(f"{error.filename or path}: cannot be written: {error.strerror}") from error
        return (path, beside) if self.tensors else (path,)


def script_of(found: Counterexample, expected: list[Expectation], sources: list[Source]) -> Script:
    """Return the script of a counterexample: its calls with what they must give, and where each finds its target."""
    data = _Data()
    calls = [
        _call_lines(index, each, source, data)
        for index, (each, source) in enumerate(zip(expected, sources, strict=True))
    ]
    inline = sum(len(text) for text in data.texts.values()) <= INLINE
    parts = [
        _docstring(found, expected, sources[0]),
        _runtime("runtime.py"),
        *([_runtime("runtime_calls.py")] if isinstance(found.case, CallSequence) else []),
        "\n".join(
            _data_lines(data) if inline else ["DATA = from_safetensors(Path(__file__).with_suffix('.safetensors'))"]
        ),
        *("\n".join(lines) for lines in calls),
        "\n".join(_main_lines(found, expected, sources)),
    ]
    return Script("\n\n\n".join(parts) + "\n", {} if inline else data.tensors)


class _Data:
    """The bytes of all tensors: each once, by a name."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        self.texts: dict[str, str] = {}
        self._names: dict[bytes, str] = {}

    def add(self, name: str, data: bytes, dtype: str = "U8", shape: tuple[int, ...] = ()) -> str:
        """Return the name of these bytes: the given one, or that of the same bytes."""
        known = self._names.setdefault(data, name)
        if known == name:
            self.tensors[name] = dtype, shape or (len(data),), data
            self.texts[name] = base64.b85encode(zlib.compress(data, 9)).decode()
        return known


def _docstring(found: Counterexample, expected: list[Expectation], source: Source) -> str:
    verdict = found.verdict
    case = [f"  {what}: {words}" for what, words in operation_of(found.case).described(found.case)]
    second = [f"The second call is {each.change}." for each in expected[1:] if each.part is None]
    why = [f"Why: {verdict.explanation}"] if verdict.explanation else []
    why += [f"It is {verdict.only_with}."] if verdict.only_with else []
    needs = [f"Needs: {', '.join(found.trigger)}"] if found.trigger else []
    status = (_SEEN_BY_SANITIZERS if _is_seen_by_sanitizers(found) else "It exits with 1 while the kernel is wrong") + (
        ", with 2 if it cannot be imported, and prints the worst elements."
    )
    lines = [
        f'r"""A wrong result of {source.name} of {source.module}, found by fuzz_attn.',
        "",
        *wrapped(f"{verdict.what}: {verdict.message}"),
        *(line for text in (*why, *needs) for line in wrapped(text, "      ")),
        "",
        "The case:",
        *(line for text in case for line in wrapped(text, "      ")),
        *(line for text in second for line in ("", *wrapped(text))),
        "",
        *wrapped(f"This script needs torch and {source.needed} only. {status} {_HOW_IT_JUDGES}"),
        "",
        "    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer python SCRIPT --device cuda --tight",
        '"""',
    ]
    return "\n".join(lines)


_SEEN_BY_SANITIZERS: Final = (
    "Its exit status does not tell whether the kernel is still wrong, because only a memory checker sees the access: "
    "it exits with 1 only if an output is wrong too"
)
_HOW_IT_JUDGES: Final = (
    "The bound is the largest error that a correct kernel can make. Memory that the kernel must not read holds "
    "poison. On a CPU, Triton's interpreter runs the kernel, which rounds bfloat16 and fp8 wrongly up to Triton 3.9. "
    "For a memory checker:"
)


def _is_seen_by_sanitizers(found: Counterexample) -> bool:
    """Return whether a failure may leave every output right."""
    return found.verdict.property_name == "sanitizers" and found.verdict.kind != "exception"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text in a docstring, which it cannot end: a text of a file runs nothing."""
    plain = text.replace("\\", "/").replace('"""', "'''")
    return textwrap.wrap(plain, WIDTH, subsequent_indent=indent) or [""]


def _runtime(file: str) -> str:
    """Return the source of functions that a script contains, from the first import on."""
    source = resources.files("fuzz_attn.export").joinpath(file).read_text(encoding="utf-8")
    nodes = ast.parse(source).body
    imports = next(node for node in nodes if isinstance(node, ast.Import))
    return "\n".join(source.splitlines()[imports.lineno - 1 :])


def _data_lines(data: _Data) -> Iterator[str]:
    yield "DATA = {"
    for name, text in data.texts.items():
        yield f"    {name!r}: unpacked("
        yield from (f"        {text[first : first + WIDTH]!r}" for first in range(0, len(text), WIDTH))
        yield "    ),"
    yield "}"


def _call_lines(index: int, expected: Expectation, source: Source, data: _Data) -> list[str]:
    call, number = expected.call, index + 1
    lines = [f"# {expected.change or 'The call'}"] if index else []
    lines += [f"def target_{number}():", *(f"    {line}".rstrip() for line in source.lines()), "", ""]
    lines += [
        f"BLOCKS_{number} = {{  # name: data, bytes of addresses before it, first byte and end of the bytes used,",
        "    # pieces of memory and the bytes from one to the next, 1 and 0 if all of it exists",
    ]
    for name, block in call.blocks.items():
        lines.append(f"    {name!r}: {_block(f'{name}_{number}' if index else name, block, data)},")
    lines += ["}", "", "", f"def arguments_{number}(view):", "    return {"]
    lines += [line for name, value in call.arguments.items() for line in _argument(name, value)]
    lines += ["    }", "", "", *_expected_lines(number, expected, data)]
    return lines


def _block(name: str, block: Block, data: _Data) -> tuple[str, int, int, int, int, int]:
    return data.add(name, block.data), block.void, block.first, block.last, block.pieces, block.stride


def _argument(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, View):
        yield f"        {name!r}: {value!r},"
        return
    if value.content.numel() and value.content.numel() <= SHOWN:
        yield f"        # {_shown(value.content)}"
    yield f"        {name!r}: view({value.block!r}, {value.dtype}, {value.shape}, {value.strides}, {value.offset}),"


def _shown(tensor: torch.Tensor) -> str:
    numbers = tensor.tolist() if not tensor.is_floating_point() else _rounded(tensor.double().tolist())
    return str(numbers).replace("'", "")


def _rounded(numbers: object) -> object:
    return [_rounded(each) for each in numbers] if isinstance(numbers, list) else f"{numbers:.6g}"


def _expected_lines(number: int, expected: Expectation, data: _Data) -> Iterator[str]:
    for name, own in expected.outputs.items():
        output, n = expected.call.tensors.outputs[name], _suffix(number, name, expected)
        yield f"REGION_{n} = ({''.join(f'{_index(index)}, ' for index in output.region)})"
        if isinstance(own, SameRows):
            live = torch.ones(1, dtype=torch.bool) if output.live is None else output.live
            yield f"LIVE_{n} = torch.tensor({live.flatten().tolist()}).view({tuple(live.shape)})"
            yield f"TOKENS_{n} = {own.tokens if own.tokens is None else list(own.tokens)}"
            continue
        for what, tensor in (("expected", own.value), ("bound", own.bound)):
            shape = tuple(tensor.shape)
            key = data.add(f"{what}_{n}", tensor.contiguous().numpy().tobytes(), "F64", shape)
            yield f"{what.upper()}_{n} = numbers(DATA[{key!r}], {shape})"
        yield f"LIVE_{n} = ~BOUND_{n}.isnan()"


def _suffix(number: int, output: str, expected: Expectation) -> str:
    """Return the end of the names of what belongs to one output of a call."""
    return str(number) if len(expected.call.tensors.outputs) == 1 else f"{output}_{number}"


def _index(index: slice | torch.Tensor) -> str:
    return repr(index) if isinstance(index, slice) else f"torch.tensor({index.tolist()})"


def _main_lines(found: Counterexample, expected: list[Expectation], sources: list[Source]) -> Iterator[str]:
    yield "def main():"
    yield "    chosen = options('Exit with 1 while the kernel is wrong.')"
    steps = [
        _Step(number, each, source) for number, (each, source) in enumerate(zip(expected, sources, strict=True), 1)
    ]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        other = following if following is not None and following.line else None
        yield from (f"    {line}" for line in step.lines(other))
    yield f"    wrong = {' or '.join(f'wrong_{step.number}' for step in steps if step.is_judged)}"
    right = "right"
    if _is_seen_by_sanitizers(found):
        right = "The outputs are right. That does not mean that the kernel is."
        yield f"    print({_note(found)!r})"
    yield f"    print('WRONG' if wrong else {right!r})"
    yield "    return int(wrong)"
    yield ""
    yield ""
    yield "if __name__ == '__main__':"
    yield "    sys.exit(main())"


def _note(found: Counterexample) -> str:
    return f"Only a memory checker sees this: {found.verdict.message}"


class _Step(NamedTuple):
    """A call in the main function of a script."""

    number: int
    expected: Expectation
    source: Source

    @property
    def line(self) -> int:
        """The line of the call before at which this one runs in a second thread; 0 if it is one of the first."""
        return 0 if self.expected.part is None else self.expected.part.alongside

    @property
    def is_judged(self) -> bool:
        """Whether the call must not raise."""
        return self.expected.part is None or not self.expected.part.raises

    def lines(self, other: _Step | None) -> Iterator[str]:
        """Yield the call and what checks it; ``other`` is a call that runs in its middle."""
        n = self.number
        if not self.line:  # else the step before has made the call
            yield from self._memory_lines()
            function = f"imported(target_{n}, {self.source.needed!r})"
            if other is not None:
                yield from other._memory_lines()
                second = f"call(imported(target_{n + 1}, {other.source.needed!r}), given_{n + 1}, chosen.device)"
                yield "alongside = []"
                yield f"function = Meanwhile({other.line}, {function}, lambda: alongside.append({second}))"
                function = "function"
            yield f"wrong_{n}, result_{n} = call({function}, given_{n}, chosen.device)"
        else:
            yield f"wrong_{n}, result_{n} = alongside[0]"
        if self.is_judged:
            yield from _check_lines(n, self.expected)

    def _memory_lines(self) -> Iterator[str]:
        """Yield the memory and the arguments of the call, in the memory of the call before if the case says so."""
        n, part = self.number, self.expected.part
        if self.expected.change:
            words = "Second call" if part is None else f"Call {n}"
            yield f"print({f'{words}, {self.expected.change}'!r})"
        memory = f"Memory(BLOCKS_{n}, DATA, chosen.device, chosen.tight)"
        shares = part is not None and part.storage != "fresh"
        yield f"memory_{n} = in_memory_of(memory_{n - 1}, {memory})" if shares else f"memory_{n} = {memory}"
        yield f"given_{n} = arguments_{n}(memory_{n}.view)"
        if part is not None and part.storage in ("again", "contents"):
            yield f"given_{n} = same_tensors(given_{n - 1}, given_{n})"
        if part is not None and part.raises:
            yield f"given_{n} = lacking(given_{n}, {part.raises})"


def _check_lines(number: int, expected: Expectation) -> Iterator[str]:
    call, n = expected.call, number
    yield from _output_lines(n, expected)
    yield f"for name in {list(call.inputs)}:"
    yield f"    if memory_{n}.changed(name):"
    yield "        print('the call changed its input', name)"
    yield f"        wrong_{n} = True"
    for name, own in expected.outputs.items():
        output, o = call.tensors.outputs[name], _suffix(number, name, expected)
        if len(call.tensors.outputs) > 1:
            yield f"print('Output', {name!r})"
        if name in call.written:
            yield f"wrong_{n} |= written_outside(memory_{n}, {call.written[name]!r}, output_{o}, REGION_{o}, LIVE_{o})"
        if isinstance(own, WithinBound):
            where = f"output_{o}[REGION_{o}], EXPECTED_{o}, BOUND_{o}"
            yield f"wrong_{n} |= wrong_elements({where}, {output.poison}, {list(output.axes)})"
        else:
            first = o.removesuffix(str(number)) + "1"
            rows = f"output_{first}[REGION_{first}], output_{o}[REGION_{o}]"
            yield f"wrong_{n} |= different_rows({rows}, TOKENS_{o}, LIVE_{o}, {list(output.axes)})"


def _output_lines(number: int, expected: Expectation) -> Iterator[str]:
    """Yield where the outputs of a call are: in arguments, or in its result."""
    call = expected.call
    for name in expected.outputs:
        n = _suffix(number, name, expected)
        if name in call.written:
            yield f"output_{n} = given_{number}[{call.written[name]!r}]"
            continue
        tensor, place = call.tensors.outputs[name].tensor, call.returned.index(name)
        promised = f"{place}, {tuple(tensor.shape)}, {tensor.dtype}"
        yield f"missing_{n}, output_{n} = returned(result_{number}, {promised})"
        yield f"wrong_{number} |= missing_{n}"


def exported(found: Counterexample, spec: str, binding: Binding | None) -> Script:
    """Return the script of a counterexample on the target that ``spec`` names, called with ``binding``.

    Its bounds hold on every device, also where tensor cores truncate. Raises :class:`fuzz_attn.errors.FuzzAttnError`
    for a target that does not load or lacks an output of the case, and for an operation that cannot be exported yet.
    """
    operation = operation_of(found.case)
    if trial_of(found.case) is not None:
        raise FuzzAttnError("a contract trial cannot be exported as a script yet: replay the counterexample instead")
    if not operation.is_exported:
        raise FuzzAttnError(f"operation={operation.name!r} cannot be exported yet: replay the counterexample instead")
    # Only for the target: the script chooses its device.
    judge = load(Setup(spec, found.family, "simulator", binding=binding))
    target = judge.target.on_device(TENSOR_CORE_SLACK)
    if isinstance(found.case, CallSequence):
        if any(call.stream for call in found.case.calls):
            raise FuzzAttnError("calls in two streams cannot be exported: replay the counterexample instead")
        expected = expectations_of_calls(found.case, target, judge.backend)
    else:
        experiment = RecordedExperiment(found.case, target, judge.backend)
        expected = expectations(experiment, found.verdict.property_name, found.relation)
    for each in expected:
        _require_outputs(each)
    sources = [
        source_of(spec if each.call.target is target else each.call.target.name, each.call.target) for each in expected
    ]
    return script_of(found, expected, sources)


def _require_outputs(expected: Expectation) -> None:
    """Raise :class:`fuzz_attn.errors.FuzzAttnError` unless the target writes or returns each output of the case."""
    call = expected.call
    for name in expected.outputs:
        if name not in call.written and name not in call.returned:
            raise FuzzAttnError(
                f"the case has the output {name!r}, which target {call.target.name!r} neither takes as a parameter nor "
                f"returns: no script can check it; state in a binding file where it is"
            )
