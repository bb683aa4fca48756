"""What a step takes of a pipeline that a dry run recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.dry_ranks import dry_rank, pointwise, product
from tests.unit.predict.dry.test_dry_step import H100, IDEAL, TERA

from stepscope.core.errors import DataError
from stepscope.predict.dry.pipeline import predict_world
from stepscope.predict.dry.step import Pricing
from stepscope.records.dry_run import DryAction, DryCall, DryPipeline, DryRank

ONE = 2 * 8192**3 / TERA * 1e9
FORWARD, BACKWARD = product(8192, 8192, 8192), product(8192, 8192, 8192, phase="backward")
STEP = pointwise("add", 1 << 20, phase="optimizer")
MICRO_BATCHES = 4
PRICING = Pricing(cluster=H100, calibration=IDEAL)


def stage(rank: int, kinds: str, *, ranks: tuple[int, ...] = (0, 1), calls: tuple[DryCall, ...] = ()) -> DryRank:
    """A rank of a pipeline with these actions (FB), each of them one product forward and two backward, and an optimizer."""
    rows, actions, done = [], [], {"F": 0, "B": 0}
    for kind in kinds:
        begin = len(rows)
        rows += [FORWARD] if kind == "F" else [BACKWARD] * 2
        actions.append(
            DryAction(kind=kind, stage=rank, micro_batch=done[kind], at=begin, until=len(rows))  # type: ignore[arg-type]
        )
        done[kind] += 1
    pipeline = DryPipeline(schedule="ScheduleGPipe", micro_batches=done["F"], ranks=ranks, actions=tuple(actions))
    made = dry_rank((*rows, STEP), calls=calls, groups=((0, 1),))
    return replace(made, rank=rank, pipeline=pipeline)


def call(op: str, size: int, at: int, peer: int | None = None) -> DryCall:
    return DryCall(op=op, size_bytes=size, dtype="bfloat16", group=0, at=at, waited=at, phase="forward", peer=peer)


def test_gpipe_takes_as_long_as_its_bubble_formula_says() -> None:
    step = predict_world([stage(0, "FFFFBBBB"), stage(1, "FFFFBBBB")], PRICING)
    passes = (MICRO_BATCHES + 1) * 3 * ONE
    assert step.step_ns == pytest.approx(passes + step.parts["optimizer"], rel=1e-6)
    assert step.parts["bubble"] == pytest.approx(3 * ONE)
    assert sum(step.parts.values()) == pytest.approx(step.step_ns)
    assert step.mfu == pytest.approx(MICRO_BATCHES * 3 * ONE / step.step_ns)


def test_the_order_is_the_recorded_one() -> None:
    ahead = predict_world([stage(0, "FFBFBFBB"), stage(1, "FBFBFBFB")], PRICING)
    assert ahead.parts["bubble"] == pytest.approx(3 * ONE)
    alone = predict_world([stage(0, "FBFBFBFB"), stage(1, "FBFBFBFB")], PRICING)
    assert alone.parts["bubble"] == pytest.approx(4 * 3 * ONE)  # one micro-batch in the pipeline at a time


def test_messages_and_the_collectives_of_an_action_lengthen_it() -> None:
    size = 1 << 30
    free = predict_world([stage(0, "FFFFBBBB"), stage(1, "FFFFBBBB")], PRICING)
    sends = tuple(call("send", size, at, peer=1) for at in range(1, 5))
    back = tuple(call("send", size, at, peer=0) for at in range(6, 13, 2))
    sent = predict_world([stage(0, "FFFFBBBB", calls=sends), stage(1, "FFFFBBBB", calls=back)], PRICING)
    message = H100.group_time("send_recv", size, 2, 1) * 1e9
    assert sent.step_ns > free.step_ns + 2 * message - 1
    shared = tuple(call("all_reduce", size, at) for at in range(4))
    tensor = predict_world([stage(0, "FFFFBBBB"), stage(1, "FFFFBBBB", calls=shared)], PRICING)
    assert tensor.parts["communication"] == pytest.approx(4 * H100.group_time("all_reduce", size, 2, 1) * 1e9)


def test_a_missing_stage_is_said() -> None:
    with pytest.raises(DataError, match="rank 4 of the pipeline has no step"):
        predict_world([stage(0, "FB", ranks=(0, 4))], PRICING)
