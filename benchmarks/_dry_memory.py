"""What a script holds in its second step, counted by torch while the script runs on this machine."""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

CPU = torch.device("cpu")


def count(out: Path, argv: list[str]) -> None:
    """Run a script to the end of its second step and write what it held to ``out``; the process ends there."""
    warnings.filterwarnings("ignore")
    step = _Step(out)
    register_optimizer_step_pre_hook(step.begins)
    register_optimizer_step_post_hook(step.ends)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


class _Storages(MemTracker):
    """torch's count of all storages, without what it keeps of modules, of which it knows one call each."""

    before: WeakIdKeyDictionary | None = None
    """Storages that were there as this forward pass began: another may get the address of one that is freed."""

    def _pre_fw_hook(self, *_: Any) -> None:
        if self.before is None:
            self.before = WeakIdKeyDictionary(dict.fromkeys(self._WINFO, True))

    def _post_fw_hook(self, *_: Any) -> None:
        pass

    def _pre_bw_hook(self, *_: Any) -> None:
        pass

    def _post_bw_hook(self, *_: Any) -> None:
        pass

    @property
    def total(self) -> int:
        return int(self._curr_mem_snap[CPU]["Total"])

    def restart(self) -> None:
        self._peak_mem = {CPU: self.total}

    @property
    def peak(self) -> int:
        return int(self._peak_mem[CPU])


class _Step:
    """Where the script is. inside: depth of optimizers' steps; ended: steps of the outermost one; saved: bytes by storage
    of what this forward pass saved for its backward pass, None within that."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.found: dict[str, int] = {"activations": 0}
        self.inside = self.ended = 0
        self.saved: dict[int, int] | None = {}
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()
        self.storages = _Storages()
        self.storages.__enter__()

    def begins(self, *_: Any) -> None:
        if not self.inside and self.ended == 1:
            held = [p.grad for p in _all(torch.nn.Parameter) if p.grad is not None]
            self.found["gradients"] = sum(_storages(held).values())
        self.inside += 1

    def ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.inside -= 1
        if self.inside:
            return
        self.ended += 1
        if self.ended == 1:
            self.storages.restart()
            self.storages.before = None
            self.watch()
            with torch.profiler.record_function("the step"):
                pass
        elif self.ended == 2:
            self.report(optimizer)
            os._exit(0)

    def watch(self) -> None:
        torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor).__enter__()
        engine = torch.autograd.graph._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.saved is not None:
                self.found["activations"] = max(self.found["activations"], sum(self.saved.values()))
                self.saved = self.storages.before = None
            try:
                return engine(*args, **kwargs)
            finally:
                self.saved = {}

        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        if self.saved is not None and storage not in (self.storages.before or ()):
            self.saved.update(_storages([tensor]))
        return tensor

    def report(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer = getattr(optimizer, "optim", optimizer)
        found, modules = self.found, _all(torch.nn.Module)
        found["parameters"] = sum(_storages(p for m in modules for p in m.parameters()).values())
        found["optimizer"] = sum(_storages(t for state in optimizer.state.values() for t in _tensors(state)).values())
        found["peak"] = self.storages.peak
        self.storages.__exit__(None, None, None)
        self.profile.__exit__(None, None, None)
        found["allocator"] = self.taken()
        self.out.write_text(json.dumps(found))

    def taken(self) -> int:
        """Return the most bytes that the allocator gave out within the step."""
        begun, now, most = False, 0, 0
        for event in sorted(self.profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):  # type: ignore[union-attr]
            begun = begun or event.name() == "the step"
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now) if begun else 0
        return most


def _all(kind: type) -> list[Any]:
    return [value for value in gc.get_objects() if isinstance(value, kind)]


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of the storages of these tensors, by storage."""
    storages = [getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in tensors]
    return {storage._cdata: storage.nbytes() for storage in storages}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []
