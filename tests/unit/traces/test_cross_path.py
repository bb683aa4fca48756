"""Joining ranks' paths at the collectives in which one waited for another.

The critical path across CPU ranks: to the late rank and along its own work; times in ns.
"""

from __future__ import annotations

from dataclasses import replace

from tests.hand_events import Row, call, kernel, launch, mark, op, trace

from stepscope.core.errors import Unavailable
from stepscope.records.trace_collectives import MatchedCollective, RankWaiting
from stepscope.records.trace_path import CrossRankPath, RankLegs
from stepscope.records.trace_summary import RankPass
from stepscope.traces import critical_path
from stepscope.traces.critical_path import cross_rank_path
from stepscope.traces.events import ProcessGroup, RankView
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted


def met(places: dict[int, int], *, last_rank: int | None, transfer_ns: int | None) -> MatchedCollective:
    """A collective by its place on each rank; what the path does not read is left empty."""
    waiting = tuple(
        RankWaiting(rank=r, position=p, start_ns=0, end_ns=0, waiting_ns=None, exposed_ns=0) for r, p in places.items()
    )
    return MatchedCollective(
        op="all_reduce", size_bytes=None, dtype=None, group=None, group_size=None, sequence=None, step=None, start_ns=0,
        ranks=waiting, complete=True, transfer_ns=transfer_ns, waiting_ns=None, skew_ns=None, end_skew_ns=None,
        last_rank=last_rank, last_ranks=(), lead_ns=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None,
        bandwidth_basis=None, exposed_ns=0, match_method="order", match_confidence=None, unsplit=None,
    )  # fmt: skip


def legs(rank: int, *rows: Row) -> RankLegs:
    made = trace(*rows, rank=rank)
    return critical_path.legs(RankView(made))


FAST = legs(
    0, launch(0, 1, 1), launch(1, 2, 2), launch(2, 3, 3),
    kernel("gemm", 10, 20, 1), kernel("ncclDevKernel_AllReduce", 20, 110, 2), kernel("after", 110, 150, 3),
)  # fmt: skip
SLOW = legs(
    1, op("aten::slow", 0, 90), launch(80, 85, 1), launch(86, 88, 2), launch(88, 89, 3),
    kernel("gemm", 92, 100, 1), kernel("ncclDevKernel_AllReduce", 100, 110, 2), kernel("after", 110, 120, 3),
)  # fmt: skip
MET = met({0: 0, 1: 0}, last_rank=1, transfer_ns=10)


def test_without_a_match_the_collective_stays_on_its_rank_with_its_waiting() -> None:
    found = cross_rank_path([FAST, SLOW], [])
    assert isinstance(found, CrossRankPath)
    assert (found.unmatched, found.hops, found.transfer_ns, found.total_ns) == (1, 0, 90, 150)
    assert [s.rank for s in found.ranks] == [0]


def test_a_rank_whose_trace_is_missing_cannot_be_followed() -> None:
    found = cross_rank_path([FAST], [MET])
    assert isinstance(found, CrossRankPath)
    assert (found.unmatched, found.hops) == (1, 0)


def test_matches_that_contradict_each_other_are_refused() -> None:
    rows = [
        launch(0, 1, 1), launch(1, 2, 2), kernel("ncclDevKernel_A", 10, 20, 1), kernel("ncclDevKernel_B", 20, 30, 2),
        call("cudaDeviceSynchronize", 3, 31),
    ]  # fmt: skip
    both = [legs(0, *rows), legs(1, *rows)]
    crossed = [met({0: 0, 1: 1}, last_rank=1, transfer_ns=1), met({0: 1, 1: 0}, last_rank=0, transfer_ns=1)]
    assert isinstance(cross_rank_path(both, crossed), Unavailable)


def test_no_ranks_have_no_path() -> None:
    assert isinstance(cross_rank_path([], []), Unavailable)


def test_a_collective_that_is_not_split_stays_whole() -> None:
    found = cross_rank_path([FAST, SLOW], [met({0: 0, 1: 0}, last_rank=None, transfer_ns=None)])
    assert isinstance(found, CrossRankPath)
    assert (found.hops, found.unmatched, found.transfer_ns) == (0, 1, 90)


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
