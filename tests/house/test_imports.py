"""The layout holds: layers import downwards, nothing imports in a circle, and folders and modules stay small.

``LAYERS`` is the one table of the layers. ARCHITECTURE.md prints it, and a test below compares the two.
"""

import ast
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS: Final = {"fuzz_attn": "fuzz_attn", "kernels": "fuzz_attn.kernels", "strategies": "fuzz_attn.strategies"}

LAYERS: Final = (
    ("denormals", "errors", "owners"),
    ("foreign_files", "kernels", "ttir"),
    ("simulator",),
    ("case",),
    ("strategies", "inputs"),
    ("oracle", "binding"),
    ("backends", "targets"),
    ("properties", "workers"),
    ("calibration", "forensics"),
    ("operations",),
    ("counterexamples",),
    ("engine",),
    ("report", "export"),
    ("mutation", "ledger"),
    ("settings",),
    ("given",),
    ("api",),
    ("pytest_plugin",),
    ("cli",),
)
"""Packages and modules of fuzz_attn, lowest first. Each imports lower layers only, and nothing of its own layer."""

MAY_IMPORT: Final = {"kernels": {"kernels"}, "ttir": {"ttir", "errors", "owners"}}
MAY_IMPORT["simulator"] = {"simulator", "ttir", "denormals", "errors", "foreign_files", "owners"}
MAY_IMPORT["workers"] = {"workers", "backends", "errors", "owners"}
MAY_IMPORT["strategies"] = {"strategies", "case", "errors"}
"""Packages that may import less than all lower layers: what they may import of fuzz_attn, themselves included."""

MAY_IMPORT_KERNELS: Final = {"kernels", "targets"}
"""The built-in targets are the only users of the kernels; everything else takes a target."""

NAMES_OF_TRITON: Final = {
    *("triton", "triton.language", "triton.compiler.CompilationError"),
    *("triton.backends.compiler.GPUTarget", "triton.runtime.driver"),
}
"""All of Triton that modules outside of `ttir` may import; kernels are written in the language only."""

KERNELS_MAY_USE: Final = {"torch", "triton"} | sys.stdlib_module_names
MODULES_OF_FUZZ_ATTN: Final = 9
MODULES_OF_A_FOLDER: Final = 25
LINES_OF_A_MODULE: Final = 700

NAMED_AFTER_OTHERS: Final = {"kernels", "strategies", "cli", "backends"}
"""Folders whose modules have the names of what they call, draw, start or run: of roles, recipes, commands, options."""


def modules() -> dict[str, Path]:
    """Return every module by its dotted name, a package by the name of its folder; links are not followed."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.resolve().is_relative_to(ROOT / folder):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES: Final = modules()


def imported_names(source: str, package: str) -> Iterator[str]:
    """Yield the full name of each import at any depth: ``from a import b`` is ``a.b``, whether b is a module or not.

    ``package`` is the package of the source, for its relative imports. Names built at runtime are not seen.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                module = importlib.util.resolve_name("." * level + (name or ""), package)
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(str(name)), *_]
            ):
                yield name


@cache
def imported_by(path: Path, package: str) -> tuple[str, ...]:
    """Return the full name of each import of a file, which several tests ask for: reading all sources takes seconds."""
    return tuple(imported_names(path.read_text(encoding="utf-8"), package))


def module_of(name: str) -> str | None:
    """Return the module of ours that an imported name is, or is defined in."""
    return next((known for known in (name, name.rpartition(".")[0]) if known in MODULES), None)


