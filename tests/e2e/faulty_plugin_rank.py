# ruff: noqa: ARG001 - every fault takes the module
"""The implementation of the faulty workload."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable

import faulty_plugin
import torch
import torch.distributed as dist

from stepscope.rank.workloads import Task, mlp
from stepscope.records.plan import InputNeeds


def build(options: faulty_plugin.Options, needs: InputNeeds, loss: str) -> Task:
    task = mlp.build(faulty_plugin.as_mlp(options), needs, loss)
    if int(os.environ["RANK"]) != options.rank or options.kind == "none":
        return task
    calls = 0

    def fault(module: torch.nn.Module, inputs: object) -> None:
        nonlocal calls
        calls += 1
        if calls == options.at + 1 or (options.kind == "slow" and calls > options.at):
            FAULTS[options.kind](module)

    task.module.register_forward_pre_hook(fault)
    return task


def _raise(module: torch.nn.Module) -> None:
    raise ValueError("planted failure")


def _exit(module: torch.nn.Module) -> None:
    os._exit(3)


def _quiet_exit(module: torch.nn.Module) -> None:
    os._exit(0)


def _hang(module: torch.nn.Module) -> None:
    time.sleep(600)


def _kill(module: torch.nn.Module) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _host_oom(module: torch.nn.Module) -> None:
    """Run out of address space for real."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
    torch.zeros(2**31)


def _cuda_oom(module: torch.nn.Module) -> None:
    device = next(module.parameters()).device
    if device.type == "cuda":
        torch.empty(2**50, dtype=torch.uint8, device=device)  # more than any card has
    raise torch.OutOfMemoryError("planted: CUDA out of memory")


def _watchdog(module: torch.nn.Module) -> None:
    """The host seems to run out of memory while this rank is busy."""
    import psutil

    real = psutil.virtual_memory()
    psutil.virtual_memory = lambda: real._replace(available=int(0.01 * real.total))
    time.sleep(600)


def _diverge(module: torch.nn.Module) -> None:
    with torch.no_grad():
        next(module.parameters()).add_(1e-3)


def _slow(module: torch.nn.Module) -> None:
    """Every step: healthy, and late."""
    time.sleep(0.4)


def _other_size(module: torch.nn.Module) -> None:
    """The next all-reduce sends half of its tensor."""
    _instead_of_next_all_reduce(lambda real, tensor, **settings: real(tensor.flatten()[::2].clone(), **settings))


def _other_op(module: torch.nn.Module) -> None:
    """Where the others reduce next, this rank broadcasts."""
    _instead_of_next_all_reduce(lambda _, tensor, **settings: dist.broadcast(tensor, 1, **settings))


def _instead_of_next_all_reduce(call: Callable[..., object]) -> None:
    real = dist.all_reduce

    def once(tensor: torch.Tensor, **settings: object) -> object:
        dist.all_reduce = real
        return call(real, tensor, **settings)

    dist.all_reduce = once


FAULTS: dict[str, Callable[[torch.nn.Module], None]] = {
    "raise": _raise,
    "exit": _exit,
    "quiet_exit": _quiet_exit,
    "hang": _hang,
    "kill": _kill,
    "host_oom": _host_oom,
    "cuda_oom": _cuda_oom,
    "watchdog": _watchdog,
    "diverge": _diverge,
    "slow": _slow,
    "other_size": _other_size,
    "other_op": _other_op,
}
