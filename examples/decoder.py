"""A small decoder-only transformer, written as Hugging Face's are: embeddings, blocks of attention and MLP, a tied head."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = Attention(width, heads)
        self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x))
        return x + self.down_proj(nn.functional.gelu(self.up_proj(self.post_norm(x))))


class Decoder(nn.Module):
    """Token ids of shape (batch, length) -> logits of shape (batch, length, vocabulary)."""

    def __init__(
        self, *, vocabulary: int = 2048, width: int = 128, heads: int = 4, layers: int = 4, length: int = 64
    ) -> None:
        super().__init__()
        self.embed_tokens, self.embed_positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens) + self.embed_positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))
