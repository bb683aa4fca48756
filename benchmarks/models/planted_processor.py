"""A processor of a known speed: products, attention and convolutions take ``FIXED_S`` + FLOP / ``RATE``, most of it asleep.

As many ranks as one likes compute at once on any machine, and, where real-time scheduling is permitted, on a loaded one.
``begin`` puts it in the place of this machine's for the operators of the process.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

RATE = 4e9
FIXED_S = 200e-6
NAMES = (
    "mm", "addmm", "bmm", "convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip
_LIBRARY = torch.library.Library("aten", "IMPL")


def begin() -> None:
    with suppress(AttributeError, PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    warnings.filterwarnings("ignore", "Warning only once for all operators")
    for name in NAMES:
        _slow_down(name, getattr(torch.ops.aten, name).default)


def _slow_down(name: str, op: Any) -> None:
    kernel, count = torch.library.get_kernel(op, "CPU"), _flop_of(name, op)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        out = kernel.call_boxed(keys, *args, **kwargs)
        time.sleep(max(0.0, began + FIXED_S + count(args, kwargs, out) / RATE - time.perf_counter()))
        return out

    _LIBRARY.impl(name, run, "CPU", with_keyset=True, allow_override=True)


def _flop_of(name: str, op: Any) -> Callable[[Any, Any, Any], float]:
    """Return what counts an operator's FLOP: torch's own counter, which does not know attention on the host."""
    if "attention" not in name:
        counted = flop_registry[op._overloadpacket]
        return lambda args, kwargs, out: counted(*args, **kwargs, out_val=out)
    query, factor = (1, 2.5) if name.endswith("backward") else (0, 1.0)
    return lambda args, *_: factor * 4 * prod(args[query].shape) * args[query].shape[-2]
