"""A transformer as its dimensions, and what follows from them: parameters and FLOP, in every convention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Convention = Literal["causal", "non-causal", "no attention"]
CONVENTIONS: tuple[Convention, ...] = ("causal", "non-causal", "no attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks of the two compressions, dimensions of a head."""

    q_rank: int
    kv_rank: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a transformer.

    ffn: width of a dense MLP; gated: three matrices instead of two. positions: rows of a learned position table.
    window: attention span of every other layer (0: all layers see everything). experts > 0: mixture of experts; each
    token visits top_k experts of width moe_ffn and ``shared`` more; the first dense_layers layers have a dense MLP.
    head_dim: of queries and keys. source: where the dimensions are published.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    tied: bool
    causal: bool = True
    positions: int = 0
    window: int = 0
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared: int = 0
    dense_layers: int = 0
    latent: LatentAttention | None = None
    source: str = ""

    @property
    def matrices(self) -> int:
        """Matrices of one MLP."""
        return 3 if self.gated else 2

    @property
    def attention_width(self) -> int:
        """d of the attention term: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Width of the attention's output: heads x dimension of a value."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def attention_params(self) -> int:
        """Of one layer."""
        if self.latent:
            a = self.latent
            nope = self.head_dim - a.rope_dim
            query = self.hidden * a.q_rank + a.q_rank * self.attention_width
            compressed = self.hidden * (a.kv_rank + a.rope_dim)
            return query + compressed + a.kv_rank * self.heads * (nope + a.value_dim) + self.value_width * self.hidden
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_params(self) -> int:
        """Of one dense MLP."""
        return self.matrices * self.hidden * self.ffn

    @property
    def expert_params(self) -> int:
        """Of one expert."""
        return self.matrices * self.hidden * self.moe_ffn

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def embedding_params(self) -> int:
        """Of the input embedding."""
        return self.vocab * self.hidden

    def layer_params(self, *, moe: bool, active: bool = False) -> int:
        """Of one layer with its norms. active: the experts that one token visits instead of all."""
        common = self.attention_params + 2 * self.hidden
        if not moe:
            return common + self.mlp_params
        visited = self.top_k if active else self.experts
        return common + self.hidden * self.experts + (visited + self.shared) * self.expert_params

    def _of_layers(self, *, active: bool) -> int:
        dense = self.layers - self.moe_layers
        return dense * self.layer_params(moe=False) + self.moe_layers * self.layer_params(moe=True, active=active)

    @property
    def params(self) -> int:
        """All parameters; a tied embedding counts once."""
        heads = 1 if self.tied else 2
        return (
            self._of_layers(active=False) + heads * self.embedding_params + self.positions * self.hidden + self.hidden
        )

    @property
    def active_params(self) -> int:
        """Parameters that one token visits."""
        return self.params - self._of_layers(active=False) + self._of_layers(active=True)

    @property
    def matmul_params(self) -> int:
        """Active parameters without the input embedding: each costs 6 FLOP a token."""
        return self._of_layers(active=True) + self.embedding_params

    def attention_flop(self, seq_len: int, *, causal: bool) -> float:
        """Training FLOP per token of the scores and their weighted sum, all layers: 12 L d s, half of it if causal."""
        width = (self.attention_width + self.value_width) / 2
        spans = [float(seq_len)] * self.layers
        if self.window and self.window < seq_len:
            spans[::2] = [float(self.window) * (2 if causal else 1)] * len(spans[::2])
        return 12 * width * sum(spans) * (0.5 if causal else 1.0)

    def flop_per_token(self, seq_len: int, convention: Convention, *, all_params: bool = False) -> float:
        """Model FLOP of one token of a training step (forward and backward, no recomputation).

        6 N + attention; N: matmul_params, or with ``all_params`` the input embedding too. causal: 6 L d s; non-causal:
        12 L d s (PaLM, arXiv 2204.02311 appendix B).
        """
        n = self.active_params if all_params else self.matmul_params
        if convention == "no attention":
            return 6.0 * n
        return 6.0 * n + self.attention_flop(seq_len, causal=convention == "causal")
