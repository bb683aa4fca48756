"""What a log says of collectives that did not end: who is named, who is not, and in which terms the judge hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence
from stepscope.results.text_hang import hang_of, text_hang_of
from stepscope.store.text_signs import signs_beside

RULE = "hang-in-log"


def timeout(
    rank: int, *, at: int = 24, op: str = "ALLREDUCE", numel: int | None = 4096, new: bool = True, ran: int = 600_012
) -> str:
    sizes = "" if numel is None else f"NumelIn={numel}, NumelOut={numel}, "
    where = f"[rank{rank}]:[E1122 09:36:10.4 ProcessGroupNCCL.cpp:685] " if new else "[E ProcessGroupNCCL.cpp:458] "
    return (
        f"{where}[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={at}, OpType={op}, "
        f"{sizes}Timeout(ms)=600000) ran for {ran} milliseconds before timing out."
    )


STATUS = {
    "2.2": "[PG {group} Rank {rank}] Timeout at NCCL work: {at}, last enqueued NCCL work: {enqueued}, last completed NCCL "
    "work: {completed}.",
    "2.4": "[PG {group} (default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: "
    "{at}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.7": "[PG ID {group} PG GUID {group}(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {at} "
    "PG status: last enqueued work: {enqueued}, last completed work: {completed}",
}
DUMP = {
    "2.2": "[PG {group} Rank {rank}] Received a global timeout from another rank and will start to dump the debug info. "
    "Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.4": "[PG {group} (default_pg) Rank {rank}] Received a dump signal from this local rank and will start to dump the "
    "debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.7": "[PG ID {group} PG GUID {group}(default_pg) Rank {rank}] Received a dump signal due to a collective timeout "
    "from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed "
    "NCCL work: {completed}.",
}


def line(form: str, rank: int, *, group: int = 0, at: int = 24, enqueued: int = 26, completed: int = 23) -> str:
    said = form.format(rank=rank, group=group, at=at, enqueued=enqueued, completed=completed)
    return f"[rank{rank}]:[E1122 09:36:10.5 ProcessGroupNCCL.cpp:1806] {said}"


def of(folder: Path, *lines: str, name: str = "train.log") -> Finding:
    (folder / name).write_text("\n".join(["step 1 loss 2.0", *lines, "bye"]) + "\n")
    (found,) = [f for f in diagnose(load_evidence([folder / name])).findings if f.rule == RULE]
    assert found.subject or not found.ranks
    return found


def whole(found: Finding) -> str:
    return " | ".join([found.title, *found.evidence, *(advice.text for advice in found.advice)])


def test_ranks_that_waited_are_named_and_nobody_else(tmp_path: Path) -> None:
    found = of(tmp_path, *(timeout(rank) for rank in (0, 1, 3, 4, 4)))
    assert (
        found.title == "ranks 0, 1, 3 and 4 timed out in collective 24, all_reduce of 4,096 elements, after 10 min 00 s"
    )
    assert "rank 2" not in whole(found)
    assert found.ranks == (0, 1, 3, 4)


@pytest.mark.parametrize("op", ["_ALLGATHER_BASE", "ALLGATHER"])
def test_old_lines_have_no_size_and_no_global_rank(tmp_path: Path, op: str) -> None:
    found = of(tmp_path, *(timeout(rank, op=op, new=False, numel=None) for rank in (0, 2)))
    assert found.title == "ranks 0 and 2 timed out in collective 24, all_gather, after 10 min 00 s"


def test_the_world_is_what_the_text_says_and_absent_ranks_are_asked_for(tmp_path: Path) -> None:
    found = of(tmp_path, "using world size: 8, data-parallel size: 4", *(timeout(rank) for rank in range(6)))
    assert "of 8 ranks" in whole(found)
    assert "the logs of the other ranks: ranks 6 and 7" in whole(found)
    assert found.ranks == tuple(range(6))


@pytest.mark.parametrize("form", STATUS)
def test_who_had_not_enqueued_the_call_never_entered_it(tmp_path: Path, form: str) -> None:
    lines = [timeout(0), timeout(3), line(STATUS[form], 3), line(DUMP[form], 1, enqueued=23, completed=23)]
    found = of(tmp_path, *lines)
    assert found.title.startswith("rank 1 never entered collective 24, all_reduce, in which ranks 0 and 3 waited")
    assert found.ranks == (1,)
    hang = hang_of(load_evidence([tmp_path]).signs)
    assert hang is not None
    assert (hang.ranks, hang.waiting) == ((1,), (0, 3))


@pytest.mark.parametrize("form", STATUS)
def test_numbers_of_another_group_accuse_nobody(tmp_path: Path, form: str) -> None:
    lines = [timeout(0), line(STATUS[form], 0, group=3), line(DUMP[form], 1, group=1, enqueued=7, completed=7)]
    found = of(tmp_path, *lines)
    assert found.ranks == (0,)
    assert "never" not in found.title
    hang = hang_of(load_evidence([tmp_path]).signs)
    assert hang is not None
    assert hang.ranks == ()


def test_who_waits_in_an_earlier_call_is_not_accused_of_the_later_one(tmp_path: Path) -> None:
    form = STATUS["2.4"]
    lines = [timeout(8), line(form, 8, enqueued=24), line(form, 2, at=25, enqueued=31, completed=24)]
    found = of(tmp_path, *lines)
    assert found.title.startswith("rank 8 timed out in collective 24")
    assert "rank 2 had completed 24 and enqueued 31: it had left collective 24" in found.evidence


def test_a_status_alone_shows_a_wait(tmp_path: Path) -> None:
    found = of(tmp_path, timeout(1), timeout(6), *(line(STATUS["2.4"], rank, group=1) for rank in (1, 5)))
    assert found.title.startswith("ranks 1, 5 and 6 timed out in collective 24")


@pytest.mark.parametrize(
    ("others", "odd"),
    [((0, 1, 3), "all_reduce of 64 elements on rank 2"), ((4, 5), "all_reduce of 64 elements on rank 2")],
)
def test_another_size_is_a_mismatch(tmp_path: Path, others: tuple[int, ...], odd: str) -> None:
    found = of(tmp_path, *(timeout(rank) for rank in others), timeout(2, numel=64))
    assert found.title.startswith("collective 24 is not the same on all ranks")
    assert odd in found.title
    assert found.ranks == (2,)


def test_two_halves_with_two_sizes_may_be_two_groups(tmp_path: Path) -> None:
    found = of(tmp_path, *(timeout(rank, numel=64 if rank > 1 else 4096) for rank in range(4)))
    assert "not the same" not in whole(found)
    of_one = [line(STATUS["2.7"], rank) for rank in range(4)]
    found = of(tmp_path, *(timeout(rank, numel=64 if rank > 1 else 4096) for rank in range(4)), *of_one)
    assert found.title.startswith("collective 24 is not the same on all ranks")
    assert found.ranks == ()


def test_sizes_of_an_uneven_exchange_do_not_have_to_agree(tmp_path: Path) -> None:
    found = of(tmp_path, *(timeout(rank, op="ALLTOALL_BASE", numel=100 + rank) for rank in range(3)))
    assert found.title.startswith("ranks 0, 1 and 2 timed out in collective 24, all_to_all")


@pytest.mark.parametrize(
    ("at", "advice"), [(1, "NCCL itself does not move data"), (700, "look for network and device errors")]
)
def test_where_all_ranks_are_inside_nobody_is_missing(tmp_path: Path, at: int, advice: str) -> None:
    found = of(tmp_path, "dist_world_size=2", timeout(0, at=at), timeout(1, at=at))
    assert "no rank is missing" in found.title
    assert advice in whole(found)
    assert "add the logs" not in whole(found)


def test_a_wait_far_beyond_its_timeout_is_of_processes_that_did_not_run(tmp_path: Path) -> None:
    found = of(tmp_path, timeout(0, at=900, ran=7_260_000), timeout(5, at=40_000, ran=7_260_000))
    assert found.title.startswith("ranks 0 and 5 waited 2 h 01 min in collectives whose timeout is 10 min 00 s")
    assert "no rank can be named" in whole(found)


def test_a_line_that_is_cut_off_says_that_there_was_a_timeout(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(f"it 3/9 [00:10<00:20, 3.3s/it]{timeout(7)[:110]}")
    (found,) = diagnose(load_evidence([path])).findings
    assert found.title == "the NCCL watchdog of rank 7 reports a timeout, and its line is cut off"


@pytest.mark.parametrize("width", [63, 64, 66, 68, 70, 71, 80, 99, 100, 113, 120, 131])
def test_lines_that_a_terminal_wrapped_are_read(tmp_path: Path, width: int) -> None:
    lines = [timeout(rank)[n : n + width] for rank in (3, 9) for n in range(0, len(timeout(rank)), width)]
    assert of(tmp_path, *lines).ranks == (3, 9)


def test_reports_are_believed(tmp_path: Path) -> None:
    desync = [
        timeout(0, at=77),
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t   - [2, 6] finished collective #40, but didn't join collective #41 (count from 1)",
        "\t   #80 started ranks:",
        "\t     [0, 1] started REDUCE_SCATTER",
    ]
    found = of(tmp_path, *desync)
    assert found.title == "ranks 2 and 6 never joined collective #41, after the end of #40"
    assert "ranks 0 and 1 wait in reduce_scatter #80" in found.evidence
    found = of(tmp_path, "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms")
    assert (found.title, found.ranks) == ("ranks 1 and 3 did not reach gloo's monitored barrier within 30 s", (1, 3))
    trace = [
        "Not all ranks joining collective 5 at entry 4", "group info: 1:mesh_dp", "collective: nccl:all_gather",
        "missing ranks: {1}", " all_gather at /x/torch/distributed/distributed_c10d.py:2", "<module> at /home/me/run.py:44",
    ]  # fmt: skip
    found = of(tmp_path, *trace)
    assert found.title == "rank 1 never entered all_gather 5 of mesh_dp"
    assert "the other ranks call it in <module>, /home/me/run.py:44" in found.evidence


def test_calls_that_the_wrapper_compared_are_named_with_both_sizes(tmp_path: Path) -> None:
    one = "Rank 4 is running collective: CollectiveFingerPrint(SequenceNumber=9, OpType=ALLGATHER, TensorShape=[3, 2], "
    other = "TensorDtypes=Float), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=9, OpType=BARRIER)."
    found = of(tmp_path, f"[rank4]: RuntimeError: Detected mismatch between collectives on ranks. {one}{other}")
    assert found.title == (
        "ranks 0 and 4 do not match in collective 9: all_gather of 3 x 2 Float elements on rank 4, barrier on rank 0"
    )


def test_a_watchdog_that_got_stuck_shows_who_is_behind(tmp_path: Path) -> None:
    stuck = (
        "[rank{0}]:[F ProcessGroupNCCL.cpp:1169] [PG ID 0 PG GUID 0(default_pg) Rank {0}] ProcessGroupNCCL's watchdog got "
        "stuck for 480 seconds without making progress in monitoring enqueued collectives. workMetaList_.size() = {1}"
    )
    found = of(tmp_path, *(stuck.format(rank, works) for rank, works in ((0, 12), (1, 9), (2, 12))))
    assert found.title.startswith("the NCCL watchdogs of ranks 0, 1 and 2 got stuck for 480 s")
    assert "rank 1 is 3 calls behind the other ranks" in found.evidence


def test_what_ncclras_answers(tmp_path: Path) -> None:
    answer = (
        "#0-0 (78db921d1c117b4a) MISMATCH", "  Communicator ranks have different AllReduce operation counts",
        "  7 ranks have launched up to operation 64",
        "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1",
    )  # fmt: skip
    found = of(tmp_path, *answer)
    assert found.title.startswith("rank 7 (node1) had launched 60 operations, 7 ranks 64")
    found = of(tmp_path, "  Process 3487984 on node 172.16.64.213 managing GPU 5")
    assert "process 3487984 on 172.16.64.213 (GPU 5)" in found.title


def test_one_file_a_rank_is_one_job(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(timeout(rank, new=False) + "\n")
    (found,) = [f for f in diagnose(load_evidence([tmp_path])).findings if f.rule == RULE]
    assert found.ranks == (0, 1, 3)


@pytest.mark.parametrize("old", ["[Rank 0]", ""])
def test_old_lines_of_several_groups_are_not_compared(tmp_path: Path, old: str) -> None:
    """One member in one call with two sizes is of two groups."""
    lines = [timeout(0, new=False), timeout(0, new=False, numel=64), timeout(1, new=False)]
    (tmp_path / "a.log").write_text("\n".join([old, *lines]) + "\n")
    text = text_hang_of(load_evidence([tmp_path / "a.log"]).signs)
    assert text.scattered


def test_a_framework_s_log_keeps_its_run(tmp_path: Path) -> None:
    head = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1"
    step = " iteration {0:8d}/ 100 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 1.5E+00 |"
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join([head, *(step.format(n) for n in range(1, 6)), *(timeout(rank) for rank in range(7))]) + "\n"
    )
    evidence = load_evidence([path])
    (run,) = evidence.runs
    assert (run.status, run.error) == ("timeout", "a collective ran into its timeout after iteration 5 of 100")
    (found,) = [f for f in diagnose(evidence).findings if f.rule == RULE]
    assert found.title.startswith("ranks 0, 1, 2, 3, 4, 5 and 6 timed out in collective 24")


def test_members_of_two_groups_with_one_number_are_kept_apart(tmp_path: Path) -> None:
    """Ranks 4 and 5 are members 0 and 1 of their group: so is rank 0 of another one."""
    of_group = [line(STATUS["2.7"], rank, group=7).replace(f" Rank {rank}]", f" Rank {rank - 4}]") for rank in (4, 5)]
    lines = [timeout(rank).replace(f"[Rank {rank}]", f"[Rank {rank % 4}]") for rank in (4, 5, 0)]
    found = of(tmp_path, *lines, *of_group)
    assert found.title.startswith("ranks 4 and 5 timed out in collective 24")
    assert found.evidence[1].startswith("rank 0 timed out in collective 24, ")


def test_who_had_enqueued_the_call_is_inside_with_the_others(tmp_path: Path) -> None:
    lines = [line(STATUS["2.7"], 0), line(DUMP["2.7"], 2), line(DUMP["2.7"], 3, enqueued=20, completed=20)]
    found = of(tmp_path, *lines)
    assert found.title.startswith("rank 3 never entered collective 24, in which ranks 0 and 2 waited")


@pytest.mark.parametrize("world", ["Starting with 2 processes", "Num processes: 2", "global_world_sizes=[2, 2]"])
def test_only_the_job_s_own_size_makes_a_first_call_one_of_all_ranks(tmp_path: Path, world: str) -> None:
    waits = [timeout(rank, at=1, op="BROADCAST") for rank in (0, 1)]
    assert "all 2 ranks" in of(tmp_path, world, *waits).title
    assert "if these are all ranks of the job" in whole(of(tmp_path, *waits))


def test_a_rank_that_only_dumped_was_not_the_one_that_waited(tmp_path: Path) -> None:
    found = of(tmp_path, line(DUMP["2.7"], 5, enqueued=8, completed=8))
    assert found.title == "rank 5 was asked for a dump: a collective of another rank timed out"
    assert hang_of(load_evidence([tmp_path]).signs) is None


def test_what_is_no_hang_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ok.log").write_text("Received a new config\nworld_size=8\nstep 1 on 8 ranks\n")
    assert not signs_beside([tmp_path / "ok.log"])


def test_main_threads_are_compared(tmp_path: Path) -> None:
    dump = (
        'Process {0}: python train.py', 'Thread {0} (idle): "MainThread"', "    {1} (torch/x.py:2501)",
        "    step (/srv/t/loop.py:11)", 'Thread 0x7F11 (idle): "Thread-1"', "    wait (threading.py:320)",
    )  # fmt: skip
    lines = [text.format(pid, "save" if pid == 503 else "all_reduce") for pid in (501, 502, 503) for text in dump]
    found = of(tmp_path, *lines)
    assert found.title == "py-spy: the main thread of process 503 is in save, called at /srv/t/loop.py:11"
    assert "process 501, 502 is in all_reduce, called at /srv/t/loop.py:11" in found.evidence
    assert "it writes a checkpoint" in found.evidence


def test_a_line_that_is_cut_off_behind_its_number_is_a_wait(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(f"{timeout(0)}\n{timeout(3)}\n{timeout(7)[:150]}")
    (found,) = diagnose(load_evidence([path])).findings
    assert found.title.startswith("ranks 0, 3 and 7 timed out in collective 24")


def test_an_exception_that_repeats_the_line_adds_no_rank(tmp_path: Path) -> None:
    """Rank 7 is member 3 of its group; what() of its exception has no prefix."""
    line_of_7 = timeout(7).replace("[Rank 7]", "[Rank 3]")
    found = of(tmp_path, line_of_7, f"  what():  {line_of_7[line_of_7.index('[Rank 3]') :]}")
    assert found.ranks == (7,)
    assert "rank 3" not in whole(found)


@pytest.mark.parametrize("prefix", ["[default{local}]:", "{local}: "])
def test_a_launcher_s_local_number_is_not_the_rank_of_an_old_line(tmp_path: Path, prefix: str) -> None:
    """Before torch 2.2 the rank is in the line; torchrun's prefix counts on each host."""
    found = of(tmp_path, *(prefix.format(local=rank % 8) + timeout(rank, new=False) for rank in (3, 11, 12)))
    assert found.ranks == (3, 11, 12)


