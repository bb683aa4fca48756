"""torch.distributed.pipelining behind the session protocol: a micro-step is one run of the schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from time import perf_counter_ns
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from stepscope.core.errors import UsageError
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp
from stepscope.rank.strategies._common import FlatSession, PlainSession, Session, clip_over, dtype_name
from stepscope.rank.timer import BACKWARD, FORWARD, WAIT
from stepscope.rank.workloads import Cuttable, Piece
from stepscope.records.mesh import PipelineSpan
from stepscope.records.plan import ModelFacts
from stepscope.strategies.pipeline import DIMENSION, PipelineOptions, layout_of_ranks, split_of

_ONE_STAGE: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_STAGES: dict[str, Any] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


@dataclass
class StageWatch:
    """What the stages of this rank do in a step. spans: on the clock ``perf_counter_ns``. synchronize: wait for the device
    before the clock is read; distorts a step on GPUs, so that only profiled ones do it.
    """

    rank: int
    device: torch.device
    mark: Callable[[int], None] = lambda _: None
    spans: list[PipelineSpan] = field(default_factory=list)
    messages: list[ObservedOp] = field(default_factory=list)
    synchronize: bool = False

    def now(self) -> int:
        if self.synchronize and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter_ns()

    @contextmanager
    def computing(self, kind: str, stage: int, micro_batch: int) -> Iterator[None]:
        """Note the computation of a micro-batch, and that what follows is waiting."""
        self.mark(WAIT)
        start = self.now()
        yield
        self.spans.append(
            PipelineSpan(
                rank=self.rank, stage=stage, micro_batch=micro_batch, kind=kind, start_ns=start, end_ns=self.now()
            )
        )
        self.mark(FORWARD if kind == "F" else BACKWARD)


class WatchedStage(PipelineStage):
    """torch's stage, which tells its watch what it computes and what its schedule sends and receives."""

    def __init__(self, watch: StageWatch, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watch = watch

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.watch.computing("F", self.stage_index, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        with self.watch.computing("B" if full_backward else "I", self.stage_index, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        with self.watch.computing("W", self.stage_index, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("recv", super().get_fwd_recv_ops(fwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("send", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("recv", super().get_bwd_recv_ops(bwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("send", super().get_bwd_send_ops(bwd_chunk_id))

    def _noted(self, op: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        self.watch.messages += [
            ObservedOp(op=op, numel=message.tensor.numel(), dtype=dtype_name(message.tensor.dtype), group=DIMENSION)
            for message in ops
        ]
        return ops


class StageModule(nn.Module):
    """The pieces of one stage, one after the other."""

    def __init__(self, pieces: Iterable[Piece], autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self._pieces = list(pieces)
        self.used = nn.ModuleList(module for piece in self._pieces for module in piece.modules)
        self._autocast = autocast

    def forward(self, x: Tensor) -> Tensor:
        with self._autocast():
            for piece in self._pieces:
                x = piece.forward(x)
        return x


class PipelineSession(FlatSession):
    """This rank's stages. Parameters of the others are emptied, and the loss is on the rank of the last stage."""

    def __init__(self, module: nn.Module, mesh: Mesh, options: PipelineOptions) -> None:
        layout = layout_of_ranks(mesh.size(DIMENSION), options)
        self.model_part = mesh.coordinates.get(DIMENSION, 0)
        self._mesh, self.layout = mesh, layout
        pieces = cast(Cuttable, module).pieces()
        self.split = split_of(len(pieces), layout.stages, options.split)
        borders = accumulate(self.split, initial=0)
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._own = {
            stage: StageModule(pieces[start:end], lambda: self._autocast())
            for stage, (start, end) in enumerate(pairwise(borders))
            if layout.rank_of_stage[stage] == self.model_part
        }
        own = nn.ModuleList(self._own.values())
        kept = {id(parameter) for parameter in own.parameters()}
        self._names = {id(p): name for name, p in module.named_parameters() if id(p) in kept}
        for parameter in module.parameters():
            if id(parameter) not in kept:
                parameter.data = parameter.data.new_empty(0)
        if mesh.data_size > 1:
            super().__init__(own, mesh.group_of("dp"))
        else:
            PlainSession.__init__(self, own)
            self.flats = []
        self.counts = layout.stages - 1 in self._own
        self.watch = StageWatch(rank=mesh.rank, device=mesh.device)
        self.scheduled = self._run_schedule
        self._stepped = False
        self._schedules: dict[int, Any] = {}
        self._loss: Callable[[Tensor, Tensor], Tensor] = lambda output, index: output[index].sum()

    def _run_schedule(
        self,
        x: Tensor,
        y: Tensor,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        scale: float,
        autocast: Callable[[], AbstractContextManager[Any]],
        mark: Callable[[int], None],
    ) -> Tensor:
        """Run a batch. One that the micro-batches do not divide is filled up with samples that are left out of the loss."""
        if self._stepped:
            self._stepped = False
            self.watch.spans, self.watch.messages = [], []
        self.watch.mark, self._autocast = mark, autocast
        chunk = -(-len(x) // self.layout.micro_batches)
        if not chunk:
            return torch.zeros((), device=x.device)
        size = chunk * self.layout.micro_batches
        index = torch.arange(size)

        def loss_of(output: Tensor, chunk_index: Tensor) -> Tensor:
            first = int(chunk_index[0])
            real = max(0, min(len(output), len(y) - first))
            with autocast():
                return loss_sum(output[:real], y[first : first + real]) * scale

        self._loss = loss_of
        inputs = (torch.cat([x, x.new_zeros(size - len(x), *x.shape[1:])]),) if 0 in self._own else ()
        losses: list[Tensor] | None = [] if self.counts else None
        schedule = self._schedules.get(chunk) or self._schedules.setdefault(chunk, self._new_schedule())
        schedule.step(*inputs, target=index if self.counts else None, losses=losses, return_outputs=False)
        mark(WAIT)
        return (
            torch.stack([loss.detach() for loss in losses]).sum() / scale
            if losses
            else torch.zeros((), device=x.device)
        )

    def _new_schedule(self) -> Any:
        """Return a schedule. Its buffers fit the first batch that it sees: another one for micro-batches of another size."""
        group = self._mesh.group_of(DIMENSION)
        stages = [
            WatchedStage(self.watch, module, stage, self.layout.stages, self._mesh.device, group=group)
            for stage, module in self._own.items()
        ]
        kind = _ONE_STAGE.get(self.layout.schedule)
        made, what = (kind, stages[0]) if kind else (_STAGES[self.layout.schedule], stages)
        return made(what, self.layout.micro_batches, loss_fn=self._watched_loss, scale_grads=False)

    def _watched_loss(self, output: Tensor, index: Tensor) -> Tensor:
        """Return the loss, which belongs to the last stage's forward pass, ended just before; not when torch tries the
        shapes out."""
        loss = self._loss(output, index)
        spans = self.watch.spans
        if spans:
            spans[-1] = replace(spans[-1], end_ns=self.watch.now())
            self.watch.mark(FORWARD)
        return loss

    @property
    def messages(self) -> list[ObservedOp]:  # type: ignore[override]
        return self.watch.messages

    def finish(self) -> None:
        self._stepped = True
        super().finish()

    def clip(self, max_norm: float) -> None:
        """Clip by the norm of all stages together: each rank has its own."""
        clip_over(self.parameters, max_norm, self._mesh.group_of(DIMENSION), ranks=1)

    def zero_grad(self) -> None:
        (FlatSession if self.flats else PlainSession).zero_grad(self)

    def full_parameters(self) -> dict[str, Tensor]:
        return {self._names[id(p)]: p.detach() for p in self.parameters}

    def full_gradients(self) -> dict[str, Tensor]:
        return {self._names[id(p)]: p.grad for p in self.parameters if p.grad is not None}


def open(module: nn.Module, mesh: Mesh, options: PipelineOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Keep this rank's stages of ``module``. UsageError where torch's schedules are older than those this was made for."""
    if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
        raise UsageError(f"torch {torch.__version__} has other pipeline schedules", fix="use torch 2.13 or later")
    return PipelineSession(module, mesh, options)
