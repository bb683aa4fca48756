"""The examples by name: what is planted in each, and the commands that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.examples import hang, traced
from stepscope.examples.traced import MS, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A job folder. planted: the cause that diagnose names first. commands: arguments of stepscope, ``{}`` the folder."""

    planted: str
    commands: tuple[str, ...]
    write: Callable[[Path], None]


def _straggler(folder: Path) -> None:
    traced.write(folder, plan(world=8, bus_gb_per_s=230, slow={5: 1.18}))


def _naive(folder: Path) -> None:
    traced.write(
        folder, plan(world=2, bus_gb_per_s=22, mixed_precision=False, gpu="NVIDIA A100-PCIE-40GB", shape="naive")
    )


def _ddp(folder: Path) -> None:
    traced.write(folder, plan(world=2, bus_gb_per_s=22, mixed_precision=False, gpu="NVIDIA A100-PCIE-40GB"))


def _bad_scaling(folder: Path) -> None:
    traced.write(folder / "1-gpu", plan(world=1, bus_gb_per_s=1, data_ns=MS // 2))
    traced.write(folder / "8-gpus", plan(world=8, bus_gb_per_s=10, data_ns=9 * MS))


def _sockets(folder: Path) -> None:
    traced.write(folder / "traces", plan(world=8, bus_gb_per_s=6))
    traced.write_socket_log(folder / "nccl.log", world=8, per_host=4)
    (folder / "metrics.csv").write_text("\n".join([_COLUMNS, *_epochs(seconds=61.0, passes=1)]) + "\n")


def _logs(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = [
        f"{run},text classifier,reviews,25000,{gpus},128,{row}"
        for run, gpus, seconds, passes in (("baseline", 1, 42.0, 1), ("ddp", 4, 46.0, 2))
        for row in _epochs(seconds=seconds, passes=passes)
    ]
    (folder / "epochs.csv").write_text(
        "\n".join(["run,model,dataset,dataset_size,gpus,global_batch," + _COLUMNS, *rows]) + "\n"
    )


_COLUMNS = "epoch,train_loss,train_time,val_acc"


def _epochs(*, seconds: float, passes: int) -> list[str]:
    """A row an epoch; the loss falls with every pass over the data, of which an epoch holds several."""
    losses = [(epoch, 0.3 + 0.6 / (epoch * passes)) for epoch in range(1, 9)]
    return [f"{e},{loss:.4f},{seconds * (1 + e % 3 / 200):.3f},{0.94 - 0.4 * (loss - 0.3):.4f}" for e, loss in losses]


WORLD = 8


def own_ns() -> int:
    """What a rank of the example with planted faults computes in a step."""
    job = plan(world=WORLD, bus_gb_per_s=230)
    return job.layers * (job.forward_ns + job.backward_ns) + job.optimizer_ns


def with_faults(planted: str, *, slower: Mapping[int, float], late_ns: Mapping[int, int], data_ns: int) -> Example:
    """8 GPUs under DDP. slower: rank -> how many times as long it computes; late_ns: what it needs more in every step;
    data_ns: what every rank waits for its batches."""
    job = plan(world=WORLD, bus_gb_per_s=230, slow=dict(slower), late=dict(late_ns), data_ns=data_ns)
    return Example(
        planted=f"{WORLD} GPUs with DDP; {planted}",
        commands=("diagnose {}", "trace {}"),
        write=lambda folder: traced.write(folder, job),
    )


EXAMPLES = {
    "straggler": Example(
        planted="8 GPUs with DDP; rank 5 computes 18% longer than the others",
        commands=("diagnose {}", "trace {}"),
        write=_straggler,
    ),
    "naive": Example(
        planted="2 GPUs over PCIe; gradients are reduced one by one after the backward pass",
        commands=("diagnose {}",),
        write=_naive,
    ),
    "ddp": Example(
        planted="the same model with DDP's buckets: the reductions run under the backward pass",
        commands=("trace {}",),
        write=_ddp,
    ),
    "hang": Example(
        planted=f"8 ranks; rank {hang.LOST} never calls collective {hang.CALLS}, in which the others wait",
        commands=("diagnose {}",),
        write=hang.write,
    ),
    "bad-scaling": Example(
        planted="1 and 8 GPUs; on 8 the gradients go over a slow network, and loading takes 9 ms per step",
        commands=("diagnose {}",),
        write=_bad_scaling,
    ),
    "logs": Example(
        planted="a table of epochs on 1 and 4 GPUs; every rank of the 4 trains on all the data",
        commands=("diagnose {}",),
        write=_logs,
    ),
    "sockets": Example(
        planted="8 GPUs on 2 hosts; NCCL finds no network plugin and falls back to TCP sockets",
        commands=("diagnose {}",),
        write=_sockets,
    ),
}