def test_who_ended_by_itself_comes_before_those_that_waited_for_it(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    out = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity"
    path.write_text("\n".join(["[rank5]: Traceback (most recent call last):", out, timeout(0), timeout(1)]) + "\n")
    first, second = [f for f in diagnose(load_evidence([path])).findings if f.rule in (RULE, "job-end")]
    assert (first.rule, first.ranks) == ("job-end", (5,))
    assert (second.rule, second.severity, second.ranks) == (RULE, "warning", (0, 1))
    assert "rank 5 had ended by itself" in second.evidence[-1]


def test_the_world_is_the_largest_communicator_of_ncclras(tmp_path: Path) -> None:
    rows = ("    0         8         4         1         4        32   RUNNING      OK",
            "    1         1         4         8        32        32   RUNNING      OK",
            "    2         1         1         8         8         8   RUNNING      OK")  # fmt: skip
    assert "of 32 ranks" in whole(of(tmp_path, *rows, timeout(3)))


def test_fr_trace_without_all_dumps_accuses_nobody(tmp_path: Path) -> None:
    """It says so in the middle of a comparison, or ends with it."""
    undecided = (
        "We cannot decide what's wrong with this collective entry because we missed FR dumps from ranks ({3, 11}) so we "
        "don't have enough information. If you want to debug further use -j to dump all raw trace"
    )
    for text in (undecided, "AssertionError: Missing dump files from ranks {3, 11}"):
        found = of(tmp_path, text)
        assert found.title == "fr_trace cannot say what is wrong: it has no dump of ranks 3 and 11"
        assert found.ranks == ()


def test_fr_trace_names_the_rank_that_it_holds_for_different_and_sizes_that_differ(tmp_path: Path) -> None:
    culprit = "error msg: Culprit rank 5; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'broadcast'"
    found = of(tmp_path, "Collective sequence number: 9 has errors", "collective: nccl:broadcast", culprit)
    assert found.evidence[0].startswith("Culprit rank 5; Error type")
    found = of(tmp_path, "Input/output mismatch in the collective sequence number: 77", "collective: nccl:all_to_all")
    assert found.title == "all_to_all 77 is not the same on all ranks, as fr_trace says"


def test_fr_trace_that_found_no_mismatch_is_read_and_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fr.txt"
    path.write_text(
        "No errors found for this collective entry, There could be some other reasons why we see timeouts.\n"
    )
    assert not diagnose(load_evidence([path])).findings
