"""A clean slate between the cells of a group: the same cell gives the same losses whatever ran before it."""

from __future__ import annotations

import gc
import random

import numpy as np
import torch


def reset(device: torch.device, *, seed: int, threads: int, cudnn_benchmark: bool) -> None:
    """Random states, default dtype, threads, backend flags, garbage, the CUDA allocator."""
    gc.collect()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
