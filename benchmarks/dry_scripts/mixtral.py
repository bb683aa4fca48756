"""Mixtral as torchtitan shares a mixture: experts among ranks by ExpertParallel, the rest by FSDP2; products of groups."""

import argparse

import torch
import torch.distributed._functional_collectives as functional_collectives
from blocks import Attention, rotation
from torch import nn
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=int, nargs=6, default=(32, 4096, 32, 8, 14336, 32000))  # as titan.py has it
for name, default in (("seq", 4096), ("batch", 1), ("ep", 8), ("experts", 8), ("chosen", 2)):
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--recompute", default="")
args = parser.parse_args()
layers, width, heads, kv, inner, vocab = args.model


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.empty(args.experts, inner, width)) for _ in "ab")
        self.w2 = nn.Parameter(torch.empty(args.experts, width, inner))

    def forward(self, x, counts):
        w1, w2, w3 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2, self.w3))
        ends = counts.cumsum(0).to(torch.int32)

        def product(rows, w):
            return torch._grouped_mm(rows.bfloat16(), w.bfloat16().transpose(-2, -1), offs=ends)

        return product(functional.silu(product(x, w1)) * product(x, w3), w2).type_as(x)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(width, args.experts, bias=False), Experts()

    def forward(self, x):
        rows = x.flatten(0, 1)
        weight, choice = self.gate(rows).float().softmax(-1).topk(args.chosen)
        counts = torch.histc(choice.flatten().float(), bins=args.experts, min=0, max=args.experts)
        order = choice.flatten().argsort(stable=True)
        token = (order // args.chosen).unsqueeze(-1).expand(-1, width)
        out = self.experts(rows.gather(0, token), counts) * weight.flatten()[order].unsqueeze(-1).type_as(x)
        return torch.zeros_like(rows).scatter_add(0, token, out).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mixture = Attention(width, heads, kv), Mixture()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x, turn):
        h = x + self.attention(self.attention_norm(x), turn)
        return h + self.mixture(self.ffn_norm(h))


class Mixtral(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.layers = nn.Embedding(vocab, width), nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.register_buffer("turn", rotation(width // heads, args.seq), persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.turn)
        return self.output(self.norm(x))


class ExpertParallel(ParallelStyle):
    def split(self, name, module, mesh):  # noqa: ARG002 - as distribute_module calls it
        for key, parameter in module.named_parameters(recurse=False):
            module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

    def dispatch(self, module, inputs, mesh):  # noqa: ARG002
        x, counts = inputs
        ranks, group = mesh.size(), mesh.get_group()
        with torch.no_grad():
            theirs = functional_collectives.all_to_all_single(counts, None, None, group)
            theirs = torch.ops._c10d_functional.wait_tensor(theirs)
            self.given, self.taken = (
                [int(n) for n in numbers.view(ranks, -1).sum(1).to("cpu").tolist()] for numbers in (counts, theirs)
            )
        x = functional_collectives.all_to_all_single_autograd(x, self.taken, self.given, group)
        each = theirs.view(ranks, -1).long()
        place = torch.arange(each.shape[1], device=x.device).repeat(ranks)
        self.order = place.repeat_interleave(each.flatten(), output_size=sum(self.taken)).argsort(stable=True)
        return x[self.order], each.sum(0)

    def combine(self, module, out, mesh):  # noqa: ARG002
        back = torch.empty_like(out).scatter(0, self.order.unsqueeze(-1).expand_as(out), out)
        return functional_collectives.all_to_all_single_autograd(back, self.given, self.taken, mesh.get_group())

    def _apply(self, module, mesh):
        return distribute_module(module, mesh, self.split, self.dispatch, self.combine)


torch.distributed.init_process_group("nccl")
device = "cuda" if torch.cuda.is_available() else "cpu"
world = torch.distributed.get_world_size()
mesh = init_device_mesh(device, (world // args.ep, args.ep), mesh_dim_names=("dp_mod_ep", "ep"))
whole = mesh["dp_mod_ep", "ep"]._flatten("dp")
with torch.device("meta"):
    model = Mixtral()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, layer in enumerate(model.layers):
    parallelize_module(layer.mixture.experts, mesh["ep"], ExpertParallel())
    if args.recompute == "full":
        model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
    if world > args.ep:
        fully_shard(layer.mixture.experts, mesh=mesh["dp_mod_ep"], mp_policy=policy)
    fully_shard(model.layers[number], mesh=whole, mp_policy=policy)
fully_shard(model, mesh=whole, mp_policy=policy)
model.to_empty(device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
while True:
    tokens = torch.randint(vocab, (args.batch, args.seq + 1), device=device)
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
