"""The first-failing-rank rule, on failures written down by hand.

What ranks' flight recorders add to a verdict; dumps are written into a cell's folder by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.launch.ends.cell import calls_in, cell_evidence, cell_status, exit_codes, first_seen
from stepscope.launch.ends.evidence import RankCalls
from stepscope.launch.ends.judge import judge
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.records.profile import Deadline
from stepscope.records.samples import Heartbeat, RankError
from stepscope.store.layout import CellLayout
from stepscope.store.writer import write_bytes

TORCHRUN_LOG = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
x.py FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_23:39:25
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 4846)  (SIGTERM)
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_23:39:25
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4847)  (SIGKILL)
======================================================
"""


def error(rank: int, kind: str, *, time_ns: int = 0, text: str = "RuntimeError: x") -> RankError:
    return RankError(rank=rank, host="h", pid=1, cell_id="c", phase="measure", step=7, kind=kind, exception=text,
                     traceback="", time_ns=time_ns)  # fmt: skip


S = 1_000_000_000
DEADLINE = Deadline(timeout_ns=100 * S, now_ns=200 * S, total_steps=50)


def beat(rank: int, *, step: int, enqueued: int | None = None, time_ns: int = 0, moved_ns: int = 0,
         longest_ns: int = 0) -> Heartbeat:  # fmt: skip
    return Heartbeat(rank=rank, host=f"host{rank}", pid=1, cell_id="c", phase="measure", step=step,
                     collectives_enqueued=enqueued, last_collective="all_reduce [[1024]]", time_ns=time_ns,
                     moved_ns=moved_ns, longest_ns=longest_ns)  # fmt: skip


def verdict(**given: Any) -> CellStatus:
    known = {"errors": [], "heartbeats": [], "codes": {}, "finished": frozenset(), "world_size": 4}
    return cell_status(judge(cell_evidence(**(known | given))), "c")


def test_exit_codes_are_read_from_torchruns_own_report() -> None:
    assert exit_codes(TORCHRUN_LOG) == {0: -15, 1: -9}


def test_an_oom_wins_over_an_earlier_error_of_another_rank() -> None:
    errors = [error(0, "error", time_ns=1), error(2, "oom", time_ns=5), error(3, "victim", time_ns=2)]
    result = verdict(errors=errors)
    assert (result.status, result.failing_rank) == ("oom", 2)


def test_host_memory_is_told_apart_from_device_memory() -> None:
    assert verdict(errors=[error(1, "host_oom")]).status == "host_oom"


def test_the_first_own_error_wins_over_victims_that_were_seen_before_it() -> None:
    errors = [error(0, "victim", time_ns=1), error(3, "error", time_ns=9), error(2, "error", time_ns=4)]
    result = verdict(errors=errors)
    assert (result.status, result.failing_rank) == ("error", 2)
    assert "rank 2 on h in measure, step 7" in result.reason


def test_a_rank_killed_by_a_signal_is_named_although_only_its_peers_complain() -> None:
    errors = [error(0, "victim"), error(2, "terminated"), error(3, "victim")]
    result = verdict(errors=errors, codes={0: 1, 1: -9, 2: -15, 3: 1}, heartbeats=[beat(1, step=5)])
    assert (result.status, result.failing_rank, result.failing_host) == ("killed", 1, "host1")
    assert "SIGKILL" in result.reason
    assert "step 5" in result.reason


@pytest.mark.parametrize("code", [-9, 3])
def test_a_rank_that_the_launcher_had_to_kill_afterwards_is_not_the_culprit(code: int) -> None:
    """A GPU rank that waits inside CUDA cannot react to SIGTERM: torchrun kills it and reports that too."""
    assert first_seen(TORCHRUN_LOG) == 1
    result = verdict(codes={0: -9, 1: code}, world_size=2, seen_first=1)
    assert result.failing_rank == 1


def test_a_rank_that_left_quietly_with_a_code_is_an_error() -> None:
    result = verdict(errors=[error(r, "victim") for r in (0, 1, 3)], codes={0: 1, 1: 1, 2: 3, 3: 1})
    assert (result.status, result.failing_rank) == ("error", 2)
    assert "exited with code 3" in result.reason


def test_a_rank_that_left_with_code_zero_in_the_middle_is_named_too() -> None:
    result = verdict(errors=[error(r, "victim") for r in (0, 1, 2)], codes={0: 1, 1: 1, 2: 1})
    assert result.failing_rank == 3


