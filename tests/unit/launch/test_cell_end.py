"""The first-failing-rank rule, on failures written down by hand.

What ranks' flight recorders add to a verdict; dumps are written into a cell's folder by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.launch.ends.cell import calls_in, cell_evidence, cell_status, exit_codes, first_seen
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.records.profile import Deadline
from stepscope.records.samples import Heartbeat, RankError
from stepscope.results.ends.evidence import EndEvidence, Fate, RankCalls
from stepscope.results.ends.judge import judge
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


def beats_of(*ranks: int, step: int = 3, **more: int) -> list[Heartbeat]:
    return [beat(rank, step=step, **more) for rank in ranks]


def victims(*ranks: int) -> list[RankError]:
    return [error(rank, "victim") for rank in ranks]


ALL = (0, 1, 2, 3)
TERMINATED = dict.fromkeys(ALL, -15)
MOVED = {"moved_ns": 199 * S, "time_ns": 199 * S}


def test_torchruns_own_report_gives_exit_codes_and_who_failed_first() -> None:
    assert exit_codes(TORCHRUN_LOG) == {0: -15, 1: -9}
    assert first_seen(TORCHRUN_LOG) == 1


@pytest.mark.parametrize(
    ("given", "status", "rank", "words"),
    [
        # an error of a rank's own: out of memory first, then the earliest
        ({"errors": [error(0, "error", time_ns=1), error(2, "oom", time_ns=5), *victims(3)]}, "oom", 2, []),
        ({"errors": [error(1, "host_oom")]}, "host_oom", 1, []),
        ({"errors": [*victims(0), error(3, "error", time_ns=9), error(2, "error", time_ns=4)]}, "error", 2,
         ["rank 2 on h in measure, step 7"]),
        ({"errors": [error(0, "error")], "codes": {0: 1, 1: -15, 2: -15, 3: 143}}, "error", 0, []),
        # a rank without a word of its own, of which its peers complain
        ({"errors": [*victims(0, 3), error(2, "terminated")], "codes": {0: 1, 1: -9, 2: -15, 3: 1},
          "heartbeats": [beat(1, step=5)]}, "killed", 1, ["SIGKILL", "step 5", "dmesg"]),
        ({"errors": victims(0, 1, 3), "codes": {0: 1, 1: 1, 2: 3, 3: 1}}, "error", 2, ["exited with code 3"]),
        ({"errors": victims(0, 1, 2), "codes": {0: 1, 1: 1, 2: 1}}, "killed", 3, ["without an error message"]),
        ({"codes": {2: 1}, "finished": frozenset({0, 1, 3}), "last_words": {2: "ImportError: no libfoo"}}, "error", 2,
         ["ImportError: no libfoo"]),
        # a finished rank is not suspected
        ({"codes": {3: -11}}, "killed", 3, ["SIGSEGV"]),
        ({"codes": {3: -11}, "finished": frozenset({0, 1, 2})}, "killed", 3, ["SIGSEGV"]),
        # a GPU rank that waits inside CUDA cannot react to SIGTERM: torchrun kills it and reports that, too
        ({"codes": {0: -9, 1: -9}, "world_size": 2, "seen_first": 1}, "killed", 1, []),
        ({"codes": {0: -9, 1: 3}, "world_size": 2, "seen_first": 1}, "error", 1, []),
        # among ends by SIGTERM the rank that failed
        ({"codes": TERMINATED | {2: -9}, "seen_first": 0}, "killed", 2, []),
        ({"codes": {0: -15, 1: 1, 3: 143}, "seen_first": 0}, "error", 1, []),
        ({"codes": {0: -15, 1: -15}, "errors": victims(2), "seen_first": 0}, "killed", 3, []),  # its end was noticed
        ({"codes": {0: -15, 1: -15}, "errors": [error(2, "error")], "seen_first": 0}, "error", 2, []),
        ({"codes": {0: -15}, "errors": [error(2, "terminated"), error(3, "oom")], "seen_first": 0}, "oom", 3, []),
        # a deadline: who never came, who entered fewer collectives, whose heartbeat is the oldest
        ({"heartbeats": beats_of(0, 1, 3, step=0), "deadline": DEADLINE}, "timeout", 2, ["never reached this cell"]),
        ({"heartbeats": [*beats_of(0, 1, 3, enqueued=9), beat(2, step=3, enqueued=8)], "deadline": DEADLINE}, "timeout", 2,
         ["never called collective 9 (all_reduce [[1024]])", "rank 0 waits"]),
        ({"heartbeats": [*beats_of(0, 2, 3, time_ns=100), beat(1, step=3, time_ns=5)], "deadline": DEADLINE}, "timeout", 1,
         []),
        ({"heartbeats": [*beats_of(0, 1, 3, **MOVED), beat(2, step=2, moved_ns=120 * S, time_ns=122 * S)],
          "deadline": DEADLINE}, "timeout", 2, ["stopped first"]),
        # all are at work: a step takes as long as steps do here, and a finished rank does not make others look stuck
        ({"heartbeats": beats_of(*ALL, step=12, **MOVED), "deadline": DEADLINE}, "timeout", None,
         ["still progressing", "step 12 of 50", "--set measure.timeout_s"]),
        ({"heartbeats": beats_of(*ALL, moved_ns=170 * S, longest_ns=20 * S), "deadline": DEADLINE}, "timeout", None, []),
        ({"heartbeats": [beat(0, step=50, moved_ns=110 * S), *beats_of(1, 2, 3, step=49, **MOVED)],
          "finished": frozenset({0}), "deadline": DEADLINE}, "timeout", None, []),
    ],
)  # fmt: skip
def test_the_status_the_rank_at_fault_and_why(
    given: dict[str, Any], status: str, rank: int | None, words: list[str]
) -> None:
    result = verdict(**given)
    assert (result.status, result.failing_rank) == (status, rank)
    assert all(word in (result.reason or "") for word in words), result.reason


@pytest.mark.parametrize(
    "given",
    [
        {"codes": TERMINATED},
        {"codes": dict.fromkeys(ALL, 143), "seen_first": 2},
        {"codes": {2: -15}},  # of the others nobody knows
        {"codes": {2: -15}, "seen_first": 2, "finished": frozenset({0})},
        {"errors": [error(r, "terminated") for r in ALL]},
        {"errors": [error(r, "terminated") for r in (0, 1)], "codes": {2: -15}},
        {"errors": [error(0, "terminated")]},
    ],
)
def test_where_only_ends_by_sigterm_are_known_the_cause_is_outside(given: dict[str, Any]) -> None:
    result = verdict(heartbeats=[beat(r, step=3 + r) for r in ALL], **given)
    assert (result.status, result.failing_rank, result.failing_host, result.phase) == ("killed", None, None, "measure")
    assert "outside" in (result.reason or "")


def test_a_rank_of_which_nothing_is_there_is_not_accused() -> None:
    """As of a pasted text, which may be of one rank of many."""
    closed = Fate(rank=0, sort="victim", at_ns=5, exception="RuntimeError", message="Connection closed by peer")
    assert judge(EndEvidence(code=None, fates=[closed], world_size=4)).ranks == (0,)
    waited = replace(closed, sort="timeout", message="Timed out waiting 20000ms for recv operation to complete")
    end = judge(EndEvidence(code=None, fates=[waited], world_size=4))
    assert (end.kind, end.ranks, end.victims) == ("hang", (), (0,))
    raised = replace(closed, rank=2, sort="failed", at_ns=9, exception="KeyError")
    assert judge(EndEvidence(code=None, fates=[closed, raised], world_size=4)).ranks == (2,)


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


def test_where_ranks_left_nothing_or_damaged_dumps_there_is_no_reason(cell: CellLayout) -> None:
    assert calls_in(cell, 3) is None
    cell.flights.mkdir()
    assert calls_in(cell, 3) is None
    write_bytes(cell.flight(0), b'{"schema": "stepscope.flight_dump/1", "rank"')
    assert calls_in(cell, 3) is None


def test_the_reason_names_who_is_missing_and_who_left_no_dump(cell: CellLayout) -> None:
    leave(cell, 0, 3, done=2)
    leave(cell, 1, 2, done=2)
    verdict = calls_in(cell, 3)
    assert verdict.hung.startswith("rank 1 never called collective 3 of the default group (all_reduce [8] float32)")
    assert "rank 2 left no flight recorder dump" in verdict.hung
    leave(cell, 2, 3, done=2)
    calls = calls_in(cell, 3)
    assert (calls.rank, calls.differed) == (1, None)
    leave(cell, 1, 3, done=2, numel=5)
    assert "rank 1 called all_reduce [5] float32" in calls_in(cell, 3).differed


def beats(*, moved_ns: int = 0) -> list[Heartbeat]:
    return [
        Heartbeat(rank=r, host=f"h{r}", pid=1, cell_id="c", phase="measure", step=7, collectives_enqueued=40 - r,
                  last_collective="all_reduce [[8]]", moved_ns=moved_ns)
        for r in range(3)
    ]  # fmt: skip


def given(differed: str | None = None, *, rank: int | None = 1, **changes: object) -> CellStatus:
    calls = RankCalls(hung=differed or HUNG, differed=differed, rank=rank)
    return verdict(**({"heartbeats": beats(), "world_size": 3, "calls": calls} | changes))


LATE = {"deadline": Deadline(timeout_ns=100 * S, now_ns=200 * S)}
AT_WORK = {**LATE, "heartbeats": beats(moved_ns=200 * S)}
LOST = {"errors": [error(rank, "victim") for rank in range(3)]}


@pytest.mark.parametrize(
    ("result", "rank", "there", "absent"),
    [
        (given(**LATE), 1, HUNG, "stopped first"),  # not the heartbeats' guess
        (given(rank=None, **LATE), 2, HUNG, "stopped first"),  # nobody to blame: the heartbeats'
        (given(**AT_WORK), None, "still progressing", HUNG),  # slow, whoever was behind
        (given(DIFFERED, **AT_WORK), 1, DIFFERED, "still progressing"),  # different calls are not merely slow
        (given(DIFFERED, codes={2: -6}), 2, DIFFERED, HUNG),  # not what is missing since it was aborted
        (given(codes={2: -6}), 2, "SIGABRT", HUNG),
        (given(DIFFERED, **LOST), 1, DIFFERED, HUNG),
        (given(**LOST), 2, "lost the connection", HUNG),
        (given(errors=[error(0, "error")]), 0, "RuntimeError: x", HUNG),  # says more than who waited for it
    ],
)
def test_what_flight_recorders_add(result: CellStatus, rank: int | None, there: str, absent: str) -> None:
    assert result.failing_rank == rank
    assert there in (result.reason or "")
    assert absent not in (result.reason or "")
