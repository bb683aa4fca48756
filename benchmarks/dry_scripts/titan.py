"""Llama as torchtitan, torchao and fms-fsdp train it: FSDP2 or HSDP, tensor parallel with sequence parallel, selective or
full recomputation, torch.compile of each layer, FP8 linear layers."""

import argparse

import torch
from blocks import Llama
from float8 import Float8Linear
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)  # fmt: skip
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=int, nargs=6)  # layers, width, heads, kv heads, inner, vocabulary
for name, default in (("seq", 8192), ("batch", 1), ("tp", 1), ("replicas", 1)):
    parser.add_argument(f"--{name}", type=int, default=default)
for name, default in (("recompute", ""), ("compile", ""), ("fp8", ""), ("reduce", "float32")):
    parser.add_argument(f"--{name}", default=default)
args = parser.parse_args()
torch.distributed.init_process_group("nccl")
device = "cuda" if torch.cuda.is_available() else "cpu"
world = torch.distributed.get_world_size()
mesh = init_device_mesh(
    device,
    (args.replicas, world // args.replicas // args.tp, args.tp),
    mesh_dim_names=("dp_replicate", "dp_shard", "tp"),
)
with torch.device("meta"):
    model = Llama(*args.model, args.seq, linear=Float8Linear.of(args.fp8) if args.fp8 else torch.nn.Linear)
if args.tp > 1:
    tp = mesh["tp"]
    whole, split = Replicate(), Shard(1)
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=whole, output_layouts=split), "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=split, output_layouts=Shard(-1), use_local_output=False),
    }  # fmt: skip
    parallelize_module(model, tp, ends)
    plan = {
        "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(split, None), desired_input_layouts=(whole, None)),
        "feed_forward": PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,)),
        **{f"attention.w{x}": ColwiseParallel() for x in "qkv"}, "attention.wo": RowwiseParallel(output_layouts=split),
        "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=split),
    }  # fmt: skip
    for layer in model.layers:
        parallelize_module(layer, tp, plan)

ops = torch.ops.aten
products = (ops.mm.default, ops._scaled_mm.default)
attention = [f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")]
saved = {
    *products,
    *(getattr(ops, name).default for name in (*attention, "_scaled_dot_product_flash_attention_for_cpu")),
}


def every_second_product():
    seen = {True: 0, False: 0}

    def policy(context, op, *_, **__):
        seen[context.is_recompute] += op in products
        keep = op in saved and not (op in products and seen[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


sharing = {
    "mesh": mesh["dp_replicate", "dp_shard"] if args.replicas > 1 else mesh["dp_shard"],
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, args.reduce)),
}
for number, layer in enumerate(model.layers):
    if args.recompute == "full" or (args.recompute == "half" and number % 2):
        layer = checkpoint_wrapper(layer, preserve_rng_state=False)
    elif args.recompute == "selective":
        layer = checkpoint_wrapper(layer, context_fn=every_second_product, preserve_rng_state=False)
    if args.compile == "Y":
        layer = torch.compile(layer)
    model.layers[number] = layer
    fully_shard(layer, **sharing, reshard_after_forward=number < len(model.layers) - 1)
fully_shard(model, **sharing)
model.to_empty(device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
for _ in range(4):
    tokens = torch.randint(args.model[-1], (args.batch, args.seq + 1), device=device)
    out = model(tokens[:, :-1])
    if args.tp > 1:
        with torch.distributed.tensor.parallel.loss_parallel():
            loss = functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
    else:
        loss = functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
