"""What a launch returns where Triton returns a compiled kernel: plausible figures, and a way to launch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Launch = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""What is called in place of a launch: with the kernel, its arguments by position and by name, and the grid."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The launch options of a kernel, and what a kernel of this kind uses of a GPU."""

    name: str
    target: Any
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    launch_pdl: bool = False
    launch_cooperative_grid: bool = False
    shared: int = 16384
    warp_size: int = 32


OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid")
"""Launch options that a kernel's metadata repeat."""


@dataclass(frozen=True)
class Compiled:
    """A stand-in for a compiled kernel. Nothing is compiled: its figures are typical ones.

    `keywords` are those of the launch or warm-up that made it. Their constants hold where a later launch leaves them
    out.
    """

    kernel: Any
    keywords: Mapping[str, Any]
    launch: Launch
    target: Any
    n_regs: int = 64
    n_spills: int = 0
    n_max_threads: int = 1024

    @cached_property
    def metadata(self) -> Metadata:
        """The options of the launch or warm-up, and typical figures."""
        options = {name: self.keywords[name] for name in OPTIONS if self.keywords.get(name) is not None}
        return Metadata(self.name, self.target, **options)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__)

    def _init_handles(self) -> None:
        """Do nothing: Triton loads the kernel here, and programs call this before they read its figures."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return a function that launches the kernel on a grid."""

        def launch(*arguments: Any, **keywords: Any) -> None:
            self.launch(self.kernel, arguments, {**self.keywords, **keywords}, grid)

        return launch
