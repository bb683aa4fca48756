"""Who failed first: a table of endings made by hand; tests/corpus/ends_by_hand.jsonl holds all that is told of them."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from stepscope.launch.ends.job import DiaryFacts, EndFacts, independent, job_end, without_end
from stepscope.records.profile import FailedProcess, Hang, HookedProcess, JobEnd, LaunchedRank, RankEnd, WindowOfRank
from stepscope.results.ends.stacks import LeftState, StackFrame, Standing
from stepscope.results.profiled_job import end_sentence

S = 1_000_000_000
T0 = 1_763_000_000 * S


def diary(rank: int, *, steps: int = 3, end: RankEnd | None = None, world: int = 2, **more: Any) -> DiaryFacts:
    given = {"start_unix_ns": T0, "last_unix_ns": T0 + 5 * S, "restart": 0, "host": "n0", "pid": 100 + rank, **more}
    return DiaryFacts(rank=rank, world_size=world, steps=steps, end=end, **given)


def left(rank: int, *, at: float = 5, code: int | None = None, steps: int = 3, **more: Any) -> RankEnd:
    given = {"kind": "exception" if "exception" in more else "exit", "restart": 0, **more}
    return RankEnd(
        rank=rank, world_size=2, host="n0", pid=100 + rank, steps=steps, at_unix_ns=T0 + int(at * S), code=code, **given
    )


def raised(rank: int, exception: str = "ValueError", message: str = "bad batch", **more: Any) -> DiaryFacts:
    end = left(rank, exception=exception, message=message, place="train.py:31 in train: raise", **more)
    return diary(rank, end=end, restart=more.get("restart", 0))


def failed(*ranks: tuple[int, int], exception: str = "ChildFailedError", **more: Any) -> FailedProcess:
    given = {"host": "n0", "pid": 99, "rank": None, "world_size": None, "restart": 0, "message": "", **more}
    launched = tuple(LaunchedRank(rank=rank, pid=100 + rank, code=code) for rank, code in ranks)
    return FailedProcess(exception=exception, at_unix_ns=T0 + 9 * S, ranks=launched, **given)


def nccl_aborted() -> FailedProcess:
    """torchrun's word of a rank whose error file holds the watchdog's text."""
    ranks = (LaunchedRank(rank=0, pid=100, code=-6, message=NCCL), LaunchedRank(rank=1, pid=101, code=-15))
    return replace(failed(), ranks=ranks)


def window(status: str = "written", reason: str | None = None) -> WindowOfRank:
    return WindowOfRank(
        window=1, rank=0, world_size=2, host="n0", status=status, reason=reason, restart=0, first_step=10,  # type: ignore[arg-type]
        last_step=18, profiled_ns=(1,) * 8,
    )  # fmt: skip


def end(*diaries: DiaryFacts, code: int | None = 1, **more: Any) -> JobEnd:
    return job_end(EndFacts(code=code, ended_ns=T0 + 10 * S, diaries=diaries, **more))


CLOSED = "[pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("found", "kind", "ranks", "victims"),
    [
        # torchrun's SIGTERM is collateral, whoever it lists first
        (end(diary(0), raised(1), failures=[failed((0, -15), (1, 1))]), "crash", (1,), (0,)),
        # the peer's end is noticed later or, by another clock, earlier than it is written
        (end(raised(0, "RuntimeError", CLOSED, at=4), raised(1, at=5)), "crash", (1,), (0,)),
        # out of memory wins over an older exception
        (end(raised(0, "KeyError", "x", at=1), raised(1, "OutOfMemoryError", "tried", at=3)), "out-of-memory", (1,), (0,)),
        (end(diary(0), raised(1, "RuntimeError", "DefaultCPUAllocator: can't allocate")), "out-of-memory", (1,), ()),
        # all ranks fail alike
        (end(raised(0), raised(1, at=5.5)), "crash", (0, 1), ()),
        # the same exception much later follows from the first
        (end(raised(0), raised(1, at=60)), "crash", (0,), (1,)),
        # of two different ones the oldest
        (end(raised(0, "TypeError", "late", at=9), raised(1, at=5)), "crash", (1,), (0,)),
        # every rank a victim: the oldest, for want of a better one
        (end(raised(0, "RuntimeError", CLOSED, at=6), raised(1, "RuntimeError", CLOSED, at=5)), "crash", (1,), (0,)),
        # sys.exit, os._exit
        (end(diary(0), diary(1, end=left(1, code=7)), failures=[failed((0, -15), (1, 7))]), "exit-code", (1,), (0,)),
        (end(diary(0), diary(1), failures=[failed((0, -15), (1, 7))]), "exit-code", (1,), (0,)),
        # signals
        (end(diary(0), diary(1), failures=[failed((0, -15), (1, -9))]), "killed", (1,), (0,)),
        (end(diary(0), diary(1), failures=[failed((0, -15), (1, -11))]), "killed", (1,), (0,)),
        (end(diary(0), diary(1), failures=[failed((1, -9))], oom_kills=1), "out-of-memory", (1,), ()),
        (end(diary(0), diary(1), failures=[failed((1, -9))], memory_low=True), "out-of-memory", (1,), ()),
        (end(diary(0), diary(1), failures=[failed((1, -11))], memory_low=True), "killed", (1,), ()),
        # a rank that torchrun had to kill was not the first to fail
        (
            end(diary(0), raised(1), failures=[failed((0, -9), (1, 1))], gone_ns={("n0", 100): T0 + 9 * S}),
            "crash", (1,), (0,),
        ),
        # no launcher tells: one left no word, the other lost its peer
        (end(raised(0, "RuntimeError", CLOSED), diary(1), gone_ns={("n0", 101): T0 + 4 * S}), "killed", (1,), (0,)),
        # one process, our own child
        (end(diary(0, world=1), code=137, host="n0", child=100), "killed", (0,), ()),
        (end(diary(0, world=1), code=143, host="n0", child=100), "killed", (), (0,)),
        # nothing but SIGTERM is known of anybody: it came from outside, whoever the launcher lists or leaves out
        (end(diary(0), diary(1), failures=[failed((0, -15), (1, -15))]), "killed", (), (0, 1)),
        (end(diary(0), diary(1), failures=[failed((0, 143), (1, 143))]), "killed", (), (0, 1)),
        (end(diary(0), diary(1), failures=[failed((0, -15))]), "killed", (), (0,)),
        (end(diary(0), diary(1), failures=[failed(exception="SignalException")]), "killed", (), ()),
        (
            end(diary(0), raised(1, "RuntimeError", CLOSED, at=5), failures=[failed((0, -15), (1, 1))],
                gone_ns={("n0", 100): T0 + 4 * S}),
            "killed", (), (0, 1),
        ),
        # stopped by the launcher after the connection broke
        (end(diary(0), raised(1, "RuntimeError", CLOSED), failures=[failed((0, -15), (1, 1))]), "crash", (1,), (0,)),
        # before any step
        (end(failures=[failed((0, 2), (1, 2))]), "exit-code", (0, 1), ()),
        (end(failures=[failed(exception="ModuleNotFoundError", torch=False)]), "crash", (), ()),
        (end(failures=[failed(exception="FileNotFoundError", rank=1, pid=101), failed((1, 1))]), "crash", (1,), ()),
        (end(code=2), "exit-code", (), ()),
        (end(code=139), "killed", (), ()),
        # a restart that went well, and one that did not
        (end(raised(0), diary(0, restart=1, pid=200), code=0, windows=[window()]), "ok", (), ()),
        (end(raised(0, "KeyError", "x"), raised(0, restart=1)), "crash", (0,), ()),
        (end(raised(0), failures=[failed(exception="RuntimeError", message=CLOSED, rank=1, pid=201, restart=1)]),
         "crash", (1,), ()),
        # code 0
        (end(diary(0), diary(1), code=0), "short", (), ()),
        (end(code=0), "no-steps", (), ()),
        (end(diary(0), diary(1), code=0, windows=[window()]), "ok", (), ()),
        (end(diary(0), diary(1), code=0, windows=[window("stepped_back", "its own")]), "ok", (), ()),
        (end(raised(0), diary(1), code=0), "crash", (0,), ()),
        (end(diary(0), code=0, failures=[failed(exception="OSError", pid=7)]), "short", (), ()),
        (end(diary(0), code=0, asked=False), "ok", (), ()),
        # Ctrl-C
        (end(diary(0), code=130, signals=[(signal.SIGINT, T0 + 2 * S)]), "interrupted", (), ()),
        (end(raised(0, "KeyboardInterrupt", ""), code=1, signals=[(signal.SIGINT, T0 + 2 * S)]), "interrupted", (), ()),
        (end(raised(0, at=5), code=1, signals=[(signal.SIGINT, T0 + 6 * S)]), "crash", (0,), ()),
    ],
)  # fmt: skip
def test_the_kind_the_ranks_at_fault_and_their_victims(
    found: JobEnd, kind: str, ranks: tuple[int, ...], victims: tuple[int, ...]
) -> None:
    assert (found.kind, found.ranks, found.victims) == (kind, ranks, victims)
    assert end_sentence(found)


@pytest.mark.parametrize(
    ("found", "signal_name"),
    [
        (end(diary(0), diary(1), failures=[failed((0, -15), (1, 143))]), "SIGTERM"),
        (end(diary(0), failures=[failed(exception="SignalException", message="Process 99 got signal: 1")]), "SIGHUP"),
        (end(diary(0), failures=[failed(exception="KeyboardInterrupt")]), "SIGINT"),
    ],
)
def test_a_job_that_was_stopped_from_outside_names_the_signal_and_no_rank(found: JobEnd, signal_name: str) -> None:
    assert (found.kind, found.ranks, found.signal) == ("killed", (), signal_name)
    assert "outside" in end_sentence(found)


HANG = Hang(ranks=(1,), waiting=(0,), silent_s=63, step=4, said="rank 1 has not called all_reduce #9", place="t.py:3")


@pytest.mark.parametrize(
    "found",
    [
        end(diary(0), diary(1), code=130, signals=[(signal.SIGINT, T0 + 9 * S)], hang=HANG),
        end(raised(0, "RuntimeError", "Timed out waiting 1800000ms for recv"), diary(1), hang=HANG),
    ],
)
def test_a_hang_that_is_interrupted_or_times_out_is_one(found: JobEnd) -> None:
    assert (found.kind, found.ranks, found.victims, found.step) == ("hang", (1,), (0,), 4)
    assert found.hang is not None
    assert (found.place, found.hang.said, found.hang.silent_s) == ("t.py:3", HANG.said, HANG.silent_s)


GLOO = "[unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
NCCL = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
LOADS = LeftState(
    steps=3, seen_ns=T0 + 5 * S,
    standing=Standing(part="data", steps=3, frames=(StackFrame(file="/w/train.py", line=41, name="fetch", code="read()"),)),
)  # fmt: skip
WAITING = replace(LOADS, standing=Standing(part="backward", steps=3))
STOPPED_0 = [failed((0, 1), (1, -15))]


@pytest.mark.parametrize(
    ("found", "ranks", "victims"),
    [
        # gloo gives up; torchrun stops the rank that did not come, which leaves its stack
        (end(raised(0, "RuntimeError", GLOO), diary(1), failures=STOPPED_0, left={("n0", 101): LOADS}), (1,), (0,)),
        # the same without anything of that rank but the launcher's word that it lived
        (end(raised(0, "RuntimeError", GLOO), diary(1), failures=STOPPED_0), (1,), (0,)),
        # nothing is known of it
        (end(raised(0, "RuntimeError", GLOO), diary(1)), (), (0,)),
        # it waited too, in something else
        (end(raised(0, "RuntimeError", GLOO), diary(1), failures=STOPPED_0, left={("n0", 101): WAITING}), (), (0, 1)),
        # it woke up when the others were gone, or noticed their end inside the same collective
        (end(raised(0, "RuntimeError", GLOO), raised(1, "RuntimeError", CLOSED, at=9)), (1,), (0,)),
        (end(raised(0, "RuntimeError", GLOO), raised(1, "RuntimeError", CLOSED, at=5.1)), (), (0, 1)),
        # all gave up
        (end(raised(0, "RuntimeError", GLOO), raised(1, "RuntimeError", GLOO)), (), (0, 1)),
        # NCCL's watchdog: in an exception, in an error file, or on the job's stderr alone, where a stall was seen
        (end(raised(0, "torch.distributed.DistBackendError", NCCL), diary(1), failures=STOPPED_0), (1,), (0,)),
        (end(diary(0), diary(1), failures=[failed((0, -6), (1, -15))], stall=replace(HANG, silent_s=20)), (1,), (0,)),
        (end(diary(0), diary(1), failures=[nccl_aborted()], left={("n0", 101): LOADS}), (1,), (0,)),
        # it had ended its training well before; flight recorders accuse another than its stack
        (end(raised(0, "RuntimeError", GLOO, at=7), diary(1, end=left(1, at=4))), (1,), (0,)),
        (end(raised(0, "RuntimeError", GLOO), diary(1, world=3), diary(2, world=3), stall=replace(HANG, ranks=(0, 2)),
             left={("n0", 101): LOADS}), (2,), (0,)),
        # monitoredBarrier names them
        (end(raised(0, "RuntimeError", "Rank 1 failed to pass monitoredBarrier in 5000 ms"), diary(1)), (1,), (0,)),
    ],
)  # fmt: skip
def test_behind_timeouts_who_did_not_come_is_at_fault(
    found: JobEnd, ranks: tuple[int, ...], victims: tuple[int, ...]
) -> None:
    assert (found.kind, found.ranks, found.victims, found.step) == ("hang", ranks, victims, 4)
    assert end_sentence(found).startswith("Hang: ")


def test_a_host_that_may_wait_for_its_device_is_not_accused() -> None:
    """Ranks that wait in NCCL's kernel are on any line of their own; one that loads data is not."""
    item = Standing(part="other", frames=(StackFrame(file="/w/train.py", line=50, name="main", code="loss.item()"),))
    waits = {("n0", 100 + rank): replace(LOADS, standing=item) for rank in (1, 2)}
    three = [diary(rank, world=3) for rank in (1, 2)]
    failures = [failed((0, -6), (1, -15), (2, -15))]
    gone = {"failures": failures, "gone_ns": {("n0", 100 + rank): T0 + 8 * S for rank in (1, 2)}}
    aborted = raised(0, "DistBackendError", NCCL, at=7)
    assert end(aborted, *three, left=waits, **gone).ranks == ()
    assert end(aborted, *three, left={**waits, ("n0", 101): LOADS}, **gone).ranks == (1,)
    gone["failures"] = [failed((0, 1), (1, -15), (2, -15))]
    gloo = end(raised(0, "RuntimeError", GLOO, at=7), *three, left=waits, **gone)
    assert gloo.ranks == (1, 2), "gloo waits in Python"


