"""The traced examples: jobs of linear layers of 4096 x 4096 on A100s, each with one planted trouble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.examples.machine import Operator
from stepscope.examples.training_job import Simulation, simulate

WIDTH, TOKENS, LAYERS = 4096, 8192, 8
MS = 1_000_000
US = 1_000
_GEMM_FLOP = 2 * TOKENS * WIDTH * WIDTH
_NATIVE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >"
_CLAMP = "(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
_THRESHOLD = "(anonymous namespace)::threshold_kernel_impl<c10::BFloat16>(at::TensorIteratorBase&)::{lambda(float)#1}"


def _gemm_ns(flops_per_s: float) -> int:
    return round(_GEMM_FLOP / flops_per_s * 1e9)


def _layer(*, gemm: str, dtype: str) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Operators of a linear layer and its ReLU, forward and backward; ``share`` is of the time of one product."""
    tokens, weight = (TOKENS, WIDTH), (WIDTH, WIDTH)
    product = ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0")
    relu = ("autograd::engine::evaluate_function: ReluBackward0", "ReluBackward0")
    forward = (
        Operator(name="aten::mm", kernel=f"{gemm}_tn", dims=(tokens, weight), dtype=dtype, parents=("aten::linear",)),
        Operator(name="aten::clamp_min", kernel=_NATIVE.format(_CLAMP), share=0.06, dims=(tokens,), dtype=dtype,
                 parents=("aten::relu",)),
    )  # fmt: skip
    backward = (
        Operator(name="aten::threshold_backward", kernel=_NATIVE.format(_THRESHOLD), share=0.09, dims=(tokens, tokens),
                 dtype=dtype, parents=relu),
        Operator(name="aten::mm", kernel=f"{gemm}_nn", dims=(tokens, weight), dtype=dtype, parents=product),
        Operator(name="aten::mm", kernel=f"{gemm}_nt", dims=((WIDTH, TOKENS), tokens), dtype=dtype, parents=product),
    )  # fmt: skip
    return forward, backward


_SGD = Operator(
    name="aten::_foreach_add_",
    kernel="void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)"
    "::TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0> >",
    dims=(),
)


def plan(*, world: int, bus_gb_per_s: float, mixed_precision: bool = True, **more: Any) -> Simulation:
    """A job on ``world`` A100s whose all-reduces reach this bus bandwidth (of nccl-tests, GB/s).

    The products run at 200 TFLOP/s in bf16, at 110 in TF32; both are what an A100 reaches at this size.
    """
    gemm, dtype, item, flops, kind = (
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5", "c10::BFloat16", 2, 200e12, "BFloat16")
        if mixed_precision
        else ("cutlass_80_tensorop_s1688gemm_128x256_16x3", "float", 4, 110e12, "Float")
    )
    forward, backward = _layer(gemm=gemm, dtype=dtype)
    gradient_bytes = WIDTH * WIDTH * item
    transfer = gradient_bytes * 2 * (world - 1) / world / bus_gb_per_s
    fixed: dict[str, Any] = {
        "world": world, "steps": 6, "layers": LAYERS, "forward": forward, "backward": backward, "optimizer": _SGD,
        "forward_ns": _gemm_ns(flops), "backward_ns": _gemm_ns(flops), "optimizer_ns": 250 * US * item,
        "transfer_ns": round(transfer), "elements": WIDTH * WIDTH, "dtype": kind, "copy_ns": 1_400 * US * item // 2,
        "launch_ns": 6 * US, "jitter": 0.02, "gpu": "NVIDIA A100-SXM4-80GB", "sync": True,
    }  # fmt: skip
    return Simulation(**(fixed | more))


def write(folder: Path, plan: Simulation) -> None:
    """One trace a rank, named as torch's ``tensorboard_trace_handler`` names them."""
    folder.mkdir(parents=True)
    job = simulate(plan)
    for rank in range(plan.world):
        (folder / f"rank{rank}.pt.trace.json").write_text(job.rank_text(rank))


def write_socket_log(path: Path, *, world: int, per_host: int) -> None:
    """NCCL's log of the job: no network plugin is found, so that links between hosts go over TCP sockets."""
    host = [f"node{rank // per_host}" for rank in range(world)]
    pid = [4100 + rank for rank in range(world)]

    def said(rank: int, text: str) -> str:
        return f"{host[rank]}:{pid[rank]}:{pid[rank] + 100} [{rank % per_host}] NCCL INFO {text}\n"

    lines = [said(0, "NCCL version 2.27.3+cuda12.9")]
    for rank in range(world):
        after = (rank + 1) % world
        comm = f"comm 0x55e{rank:03d} rank {rank} nranks {world} cudaDev {rank % per_host} nvmlDev {rank % per_host}"
        init = f"ncclCommInitRankConfig {comm} busId {rank % per_host + 1}b000 commId 0x8c1f4d2a7be3 - Init"
        near = host[rank] == host[after]
        ways = ("via P2P/CUMEM/read",) if near else ("[send] via NET/Socket/0",)
        lines += [
            said(rank, "NET/Plugin: Could not find: libnccl-net.so."),
            said(rank, f"NET/Socket : Using [0]eth0:10.0.0.{rank // per_host + 1}<0>"),
            said(rank, "Using network Socket"),
            said(rank, f"{init} START"),
            *(
                said(rank, f"Channel {c:02d}/0 : {rank}[{rank}] -> {after}[{after}] {way}")
                for c in (0, 1)
                for way in ways
            ),
            said(rank, f"{init} COMPLETE"),
        ]
        if not near:
            lines += [
                said(after, f"Channel {c:02d}/0 : {rank}[{rank}] -> {after}[{after}] [receive] via NET/Socket/0")
                for c in (0, 1)
            ]
    path.write_text("".join(lines))