def imports_of(module: str) -> set[str]:
    """Return the modules of ours that a module imports."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = {module_of(name) for name in imported_by(path, package)}
    return {name for name in found if name and name != module}


@cache
def graph_of_modules() -> dict[str, set[str]]:
    """Return the modules of ours that each module imports."""
    return {module: imports_of(module) for module in MODULES}


def part_of(module: str) -> str:
    """Return the package or module at the top of fuzz_attn that a module belongs to."""
    return f"{module}.".split(".")[1] or "api"  # fuzz_attn itself re-exports the API


def imports_between_parts() -> Iterator[tuple[str, str, str, str]]:
    """Yield (part, imported part, module, imported module) for each import of another part."""
    for module, imported in graph_of_modules().items():
        for name in sorted(imported):
            if part_of(module) != part_of(name):
                yield part_of(module), part_of(name), module, name


def first_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one cycle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fuzz_attn.case.domain", ["fuzz_attn.case.domain"]),
        ("import torch, triton.language as tl", ["torch", "triton.language"]),
        ("from fuzz_attn.case.domain import Domain", ["fuzz_attn.case.domain.Domain"]),
        ("from fuzz_attn import case, kernels", ["fuzz_attn.case", "fuzz_attn.kernels"]),
        ("from . import tree", ["fuzz_attn.backends.tree"]),
        ("from .tree import Block", ["fuzz_attn.backends.tree.Block"]),
        ("from .. import kernels", ["fuzz_attn.kernels"]),
        ("def f():\n    if True:\n        import torch", ["torch"]),
        ("importlib.import_module('fuzz_attn.kernels')", ["fuzz_attn.kernels"]),
        ("x = 'import torch'", []),
    ],
)
def test_every_form_of_an_import_is_found(source: str, expected: list[str]) -> None:
    assert list(imported_names(source, "fuzz_attn.backends")) == expected


def test_a_cycle_is_found() -> None:
    assert set(first_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_every_package_has_a_layer() -> None:
    listed = [part for layer in LAYERS for part in layer]
    assert sorted(listed) == sorted({part_of(module) for module in MODULES})


def test_imports_point_down() -> None:
    height = {part: index for index, layer in enumerate(LAYERS) for part in layer}
    pairs = imports_between_parts()
    assert [(module, name) for part, other, module, name in pairs if height[other] >= height[part]] == []


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_low_packages_stay_self_contained(part: str) -> None:
    pairs = imports_between_parts()
    assert [(module, name) for own, other, module, name in pairs if own == part and other not in MAY_IMPORT[part]] == []


def test_only_targets_import_the_kernels() -> None:
    pairs = imports_between_parts()
    assert [module for part, other, module, _ in pairs if other == "kernels" and part not in MAY_IMPORT_KERNELS] == []


def test_no_modules_import_in_a_cycle() -> None:
    assert first_cycle(graph_of_modules()) == []


def test_no_packages_import_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module, imported in graph_of_modules().items():
        package = package_of(module)
        graph.setdefault(package, set()).update({package_of(name) for name in imported} - {package})
    assert first_cycle(graph) == []


PACKAGES: Final = {module for module, path in MODULES.items() if path.name == "__init__.py"}


def package_of(module: str) -> str:
    """Return the package of a module; a module beside packages stands for itself, as it may be above or below them."""
    package = module if module in PACKAGES else module.rpartition(".")[0]
    has_packages = any(other.startswith(f"{package}.") for other in PACKAGES)
    return module if has_packages else package


def names_in(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (file, imported name) for each import of the files of a folder, as written."""
    for module, path in MODULES.items():
        if path.is_relative_to(ROOT / folder):
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            yield from ((str(path.relative_to(ROOT)), name) for name in imported_by(path, package))


def uses(name: str, packages: Set[str]) -> bool:
    return name.partition(".")[0] in packages


def test_kernels_use_triton_and_torch_only() -> None:
    assert [pair for pair in names_in("kernels") if not uses(pair[1], KERNELS_MAY_USE | {"fuzz_attn"})] == []


def test_kernels_import_each_other_relatively() -> None:
    # An edited copy of the folder is loaded under another name, so no import may name fuzz_attn.kernels.
    absolute = re.compile(r"^\s*(from|import) fuzz_attn", re.MULTILINE)
    assert [path for path in (ROOT / "kernels").rglob("*.py") if absolute.search(path.read_text())] == []


def test_only_the_front_end_uses_more_of_triton_than_its_language() -> None:
    outside = [pair for pair in names_in("fuzz_attn") if not pair[0].startswith("fuzz_attn/ttir/")]
    used = [pair for pair in (*outside, *names_in("kernels")) if uses(pair[1], {"triton"})]
    assert used
    assert [pair for pair in used if pair[1] not in NAMES_OF_TRITON] == []


def test_strategies_use_no_kernel_stack() -> None:
    assert [pair for pair in names_in("strategies") if uses(pair[1], {"torch", "triton"})] == []


def test_folders_and_modules_stay_small() -> None:
    files = [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
    folders = groupby(sorted(path.parent for path in files if path.name != "__init__.py"))
    sizes = {str(folder.relative_to(ROOT)): len(list(paths)) for folder, paths in folders}
    assert sizes.pop("fuzz_attn") <= MODULES_OF_FUZZ_ATTN
    assert {folder: size for folder, size in sizes.items() if size > MODULES_OF_A_FOLDER} == {}
    lines = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in files}
    assert {path: number for path, number in lines.items() if number > LINES_OF_A_MODULE} == {}


def test_no_two_modules_have_the_same_name() -> None:
    own = (name for name in MODULES if name not in PACKAGES and part_of(name) not in NAMED_AFTER_OTHERS)
    counted = Counter(name.rpartition(".")[2] for name in own)
    assert {name for name, count in counted.items() if count > 1} == set()


def test_the_architecture_page_prints_the_layers() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", page, flags=re.MULTILINE)
    assert [(int(number), *re.findall(r"`(\w+)`", names)) for number, names in rows] == [
        (number, *layer) for number, layer in enumerate(LAYERS, 1)
    ]
