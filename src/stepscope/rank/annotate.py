"""``stepscope.annotate(model)``: the modules of a model as ranges of torch's profiler, and of Nsight Systems on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

from stepscope.core.errors import UsageError
from stepscope.rank.precision import tensors_of

FORWARD, BACKWARD = "module: ", "backward: "
"""Beginnings of the names of ranges; `stepscope trace --show modules` reads the first."""


class Annotated(AbstractContextManager["Annotated"]):
    """The ranges of one model; ``remove()`` takes them away, as does leaving a ``with`` block."""

    def __init__(self, model: nn.Module, *, nvtx: bool) -> None:
        self._nvtx = nvtx
        self._forward: list[tuple[nn.Module, int, record_function, int | None]] = []
        self._backward: dict[int, int] = {}  # number of the call -> its range
        self._calls = 0
        self._handles: list[RemovableHandle] = []
        for path, module in model.named_modules():
            name = path or type(module).__name__
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(partial(self._leave, name), always_call=True))

    def remove(self) -> None:
        """Take the hooks off and close what is open. May be called twice."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._forward:
            self._close()
        self._end_backward()

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Open the range of a module's call, and follow its inputs to the backward pass."""
        if torch.compiler.is_compiling():  # a compiled region has no modules any more
            return
        self._calls += 1
        call = self._calls
        for tensor in self._followed((args, kwargs)):  # before the call, which may change them in place
            tensor.register_hook(lambda _: self._leave_backward(call))  # type: ignore[no-untyped-call]
        span = record_function(FORWARD + name)
        span.__enter__()  # type: ignore[no-untyped-call]
        self._forward.append((module, call, span, torch.cuda.nvtx.range_start(FORWARD + name) if self._nvtx else None))

    def _leave(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        """Close the range of a module's call, and follow its outputs to the backward pass."""
        if torch.compiler.is_compiling():
            return
        while self._forward:  # more than one where an error left a module below
            inner, call = self._close()
            if inner is module:
                for tensor in self._followed(output):
                    tensor.register_hook(lambda _, call=call: self._enter_backward(call, name))  # type: ignore[no-untyped-call]
                return

    def _close(self) -> tuple[nn.Module, int]:
        module, call, span, mark = self._forward.pop()
        if mark is not None:
            torch.cuda.nvtx.range_end(mark)
        span.__exit__(None, None, None)
        return module, call

    def _followed(self, nested: Any) -> Iterator[Tensor]:
        # Only NVTX has ranges of the backward pass. They do not nest: a gradient is there while the node that made it still
        # runs, and a range of torch's profiler that ends within another event cuts that event short.
        if self._nvtx and torch.is_grad_enabled():
            yield from (tensor for tensor in tensors_of(nested) if tensor.requires_grad)

    def _enter_backward(self, call: int, name: str) -> None:
        if not self._handles or call in self._backward:
            return
        if not self._backward:  # a module whose input needs no gradient ends with the pass
            Variable._execution_engine.queue_callback(self._end_backward)
        self._backward[call] = torch.cuda.nvtx.range_start(BACKWARD + name)

    def _leave_backward(self, call: int) -> None:
        if call in self._backward:
            torch.cuda.nvtx.range_end(self._backward.pop(call))

    def _end_backward(self) -> None:
        while self._backward:
            torch.cuda.nvtx.range_end(self._backward.popitem()[1])


def annotate(model: nn.Module, *, nvtx: bool | None = None) -> Annotated:
    """Mark every module: its forward pass as ``module: layers.0.mlp`` for torch's profiler, for NVTX also its backward pass.

    The model stays what it is: hooks only, no module is wrapped, so that parameters keep their names. `stepscope trace
    --show modules` adds the backward pass by itself. nvtx: ranges for Nsight Systems; None: where torch has a GPU. There
    ``backward: layers.0.mlp`` lasts from the gradient of the module's result to that of its input; of a module whose input
    needs none, to the end of the pass. Regions that torch.compile compiles later have no ranges. Raises UsageError for a
    compiled or scripted model, whose modules no longer run one by one, and for ``nvtx=True`` without a GPU.
    """
    for path, module in model.named_modules():
        if _is_compiled(module):
            raise UsageError(
                f"annotate: {path or type(module).__name__} is compiled",
                why="its modules do not run one by one, and their hooks are not called",
                fix="annotate the model that is not compiled",
            )
    if nvtx and not torch.cuda.is_available():
        raise UsageError(
            "annotate: nvtx=True needs a GPU", fix="leave nvtx out: torch's profiler gets the ranges anyway"
        )
    return Annotated(model, nvtx=torch.cuda.is_available() if nvtx is None else nvtx)


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo")  # takes seconds to import, and who has compiled has it
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule)
