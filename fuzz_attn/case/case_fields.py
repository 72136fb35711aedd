"""The fields of a case, before they are checked together."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from fuzz_attn.case.cache_layout import CacheLayout
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import CallForm, DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.plain import Count, Plain, Window
from fuzz_attn.case.recipes import (
    CAUSAL,
    AlibiRecipe,
    LogSumExp,
    Mask,
    NormalScores,
    NormalValues,
    Override,
    PoisonRecipe,
    QQBiasRecipe,
    ScoreRecipe,
    SinkRecipe,
    ValueRecipe,
)
from fuzz_attn.case.visibility import Visibility

Seed: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]


class CaseFields(Plain, frozen=True):
    """What :class:`fuzz_attn.case.attention_case.AttentionCase` holds.

    ``near_uniform`` makes most rows give their keys nearly equal weights, whatever the recipes. ``equal_heads`` makes
    the weights of most heads exactly equal (:mod:`fuzz_attn.inputs.numbers`). ``key_marks`` puts a mark of each key
    into every other column of V. All make keys count that the recipes would hide otherwise
    (:mod:`fuzz_attn.inputs.numbers`). ``filter_by_query_len``, ``uint8_cache``, ``stale_cache`` and
    ``ragged_splits`` are features that only some families have (:mod:`fuzz_attn.case.families`).
    """

    sequences: tuple[Sequence, ...]
    family: Family = "unified"
    heads: HeadLayout = HeadLayout()
    dtypes: DTypes = DTypes()
    pages: PageLayout = PageLayout()
    softmax_scale: float = 1.0
    window: Window = 0
    mask: Mask = CAUSAL
    softcap: float = 0.0
    alibi: AlibiRecipe | None = None
    qq_bias: QQBiasRecipe | None = None
    sinks: SinkRecipe | None = None
    scales: Scales = Scales()
    scores: ScoreRecipe = NormalScores()
    values: ValueRecipe = NormalValues()
    near_uniform: bool = False
    equal_heads: bool = False
    key_marks: bool = False
    overrides: tuple[Override, ...] = ()
    strides: Strides = Strides()
    padded_tokens: Count = 0
    poison: PoisonRecipe = PoisonRecipe()
    launch: LaunchHints = LaunchHints()
    filter_by_query_len: bool = False
    uint8_cache: bool = False
    stale_cache: bool = False
    ragged_splits: bool = False
    lse: LogSumExp | None = None
    seed: Seed = 0
    form: CallForm = CallForm()
    contract: ContractTrial | None = None

    @property
    def num_tokens(self) -> int:
        """Query tokens of all sequences, the padded rows not counted."""
        return sum(sequence.query_len for sequence in self.sequences)

    @property
    def visibility(self) -> Visibility:
        """Which keys the query tokens see, custom masks and biases of minus infinity apart."""
        return Visibility(self.window, self.mask)

    @property
    def max_query_len(self) -> int:
        """The longest query of the batch; 0 for an empty one."""
        return max((sequence.query_len for sequence in self.sequences), default=0)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence of the batch; 0 for an empty one."""
        return max((sequence.seq_len for sequence in self.sequences), default=0)

    @property
    def total_keys(self) -> int:
        """Keys of all sequences, shared ones counted each time."""
        return sum(sequence.seq_len for sequence in self.sequences)

    @property
    def cache_layout(self) -> CacheLayout:
        """Shape and strides of a page of each cache."""
        cache = FAMILIES[self.family].cache
        return cache.layout(self.heads, self.pages.block_size, self.dtypes.kv, self.strides)
