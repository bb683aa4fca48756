"""The examples by name: what is planted in each, and the commands that show it."""

from __future__ import annotations

from collections.abc import Callable
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
    rows = ["epoch,train_loss,train_time,val_loss,val_acc"]
    rows += [f"{e},{2.4 / e:.4f},{61.0 + e % 3 / 4:.3f},{2.5 / e:.4f},{0.8 - 0.5 / e:.4f}" for e in range(1, 7)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


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
        planted="1 and 8 GPUs; on 8 the gradients take a slow network, and loading takes 9 ms a step",
        commands=("diagnose {}/1-gpu {}/8-gpus",),
        write=_bad_scaling,
    ),
    "sockets": Example(
        planted="8 GPUs on 2 hosts; NCCL finds no network plugin and falls back to TCP sockets",
        commands=("diagnose {}",),
        write=_sockets,
    ),
}
