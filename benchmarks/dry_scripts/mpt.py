"""MPT as llm-foundry trains it: blocks with layer norms and learned positions, every block sharded, full recomputation or
none, micro-batches accumulated with a reduction after each."""

import argparse

import torch
from torch import nn
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=int, nargs=4)  # layers, width, heads, vocabulary
for name in ("seq", "batch", "micro-batches"):
    parser.add_argument(f"--{name}", type=int, default=1)
parser.add_argument("--recompute", default="none")
parser.add_argument("--reduce", default="float32")
args = parser.parse_args()
layers, width, heads, vocabulary = args.model


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Mpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(args.seq, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm_f = nn.LayerNorm(width, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm_f(x), self.wte.weight)


torch.distributed.init_process_group("nccl")
device = "cuda" if torch.cuda.is_available() else "cpu"
with torch.device("meta"):
    model = Mpt()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, args.reduce))
for number, block in enumerate(model.blocks):
    if args.recompute == "full":
        model.blocks[number] = block = checkpoint_wrapper(block)
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, foreach=True)
for _ in range(4):
    for _ in range(args.micro_batches):
        tokens = torch.randint(vocabulary, (args.batch, args.seq), device=device)
        logits = model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
        (loss / args.micro_batches).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