PROCESSES = [
    HookedProcess(pid=pid, host="n0", argv=("train",), rank=rank, world_size=None, python="3.11")
    for pid, rank in ((99, None), (100, "0"), (101, "1"))
]


@pytest.mark.parametrize(
    ("more", "launcher", "running", "ranks", "named"),
    [
        ({"code": 137, "child": 99, "signalled": True, "running": [("n0", 100), ("n0", 101), ("n0", 7)]},
         True, ((0, 100), (1, 101)), (), "SIGKILL"),
        ({"code": 137, "child": 50, "running": [("n0", 101)]}, True, ((1, 101),), (), "SIGKILL"),  # a shell reports it
        ({"code": 1, "child": 99, "failures": [failed(exception="SignalException", message="Process 99 got signal: 15")]},
         True, (), (), "SIGTERM"),
        ({"code": 1, "child": 99, "failures": [failed((1, -9))], "running": [("n0", 100)]}, False, (), (1,), "SIGKILL"),
        # one rank was stopped from outside: its launcher noticed it first, and it was gone before the other
        ({"code": 1, "child": 99, "failures": [failed((1, -15), (0, -15))],
          "gone_ns": {("n0", 101): T0 + 5 * S, ("n0", 100): T0 + 6 * S}}, False, (), (1,), "SIGTERM"),
        # all were stopped together
        ({"code": 1, "child": 99, "failures": [failed((0, -15), (1, -15))],
          "gone_ns": {("n0", 101): T0 + 5 * S, ("n0", 100): T0 + 5 * S}}, False, (), (), "SIGTERM"),
    ],
)  # fmt: skip
def test_the_launcher_or_a_rank_that_was_ended_from_outside(
    more: dict[str, Any], launcher: bool, running: tuple[tuple[int, int], ...], ranks: tuple[int, ...], named: str
) -> None:
    found = end(diary(0), diary(1), processes=PROCESSES, host="n0", **more)
    assert (found.kind, found.launcher, found.running, found.ranks, found.signal) == (
        "killed", launcher, running, ranks, named,
    )  # fmt: skip
    assert ("the launcher" in end_sentence(found)) == launcher


