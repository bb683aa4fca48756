"""Our orders against the ones that torch's schedules carry out. No process group: stages that only note what is asked."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.predict.pipeline import Action, pipeline_orders
from stepscope.records.mesh import PipelineLayout

pytest.importorskip("torch", reason="compares with torch's schedules")

SIZES = [(1, 3), (2, 2), (2, 6), (3, 3), (3, 4), (4, 4), (4, 12), (4, 10)]


class Stage:
    """A stage of torch's pipeline as its schedules see it."""

    def __init__(self, layout: PipelineLayout, stage: int) -> None:
        self.num_stages, self.group_size, self.stage_index = layout.stages, layout.ranks, stage
        self.group_rank = layout.rank_of_stage[stage]
        self.is_first, self.is_last = stage == 0, stage == layout.stages - 1
        self.submod = None
        self.order: list[Action] = []

    def forward_one_chunk(self, index: int, *_: Any, **__: Any) -> None:
        self.order.append(("F", self.stage_index, index))

    def backward_one_chunk(self, index: int, **_: Any) -> None:
        self.order.append(("B", self.stage_index, index))

    def perform_reduce_grad(self, _: int) -> None:
        pass

    def no_messages(self, _: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_schedules_of_one_stage_a_rank(
    schedule: str, ranks: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As carried out: the table of torch 2.13's 1F1B counts the last rank's forwards from 1."""
    from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe

    layout = PipelineLayout(schedule=schedule, ranks=ranks, micro_batches=micro_batches)
    for rank, ours in enumerate(pipeline_orders(layout)):
        stage = Stage(layout, rank)
        theirs = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule](stage, micro_batches)  # type: ignore[arg-type]
        monkeypatch.setattr(theirs, "_initialize_stage", lambda *_: None)
        theirs._step_microbatches([()] * micro_batches)
        assert list(ours) == stage.order


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("interleaved", 2), ("interleaved", 3), ("zero_bubble", 1), ("zero_bubble", 2), ("zbv", 2)]
)
@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_schedules_of_several_stages_a_rank(schedule: str, chunks: int, ranks: int, micro_batches: int) -> None:
    from torch.distributed.pipelining.schedules import (
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
        ScheduleZBVZeroBubble,
    )

    kinds: dict[str, Any] = {"interleaved": ScheduleInterleaved1F1B, "zero_bubble": ScheduleInterleavedZeroBubble,
                             "zbv": ScheduleZBVZeroBubble}  # fmt: skip
    layout = PipelineLayout(schedule=schedule, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    own = [s for s, rank in enumerate(layout.rank_of_stage) if rank == 0]
    theirs = kinds[schedule]([Stage(layout, s) for s in own], micro_batches)
    assert theirs.stage_index_to_group_rank == dict(enumerate(layout.rank_of_stage))
    for rank, ours in enumerate(pipeline_orders(layout)):
        carried_out = [a for a in theirs.pipeline_order_with_comms[rank] if a.is_compute_op]
        assert list(ours) == [(a.computation_type.value, a.stage_index, a.microbatch_index) for a in carried_out]


def test_what_torch_refuses_is_refused() -> None:
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    layout = PipelineLayout(schedule="interleaved", ranks=4, micro_batches=9, chunks=2)
    assert layout.problem
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        ScheduleInterleaved1F1B([Stage(layout, 0), Stage(layout, 4)], 9)  # type: ignore[list-item]
