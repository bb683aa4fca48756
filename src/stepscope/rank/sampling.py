"""Which sample goes where: the windows of an epoch and every rank's piece of them. numpy only, no torch.

An epoch is one permutation of the training set, drawn from (seed, epoch) and therefore the same on all ranks. It is
cut into *windows* of ``global_batch`` samples, one optimizer step each. A window is cut into *chunks* of
``micro_batch * world_size`` samples, one micro-step each, and a chunk into one contiguous piece per rank whose
sizes differ by at most one (as ``numpy.array_split`` does). So

- every sample is trained on exactly once per epoch, over all ranks: nothing is padded, repeated or dropped;
- a full chunk gives each rank ``micro_batch`` samples; the tail of an epoch gives uneven, even empty pieces;
- the samples of window ``w`` do not depend on world size or accumulation as long as ``global_batch`` is the same,
  which is what makes runs on 1 and on n ranks comparable step by step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record

Indices = NDArray[np.int64]


@record
class Sampling:
    """How a training set is dealt out.

    micro_batch: samples per rank and micro-step; global_batch = micro_batch * world_size * accumulation.
    """

    num_samples: int
    world_size: int
    micro_batch: int
    accumulation: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.num_samples, self.world_size, self.micro_batch, self.accumulation) < 1 or self.seed < 0:
            raise ValueError(f"counts must be at least 1 and the seed not negative: {self}")

    @property
    def chunk(self) -> int:
        """Samples of one full micro-step over all ranks."""
        return self.micro_batch * self.world_size

    @property
    def global_batch(self) -> int:
        return self.chunk * self.accumulation

    @property
    def windows_per_epoch(self) -> int:
        """Optimizer steps per epoch, the tail window included."""
        return -(-self.num_samples // self.global_batch)


@record
class StepSamples:
    """The samples of one optimizer step over all ranks.

    indices: rows of the training set, in order. step: counted from 0 within the epoch.
    """

    epoch: int
    step: int
    indices: Indices
    sampling: Sampling

    @property
    def global_samples(self) -> int:
        return len(self.indices)

    @property
    def full(self) -> bool:
        """False for the tail window of an epoch that the global batch does not divide."""
        return len(self.indices) == self.sampling.global_batch

    @property
    def micro_steps(self) -> int:
        """Micro-steps of this window: ``accumulation``, fewer in a tail window; the same on every rank."""
        return -(-len(self.indices) // self.sampling.chunk)

    def piece(self, micro_step: int, rank: int) -> Indices:
        """Return the rows that ``rank`` trains on in ``micro_step``; may be empty."""
        if not 0 <= micro_step < self.micro_steps:
            raise IndexError(f"micro-step {micro_step} of a window with {self.micro_steps}")
        start = micro_step * self.sampling.chunk
        length = min(self.sampling.chunk, len(self.indices) - start)
        low, high = share(length, self.sampling.world_size, rank)
        return self.indices[start + low : start + high]


def share(length: int, parts: int, part: int) -> tuple[int, int]:
    """Return the bounds [low, high) of one of ``parts`` contiguous pieces of ``length``; sizes differ by at most one."""
    if not 0 <= part < parts:
        raise IndexError(f"part {part} of {parts}")
    size, left_over = divmod(length, parts)
    low = part * size + min(part, left_over)
    return low, low + size + (part < left_over)


def permutation(sampling: Sampling, epoch: int) -> Indices:
    """Return the order of one epoch: the same on every rank, world size and accumulation."""
    return np.random.default_rng([sampling.seed, epoch]).permutation(sampling.num_samples)


def plan_epoch(sampling: Sampling, epoch: int) -> Sequence[StepSamples]:
    """Return all windows of one epoch, in order. They are views of one permutation."""
    order = permutation(sampling, epoch)
    order.flags.writeable = False
    size = sampling.global_batch
    return [
        StepSamples(epoch=epoch, step=step, indices=order[step * size : (step + 1) * size], sampling=sampling)
        for step in range(sampling.windows_per_epoch)
    ]
