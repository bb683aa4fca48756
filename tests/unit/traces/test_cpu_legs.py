"""The critical path across CPU ranks: to the late rank and along its own work; times in ns."""

from __future__ import annotations

from dataclasses import replace

from tests.hand_events import Row, mark, op, trace

from stepscope.records.trace_path import CrossRankPath
from stepscope.records.trace_summary import RankPass
from stepscope.traces.events import ProcessGroup
from stepscope.traces.job import combine
from stepscope.traces.load import Wanted
from stepscope.traces.rank_pass import analyse

US = 1000


def rank(number: int, computes: int) -> RankPass:
    """Computes, reduces until 800 us, then computes for 100 us more."""
    rows: list[Row] = [
        mark("ProfilerStep#1", 0, 900 * US), op("aten::mm", 0, computes * US),
        op("c10d::allreduce_", computes * US, (computes + 1) * US),
        mark("gloo:all_reduce", (computes + 5) * US, 800 * US, thread="gloo"), op("aten::add_", 800 * US, 900 * US),
    ]  # fmt: skip
    found = analyse(trace(*rows, rank=number), Wanted())
    return replace(found, facts=replace(found.facts, world_size=2))


def test_the_path_of_cpu_ranks_runs_along_the_late_one() -> None:
    path = combine([rank(0, 200), rank(1, 700)]).path
    assert isinstance(path, CrossRankPath)
    assert (path.total_ns, path.transfer_ns, path.collectives, path.unmatched) == (900 * US, 95 * US, 1, 0)
    spent = {s.rank: s.parts for s in path.ranks}
    assert (spent[0].host_operator_ns, spent[1].host_operator_ns) == (100 * US, 700 * US)
    assert spent[1].launch_latency_ns == 5 * US  # from the call on


def test_a_collective_that_computation_hides_is_not_on_the_path() -> None:
    def hidden(number: int) -> RankPass:
        rows: list[Row] = [
            mark("ProfilerStep#1", 0, 900 * US), op("c10d::allreduce_", 0, US),
            mark("gloo:all_reduce", US, 300 * US, thread="gloo"), op("aten::mm", US, 900 * US),
        ]  # fmt: skip
        return analyse(trace(*rows, rank=number), Wanted())

    path = combine([hidden(0), hidden(1)]).path
    assert isinstance(path, CrossRankPath)
    assert (path.transfer_ns, path.collectives, path.total_ns) == (0, 0, 900 * US)


def test_a_receiver_waits_for_the_stage_that_sends() -> None:
    sender = [
        mark("ProfilerStep#1", 0, 900 * US), op("aten::mm", 0, 600 * US), op("c10d::send", 600 * US, 601 * US),
        mark("gloo:send", 601 * US, 650 * US), op("aten::mm", 610 * US, 700 * US),
    ]  # fmt: skip
    receiver = [
        mark("ProfilerStep#1", 0, 950 * US), op("c10d::recv_", 0, US), mark("gloo:recv", US, 660 * US),
        op("aten::mm", 660 * US, 900 * US),
    ]  # fmt: skip
    pair = ProcessGroup(name="0", description="", backend="gloo", size=2, ranks=(0, 1))
    made = [trace(*rows, rank=r) for r, rows in enumerate((sender, receiver))]
    passes = [analyse(replace(each, meta=replace(each.meta, groups=(pair,))), Wanted()) for each in made]
    path = combine(passes).path
    assert isinstance(path, CrossRankPath)
    assert (path.end_rank, path.hops, path.unmatched) == (1, 1, 0)
    assert {s.rank: s.parts.host_operator_ns for s in path.ranks} == {0: 600 * US, 1: 240 * US}
    assert path.transfer_ns == (660 - 601) * US
