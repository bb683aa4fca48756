"""Timeouts of NCCL's watchdog in a job's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.results.open import load_evidence


def timeout(rank: int, *, sequence: int = 24, op: str = "ALLREDUCE", prefix: bool = True, sizes: bool = True) -> str:
    numel = "NumelIn=4096, NumelOut=4096, " if sizes else ""
    where = f"[rank{rank}]:[E1122 09:36:10.4 ProcessGroupNCCL.cpp:685] " if prefix else "[E ProcessGroupNCCL.cpp:458] "
    return (
        f"{where}[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, "
        f"{numel}Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )


def log(folder: Path, *lines: str, before: int = 3) -> Path:
    path = folder / "train.log"
    path.write_text("\n".join([*(f"[rank0] step {n} loss 2.0" for n in range(before)), *lines]) + "\n")
    return path


def test_ranks_that_waited_are_named_and_the_silent_one_is_where_to_look(tmp_path: Path) -> None:
    waiting = [timeout(rank) for rank in (0, 1, 3, 4)]
    path = log(tmp_path, *waiting, waiting[0], before=20_000)  # the report stands behind the head of the file
    evidence = load_evidence([path])
    assert [(t.rank, t.sequence, t.op, t.elements) for t in evidence.watchdog] == [
        (rank, 24, "all_reduce", 4096) for rank in (0, 1, 3, 4)
    ]
    (found,) = [f for f in diagnose(evidence).findings if f.rule == "hang"]
    assert (
        found.title == "ranks 0, 1, 3 and 4 timed out in collective 24, all_reduce of 4,096 elements, after 10 min 00 s"
    )
    assert found.evidence[0].startswith("the log has no timeout of rank 2: look there first")
    assert "does not prove which rank was missing" in found.confidence


@pytest.mark.parametrize("op", ["_ALLGATHER_BASE", "ALLGATHER"])
def test_older_lines_without_sizes_and_global_ranks_blame_nobody(tmp_path: Path, op: str) -> None:
    """Without the prefix the number is that of a group's member: who is silent cannot be told."""
    path = log(tmp_path, *(timeout(rank, op=op, prefix=False, sizes=False) for rank in (0, 2)))
    (found,) = diagnose(load_evidence([path])).findings
    assert found.title == "ranks 0 and 2 timed out in collective 24, all_gather, after 10 min 00 s"
    assert found.evidence == ("the NCCL watchdog reports it in the log",)


def test_ranks_in_different_calls_are_kept_apart(tmp_path: Path) -> None:
    path = log(tmp_path, timeout(0, sequence=30), timeout(1, sequence=28))
    (found,) = diagnose(load_evidence([path])).findings
    assert found.title.startswith("rank 1 timed out in collective 28")
    assert found.evidence[0].startswith("rank 0 timed out in collective 30")


def test_a_log_without_a_timeout_is_left_out(tmp_path: Path) -> None:
    log(tmp_path)
    (tmp_path / "other").mkdir()
    log(tmp_path / "other", timeout(0))
    evidence = load_evidence([tmp_path])
    assert len(evidence.watchdog) == 1
    assert evidence.unread == 1


def test_timeouts_inside_the_log_of_a_framework_are_read_with_its_run(tmp_path: Path) -> None:
    """Of 8 ranks, as the log says, the last one is silent: no rank above it shows that there is one."""
    head = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1"
    step = " iteration {0:8d}/ 100 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 1.5E+00 |"
    steps = [step.format(number) for number in range(1, 6)]
    evidence = load_evidence([log(tmp_path, head, *steps, *(timeout(rank) for rank in range(7)))])
    (run,) = evidence.runs
    assert (run.status, run.error) == ("timeout", "a collective ran into its timeout after iteration 5 of 100")
    (found,) = diagnose(evidence).findings
    assert found.title.startswith("ranks 0, 1, 2, 3, 4, 5 and 6 timed out in collective 24")
    assert found.evidence[0].startswith("the log has no timeout of rank 7: look there first")
