"""Peak memory of this process: the CUDA allocator's on GPU, the resident set's high-water mark on CPU.

Bytes that a rank keeps for training, counted tensor by tensor: what a strategy's memory plan is held against.

Storages are counted once, whoever else looks at them; what the allocator adds, and what lives only for a moment, is not
counted. Works on every device alike.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepscope.core.errors import Unavailable

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes, and where the number comes from."""

    size_bytes: int
    source: str


class PeakTracker:
    """The highest peak over the stretches that count: evaluation between epochs, say, does not.

    ``start`` and ``pause`` enclose a stretch; ``unavailable`` holds why the peak covers more than it should.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.unavailable: Unavailable | None = None
        self.peak: PeakMemory | Unavailable = Unavailable("nothing ran")

    def start(self) -> None:
        self.unavailable = reset_peak(self._device) or self.unavailable

    def pause(self) -> None:
        """Note the peak so far."""
        peak = read_peak(self._device)
        if (
            isinstance(peak, Unavailable)
            or isinstance(self.peak, Unavailable)
            or peak.size_bytes > self.peak.size_bytes
        ):
            self.peak = peak


def reset_peak(device: torch.device) -> Unavailable | None:
    """Start a new peak; Unavailable when this system cannot (then the peak covers the whole process)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return None
    try:
        _CLEAR_REFS.write_text("5")  # Linux: resets VmHWM to the current resident set
    except OSError as error:
        return Unavailable(f"{_CLEAR_REFS}: {error.strerror}")
    return None


def read_peak(device: torch.device) -> PeakMemory | Unavailable:
    """Return the peak of memory so far, bytes: the device's, or the process's."""
    if device.type == "cuda":
        return PeakMemory(int(torch.cuda.max_memory_allocated(device)), "cuda max_memory_allocated")
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError as error:
        return Unavailable(f"{_STATUS}: {error.strerror}")
    for line in lines:
        if line.startswith("VmHWM:"):
            return PeakMemory(int(line.split()[1]) * 1024, "VmHWM")
    return Unavailable(f"{_STATUS} has no VmHWM line")


PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, GATHERED = (
    "parameters", "gradients", "optimizer", "activations", "gathered"
)  # fmt: skip
"""Kinds of bytes. gathered: whole parameters of a sharded model that are there from the end of the forward pass to
backward."""


@dataclass
class Recomputed:
    """Blocks that run once more in the backward pass. tell: called with each result that they keep nevertheless."""

    blocks: Sequence[nn.Module] = ()
    tell: Callable[[Tensor], None] = lambda _: None


class TensorAccount:
    """``with account.step(): ...`` around one optimizer step fills ``sizes``, bytes by kind.

    Gradients are counted as the optimizer finds them, activations and gathered parameters when backward begins: what
    autograd keeps, and the inputs and results that a recomputed block keeps.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Iterable[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        *,
        recomputed: Recomputed | None = None,
    ) -> None:
        self._module = module
        self._parameters = list(parameters)
        self._recomputed = recomputed or Recomputed()
        self._optimizer = optimizer
        self.sizes: dict[str, int] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the activations that a step keeps, and the parameters that it gathers, bytes."""
        own = {p.untyped_storage().data_ptr() for p in map(_local_tensor, self._parameters)}
        kept: list[torch.UntypedStorage] = []

        def pack(tensor: Tensor) -> Tensor:
            storage = _local_tensor(tensor).untyped_storage()
            if ACTIVATIONS not in self.sizes and not _is_parameter(tensor) and storage.data_ptr() not in own:
                kept.append(storage)
            return tensor

        def keep(tensor: Tensor) -> None:
            if ACTIVATIONS not in self.sizes:
                kept.append(_local_tensor(tensor).untyped_storage())

        def keep_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            for value in inputs:
                if isinstance(value, Tensor):
                    keep(value)

        def unpack(tensor: Tensor) -> Tensor:
            """Return what was kept; the first one ends the count."""
            if ACTIVATIONS not in self.sizes:
                self.sizes[ACTIVATIONS] = _storage_bytes(kept)
                now = (_local_tensor(p).untyped_storage() for p in self._module.parameters())
                self.sizes[GATHERED] = _storage_bytes(storage for storage in now if storage.data_ptr() not in own)
                kept.clear()
            return tensor

        def before_update(*_: Any) -> None:
            self.sizes[GRADIENTS] = _tensor_bytes(p.grad for p in self._parameters)

        hooks = [m.register_forward_pre_hook(keep_inputs) for m in self._recomputed.blocks]
        hooks.append(self._optimizer.register_step_pre_hook(before_update))
        tell, self._recomputed.tell = self._recomputed.tell, keep
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            self._recomputed.tell = tell
            for hook in hooks:
                hook.remove()
        self.sizes[PARAMETERS] = _tensor_bytes(self._parameters)
        state = getattr(self._optimizer, "optim", self._optimizer).state.values()
        self.sizes[OPTIMIZER] = _tensor_bytes(t for s in state for t in s.values() if isinstance(t, Tensor) and t.dim())


def _local_tensor(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_parameter(tensor: Tensor) -> bool:
    return any(isinstance(t, nn.Parameter) for t in (tensor, tensor._base))


def _tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    return _storage_bytes(_local_tensor(t).untyped_storage() for t in tensors if t is not None)


def _storage_bytes(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
