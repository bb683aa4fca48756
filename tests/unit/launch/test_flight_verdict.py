"""What ranks' flight recorders add to a verdict; dumps are written into a cell's folder by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.launch.verdict import CallsVerdict, Deadline, Verdict, judge, judge_calls
from stepscope.records import codec
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.records.samples import Heartbeat, RankError
from stepscope.store.layout import CellLayout
from stepscope.store.writer import write_bytes

S = 1_000_000_000
HUNG = "rank 2 never called collective 9"
DIFFERED = "rank 1 called broadcast, rank 0 all_reduce"


def leave(cell: CellLayout, rank: int, calls: int, *, numel: int = 8, done: int = 0) -> None:
    entries = tuple(
        FlightEntry(
            record_id=s - 1, group="0", sequence=s, op="all_reduce", name="gloo:all_reduce", input_sizes=((numel,),),
            input_dtypes=("float32",), state="completed" if s <= done else "scheduled",
        )
        for s in range(1, calls + 1)
    )  # fmt: skip
    groups = (FlightGroup(name="0", description="default_pg", ranks=(0, 1, 2)),)
    dump = FlightDump(rank=rank, entries=entries, groups=groups, kept="all")
    write_bytes(cell.flight(rank), codec.encode_line(dump, header=True))


@pytest.fixture
def cell(tmp_path: Path) -> CellLayout:
    return CellLayout(tmp_path)


def test_a_cell_whose_ranks_left_nothing_has_no_reason(cell: CellLayout) -> None:
    assert judge_calls(cell, 3) is None
    cell.flights.mkdir()
    assert judge_calls(cell, 3) is None


def test_damaged_dumps_are_no_reason_and_no_error(cell: CellLayout) -> None:
    write_bytes(cell.flight(0), b'{"schema": "stepscope.flight_dump/1", "rank"')
    assert judge_calls(cell, 3) is None


def test_the_reason_names_who_is_missing_and_who_left_no_dump(cell: CellLayout) -> None:
    leave(cell, 0, 3, done=2)
    leave(cell, 1, 2, done=2)
    verdict = judge_calls(cell, 3)
    assert verdict.hung.startswith("rank 1 never called collective 3 of the default group (all_reduce [8] float32)")
    assert "rank 2 left no flight recorder dump" in verdict.hung


def test_a_verdict_tells_what_differed_from_what_is_only_missing(cell: CellLayout) -> None:
    leave(cell, 0, 3, done=2)
    leave(cell, 1, 2, done=2)
    leave(cell, 2, 3, done=2)
    calls = judge_calls(cell, 3)
    assert (calls.rank, calls.differed) == (1, None)
    leave(cell, 1, 3, done=2, numel=5)
    calls = judge_calls(cell, 3)
    assert "rank 1 called all_reduce [5] float32" in calls.differed


def beats(*, moved_ns: int = 0) -> list[Heartbeat]:
    return [
        Heartbeat(rank=r, host=f"h{r}", pid=1, cell_id="c", phase="measure", step=7, collectives_enqueued=40 - r,
                  last_collective="all_reduce [[8]]", moved_ns=moved_ns)
        for r in range(3)
    ]  # fmt: skip


def error(rank: int, kind: str) -> RankError:
    return RankError(rank=rank, host="h", pid=1, cell_id="c", phase="measure", step=7, kind=kind, exception="X: y",
                     traceback="")  # fmt: skip


def given(differed: str | None = None, *, rank: int | None = 1, **changes: object) -> Verdict:
    known: dict[str, object] = {
        "errors": [], "heartbeats": beats(), "codes": {}, "finished": frozenset(), "world_size": 3,
        "calls": CallsVerdict(hung=differed or HUNG, differed=differed, rank=rank),
    }  # fmt: skip
    return judge(**(known | changes))  # type: ignore[arg-type]


def deadline(now_ns: int) -> Deadline:
    return Deadline(timeout_ns=100 * S, now_ns=now_ns)


def test_after_a_deadline_the_recorders_say_who_hangs_and_not_the_heartbeats_guess() -> None:
    verdict = given(deadline=deadline(200 * S))
    assert (verdict.status, verdict.rank, verdict.host) == ("timeout", 1, "h1")
    assert HUNG in verdict.reason
    assert "stopped first" not in verdict.reason


def test_with_nobody_to_blame_the_recorders_still_say_what_hangs() -> None:
    verdict = given(deadline=deadline(200 * S), rank=None)
    assert HUNG in verdict.reason
    assert verdict.rank == 2, "the heartbeat's"


def test_ranks_at_work_at_the_deadline_are_slow_whoever_was_behind() -> None:
    verdict = given(deadline=deadline(200 * S), heartbeats=beats(moved_ns=200 * S))
    assert "still progressing" in verdict.reason


def test_ranks_that_called_different_things_are_not_merely_slow() -> None:
    verdict = given(DIFFERED, deadline=deadline(200 * S), heartbeats=beats(moved_ns=200 * S))
    assert DIFFERED in verdict.reason
    assert verdict.rank == 1


def test_to_a_rank_that_was_aborted_is_added_what_differed_and_not_what_is_missing_since() -> None:
    assert given(DIFFERED, codes={2: -6}).reason.endswith(DIFFERED)
    assert HUNG not in given(codes={2: -6}).reason


def test_where_ranks_only_lost_each_other_what_differed_is_the_reason() -> None:
    victims = [error(r, "victim") for r in range(3)]
    verdict = given(DIFFERED, errors=victims)
    assert DIFFERED in verdict.reason
    assert verdict.rank == 1
    assert HUNG not in given(errors=victims).reason


def test_a_ranks_own_error_says_more_than_who_waited_for_it() -> None:
    verdict = given(errors=[error(0, "error")])
    assert HUNG not in verdict.reason