def test_a_rank_stopped_by_the_launcher_is_never_the_culprit() -> None:
    result = verdict(errors=[error(0, "error")], codes={0: 1, 1: -15, 2: -15, 3: 143})
    assert result.failing_rank == 0


@pytest.mark.parametrize(
    "given",
    [
        {"codes": {0: -15, 1: -15, 2: -15, 3: -15}},
        {"codes": {0: 143, 1: 143, 2: 143, 3: 143}, "seen_first": 2},
        {"codes": {2: -15}},  # of the others nobody knows
        {"codes": {2: -15}, "seen_first": 2, "finished": frozenset({0})},
        {"errors": [error(r, "terminated") for r in range(4)]},
        {"errors": [error(r, "terminated") for r in (0, 1)], "codes": {2: -15}},
        {"errors": [error(0, "terminated")]},
    ],
)
def test_where_only_ends_by_sigterm_are_known_the_cause_is_outside(given: dict) -> None:
    result = verdict(heartbeats=[beat(r, step=3 + r) for r in range(4)], **given)
    assert (result.status, result.failing_rank, result.failing_host, result.phase) == ("killed", None, None, "measure")
    assert "outside" in result.reason


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"codes": {0: -15, 1: -15, 2: -9, 3: -15}}, 2),
        ({"codes": {0: -15, 1: 1, 3: 143}}, 1),
        ({"codes": {0: -15, 1: -15}, "errors": [error(2, "victim")]}, 3),  # its end was noticed, and it left no word
        ({"codes": {0: -15, 1: -15}, "errors": [error(2, "error")]}, 2),
        ({"codes": {0: -15}, "errors": [error(2, "terminated"), error(3, "oom")]}, 3),
    ],
)
def test_among_ends_by_sigterm_the_rank_that_failed_is_found(given: dict, culprit: int) -> None:
    assert verdict(seen_first=0, **given).failing_rank == culprit


def test_at_a_timeout_the_rank_that_never_entered_the_collective_is_named() -> None:
    beats = [
        beat(0, step=3, enqueued=9),
        beat(1, step=3, enqueued=9),
        beat(2, step=3, enqueued=8),
        beat(3, step=3, enqueued=9),
    ]
    result = verdict(heartbeats=beats, deadline=DEADLINE)
    assert (result.status, result.failing_rank) == ("timeout", 2)
    assert "never called collective 9 (all_reduce [[1024]])" in result.reason


def test_without_a_flight_recorder_the_oldest_heartbeat_decides() -> None:
    beats = [beat(r, step=3, time_ns=100 + r) for r in (0, 2, 3)] + [beat(1, step=3, time_ns=5)]
    assert verdict(heartbeats=beats, deadline=DEADLINE).failing_rank == 1


def test_a_rank_that_never_started_the_cell_is_named_at_a_timeout() -> None:
    result = verdict(heartbeats=[beat(r, step=0) for r in (0, 1, 3)], deadline=DEADLINE)
    assert result.failing_rank == 2
    assert "never reached this cell" in result.reason


@pytest.mark.parametrize("finished", [frozenset(), frozenset({0, 1, 2})])
def test_a_finished_rank_is_not_suspected(finished: frozenset[int]) -> None:
    result = verdict(finished=finished, codes={3: -11})
    assert (result.failing_rank, result.status) == (3, "killed")
    assert "SIGSEGV" in result.reason


def test_a_cell_that_still_makes_progress_at_its_deadline_blames_nobody() -> None:
    result = verdict(heartbeats=[beat(r, step=12, moved_ns=199 * S) for r in range(4)], deadline=DEADLINE)
    assert (result.status, result.failing_rank, result.failing_host) == ("timeout", None, None)
    assert "still progressing" in result.reason
    assert "step 12 of 50" in result.reason
    assert "--set measure.timeout_s" in result.reason


def test_a_step_that_takes_as_long_as_steps_do_here_is_progress() -> None:
    beats = [beat(r, step=3, moved_ns=170 * S, longest_ns=20 * S) for r in range(4)]
    assert verdict(heartbeats=beats, deadline=DEADLINE).failing_rank is None


def test_one_rank_that_stopped_long_ago_is_named_although_others_moved_since() -> None:
    beats = [beat(r, step=3, moved_ns=199 * S, time_ns=199 * S) for r in (0, 1, 3)]
    result = verdict(heartbeats=[*beats, beat(2, step=2, moved_ns=120 * S, time_ns=122 * S)], deadline=DEADLINE)
    assert result.failing_rank == 2
    assert "stopped first" in result.reason


