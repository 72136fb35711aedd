"""Mask recipes: which keys of its sequence a query token may see, beside a sliding window.

A row is at the position ``context_len + i``, or with :class:`TopLeft` at ``i``. What each recipe allows,
:mod:`fuzz_attn.case.visibility` computes; the bits of a custom mask make :mod:`fuzz_attn.inputs.custom_masks`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.plain import Positive, Window, counted
from fuzz_attn.case.recipes import Recipe

MaskKind: TypeAlias = Literal["causal", "top_left", "full", "lookahead", "chunks", "custom", "custom_alone"]
"""What kernels are compiled for."""
MaskBits: TypeAlias = Literal["random", "tree", "blocks", "bottom_right"]


class _Mask(Recipe, frozen=True):
    @property
    def kind(self) -> MaskKind:
        """What kernels are compiled for."""
        return self.__struct_config__.tag  # type: ignore[return-value] # the tag of a mask is its kind


class Causal(_Mask, frozen=True, tag="causal"):
    """A row sees the keys up to its own. The last row of a sequence sees the last key."""


class TopLeft(_Mask, frozen=True, tag="top_left"):
    """Row ``i`` sees the keys from 0 to ``i``, however many there are: the first row sees one key."""

    def words(self) -> str:
        """Return the mask in words."""
        return "causal from the top left"


class Full(_Mask, frozen=True, tag="full"):
    """A row sees every key of its sequence."""

    def words(self) -> str:
        """Return the mask in words."""
        return "not causal"


class Lookahead(_Mask, frozen=True, tag="lookahead"):
    """The number of keys behind its own that a row sees; with a sliding window this is a two-sided window."""

    keys: Window = 1

    def words(self) -> str:
        """Return the mask in words."""
        return f"{counted(self.keys, 'key')} behind a row's own"


class Chunks(_Mask, frozen=True, tag="chunks"):
    """Keys are in chunks of a size, and a row sees those of its own chunk up to its own."""

    size: Positive = 16

    def words(self) -> str:
        """Return the mask in words."""
        return f"causal in chunks of {counted(self.size, 'key')}"


class Custom(_Mask, frozen=True, tag="custom"):
    """One boolean for each query row and key, used together with the causal mask or, if not ``causal``, instead of it.

    ``random`` hides about every second key. ``tree`` lets a new token see the context, itself and a random path of
    ancestors. ``blocks`` is a chequerboard. ``bottom_right`` equals the causal mask. Each row sees its own key,
    unless ``empty_rows``: then some see nothing, and their output is 0. With ``poisoned``, keys that no row sees hold
    poison, also between others. Bits that the causal mask hides are random.
    """

    bits: MaskBits = "random"
    causal: bool = True
    empty_rows: bool = False
    poisoned: bool = False

    @property
    def kind(self) -> MaskKind:
        """What kernels are compiled for."""
        return "custom" if self.causal else "custom_alone"

    def words(self) -> str:
        """Return the mask in words."""
        words = [f"custom ({self.bits.replace('_', ' ')}), {'also causal' if self.causal else 'not causal'}"]
        words += ["rows that see nothing"] * self.empty_rows + ["keys that no row sees are poison"] * self.poisoned
        return ", ".join(words)

    def elements(self, sequences: tuple[Sequence, ...]) -> int:
        """Return the number of booleans."""
        return sum(sequence.query_len * sequence.seq_len for sequence in sequences)


Mask: TypeAlias = Causal | TopLeft | Full | Lookahead | Chunks | Custom

CAUSAL: Final = Causal()
SIMPLEST: Final[dict[MaskKind, Mask]] = {
    "causal": CAUSAL,
    "top_left": TopLeft(),
    "full": Full(),
    "lookahead": Lookahead(),
    "chunks": Chunks(),
    "custom": Custom(),
    "custom_alone": Custom(causal=False),
}
"""The simplest mask of each kind, the simplest kind first."""