@pytest.mark.parametrize(
    ("more", "step", "sure"),
    [
        ({}, 17, False),
        ({"left": {("n0", 101): replace(LOADS, steps=29)}}, 30, True),
        ({"left": {("n0", 100): replace(LOADS, steps=29)}}, 30, True),  # the other rank got no further
        ({"zero": {"end": left(0, steps=29)}}, 30, True),
    ],
)
def test_a_step_that_is_not_sure_is_a_bound(more: dict[str, Any], step: int, sure: bool) -> None:
    zero = more.pop("zero", {})
    found = end(diary(0, steps=16, **zero), diary(1, steps=16), failures=[failed((0, -15), (1, -11))], **more)
    assert (found.step, found.step_exact, found.ranks) == (step, sure, (1,))
    assert ("at the earliest" in end_sentence(found)) != sure


def later(rank: int, **more: Any) -> DiaryFacts:
    return diary(rank, pid=200 + rank, start_unix_ns=T0 + 6 * S, last_unix_ns=T0 + 9 * S, **more)


def test_of_trainings_one_after_the_other_the_last_ends_the_job() -> None:
    sweep = end(diary(0, end=left(0)), diary(1, end=left(1)), later(0), code=0, asked=False)
    assert (sweep.kind, sweep.restarts) == ("ok", 0)
    again = end(diary(0, restart=1), diary(1, restart=1), later(0), later(1), failures=[failed((0, -15), (1, 1))])
    assert (again.kind, again.ranks, again.restarts) == ("exit-code", (1,), 1), "the ranks of the second command"
    first = end(raised(1), later(0, end=left(0, at=9)), code=1)
    assert (first.kind, first.ranks, first.exception) == ("crash", (1,), "ValueError"), "the command passes it on"