def test_a_finished_rank_does_not_make_the_others_look_stuck() -> None:
    beats = [beat(0, step=50, moved_ns=110 * S), *(beat(r, step=49, moved_ns=199 * S) for r in (1, 2, 3))]
    assert verdict(heartbeats=beats, finished=frozenset({0}), deadline=DEADLINE).failing_rank is None


def test_what_a_rank_wrote_last_is_in_the_reason_of_its_silent_end() -> None:
    result = verdict(codes={2: 1}, finished=frozenset({0, 1, 3}), last_words={2: "ImportError: no libfoo"})
    assert result.failing_rank == 2
    assert "ImportError: no libfoo" in result.reason


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
    assert calls_in(cell, 3) is None
    cell.flights.mkdir()
    assert calls_in(cell, 3) is None


def test_damaged_dumps_are_no_reason_and_no_error(cell: CellLayout) -> None:
    write_bytes(cell.flight(0), b'{"schema": "stepscope.flight_dump/1", "rank"')
    assert calls_in(cell, 3) is None


def test_the_reason_names_who_is_missing_and_who_left_no_dump(cell: CellLayout) -> None:
    leave(cell, 0, 3, done=2)
    leave(cell, 1, 2, done=2)
    verdict = calls_in(cell, 3)
    assert verdict.hung.startswith("rank 1 never called collective 3 of the default group (all_reduce [8] float32)")
    assert "rank 2 left no flight recorder dump" in verdict.hung


def test_a_verdict_tells_what_differed_from_what_is_only_missing(cell: CellLayout) -> None:
    leave(cell, 0, 3, done=2)
    leave(cell, 1, 2, done=2)
    leave(cell, 2, 3, done=2)
    calls = calls_in(cell, 3)
    assert (calls.rank, calls.differed) == (1, None)
    leave(cell, 1, 3, done=2, numel=5)
    calls = calls_in(cell, 3)
    assert "rank 1 called all_reduce [5] float32" in calls.differed


def beats(*, moved_ns: int = 0) -> list[Heartbeat]:
    return [
        Heartbeat(rank=r, host=f"h{r}", pid=1, cell_id="c", phase="measure", step=7, collectives_enqueued=40 - r,
                  last_collective="all_reduce [[8]]", moved_ns=moved_ns)
        for r in range(3)
    ]  # fmt: skip


def given(differed: str | None = None, *, rank: int | None = 1, **changes: object) -> CellStatus:
    calls = RankCalls(hung=differed or HUNG, differed=differed, rank=rank)
    return verdict(**({"heartbeats": beats(), "world_size": 3, "calls": calls} | changes))


def deadline(now_ns: int) -> Deadline:
    return Deadline(timeout_ns=100 * S, now_ns=now_ns)


def test_after_a_deadline_the_recorders_say_who_hangs_and_not_the_heartbeats_guess() -> None:
    verdict = given(deadline=deadline(200 * S))
    assert (verdict.status, verdict.failing_rank, verdict.failing_host) == ("timeout", 1, "h1")
    assert HUNG in verdict.reason
    assert "stopped first" not in verdict.reason


def test_with_nobody_to_blame_the_recorders_still_say_what_hangs() -> None:
    verdict = given(deadline=deadline(200 * S), rank=None)
    assert HUNG in verdict.reason
    assert verdict.failing_rank == 2, "the heartbeat's"


def test_ranks_at_work_at_the_deadline_are_slow_whoever_was_behind() -> None:
    verdict = given(deadline=deadline(200 * S), heartbeats=beats(moved_ns=200 * S))
    assert "still progressing" in verdict.reason


def test_ranks_that_called_different_things_are_not_merely_slow() -> None:
    verdict = given(DIFFERED, deadline=deadline(200 * S), heartbeats=beats(moved_ns=200 * S))
    assert DIFFERED in verdict.reason
    assert verdict.failing_rank == 1


def test_to_a_rank_that_was_aborted_is_added_what_differed_and_not_what_is_missing_since() -> None:
    assert given(DIFFERED, codes={2: -6}).reason.endswith(DIFFERED)
    assert HUNG not in given(codes={2: -6}).reason


def test_where_ranks_only_lost_each_other_what_differed_is_the_reason() -> None:
    victims = [error(r, "victim") for r in range(3)]
    verdict = given(DIFFERED, errors=victims)
    assert DIFFERED in verdict.reason
    assert verdict.failing_rank == 1
    assert HUNG not in given(errors=victims).reason


def test_a_ranks_own_error_says_more_than_who_waited_for_it() -> None:
    verdict = given(errors=[error(0, "error")])
    assert HUNG not in verdict.reason
