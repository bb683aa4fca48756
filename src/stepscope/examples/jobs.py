"""The examples by name: what is planted in each, the commands that show it, and what writes its folder.

The traced ones are jobs of linear layers of 4096 x 4096 on A100s, each with one planted trouble; the hang is what flight
recorders and the log of an 8-rank NCCL job hold when one rank stopped calling.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
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


def _layer_operators(*, gemm: str, dtype: str) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
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
    forward, backward = _layer_operators(gemm=gemm, dtype=dtype)
    gradient_bytes = WIDTH * WIDTH * item
    transfer = gradient_bytes * 2 * (world - 1) / world / bus_gb_per_s
    fixed: dict[str, Any] = {
        "world": world, "steps": 6, "layers": LAYERS, "forward": forward, "backward": backward, "optimizer": _SGD,
        "forward_ns": _gemm_ns(flops), "backward_ns": _gemm_ns(flops), "optimizer_ns": 250 * US * item,
        "transfer_ns": round(transfer), "elements": WIDTH * WIDTH, "dtype": kind, "copy_ns": 1_400 * US * item // 2,
        "launch_ns": 6 * US, "jitter": 0.02, "gpu": "NVIDIA A100-SXM4-80GB", "sync": True,
    }  # fmt: skip
    return Simulation(**(fixed | more))


def write_traces(folder: Path, plan: Simulation, *, lost: tuple[float, float] = (0, 0)) -> None:
    """One trace a rank, named as torch's ``tensorboard_trace_handler`` names them.

    lost: from where to where in the order of the device's events there are none, as where the profiler's buffers are full.
    """
    folder.mkdir(parents=True)
    job = simulate(plan)
    for rank, events in job.events.items():
        device = sorted((e for e in events if e.pid == 0 and e.ph != "M"), key=lambda e: e.ts_ns)
        low, high = (round(part * len(device)) for part in lost)
        dropped = {id(e) for e in device[low:high]}
        events[:] = [e for e in events if id(e) not in dropped]
        (folder / f"rank{rank}.pt.trace.json").write_text(job.rank_text(rank))


def write_socket_log(path: Path, *, world: int, per_host: int) -> None:
    """NCCL's log of the job: no network plugin is found, so that links between hosts go over TCP sockets."""
    host = [f"node{rank // per_host}" for rank in range(world)]
    pid = [4100 + rank for rank in range(world)]

    def line(rank: int, text: str) -> str:
        return f"{host[rank]}:{pid[rank]}:{pid[rank] + 100} [{rank % per_host}] NCCL INFO {text}\n"

    lines = [line(0, "NCCL version 2.27.3+cuda12.9")]
    for rank in range(world):
        after = (rank + 1) % world
        comm = f"comm 0x55e{rank:03d} rank {rank} nranks {world} cudaDev {rank % per_host} nvmlDev {rank % per_host}"
        init = f"ncclCommInitRankConfig {comm} busId {rank % per_host + 1}b000 commId 0x8c1f4d2a7be3 - Init"
        near = host[rank] == host[after]
        ways = ("via P2P/CUMEM/read",) if near else ("[send] via NET/Socket/0",)
        lines += [
            line(rank, "NET/Plugin: Could not find: libnccl-net.so."),
            line(rank, f"NET/Socket : Using [0]eth0:10.0.0.{rank // per_host + 1}<0>"),
            line(rank, "Using network Socket"),
            line(rank, f"{init} START"),
            *(
                line(rank, f"Channel {c:02d}/0 : {rank}[{rank}] -> {after}[{after}] {way}")
                for c in (0, 1)
                for way in ways
            ),
            line(rank, f"{init} COMPLETE"),
        ]
        if not near:
            lines += [
                line(after, f"Channel {c:02d}/0 : {rank}[{rank}] -> {after}[{after}] [receive] via NET/Socket/0")
                for c in (0, 1)
            ]
    path.write_text("".join(lines))


HANG_RANKS, LOST, CALLS = 8, 5, 24
"""``LOST`` returns from collective ``CALLS`` - 1 and never calls the next one."""

_CREATED_NS = 1_763_800_000_000_000_000
_STEP_NS = 40_000_000


def write_hang(folder: Path) -> None:
    """One pickled dump a rank, as NCCL's watchdog leaves them, and the log of the job."""
    folder.mkdir(parents=True)
    for rank in range(HANG_RANKS):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_hang_dump(rank)))
    (folder / "train.log").write_text("".join(f"{line}\n" for line in _hang_log()))


def _hang_dump(rank: int) -> dict[str, Any]:
    """Return what a rank's flight recorder held; one rank has not made the last call."""
    called = CALLS - 1 if rank == LOST else CALLS
    status = {
        "last_enqueued_collective": called,
        "last_started_collective": called,
        "last_completed_collective": CALLS - 1,
    }
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(HANG_RANKS)))}},
        "pg_status": {"0": status},
        "entries": [_hang_entry(number) for number in range(1, called + 1)],
    }


