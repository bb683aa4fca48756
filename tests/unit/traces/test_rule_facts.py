"""Facts that only rules ask for, on events whose answer is known.

A rank's collectives in a trace against its plan: operation, bytes, phase and group.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hand_events import mark, trace

from stepscope.records.trace_collectives import ConformanceCheck
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankView
from stepscope.traces.rule_facts import check_plan

MESSAGE = {"numel": 8, "dtype": "float32"}
PLAN = [
    {**MESSAGE, "op": "send", "phase": "forward", "group": "pp"},
    {**MESSAGE, "op": "recv", "phase": "backward", "group": "pp"},
    {**MESSAGE, "op": "all_reduce", "phase": "after_backward"},
]
REGIONS = (
    mark("stepscope.forward", 0, 20),
    mark("stepscope.backward", 20, 60),
    mark("stepscope.communication", 60, 80),
)
FORWARD, BACKWARD, AFTER = 10, 30, 70


def collective(
    op: str, at: int, *, ranks: tuple[int, ...] | None = None, size: int | None = None, size_bytes: int | None = 32
) -> Any:
    group = None if ranks is None else SimpleNamespace(ranks=ranks, description="")
    return SimpleNamespace(
        op=op, size_bytes=size_bytes, launch_ns=at, group=group, group_size=size or (len(ranks) if ranks else None)
    )


def checked(
    *called: Any, plan: list[dict[str, Any]] = PLAN, regions: Any = (), mesh: dict[str, int] | None = None
) -> ConformanceCheck:
    """One step of rank 0 of 4 in which these were called."""
    rank = trace(mark("ProfilerStep#1", 0, 100), *regions)
    told: dict[str, object] = {"communication_plan": plan, "strategy": "pipeline"}
    told |= {} if mesh is None else {"mesh": mesh}
    view = RankView(replace(rank, meta=replace(rank.meta, stepscope=told, world_size=4)))
    view.made[communication] = replace(communication(view), collectives=called)
    return check_plan(view)


def test_both_ends_of_a_message_are_send_recv_in_any_phase() -> None:
    send, recv = collective("send_recv", 5), collective("send_recv", 95)
    assert checked(send, collective("all_reduce", AFTER), recv).differences == ()
    assert checked(send, recv, collective("all_reduce", AFTER), regions=REGIONS).holds


def test_a_message_less_is_named() -> None:
    found = checked(collective("send_recv", 5), collective("all_reduce", AFTER))
    assert found.differences == ("step 1: missing 1 x send_recv of 32 bytes on pp",)


def in_phase(phase: str, group: str = "dp") -> list[dict[str, Any]]:
    return [{**MESSAGE, "op": "all_reduce", "phase": phase, "group": group}]


@pytest.mark.parametrize(("phase", "at"), [("forward", FORWARD), ("backward", BACKWARD), ("after_backward", AFTER)])
def test_the_phase_is_where_the_host_was(phase: str, at: int) -> None:
    for other in (FORWARD, BACKWARD, AFTER):
        found = checked(collective("all_reduce", other), plan=in_phase(phase), regions=REGIONS)
        assert found.holds is (other == at)
    assert checked(collective("all_reduce", at), plan=in_phase("optimizer")).holds, "no regions were recorded"


def test_a_reduction_after_backward_that_should_overlap_is_named() -> None:
    found = checked(collective("all_reduce", AFTER), plan=in_phase("backward"), regions=REGIONS)
    assert found.differences == (
        "step 1: missing 1 x all_reduce of 32 bytes in backward",
        "step 1: 1 x all_reduce of 32 bytes in after_backward that the plan does not have",
    )
    assert (found.overlap_planned, found.launched_in_backward) == (True, 0)


SQUARE = {"dp": 2, "tp": 2}


@pytest.mark.parametrize(("group", "ranks"), [("dp", (0, 2)), ("tp", (0, 1)), ("world", (0, 1, 2, 3))])
def test_the_group_is_told_by_its_members(group: str, ranks: tuple[int, ...]) -> None:
    for other in ((0, 2), (0, 1), (0, 1, 2, 3)):
        found = checked(collective("all_reduce", BACKWARD, ranks=other), plan=in_phase("backward", group), mesh=SQUARE)
        assert found.holds is (other == ranks)


def test_without_names_the_number_of_ranks_speaks_and_without_that_nothing_does() -> None:
    plan = in_phase("backward", "tp")
    assert checked(collective("all_reduce", BACKWARD, size=2), plan=plan, mesh=SQUARE).holds
    wrong = checked(collective("all_reduce", BACKWARD, size=4), plan=plan, mesh=SQUARE)
    assert wrong.differences == (
        "step 1: missing 1 x all_reduce of 32 bytes on tp",
        "step 1: 1 x all_reduce of 32 bytes on 4 ranks that the plan does not have",
    )
    assert checked(collective("all_reduce", BACKWARD), plan=plan, mesh=SQUARE).holds
    assert checked(collective("all_reduce", BACKWARD, ranks=(0, 3)), plan=plan).holds, "an older trace tells no mesh"


def test_a_call_that_names_its_group_is_not_taken_for_another_one() -> None:
    plan = [*in_phase("backward", "dp"), *in_phase("backward", "tp")]
    called = [collective("all_reduce", 30), collective("all_reduce", 31, ranks=(0, 2))]
    assert checked(*called, plan=plan, mesh=SQUARE).holds


def test_the_same_bytes_in_other_pieces_are_no_certain_deviation() -> None:
    plan = [*in_phase("backward"), *in_phase("backward")]
    halves = [collective("all_reduce", 30 + n, size_bytes=16) for n in range(4)]
    joined = checked(collective("all_reduce", BACKWARD, size_bytes=64), plan=plan, regions=REGIONS)
    split = checked(*halves, plan=plan, regions=REGIONS)
    assert [(c.holds, c.certain) for c in (joined, split)] == [(False, False)] * 2
    less = checked(*halves[:3], plan=plan, regions=REGIONS)
    elsewhere = checked(*(collective("all_reduce", AFTER, size_bytes=16) for _ in range(4)), plan=plan, regions=REGIONS)
    assert (less.certain, elsewhere.certain) == (True, True), "bytes are missing, or reduced when nothing hides them"


def test_a_gather_called_ahead_is_prefetch_and_one_too_many_is_not() -> None:
    plan = [{**MESSAGE, "op": "all_gather", "phase": "backward"}]
    ahead = checked(collective("all_gather", FORWARD), plan=plan, regions=REGIONS)
    assert (ahead.holds, ahead.certain) == (False, False)
    twice = [collective("all_gather", FORWARD), collective("all_gather", BACKWARD)]
    assert checked(*twice, plan=plan, regions=REGIONS).certain


def test_another_group_is_no_rearrangement() -> None:
    plan = in_phase("backward", "tp")
    assert checked(collective("all_reduce", BACKWARD, ranks=(0, 2)), plan=plan, mesh=SQUARE).certain


def test_a_call_whose_bytes_are_unknown_may_be_any_of_the_plan() -> None:
    plan = [*in_phase("backward"), {**in_phase("backward")[0], "numel": 4}]
    called = [collective("all_reduce", 30, size_bytes=None), collective("all_reduce", 31)]
    assert checked(*called, plan=plan, regions=REGIONS).holds
