"""Planting: targets of `fuzz-attn run` that each have one seeded bug, and the random sample of bugs that is planted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.mutation.seeded_bugs import SeededBug, edited_copy
from fuzz_attn.targets.built_in import BUILT_IN_LAUNCHERS

ROOT: Final = Path(__file__).parents[3]
TABLES: Final = ROOT / "fuzz_attn" / "mutation" / "seeded" / "tables"
FREEDOMS: Final = "freedoms.toml"
"""The table of bugs that show only in what no signature promises, so that a target has to declare it."""
UNPROMISED: Final[tuple[Family, ...]] = ("mla_decode", "token_decode", "varlen")
"""Families of which many bugs are like that: no signature promises a log-sum-exp, values of another size, or rows
that see no key."""

Way: TypeAlias = Literal["built-in", "path"]
"""In a copy of the package, whose own target has the bug then, or in a user's file, which imports edited kernels."""
WAYS: Final[tuple[Way, ...]] = ("built-in", "path")

DECLARATION: Final = """
import dataclasses

import msgspec

from fuzz_attn.case.aspects import FEATURES_OF
from fuzz_attn.targets.built_in import built_in

healthy = built_in("{family}")
promised = frozenset(name for name in FEATURES_OF["{family}"] if healthy.domain.allows(name))
domain = msgspec.structs.replace(healthy.domain, features=promised)
declared = dataclasses.replace(healthy, name="declared", call={function}, domain=domain)
"""
COMPILED: Final = shutil.ignore_patterns("__pycache__")


class Planted(NamedTuple):
    """What `fuzz-attn run` is started with: its target, and the folder that Python imports the package from first."""

    target: str
    python_path: str


def sample(bugs: Sequence[SeededBug], count: int, seed: int) -> list[tuple[SeededBug, Family]]:
    """Return bugs with one of their families each, in an order in which the families take turns; no bug occurs twice.

    The sample of a smaller ``count`` is the beginning of that of a larger one. Bugs of merges and cache writes are in
    none.
    """
    random, bugs = Random(seed), [bug for bug in bugs if {*bug.families} & {*FAMILIES}]
    of_family: dict[Family, list[tuple[SeededBug, Family]]] = {family: [] for family in FAMILIES}
    for bug in random.sample(bugs, len(bugs)):
        family = random.choice([family for family in FAMILIES if family in bug.families])
        of_family[family].append((bug, family))
    turns = zip_longest(*of_family.values())
    return [pair for turn in turns for pair in turn if pair is not None][:count]


def plant(bug: SeededBug | None, family: Family, way: Way, folder: Path) -> Planted:
    """Return our target of a family with a bug, whose files are in a new folder; None plants no bug.

    A user's file has the plain launcher, and a target that declares what the built-in one does if the bug needs that.
    """
    without = SeededBug((family,), "", "", ())
    if way == "built-in":
        shutil.copytree(ROOT / "fuzz_attn", folder / "fuzz_attn", symlinks=True, ignore=COMPILED)
        shutil.copytree(ROOT / "strategies", folder / "strategies", ignore=COMPILED)
        edited_copy(bug or without, ROOT / "kernels", folder / "kernels")
        return Planted(family, str(folder))
    module, function = BUILT_IN_LAUNCHERS[family].split(":")
    edited_copy(bug or without, ROOT / "kernels", folder / "edited_kernels")
    text, name = f"from edited_kernels.{module} import {function}\n", function
    if bug is not None and (bug.file == FREEDOMS or family in UNPROMISED):
        text, name = text + DECLARATION.format(family=family, function=function), "declared"
    (folder / "attention.py").write_text(text, encoding="utf-8")
    return Planted(f"{folder / 'attention.py'}:{name}", "")
