"""One call of `unified_attention`: its arguments by name, and the facts that follow from them."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class UnifiedCall:
    """The arguments of `unified_attention`, which documents each of them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    max_seqlen_q: int
    seqused_k: torch.Tensor
    max_seqlen_k: int
    softmax_scale: float
    causal: bool
    window_size: tuple[int, int]
    block_table: torch.Tensor
    softcap: float
    q_descale: torch.Tensor | None = None
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    qq_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    output_scale: torch.Tensor | None = None
    num_segments: int | None = None
    tile_size: int | None = None

    @property
    def num_tokens(self) -> int:
        """The rows of q, padding included."""
        return self.q.shape[0]

    @property
    def num_seqs(self) -> int:
        """How many sequences the batch has."""
        return self.seqused_k.shape[0]

    @property
    def num_query_heads(self) -> int:
        """How many heads q has."""
        return self.q.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """How many heads the caches have."""
        return self.k.shape[2]

    @property
    def head_size(self) -> int:
        """The length of one query, key or value."""
        return self.q.shape[2]

    @property
    def window(self) -> int:
        """The sliding window W, 0 for none; the caller passes W - 1."""
        return self.window_size[0] + 1

    @property
    def has_work(self) -> bool:
        """Whether there is a token that may need an answer."""
        return self.num_tokens > 0 and self.num_seqs > 0