def _hang_entry(number: int) -> dict[str, Any]:
    """Four buckets of gradients a step; the last one is smaller."""
    size = [[4_196_352]] if number % 4 == 0 else [[6_553_600]]
    created = _CREATED_NS + (number - 1) // 4 * _STEP_NS + (number - 1) % 4 * 3_000_000
    done = number < CALLS
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": created,
        "input_sizes": size, "input_dtypes": ["Float"], "output_sizes": size, "output_dtypes": ["Float"],
        "state": "completed" if done else "started", "time_discovered_started_ns": created + 200_000,
        "time_discovered_completed_ns": created + 3_000_000 if done else None, "retired": done,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def _hang_log() -> list[str]:
    """Return the lines of the log: losses, then the watchdog's timeouts."""
    waiting = [rank for rank in range(HANG_RANKS) if rank != LOST]
    steps = [f"[rank0] step {step} loss {2.31 - 0.04 * step:.4f}" for step in range(CALLS // 4)]
    watchdog = [
        f"[rank{rank}]:[E1122 09:36:{10 + rank:02d}.412 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={CALLS}, OpType=ALLREDUCE, NumelIn=4196352, NumelOut=4196352, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        for rank in waiting
    ]
    return [*steps, *watchdog]


@record
class Example:
    """A job folder. planted: the cause that diagnose names first. commands: arguments of stepscope, ``{}`` the folder."""

    planted: str
    commands: tuple[str, ...]
    write: Callable[[Path], None]


def _write_straggler(folder: Path) -> None:
    write_traces(folder, plan(world=8, bus_gb_per_s=230, slow={5: 1.18}))


def _write_naive(folder: Path) -> None:
    write_traces(
        folder, plan(world=2, bus_gb_per_s=22, mixed_precision=False, gpu="NVIDIA A100-PCIE-40GB", shape="naive")
    )


def _write_ddp(folder: Path) -> None:
    write_traces(folder, plan(world=2, bus_gb_per_s=22, mixed_precision=False, gpu="NVIDIA A100-PCIE-40GB"))


def _bad_scaling(folder: Path) -> None:
    write_traces(folder / "1-gpu", plan(world=1, bus_gb_per_s=1, data_ns=MS // 2))
    write_traces(folder / "8-gpus", plan(world=8, bus_gb_per_s=10, data_ns=9 * MS))


def _write_sockets(folder: Path) -> None:
    write_traces(folder / "traces", plan(world=8, bus_gb_per_s=6))
    write_socket_log(folder / "nccl.log", world=8, per_host=4)
    (folder / "metrics.csv").write_text("\n".join([_COLUMNS, *_epoch_rows(seconds=61.0, passes=1)]) + "\n")


def _write_unfit(folder: Path) -> None:
    write_traces(folder, plan(world=2, bus_gb_per_s=230), lost=(0.3, 0.9))


def _write_logs(folder: Path) -> None:
    """Write the logs of runs on one and on several GPUs."""
    folder.mkdir(parents=True)
    rows = [
        f"{run},text classifier,reviews,25000,{gpus},128,{row}"
        for run, gpus, seconds, passes in (("baseline", 1, 42.0, 1), ("ddp", 4, 46.0, 2))
        for row in _epoch_rows(seconds=seconds, passes=passes)
    ]
    (folder / "epochs.csv").write_text(
        "\n".join(["run,model,dataset,dataset_size,gpus,global_batch," + _COLUMNS, *rows]) + "\n"
    )


_COLUMNS = "epoch,train_loss,train_time,val_acc"


def _epoch_rows(*, seconds: float, passes: int) -> list[str]:
    """Return a row an epoch; the loss falls with every pass over the data, of which an epoch holds several."""
    losses = [(epoch, 0.3 + 0.6 / (epoch * passes)) for epoch in range(1, 9)]
    return [f"{e},{loss:.4f},{seconds * (1 + e % 3 / 200):.3f},{0.94 - 0.4 * (loss - 0.3):.4f}" for e, loss in losses]


WORLD = 8


def own_ns() -> int:
    """Return how long a rank of the example with planted faults computes in a step, ns."""
    job = plan(world=WORLD, bus_gb_per_s=230)
    return job.layers * (job.forward_ns + job.backward_ns) + job.optimizer_ns


def with_faults(planted: str, *, slower: Mapping[int, float], late_ns: Mapping[int, int], data_ns: int) -> Example:
    """Plan a job of 8 GPUs with DDP. slower: rank -> how many times as long it computes; late_ns: what it needs more a step;
    data_ns: what every rank waits for its batches."""
    job = plan(world=WORLD, bus_gb_per_s=230, slow=dict(slower), late=dict(late_ns), data_ns=data_ns)
    return Example(
        planted=f"{WORLD} GPUs with DDP; {planted}",
        commands=("diagnose {}", "trace {}"),
        write=lambda folder: write_traces(folder, job),
    )


EXAMPLES = {
    "straggler": Example(
        planted="8 GPUs with DDP; rank 5 computes 18% longer than the others",
        commands=("diagnose {}", "trace {}"),
        write=_write_straggler,
    ),
    "naive": Example(
        planted="2 GPUs over PCIe; gradients are reduced one by one after the backward pass",
        commands=("diagnose {}",),
        write=_write_naive,
    ),
    "ddp": Example(
        planted="the same model with DDP's buckets: the reductions run under the backward pass",
        commands=("trace {}",),
        write=_write_ddp,
    ),
    "hang": Example(
        planted=f"8 ranks; rank {LOST} never calls collective {CALLS}, in which the others wait",
        commands=("diagnose {}",),
        write=write_hang,
    ),
    "bad-scaling": Example(
        planted="1 and 8 GPUs; on 8 the gradients go over a slow network, and loading takes 9 ms per step",
        commands=("diagnose {}",),
        write=_bad_scaling,
    ),
    "logs": Example(
        planted="a table of epochs on 1 and 4 GPUs; every rank of the 4 trains on all the data",
        commands=("diagnose {}",),
        write=_write_logs,
    ),
    "sockets": Example(
        planted="8 GPUs on 2 hosts; NCCL finds no network plugin and falls back to TCP sockets",
        commands=("diagnose {}",),
        write=_write_sockets,
    ),
    "unfit": Example(
        planted="2 GPUs with DDP; the profiler's buffers were full: the files lack the kernels of most launches",
        commands=("trace {}",),
        write=_write_unfit,
    ),
}
