"""Small jobs of every kind of memory: ``held.py JOB``, alone or on ranks of gloo. Two steps and a little of a third."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

JOB = sys.argv[1]
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
WIDTH, VOCAB, POSITIONS, BATCH = 256, 2000, 128, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if JOB == "llama":
            q, k = turned(q), turned(k)
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def turned(x):
    angles = torch.outer(torch.arange(x.shape[2]), 1 / 10000 ** (torch.arange(0, x.shape[3], 2) / x.shape[3]))
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).type_as(x)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(WIDTH, 640), nn.Linear(640, WIDTH), nn.Linear(WIDTH, 640)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.RMSNorm if JOB == "llama" else nn.LayerNorm
        self.n1, self.n2, self.attention = norm(WIDTH), norm(WIDTH), Attention()
        self.mlp = (
            Gated()
            if JOB == "llama"
            else nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        )

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        if JOB == "tied":
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            if JOB.startswith("checkpoint"):
                call = (lambda y: functional.gelu(y) * y + 1) if JOB == "checkpoint-function" else block
                x = checkpoint(call, x, use_reentrant=JOB == "checkpoint-reentrant")
            elif JOB == "offload":
                with torch.autograd.graph.save_on_cpu():
                    x = block(x)
            else:
                x = block(x)
        return self.head(self.norm(x))


class Adapted(nn.Module):
    """A frozen layer with two small ones beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(layer.in_features, 8))
        self.b = nn.Parameter(torch.zeros(8, layer.out_features))

    def forward(self, x):
        return self.layer(x) + x @ self.a @ self.b


def model_of():
    if JOB in ("mlp", "sgd", "flat", "fused"):
        return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if JOB == "conv":
        layers = [nn.Conv2d(3, 32, 3, padding=1)]
        for n in (32, 64):
            layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(n, 2 * n, 3, padding=1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    model = GPT()
    if JOB == "lora":
        model.requires_grad_(False)
        for block in model.blocks:
            block.attention.qkv = Adapted(block.attention.qkv)
    return model


def flattened(model):
    """Let all parameters be views of one storage, and their gradients of another."""
    sizes = [p.numel() for p in model.parameters()]
    flat, grads = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
    for p, part, grad in zip(model.parameters(), flat.split(sizes), grads.split(sizes), strict=True):
        part.copy_(p.detach().flatten())
        p.data, p.grad = part.view_as(p), grad.view_as(p)


def optimizer_of(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    if JOB in ("sgd", "conv"):
        return torch.optim.SGD(parameters, 0.1, momentum=0.9)
    if JOB == "adafactor":
        return torch.optim.Adafactor(parameters)
    if JOB.startswith("zero1"):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            parameters, torch.optim.AdamW, parameters_as_bucket_view=JOB == "zero1-views", lr=0.001
        )
    return torch.optim.AdamW(parameters, foreach=JOB not in ("fused", "single", "tp"), fused=JOB == "fused")


def batch():
    if JOB == "conv":
        return torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    if JOB in ("mlp", "sgd", "flat", "fused"):
        return torch.randn(256, 512), torch.randint(10, (256,))
    tokens = torch.randint(VOCAB, (BATCH, POSITIONS + 1))
    return tokens[:, :-1], tokens[:, 1:]


def main():
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = model_of()
    if JOB == "flat":
        flattened(model)
    if JOB.startswith(("ddp", "zero1")):
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=JOB == "ddp-views")
    if JOB.startswith("fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        options = {"reshard_after_forward": JOB != "fsdp2-keep", "mesh": init_device_mesh("cpu", (WORLD,))}
        if JOB == "fsdp2-mixed":
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
    if JOB.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel, wrap

        policy = wrap.ModuleWrapPolicy({Block})
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=JOB == "fsdp1-originals"
        )
    if JOB == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, init_device_mesh("cpu", (WORLD,)), plan)
    optimizer = optimizer_of(model)
    for _ in range(3):
        for _ in range(2 if "accumulate" in JOB else 1):
            x, y = batch()
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in JOB):
                out = model(x)
                loss = functional.cross_entropy(out.float().flatten(0, -2), y.flatten())
            loss.backward()
        if JOB not in ("adafactor", "tp"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=JOB != "flat")


main()
