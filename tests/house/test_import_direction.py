"""Dependencies point one way: kernels -> nothing; strategies -> the case; the core -> neither, but for its registry."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

KERNELS_MAY_USE = {"fuzz_attn.kernels", "torch", "triton"}
STRATEGIES_MAY_USE = {
    "fuzz_attn.case.attention_case",
    "fuzz_attn.case.domain",
    "fuzz_attn.errors",
    "fuzz_attn.case.families",
    "fuzz_attn.case.recipes",
    "fuzz_attn.strategies",
}
STRATEGIES_NEVER_USE = {"torch", "triton"}
CORE_REACHES_ROOMS_FROM = {"fuzz_attn.engine.schedule", "fuzz_attn.targets"}
ROOMS = {"fuzz_attn.kernels", "fuzz_attn.strategies"}


def modules_in(folder: str, package: str) -> dict[str, Path]:
    """Return the modules below a folder by their dotted names; links are not followed."""
    root = ROOT / folder
    files = [path for path in sorted(root.rglob("*.py")) if path.resolve().is_relative_to(root)]
    assert files, f"{folder}/ holds no module"
    return {".".join((package, *path.relative_to(root).with_suffix("").parts)): path for path in files}


def imports_of(source: str, package: str = "") -> Iterator[str]:
    """Yield every module that the source imports, at any depth of nesting, `from fuzz_attn import x` as fuzz_attn.x.

    `package` is where the source lies, for its relative imports. Names built at runtime are not seen.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                module = importlib.util.resolve_name("." * level + (name or ""), package)
                yield from [f"{module}.{alias.name}" for alias in names] if module == "fuzz_attn" else [module]
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(str(name)), *_]
            ):
                yield name


def belongs(module: str, packages: set[str]) -> bool:
    """Return whether the module is one of the packages or lies inside of one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def imports_by_file(modules: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield (importing module, imported module) for every import of the files."""
    for name, path in modules.items():
        for imported in imports_of(path.read_text(encoding="utf-8"), name.rpartition(".")[0]):
            yield name, imported


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fuzz_attn.case.attention_case", ["fuzz_attn.case.attention_case"]),
        ("import torch, triton.language as tl", ["torch", "triton.language"]),
        ("from fuzz_attn.case.attention_case import Sequence", ["fuzz_attn.case.attention_case"]),
        ("from fuzz_attn import case, kernels", ["fuzz_attn.case.attention_case", "fuzz_attn.kernels"]),
        ("from . import tree", ["fuzz_attn.backends"]),
        ("from .tree import Block", ["fuzz_attn.backends.tree"]),
        ("from .. import kernels", ["fuzz_attn.kernels"]),
        ("def f():\n    if True:\n        import torch", ["torch"]),
        ("importlib.import_module('fuzz_attn.kernels')", ["fuzz_attn.kernels"]),
        ("x = 'import torch'", []),
    ],
)
def test_imports_are_seen(source: str, expected: list[str]) -> None:
    assert list(imports_of(source, "fuzz_attn.backends")) == expected


def test_kernels_know_triton_and_torch_alone() -> None:
    allowed = KERNELS_MAY_USE | sys.stdlib_module_names
    found = imports_by_file(modules_in("kernels", "fuzz_attn.kernels"))
    assert [pair for pair in found if not belongs(pair[1], allowed)] == []


def test_strategies_know_the_case_alone() -> None:
    found = list(imports_by_file(modules_in("strategies", "fuzz_attn.strategies")))
    ours = [pair for pair in found if belongs(pair[1], {"fuzz_attn"})]
    assert [pair for pair in ours if not belongs(pair[1], STRATEGIES_MAY_USE)] == []
    assert [pair for pair in found if belongs(pair[1], STRATEGIES_NEVER_USE)] == []


def test_core_reaches_the_rooms_through_its_registry_alone() -> None:
    found = imports_by_file(modules_in("fuzz_attn", "fuzz_attn"))
    reaching = [pair for pair in found if belongs(pair[1], ROOMS)]
    assert [pair for pair in reaching if not belongs(pair[0], CORE_REACHES_ROOMS_FROM)] == []
