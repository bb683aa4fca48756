"""Small pipelines, alone and with what shares a stage, and experts: ``stages.py SHAPE``, on ranks of gloo. Five steps."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SHAPE = sys.argv[1]
WIDTH, VOCAB, TOKENS, BATCH, MICRO_BATCHES = 32, 48, 8, 8, 4
STEPS = 5
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "looped": pipelining.ScheduleLoopedBFS,
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def stage_module(stage, stages):
    parts = [Block()]
    if stage == 0:
        parts.insert(0, nn.Embedding(VOCAB, WIDTH))
    if stage == stages - 1:
        parts.append(nn.Linear(WIDTH, VOCAB))
    return nn.Sequential(*parts)


def shared(module, mesh):
    """Share a stage among the ranks of the mesh's other dimension."""
    if SHAPE.endswith("-ddp"):
        return DistributedDataParallel(module, process_group=mesh["data"].get_group(), bucket_cap_mb=1)
    if SHAPE.endswith("-fsdp2"):
        for part in module:
            fully_shard(part, mesh=mesh["data"], reshard_after_forward=False)
        return fully_shard(module, mesh=mesh["data"], reshard_after_forward=False)
    if SHAPE.endswith("-tp"):
        for part in module:
            if isinstance(part, Block):
                parallelize_module(part, mesh["data"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return module


def traced(group, loss, rank, ranks):
    """The model is split by torch.export at its middle."""
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *[Block() for _ in range(ranks)], nn.Linear(WIDTH, VOCAB))
    example = torch.zeros(BATCH // MICRO_BATCHES, TOKENS, dtype=torch.int64)
    points = {str(n + 1): pipelining.SplitPoint.BEGINNING for n in range(1, ranks)}
    stage = pipelining.pipeline(model, (example,), split_spec=points).build_stage(rank, torch.device("cpu"), group)
    return pipelining.ScheduleGPipe(stage, MICRO_BATCHES, loss), [stage.submod], [rank], ranks


def schedule_of(group, mesh, loss, rank, ranks):
    """Return the schedule, this rank's modules, their stages, and how many stages there are."""
    name = SHAPE.split("-")[0] if SHAPE not in SCHEDULES else SHAPE
    if name == "traced":
        return traced(group, loss, rank, ranks)
    kind = SCHEDULES[name]
    stages = ranks if name in ("gpipe", "1f1b") else 2 * ranks
    own = [rank] if stages == ranks else [rank, stages - 1 - rank if name == "zbv" else rank + ranks]
    modules = [shared(stage_module(stage, stages), mesh) for stage in own]
    made = [
        pipelining.PipelineStage(module, stage, stages, torch.device("cpu"), group=group)
        for module, stage in zip(modules, own, strict=True)
    ]
    return kind(made[0] if stages == ranks else made, MICRO_BATCHES, loss), modules, own, stages


class Experts(nn.Module):
    """Two experts a rank; token i chooses expert i modulo their number, and the counts say who sends how much to whom."""

    def __init__(self):
        super().__init__()
        self.world = dist.get_world_size()
        width = self.width = 2 * self.world
        self.router, self.own = nn.Linear(width, width, bias=False), nn.ModuleList(nn.Linear(width, 16) for _ in "ab")
        nn.init.eye_(self.router.weight)

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).topk(1)
        order = choice.flatten().argsort(stable=True)
        counts = torch.bincount(choice.flatten(), minlength=self.width)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        given, taken = (numbers.view(self.world, -1).sum(1).tolist() for numbers in (counts, theirs))
        exchanged = functional_collectives.all_to_all_single_autograd
        parts = exchanged(x[order], taken, given, dist.group.WORLD).split(theirs.view(-1, 2).sum(0).tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.own, parts, strict=True)])
        return exchanged(out, given, taken, dist.group.WORLD) * weight[order]


def experts():
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.eye(model.width).repeat(TOKENS, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    torch.manual_seed(0)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    if SHAPE == "experts":
        experts()
        return
    world = dist.get_world_size()
    ranks = world if SHAPE in (*SCHEDULES, "traced") else world // 2
    mesh = init_device_mesh("cpu", (ranks, world // ranks), mesh_dim_names=("stage", "data"))

    def loss(out, target):
        return functional.cross_entropy(out.flatten(0, 1), target.flatten())

    rank = mesh["stage"].get_local_rank()
    schedule, modules, own, stages = schedule_of(mesh["stage"].get_group(), mesh, loss, rank, ranks)
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()])
    for _ in range(STEPS):
        tokens = torch.randint(VOCAB, (BATCH, TOKENS))
        given = (tokens,) if 0 in own else ()
        losses = []
        if stages - 1 in own:
            schedule.step(*given, target=tokens, losses=losses)
            print(f"loss {torch.stack(losses).mean().item():.3f}")
        else:
            schedule.step(*given)
        optimizer.step()
        optimizer.zero_grad()


main()
