"""Blocks of Llama and MPT in plain torch, as the published recipes write them."""

import torch
from torch import nn
from torch.nn import functional


def rotation(head, positions, base=500000.0):
    angles = torch.outer(torch.arange(positions).float(), base ** (-torch.arange(0, head, 2).float() / head))
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x, turn):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn[: x.shape[1], None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """kv: heads of keys and values; the number of heads is that of this rank where tensor parallelism divides them."""

    def __init__(self, width, heads, kv, linear=nn.Linear):
        super().__init__()
        self.head = width // heads
        self.wq, self.wo = linear(width, width, bias=False), linear(width, width, bias=False)
        self.wk, self.wv = (linear(width, kv * self.head, bias=False) for _ in range(2))
        self.groups = heads // kv

    def forward(self, x, turn):
        q, k, v = (w(x).unflatten(-1, (-1, self.head)) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turn), rotated(k, turn)
        k, v = (t.repeat_interleave(self.groups, 2) if self.groups > 1 else t for t in (k, v))
        out = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width, inner, linear=nn.Linear):
        super().__init__()
        self.w1, self.w3 = (linear(width, inner, bias=False) for _ in range(2))
        self.w2 = linear(inner, width, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, width, heads, kv, inner, linear=nn.Linear):
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, kv, linear), Gated(width, inner, linear)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x, turn):
        h = x + self.attention(self.attention_norm(x), turn)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, kv, inner, vocab, positions, linear=nn.Linear):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv, inner, linear) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.register_buffer("turn", rotation(width // heads, positions), persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.turn)
        return self.output(self.norm(x))
