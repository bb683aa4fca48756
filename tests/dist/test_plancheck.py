"""The flight recorder as a witness: it must see deviations, and must not testify to what it did not see."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from stepscope.core.errors import Unavailable
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp, Phases, check, observe
from stepscope.rank.timer import Regions
from stepscope.records.plan import CommOp


def planned(numel: int, dtype: str = "float32", op: str = "all_reduce") -> CommOp:
    return CommOp(op=op, numel=numel, dtype=dtype, phase="backward")


def seen(numel: int, dtype: str = "float32", op: str = "all_reduce") -> ObservedOp:
    return ObservedOp(op=op, numel=numel, dtype=dtype)


def three_collectives(mesh: Mesh) -> tuple[ObservedOp, ...] | Unavailable:
    dist.all_reduce(torch.ones(99))  # before: must not be counted
    other = dist.new_group(list(range(mesh.world_size)))

    def run() -> None:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(7), group=other)  # not of the mesh: counted under its own name
        dist.broadcast(torch.ones(5, dtype=torch.bfloat16), src=0)
        dist.all_reduce(torch.ones(0, dtype=torch.float64), async_op=True).wait()

    return observe(run)


def test_it_sees_op_size_and_dtype_of_the_step_alone(pools: Any) -> None:
    for observed in pools(2).run(three_collectives):
        ours = [op for op in observed if op.group == "dp"]
        assert ours == [seen(12), seen(5, "bfloat16", "broadcast"), seen(0, "float64")]
        (other,) = [op for op in observed if op.group != "dp"]
        assert (other.numel, other.op) == (7, "all_reduce")
        assert other.group == "2 ranks"


def overflowing(mesh: Mesh) -> tuple[ObservedOp, ...] | Unavailable:
    del mesh
    tensor = torch.ones(1)

    def run() -> None:
        for _ in range(110):  # the recorder keeps 100
            dist.all_reduce(tensor)

    return observe(run)


def test_a_step_longer_than_the_recorder_is_unavailable_and_not_a_mismatch(pools: Any) -> None:
    for observed in pools(2).run(overflowing):
        assert isinstance(observed, Unavailable)
        assert "TORCH_FR_BUFFER_SIZE" in observed.reason


def raising(mesh: Mesh) -> str:
    del mesh
    calls: list[int] = []
    observe(lambda: calls.append(1))
    return f"{len(calls)}"


def test_the_step_runs_exactly_once(pools: Any) -> None:
    assert pools(2).run(raising) == ["1", "1"]


def test_without_a_process_group_there_are_no_collectives() -> None:
    assert observe(lambda: None) == ()


def test_a_match_needs_the_same_ops_in_the_same_order() -> None:
    plan = (planned(8), planned(4))
    assert check(plan, (seen(8), seen(4))).matches
    assert not check(plan, (seen(4), seen(8))).matches
    assert not check(plan, (seen(8),)).matches
    assert not check(plan, (seen(8), seen(4), seen(4))).matches
    assert not check(plan, (seen(8), seen(4, "float16"))).matches
    assert not check(plan, (seen(8), seen(4, op="broadcast"))).matches


def test_the_whole_buffer_counts_and_gloo_runs_a_reduce_scatter_as_an_all_reduce() -> None:
    plan = (planned(8, op="all_gather"), planned(4, op="reduce_scatter"))
    assert check(plan, (seen(8, op="all_gather"), seen(4))).matches
    everything = (seen(8, op="all_gather"), seen(4, op="reduce_scatter"))
    assert check(plan, everything, backend="nccl").matches
    assert not check(plan, everything).matches


def test_messages_are_those_that_the_strategy_saw_in_any_order() -> None:
    plan = (planned(3, op="send"), planned(5, op="recv"), planned(8))
    messages = (seen(5, op="recv"), seen(3, op="send"))
    assert check(plan, (seen(8),), messages=messages).matches
    assert not check(plan, (seen(8),)).matches
    assert not check(plan, (seen(8),), messages=messages[:1]).matches
    assert not check((planned(8),), (seen(8),), messages=messages).matches


def test_the_same_op_on_another_dimension_is_another_op() -> None:
    verdict = check((planned(8),), (ObservedOp(op="all_reduce", numel=8, dtype="float32", group="tp"),))
    assert not verdict.matches
    assert verdict.observed == ("all_reduce float32[8] on tp",)


def test_what_was_not_observed_is_no_match_and_says_why() -> None:
    verdict = check((), Unavailable("no recorder"))
    assert not verdict.matches
    assert verdict.unavailable == "no recorder"


def in_regions(mesh: Mesh) -> tuple[ObservedOp, ...] | Unavailable:
    phases = Phases()

    def run() -> None:
        with phases(Regions.FORWARD):
            dist.all_reduce(torch.ones(2))
        with phases(Regions.BACKWARD):
            work = dist.all_reduce(torch.ones(3), async_op=True)
        with phases(Regions.COMMUNICATION):
            work.wait()
        dist.all_reduce(torch.ones(4))
        with phases(Regions.OPTIMIZER):
            dist.broadcast(torch.ones(5), src=0)

    return observe(run, mesh, phases=phases)


def test_a_call_belongs_to_the_phase_that_made_it(pools: Any) -> None:
    for observed in pools(2).run(in_regions):
        assert [(op.numel, op.phase) for op in observed] == [(2, "forward"), (3, "backward"), (4, ""), (5, "optimizer")]


def test_another_phase_is_another_op_where_phases_were_observed() -> None:
    early, late = (
        ObservedOp(op="all_reduce", numel=8, dtype="float32", phase=p) for p in ("backward", "after_backward")
    )
    assert check((planned(8),), (early,)).matches
    verdict = check((planned(8),), (late,))
    assert not verdict.matches
    assert verdict.observed == ("all_reduce float32[8] in after_backward",)
