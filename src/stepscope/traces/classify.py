"""What a device event does: computing, communicating, moving memory. One table for all generations."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import Category, Events


class Work(IntEnum):
    """Class of device work; NOT_DEVICE for every host event."""

    NOT_DEVICE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3


COMMUNICATION_NAMES: tuple[tuple[str, str], ...] = (
    (
        r"^(void )?(nccl|rccl|msccl)",
        "NCCL 2.x ncclKernel_*, ncclDevKernel_*, ncclSymDevKernel_*; RCCL; MSCCL",
    ),
    (r"^(void )?(\w+::)*cross_device_reduce", "vLLM and SGLang custom all-reduce"),
    (r"(one|two|multi)_shot_all_?reduce|multimem_(all|one_shot|reduce)", "PyTorch symmetric memory"),
    (r"allreduce_fusion_kernel|(one|two)ShotAllReduceKernel|lamport", "TensorRT-LLM, FlashInfer"),
    (r"^(void )?nvshmem|nvshmemi_|nvshmemx_", "NVSHMEM"),
    (r"\bdeep_ep::", "DeepEP dispatch and combine"),
    (r"^(void )?ub_?(all|reduce|allgather)|userbuffers", "Transformer Engine userbuffers"),
)
"""Pattern of a kernel's name, and whose kernels it is."""

_COMMUNICATION = re.compile("|".join(f"(?:{p})" for p, _ in COMMUNICATION_NAMES), re.IGNORECASE)


@lru_cache(maxsize=1 << 16)
def is_communication(kernel_name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return _COMMUNICATION.search(kernel_name) is not None


def work_of(events: Events) -> NDArray[np.int8]:
    """Work class of every event, shape (len(events),): by ``cat`` first, kernels then by name."""
    work = np.zeros(len(events), dtype=np.int8)
    category = events.category
    work[(category == Category.MEMCPY) | (category == Category.MEMSET)] = Work.MEMORY
    kernels = category == Category.KERNEL
    by_name = np.full(len(events.names), Work.COMPUTE, dtype=np.int8)
    # Not np.unique, which imports numpy.ma: 40 ms, a sixth of reading a small trace.
    used = np.flatnonzero(np.bincount(events.name[kernels], minlength=1))
    for code in used.tolist():
        if is_communication(events.names[code]):
            by_name[code] = Work.COMMUNICATION
    work[kernels] = by_name[events.name[kernels]]
    return work
