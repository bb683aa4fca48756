"""Llama as nanotron trains it: tensor parallelism with divided sequences written by hand, gradients kept in FP32, replicas
that reduce them during the backward pass (zero 0) or share optimizer states and reduce after it (zero 1)."""

import argparse

import torch
import torch.distributed as dist
from blocks import rotated, rotation
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=int, nargs=5)  # layers, width, heads, inner, vocabulary
for name, default in (("seq", 4096), ("batch", 1), ("micro-batches", 1), ("tp", 1), ("zero", 0), ("tied", 1)):
    parser.add_argument(f"--{name}", type=int, default=default)
args = parser.parse_args()
layers, width, heads, inner, vocabulary = args.model
dist.init_process_group("nccl")
device = "cuda" if torch.cuda.is_available() else "cpu"
mesh = dist.init_device_mesh(device, (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
with torch.device(device):
    turn = rotation(width // heads, args.seq)


def exchanged(op, x, size, *, wait=True):
    """Gather or scatter the first dimension over the tensor-parallel ranks; not waiting returns a handle, too."""
    out = x.new_empty(size, *x.shape[1:])
    work = op(out, x.contiguous(), group=tp, async_op=not wait)
    return out if wait else (out, work)


class Gathered(torch.autograd.Function):
    """A linear layer of a divided sequence: pieces travel beside the products that do not need them."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        if args.tp == 1:
            return functional.linear(x, weight)
        whole, work = exchanged(dist.all_gather_into_tensor, x, len(x) * args.tp, wait=False)
        out = x.new_empty(len(whole), *x.shape[1:-1], len(weight))
        out[: len(x)] = functional.linear(x, weight)
        work.wait()
        out[len(x) :] = functional.linear(whole[len(x) :], weight)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if args.tp == 1:
            return grad @ weight, grad.flatten(0, 1).t() @ x.flatten(0, 1)
        whole, gathering = exchanged(dist.all_gather_into_tensor, x, len(x) * args.tp, wait=False)
        back, scattering = exchanged(dist.reduce_scatter_tensor, grad @ weight, len(x), wait=False)
        gathering.wait()
        of_weight = grad.flatten(0, 1).t() @ whole.flatten(0, 1)
        scattering.wait()
        return back, of_weight


class Scattered(torch.autograd.Function):
    """Sums of all ranks, divided along the sequence."""

    @staticmethod
    def forward(_, x):
        return x if args.tp == 1 else exchanged(dist.reduce_scatter_tensor, x, len(x) // args.tp)

    @staticmethod
    def backward(_, grad):
        return grad if args.tp == 1 else exchanged(dist.all_gather_into_tensor, grad, len(grad) * args.tp)


def gathered(x, layer):
    return Gathered.apply(x, layer.weight)


scattered = Scattered.apply


@torch.library.custom_op("triton_norm::forward", mutates_args=())
def norm(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    assert weight.shape == x.shape[-1:]
    return [torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)]


@torch.library.custom_op("triton_norm::backward", mutates_args=())
def norm_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    assert scale.shape == grad.shape[:-1]
    return [torch.empty_like(x), torch.empty_like(weight)]


norm.register_fake(norm._init_fn)
norm_backward.register_fake(norm_backward._init_fn)
norm.register_autograd(
    lambda ctx, grads: tuple(norm_backward(grads[0].contiguous(), *ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output[1]),
)


class Norm(nn.Module):
    """RMS norm in one kernel, as flash-attn has it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return norm(x, self.weight)[0]


def linear(fan_in, fan_out):
    return nn.Linear(fan_in, fan_out, bias=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.qkv, self.out = linear(width, 3 * width // args.tp), linear(width // args.tp, width)
        self.gate_up, self.down = linear(width, 2 * inner // args.tp), linear(inner // args.tp, width)

    def forward(self, x):
        q, k, v = (
            t.transpose(0, 1).unflatten(-1, (heads // args.tp, -1))
            for t in gathered(self.norm_1(x), self.qkv).chunk(3, -1)
        )
        q, k, v = (t.transpose(1, 2) for t in (rotated(q, turn), rotated(k, turn), v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + scattered(self.out(attended.permute(2, 0, 1, 3).flatten(2)))
        gate, up = gathered(self.norm_2(x), self.gate_up).chunk(2, -1)
        return x + scattered(self.down(functional.silu(gate) * up))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary // args.tp, width)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = Norm()
        self.head = linear(width, vocabulary // args.tp)
        if args.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = scattered(self.embedding(tokens % (vocabulary // args.tp)))
        for layer in self.layers:
            x = layer(x)
        return gathered(self.norm(x), self.head)


class DividedLoss(torch.autograd.Function):
    """Cross entropy of logits whose vocabulary is divided over ranks."""

    @staticmethod
    def forward(ctx, logits, target):
        most = logits.max(-1)[0]
        if args.tp > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX, tp)
        logits = logits - most.unsqueeze(-1)
        chosen = logits.gather(-1, (target % logits.shape[-1]).unsqueeze(-1)).squeeze(-1)
        exps = logits.exp_()
        total = exps.sum(-1)
        if args.tp > 1:
            dist.all_reduce(chosen, group=tp)
            dist.all_reduce(total, group=tp)
        ctx.save_for_backward(exps.div_(total.unsqueeze(-1)), target)
        return total.log() - chosen

    @staticmethod
    def backward(ctx, grad):
        probabilities, target = ctx.saved_tensors
        probabilities.scatter_add_(-1, (target % probabilities.shape[-1]).unsqueeze(-1), -grad.unsqueeze(-1).float())
        return probabilities.mul_(grad.unsqueeze(-1)), None


torch.set_default_dtype(torch.bfloat16)
with torch.device(device):
    model = Llama()
torch.set_default_dtype(torch.float32)
units = [[p for p in unit.parameters() if p.requires_grad] for unit in (*model.layers, model.norm, model.embedding)]
units += [] if args.tied else [[model.head.weight]]
sums = torch.zeros(-(-sum(p.numel() for unit in units for p in unit) // dp.size()) * dp.size(), device=device)
weights, works, last, place, spans = sums.to(torch.bfloat16), [], [False], 0, []
for unit in units:
    bucket, left = sums[place : place + sum(p.numel() for p in unit)], set(unit)
    for parameter in unit:
        end = place + parameter.numel()
        parameter.data = weights[place:end].view_as(parameter)

        def add(parameter, into=sums[place:end], bucket=bucket, left=left, unit=unit):
            into.add_(parameter.grad.flatten())
            parameter.grad = None
            left.discard(parameter)
            if not left:
                left.update(unit)
                if last[0] and not args.zero and dp.size() > 1:
                    works.append(dist.all_reduce(bucket, group=dp, async_op=True))

        parameter.register_post_accumulate_grad_hook(add)
        spans.append((place, end))
        place = end
shards = dp.size() if args.zero else 1


def slices(buffer, rank):
    """A rank's part of each parameter."""
    sizes = [-(-(end - begin) // shards) for begin, end in spans]
    return [
        buffer[begin + rank * n : min(end, begin + (rank + 1) * n)]
        for (begin, end), n in zip(spans, sizes, strict=True)
    ]


master = nn.Parameter(torch.cat(slices(weights, 0)).float())
optimizer = torch.optim.AdamW([master], lr=3e-4, fused=True)
for _ in range(4):
    for number in range(args.micro_batches):
        last[0] = number == args.micro_batches - 1
        tokens = torch.randint(vocabulary, (args.seq, args.batch), device=device)
        DividedLoss.apply(model(tokens).float(), tokens.roll(-1, 0)).mean().backward()
    for work in works:
        work.wait()
    works.clear()
    gradient = sums[: len(master)]
    if shards > 1:
        gradient = torch.empty_like(master)
        dist.reduce_scatter(gradient, [torch.cat(slices(sums, rank)) for rank in range(shards)], group=dp)
    master.grad = gradient
    length = master.grad.norm()
    dist.all_reduce(length)
    master.grad.mul_(1.0 / length)
    optimizer.step()
    mine = master.data.to(torch.bfloat16)
    gathered_parts = [torch.cat(slices(weights, rank)) for rank in range(shards)]
    if shards > 1:
        dist.all_gather(gathered_parts, mine, group=dp)
    for rank, flat in enumerate(gathered_parts if shards > 1 else [mine]):
        pieces = slices(weights, rank)
        for piece, new in zip(pieces, flat.split([len(piece) for piece in pieces]), strict=True):
            piece.copy_(new)
    del gathered_parts
    sums.zero_()
