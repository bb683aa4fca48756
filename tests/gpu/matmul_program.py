"""``python matmul_program.py DEVICE``: FLOP/s of the fastest square matrix product of each type, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

ROUNDS = 8


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """The shortest of some runs: a peak is what the device can do."""
    found = []
    for _ in range(ROUNDS):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return min(found)


def rate(dtype: torch.dtype, sizes: tuple[int, ...], device: torch.device) -> float:
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        torch.mm(a, b, out=out)
        best = max(best, 2 * size**3 / seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device))
    return best


def main() -> None:
    device = torch.device(sys.argv[1])
    if device.type == "cpu":
        rates = {"fp32": rate(torch.float32, (128, 256), device)}
    else:
        sizes = (2048, 4096, 8192)
        torch.backends.cuda.matmul.allow_tf32 = False
        rates = {"fp32": rate(torch.float32, sizes, device)}
        rates |= {"fp16": rate(torch.float16, sizes, device), "bf16": rate(torch.bfloat16, sizes, device)}
        torch.backends.cuda.matmul.allow_tf32 = True
        rates["tf32"] = rate(torch.float32, sizes, device)
    sys.stdout.write(json.dumps(rates) + "\n")


main()
