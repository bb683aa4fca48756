"""Gradient buckets: which collectives they are, their members, and when they were ready."""

from __future__ import annotations

from dataclasses import replace

from tests.hand_events import Row, kernel, launch, mark, op, trace

from stepscope.records.trace_collectives import BucketRow, OwnTime, RankCollective
from stepscope.traces.buckets import bucket_rows
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankTrace, RankView

NOTHING = OwnTime(
    own_ns=0, compute_ns=0, memory_ns=0, host_late_ns=0, sync_ns=0, data_ns=0, launch_latency_ns=0, kernel_gap_ns=0,
    dependency_ns=0, unknown_ns=0, from_window_start=True,
)  # fmt: skip


def collective(
    start: int, end: int, called: int | None, size_bytes: int | None, *, step: int | None = 1
) -> RankCollective:
    return RankCollective(
        op="all_reduce", op_source="arguments", kernel="ncclDevKernel_AllReduce", dtype="float32", size_bytes=size_bytes,
        group=None, sequence=None, comms_id=None, direction=None, peers=None, start_ns=start, end_ns=end, launch_ns=called,
        stream=9, step=step, exposed_ns=end - start, hidden_under=(), own=NOTHING,
    )  # fmt: skip


def hook(start: int, end: int, dims: str | None) -> list[Row]:
    """The engine's node for one gradient, with the accumulation in its first 2 ns."""
    return [
        op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start, end, thread="engine"),
        op("torch::autograd::AccumulateGrad", start, start + 2, thread="engine", dims=dims),
    ]


def rows(made: RankTrace, *found: RankCollective) -> tuple[BucketRow, ...]:
    view = RankView(made)
    view.made[communication] = replace(communication(view), collectives=found)
    return bucket_rows(view)


BACKWARD = [
    mark("DistributedDataParallel.forward", 0, 5),
    *hook(10, 15, "[[4]]"), *hook(20, 40, "[[2, 3]]"), *hook(50, 55, "[[5]]"), *hook(60, 80, "[[5, 1]]"),
]  # fmt: skip


def test_a_bucket_has_the_gradients_that_became_ready_since_the_one_before() -> None:
    first, second = rows(trace(*BACKWARD), collective(45, 70, 30, 40), collective(75, 95, 70, 40))
    assert (first.members, first.members_source) == (("[4]", "[2, 3]"), "accumulated")
    assert (second.members, second.members_source) == (("[5]", "[5, 1]"), "accumulated")
    assert (first.index, second.index, first.wrapper) == (0, 1, "ddp")
    assert (first.ready_ns, first.launch_ns, first.start_ns, first.end_ns, first.waited_ns) == (22, 30, 45, 70, 15)


def test_members_that_do_not_add_up_are_unknown_with_the_reason() -> None:
    (only,) = rows(trace(*BACKWARD), collective(45, 70, 30, 44))
    assert (only.members, only.members_source) == (None, None)
    assert "add up" in only.members_unavailable


def test_ddps_copies_out_of_the_buckets_name_the_members_in_order() -> None:
    out = [
        op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 100 + i, 101 + i, thread="engine", dims=f"[[{n}], []]")
        for i, n in enumerate((6, 4, 5, 5))
    ]
    first, second = rows(trace(*BACKWARD, *out), collective(45, 70, 30, 40), collective(75, 95, 70, 40))
    assert (first.members, second.members) == (("[6]", "[4]"), ("[5]", "[5]"))
    assert first.members_source == "copies"


def test_unrecorded_shapes_leave_the_members_unknown() -> None:
    (only,) = rows(trace(*hook(10, 15, None), *hook(20, 40, None)), collective(45, 70, 30, 40))
    assert only.members is None
    assert "record_shapes" in only.members_unavailable
    assert only.wrapper == "hooks"


def test_an_unknown_size_leaves_the_members_unknown() -> None:
    (only,) = rows(trace(*BACKWARD), collective(45, 70, 30, None))
    assert only.members_unavailable == "the bucket's elements are not recorded"


def test_a_collective_outside_the_backward_hooks_is_no_bucket() -> None:
    made = trace(*BACKWARD)
    assert rows(made, collective(0, 9, 7, 40), collective(90, 99, 85, 40), collective(45, 70, None, 40)) == ()
    broadcast = replace(collective(45, 70, 30, 40), op="broadcast")
    assert rows(made, broadcast) == ()


def test_on_a_device_a_bucket_is_ready_with_the_computation_launched_before_it() -> None:
    made = trace(
        *BACKWARD, launch(12, 13, 1, thread="engine"), launch(25, 26, 2, thread="engine"),
        launch(35, 36, 3, thread="engine"), launch(30, 31, 4, thread="engine"),
        kernel("grad", 20, 60, 1), kernel("grad", 60, 90, 2), kernel("later", 90, 200, 3),
        kernel("ncclDevKernel_AllReduce", 95, 130, 4, stream=9),
    )  # fmt: skip
    (only,) = rows(made, collective(95, 130, 30, 40))
    assert (only.ready_ns, only.waited_ns) == (90, 5)


def test_each_step_counts_its_buckets_from_zero() -> None:
    later = [*hook(1010, 1015, "[[4]]"), *hook(1020, 1040, "[[2, 3]]")]
    found = rows(
        trace(*BACKWARD, *later), collective(45, 70, 30, 40), collective(75, 95, 70, 40),
        collective(1045, 1070, 1030, 40, step=2),
    )  # fmt: skip
    assert [(b.step, b.index, b.members) for b in found] == [
        (1, 0, ("[4]", "[2, 3]")), (1, 1, ("[5]", "[5, 1]")), (2, 0, ("[4]", "[2, 3]")),
    ]  # fmt: skip
