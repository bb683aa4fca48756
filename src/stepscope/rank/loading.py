"""From arrays on disk to batches on the device, through torch's DataLoader.

For the train loop::

    sampling = Sampling(num_samples=len(split), world_size=..., micro_batch=..., accumulation=..., seed=...)
    with Loader(split, sampling, rank=rank, device=device, num_workers=0) as loader:
        for window, batches in loader.epoch(0):            # or loader.endless(): epoch 0, 1, 2, ... without end
            for x, y in batches:                           # window.micro_steps of them, the same on every rank
                ...                                        # loss / window.global_samples; x may be EMPTY
        seen = loader.seen                                 # rows this rank really got since the epoch began

``window`` is a ``sampling.StepSamples`` (epoch, step, global_samples, full, micro_steps). ``batches`` is lazy: each
``next`` fetches one micro-batch and starts its copy to the device, so its duration is the data time of that
micro-step. Batches left over when the loop moves on are fetched and dropped, so windows never shift.

With ``num_workers=0`` rows are fetched in this process when asked for; otherwise worker processes prefetch, from the
epoch's first window on. Without ``persistent_workers`` they are started anew at every epoch, as in torch. ``close``
ends them. Evaluation needs no workers: ``eval_batches``.

A user's model brings its own batches, tensors in tuples, lists and mappings, or gets random ones.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.datasets import Split
from stepscope.datasets.batches import Options, parse_input
from stepscope.rank.precision import Numerics, mapped, samples_in
from stepscope.rank.sampling import Indices, Sampling, StepSamples, plan_epoch, share
from stepscope.rank.workloads import Task, class_targets, logits_of

Batch = tuple[Tensor, Tensor]


@record
class Seen:
    """Rows that this rank was given in one epoch, counted at delivery: all of them, and different ones."""

    epoch: int
    samples: int
    distinct_samples: int


class Loader:
    """One rank's stream of training batches. Owns the worker processes, which start with the first epoch; use as a
    context manager or close()."""

    def __init__(
        self,
        split: Split,
        sampling: Sampling,
        *,
        rank: int,
        device: torch.device,
        num_workers: int = 0,
        pin_memory: bool = False,
        persistent_workers: bool = False,
    ) -> None:
        if len(split) != sampling.num_samples:
            raise ValueError(f"sampling is for {sampling.num_samples} samples, the split has {len(split)}")
        self.sampling = sampling
        self._rank = rank
        self._device = device
        self._order = _PieceOrder(rank)
        self._loader: DataLoader[Batch] | None = DataLoader(
            _Rows(split),
            batch_sampler=self._order,  # type: ignore[arg-type]  # yields index arrays, which __getitems__ takes
            collate_fn=_as_is,
            num_workers=num_workers,
            # pinning needs an accelerator; torch warns without one
            pin_memory=pin_memory and device.type == "cuda",
            persistent_workers=persistent_workers and num_workers > 0,
            worker_init_fn=_quiet_signals if num_workers else None,
        )
        self._stream: Iterator[Batch] | None = None
        self._seen_rows = np.zeros(len(split), dtype=np.bool_)
        self._seen_samples = 0
        self._epoch = 0
        self._run = 0  # which call of epoch() the stream belongs to

    def epoch(self, number: int) -> Iterator[tuple[StepSamples, Iterator[Batch]]]:
        """Yield the windows of epoch ``number``, each with its lazy micro-batches on the device."""
        if self._loader is None:
            raise RuntimeError("the loader is closed")
        windows = plan_epoch(self.sampling, number)
        self._epoch = number
        self._seen_rows[:] = False
        self._seen_samples = 0
        self._order.windows = windows
        self._stream = None  # an epoch that was left early: its workers end before the next ones start
        self._stream = iter(self._loader)
        self._run += 1
        run = self._run
        for window in windows:
            batches = self._batches(window, run)
            yield window, batches
            for _ in batches:
                pass
        self._stream = None

    def endless(self, start: int = 0) -> Iterator[tuple[StepSamples, Iterator[Batch]]]:
        """Yield the windows of epochs ``start``, ``start + 1``, ... without end."""
        for number in count(start):
            yield from self.epoch(number)

    @property
    def seen(self) -> Seen:
        """What this rank got since the current (or last) epoch began."""
        return Seen(
            epoch=self._epoch, samples=self._seen_samples, distinct_samples=int(np.count_nonzero(self._seen_rows))
        )

    def close(self) -> None:
        """End the worker processes. May be called twice."""
        # torch ends workers when the last reference to their iterator goes; a persistent one is held by the loader
        self._stream = None
        self._loader = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _batches(self, window: StepSamples, run: int) -> Iterator[Batch]:
        """Yield the batches of a window. Raises RuntimeError for one of an abandoned epoch."""
        for micro_step in range(window.micro_steps):
            if self._stream is None or run != self._run:
                raise RuntimeError("these batches belong to an epoch that was abandoned, or to a closed loader")
            x, y = next(self._stream)
            piece = window.piece(micro_step, self._rank)
            if len(x) != len(piece):
                raise RuntimeError(f"asked for {len(piece)} rows and got {len(x)}")
            self._seen_rows[piece] = True
            self._seen_samples += len(piece)
            yield _tensor_on(self._device, x), _tensor_on(self._device, y)


def eval_batches(
    split: Split, *, rank: int, world_size: int, micro_batch: int, device: torch.device
) -> Iterator[Batch]:
    """Yield this rank's share of ``split`` in order, in batches of at most ``micro_batch``; every row on exactly one rank.

    All ranks get the same number of batches, the last one perhaps empty: a sharded model communicates in each.
    """
    low, high = share(len(split), world_size, rank)
    longest = -(-len(split) // world_size)
    for start in range(low, low + longest, micro_batch):
        rows = np.arange(min(start, high), min(start + micro_batch, high))
        x, y = _taken_rows(split.x, rows), _taken_rows(split.y, rows)
        yield _tensor_on(device, x), _tensor_on(device, y)


class _PieceOrder:
    """Batch sampler: the index arrays of one rank for the windows that are set before each epoch."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.windows: Any = ()

    def __iter__(self) -> Iterator[Indices]:
        for window in self.windows:
            for micro_step in range(window.micro_steps):
                yield window.piece(micro_step, self.rank)

    def __len__(self) -> int:
        return sum(window.micro_steps for window in self.windows)


