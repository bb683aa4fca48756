"""Batches of a user's model: its own, or random ones; a window without an end of the data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepscope.core.errors import UsageError
from stepscope.datasets.batches import Options, parse_input
from stepscope.rank.nest import mapped, samples_in
from stepscope.rank.precision import Numerics
from stepscope.rank.sampling import Sampling, StepSamples
from stepscope.rank.workloads import Task, class_targets, logits_of

Make = Callable[[int, torch.Generator], tuple[Any, Any]]


def maker(task: Task, options: Options, numerics: Numerics) -> Make:
    """batch(size, generator) -> (inputs, targets) on the CPU, checked. Raises UsageError where there is none."""
    if task.batch is not None and options.input is not None:
        raise UsageError(
            "the model brings its own batches, and dataset_options.input asks for random ones", fix="remove input"
        )
    if task.batch is not None:
        return partial(_checked, task.batch)
    if options.input is None:
        raise UsageError(
            "the input of the model is unknown",
            fix="return batch=... from your function, or give the shape of a sample: --input 3x224x224, --input "
            "128:50257 for 128 ids below 50257 (dataset_options.input in a matrix)",
        )
    asked = parse_input(options.input)

    def inputs(size: int, generator: torch.Generator) -> Tensor:
        shape = (size, *asked.shape)
        if asked.ids_below is None:
            return torch.randn(shape, generator=generator)
        return torch.randint(asked.ids_below, shape, generator=generator)

    scores = _scores(task, inputs(2, torch.Generator()), numerics)

    def make(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def draw(classes: int, shape: tuple[int, ...]) -> Tensor:
            return torch.randint(classes, (size, *shape[1:]), generator=generator)

        return inputs(size, generator), class_targets(scores, draw)

    return make


def _scores(task: Task, inputs: Tensor, numerics: Numerics) -> Tensor:
    """What the module gives for a batch, on the meta device: its shape."""
    x, _ = numerics.inputs(inputs.to(numerics.device), inputs)
    task.module.eval()  # statistics of batches stay as they are
    with torch.no_grad(), numerics.autocast():
        scores = logits_of(task.forward(task.module, x)).to("meta")
    task.module.train()
    return scores


def _checked(batch: Callable[..., Any], size: int, generator: torch.Generator) -> tuple[Any, Any]:
    made = batch(size, generator)
    if not isinstance(made, tuple | list) or len(made) != 2:
        shown = f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise UsageError(f"batch({size}, generator) returned {shown}", fix="return the pair (inputs, targets)")
    for what, part in (("inputs", made[0]), ("targets", made[1])):
        if (found := samples_in(part)) != size:
            raise UsageError(
                f"batch({size}, generator) returned {what} of {found} samples",
                why="the first dimension of every batch is the size that was asked for",
                fix="use size in the shapes of what batch returns",
            )
    return made[0], made[1]


class MadeBatches:
    """One rank's stream of batches, as :class:`stepscope.rank.loading.Loader`: each rank draws its own, from the seed.

    distinct: micro-batches made now and used in turn; 0: a new one each time, whose making counts as data wait.
    """

    def __init__(self, make: Make, sampling: Sampling, *, rank: int, device: torch.device, distinct: int) -> None:
        self.sampling = sampling
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + rank + 1) % 2**63)
        once = partial(make, sampling.micro_batch, generator)
        kept = [once() for _ in range(distinct)]
        self._stream = itertools.cycle(kept) if kept else iter(once, None)
        self._move = partial(mapped, lambda tensor: tensor.to(device, non_blocking=True))

    def endless(self, start: int = 0) -> Iterator[tuple[StepSamples, Iterator[Any]]]:
        """Full windows without end."""
        for step in itertools.count(start):
            rows = np.arange(self.sampling.global_batch)
            window = StepSamples(epoch=0, step=step, indices=rows, sampling=self.sampling)
            yield window, self._batches(window.micro_steps)

    def _batches(self, count: int) -> Iterator[tuple[Any, Any]]:
        for inputs, targets in itertools.islice(self._stream, count):
            yield self._move(inputs), self._move(targets)

    def close(self) -> None:
        """There is nothing to end."""
