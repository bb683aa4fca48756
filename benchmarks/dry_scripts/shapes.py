"""Small jobs of every way to share work among ranks: ``shapes.py SHAPE``, on ranks of gloo. Five steps."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SHAPE = sys.argv[1]
WIDTH, VOCAB, TOKENS = 64, 96, (2, 16)
STEPS = 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


class Language(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Wide(nn.Module):
    """Linear layers of 2.5 MB, so that DDP has several buckets; normalisation with buffers; a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(64, 600), nn.Linear(600, 600), nn.Linear(400, 8)
        self.next, self.norm = nn.Linear(600, 400), nn.BatchNorm1d(600) if "buffers" in SHAPE else nn.Identity()
        if "unused" in SHAPE:
            self.spare = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.next(self.inner(self.norm(self.first(x).relu())).relu()))


class Pictures(nn.Sequential):
    def __init__(self):
        inner = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.ReLU()]
        super().__init__(*inner, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def two_of(names):
    """Return a mesh whose second dimension has two ranks."""
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)


def ddp():
    options = {
        "ddp-1mb": {"bucket_cap_mb": 1},
        "ddp-static": {"static_graph": True, "bucket_cap_mb": 1},
        "ddp-unused": {"find_unused_parameters": True, "bucket_cap_mb": 1},
        "ddp-static-unused": {"static_graph": True, "bucket_cap_mb": 1},
        "ddp-view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
        "ddp-powersgd": {"bucket_cap_mb": 100},
    }.get(SHAPE, {})
    model = DistributedDataParallel(Pictures() if SHAPE == "ddp-pictures" else Wide(), **options)
    if SHAPE == "ddp-fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    if SHAPE == "ddp-powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

        model.register_comm_hook(power.PowerSGDState(None, 2, start_powerSGD_iter=2), power.powerSGD_hook)
    batch = (4, 3, 16, 16) if SHAPE == "ddp-pictures" else (4, 64)
    train(
        torch.optim.AdamW(model.parameters()),
        lambda: model(torch.randn(batch)).square().mean(),
        micro=2 if "sync" in SHAPE else 1,
        last=lambda last: contextlib.nullcontext() if last or SHAPE == "ddp-sync-twice" else model.no_sync(),
    )


def fsdp2():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"reshard_after_forward": SHAPE != "fsdp2-keep"}
    if SHAPE in ("fsdp2-mixed", "hsdp"):
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    whole = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    options["mesh"] = two_of(("replicate", "shard")) if SHAPE == "hsdp" else whole
    model = Language()
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)

    @contextlib.contextmanager
    def last(is_last):
        model.set_requires_gradient_sync(is_last)
        yield

    language(model, torch.optim.AdamW(model.parameters()), micro=2 if SHAPE == "fsdp2-accumulate" else 1, last=last)


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    strategy = {"fsdp1-grad": "SHARD_GRAD_OP", "fsdp1-none": "NO_SHARD", "fsdp1-hybrid": "HYBRID_SHARD"}.get(SHAPE)
    mixed = MixedPrecision(torch.bfloat16, torch.bfloat16) if SHAPE == "fsdp1-mixed" else None
    model = FullyShardedDataParallel(
        Language(),
        sharding_strategy=ShardingStrategy[strategy or "FULL_SHARD"],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=mixed,
        use_orig_params=SHAPE == "fsdp1-originals",
        device_id=torch.device("cpu"),
        device_mesh=two_of(("replicate", "shard")) if SHAPE == "fsdp1-hybrid" else None,
    )
    language(
        model,
        torch.optim.AdamW(model.parameters()),
        micro=2 if SHAPE == "fsdp1-accumulate" else 1,
        last=lambda last: contextlib.nullcontext() if last else model.no_sync(),
    )


def zero1():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Language())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=SHAPE == "zero1-view", lr=0.001
    )
    language(model, optimizer)


def tp():
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    world = dist.get_world_size()
    two = SHAPE in ("tp-fsdp2", "tp-ddp")
    mesh = two_of(("dp", "tp")) if two else init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model = nn.Sequential(
        *[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)]
    )
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    if SHAPE == "sp":
        shard = {"input_layouts": Shard(1)}, {"output_layouts": Shard(1)}
        plan = {"0": SequenceParallel(), "1": ColwiseParallel(**shard[0]), "3": RowwiseParallel(**shard[1])}
    for block in model:
        parallelize_module(block, mesh["tp"], plan)
    if SHAPE == "tp-ddp":
        model = DistributedDataParallel(model, device_mesh=mesh["dp"])
    elif two:
        from torch.distributed.fsdp import fully_shard

        for part in (*model, model):
            fully_shard(part, mesh=mesh["dp"])

    def loss():
        x = torch.randn(2, 8, 64)
        if SHAPE == "sp":
            x = DTensor.from_local(x, mesh["tp"], [Shard(1)], run_check=False)
        out = model(x)
        return (out.full_tensor() if isinstance(out, DTensor) else out).square().mean()

    train(torch.optim.AdamW(model.parameters()), loss)


def loss_parallel():
    """The plan of language models: layers and vocabulary in parts, and the loss of parts of the vocabulary."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import parallel as tensor_parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = Language()
    columns, rows = tensor_parallel.ColwiseParallel, tensor_parallel.RowwiseParallel
    plan = {"tokens": rows(input_layouts=Replicate()), "head": columns(use_local_output=False)}
    for number in range(len(model.blocks)):
        plan[f"blocks.{number}.up"] = columns()
        plan[f"blocks.{number}.down"] = rows()
    tensor_parallel.parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def loss():
        tokens = torch.randint(VOCAB, TOKENS)
        with tensor_parallel.loss_parallel():
            out = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            out.backward()
        return torch.zeros((), requires_grad=True)

    train(optimizer, loss)


def ep():
    import torch.distributed._functional_collectives as functional_collectives
    from torch.distributed.nn.functional import all_to_all_single

    world = dist.get_world_size()
    router, expert = nn.Linear(32, world), nn.Linear(32, 32)

    def exchanged(x):
        if SHAPE == "ep":
            return all_to_all_single(torch.empty_like(x), x)
        sizes = [8] * world
        return functional_collectives.all_to_all_single_autograd(x, sizes, sizes, dist.group.WORLD)

    def loss():
        x = torch.randn(8 * world, 32)
        weight = router(x).softmax(-1).amax(-1, keepdim=True)
        return (exchanged(expert(exchanged(x))) * weight).square().mean()

    def after():
        for parameter in router.parameters():
            dist.all_reduce(parameter.grad)

    model = nn.ModuleList([router, expert])
    train(torch.optim.AdamW(model.parameters()), loss, after=after)


def language(model, optimizer, **how):
    def loss():
        tokens = torch.randint(VOCAB, TOKENS)
        return functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    def clip():
        own = getattr(model, "clip_grad_norm_", None)
        own(1.0) if own else nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train(optimizer, loss, after=clip, **how)


def train(optimizer, loss, *, micro=1, last=lambda _: contextlib.nullcontext(), after=lambda: None):
    for _ in range(STEPS):
        optimizer.zero_grad()
        for number in range(micro):
            with last(number == micro - 1):
                loss().backward()
        after()
        optimizer.step()


if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(0)
KIND = SHAPE.partition("-")[0]
{
    "ddp": ddp,
    "fsdp2": fsdp2,
    "hsdp": fsdp2,
    "fsdp1": fsdp1,
    "zero1": zero1,
    "tp": tp,
    "sp": tp,
    "ep": ep,
    "loss": loss_parallel,
}[KIND]()