def test_a_rank_that_raises_after_all_is_a_crash_and_a_job_that_goes_on_no_hang() -> None:
    assert end(diary(0), raised(1), hang=HANG).kind == "crash"
    assert end(diary(0), diary(1), code=0, windows=[window()], hang=HANG).kind == "ok"


def test_what_a_spawning_parent_was_told_names_the_exception_of_its_rank() -> None:
    text = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  x\nKeyError: 'a'\n"
    parent = FailedProcess(
        host="n0", pid=99, rank=None, world_size=None, restart=0, at_unix_ns=T0, exception="ProcessRaisedException",
        message=text, ranks=(LaunchedRank(rank=1, pid=101, code=1, message=text),),
    )  # fmt: skip
    found = end(diary(0), diary(1), failures=[parent])
    assert (found.kind, found.ranks, found.exception, found.message) == ("crash", (1,), "KeyError", "'a'")


@pytest.mark.parametrize(
    ("helper", "blamed"),
    [
        ({"rank": 0, "at_s": 4}, (1,)),  # the rank that started it ended steps afterwards
        ({"parent": 100, "at_s": 4}, (1,)),  # known by its parent, where no launcher states a rank
        ({"rank": 0, "at_s": 6}, (0,)),  # no step ended after it: the rank may have failed of it
        ({"rank": 0, "at_s": 4, "host": "n1"}, (0,)),  # not that rank's
    ],
)
def test_a_helper_whose_failure_a_rank_outlived_is_not_at_fault(
    helper: dict[str, Any], blamed: tuple[int, ...]
) -> None:
    at_s = helper.pop("at_s")
    given = {"host": "n0", "pid": 300, "rank": None, "world_size": None, "restart": 0, **helper}
    probe = FailedProcess(at_unix_ns=T0 + at_s * S, exception="ImportError", message="", **given)
    found = end(diary(0), raised(1, at=7), failures=[probe])
    assert (found.kind, found.ranks) == ("crash", blamed)


def test_processes_without_a_group_are_counted_and_a_job_that_executes_itself_again_is_not_two() -> None:
    alone = [diary(0, world=1, pid=pid) for pid in (1, 2)]
    assert independent(alone) == 2
    assert end(*alone, code=0, windows=[window()]).independent == 2
    again = [diary(0, world=1, pid=1, last_unix_ns=T0 + S), diary(0, world=1, pid=2, start_unix_ns=T0 + 2 * S)]
    assert independent(again) == 0
    assert independent([diary(0, world=1), diary(0, world=1)]) == 0, "the same process"
    assert independent([diary(0), diary(1)]) == 0


def test_a_rank_whose_last_process_left_no_end_may_lack_steps() -> None:
    again = diary(0, end=left(0), restart=1, pid=300, start_unix_ns=T0 + 6 * S)
    assert without_end([diary(0), again, diary(1)]) == (1,)
    assert without_end([again, diary(1, end=left(1))]) == ()