class _Rows(Dataset[Batch]):
    """Takes a whole batch by one fancy index; no Python per sample."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, index: int) -> Batch:
        x, y = self.__getitems__(np.asarray([index]))
        return x[0], y[0]

    def __getitems__(self, rows: Indices) -> Batch:
        return _taken_rows(self._split.x, rows), _taken_rows(self._split.y, rows)


def _taken_rows(array: NDArray[Any], rows: Indices) -> Tensor:
    # a fancy index copies: the tensor owns writable memory even where the array is a read-only map
    return torch.from_numpy(array[rows])


def _tensor_on(device: torch.device, tensor: Tensor) -> Tensor:
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def _as_is(batch: Any) -> Any:
    return batch


def _quiet_signals(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    # Ctrl-C is the parent's business: it ends its workers. Handlers inherited by fork must not run here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


Make = Callable[[int, torch.Generator], tuple[Any, Any]]


def maker(task: Task, options: Options, numerics: Numerics) -> Make:
    """Return batch(size, generator) -> (inputs, targets) on the CPU, checked. Raises UsageError where there is none."""
    if task.batch is not None and options.input is not None:
        raise UsageError(
            "the model brings its own batches, and dataset_options.input asks for random ones", fix="remove input"
        )
    if task.batch is not None:
        return partial(_checked_batch, task.batch)
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

    scores = _output_shape(task, inputs(2, torch.Generator()), numerics)

    def make(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def draw(classes: int, shape: tuple[int, ...]) -> Tensor:
            return torch.randint(classes, (size, *shape[1:]), generator=generator)

        return inputs(size, generator), class_targets(scores, draw)

    return make


def _output_shape(task: Task, inputs: Tensor, numerics: Numerics) -> Tensor:
    """Return what the module gives for a batch, on the meta device: its shape."""
    x, _ = numerics.inputs(inputs.to(numerics.device), inputs)
    task.module.eval()  # statistics of batches stay as they are
    with torch.no_grad(), numerics.autocast():
        scores = logits_of(task.forward(task.module, x)).to("meta")
    task.module.train()
    return scores


def _checked_batch(batch: Callable[..., Any], size: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Return a workload's batch as (inputs, targets). Raises UsageError for anything else."""
    made = batch(size, generator)
    if not isinstance(made, tuple | list) or len(made) != 2:
        shown = f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise UsageError(f"batch({size}, generator) returned {shown}", fix="return the pair (inputs, targets)")
    for what, part in (("inputs", made[0]), ("targets", made[1])):
        if (samples := samples_in(part)) != size:
            raise UsageError(
                f"batch({size}, generator) returned {what} of {samples} samples",
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
        """Yield full windows without end."""
        for step in itertools.count(start):
            rows = np.arange(self.sampling.global_batch)
            window = StepSamples(epoch=0, step=step, indices=rows, sampling=self.sampling)
            yield window, self._batches(window.micro_steps)

    def _batches(self, count: int) -> Iterator[tuple[Any, Any]]:
        for inputs, targets in itertools.islice(self._stream, count):
            yield self._move(inputs), self._move(targets)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
