"""Which logs of a folder prove that they are of several jobs, and that these are not compared."""

from __future__ import annotations

from pathlib import Path

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence
from stepscope.results.text_jobs import TextJob, text_jobs


def waited(rank: int, *, when: str = "1122 09:36:10.4", at: int = 24, op: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E{when} ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={at}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out."
    )


def log(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def jobs_of(folder: Path) -> tuple[TextJob, ...]:
    return text_jobs(load_evidence([folder]).signs)


def hangs(folder: Path) -> list[Finding]:
    return [found for found in diagnose(load_evidence([folder])).findings if found.rule == "hang-in-log"]


def test_two_world_sizes_are_two_jobs_judged_alone(tmp_path: Path) -> None:
    log(tmp_path / "a.log", "world_size=4", waited(0), waited(1))
    log(tmp_path / "b.log", "world_size=8", waited(0, op="ALLGATHER"), waited(2, op="ALLGATHER"))
    first, second = sorted(hangs(tmp_path), key=lambda found: found.title)
    assert first.title.startswith("a.log: ranks 0 and 1 timed out")
    assert second.title.startswith("b.log: ranks 0 and 2")
    assert "of 4 ranks" in " ".join(first.evidence)
    assert "of 8 ranks" in " ".join(second.evidence)
    assert "2 jobs, each judged alone: a.log (4 ranks), b.log (8 ranks)" in " ".join(first.evidence)


def test_a_rank_that_gives_up_twice_hours_apart_is_of_two_jobs(tmp_path: Path) -> None:
    log(tmp_path / "mon.log", waited(0), waited(1))
    log(tmp_path / "tue.log", waited(0, when="1123 02:00:00.1"), waited(2, when="1123 02:00:00.1"))
    assert [job.name for job in jobs_of(tmp_path)] == ["mon.log", "tue.log"]


def test_attempts_of_torchrun_are_not_compared(tmp_path: Path) -> None:
    for attempt, ranks in ((0, (0, 1)), (1, (0, 1, 2))):
        for rank in ranks:
            log(tmp_path / f"attempt_{attempt}" / str(rank) / "stderr.log", waited(rank))
    first, second = jobs_of(tmp_path)
    assert (len(first.signs), len(second.signs)) == (2, 3)
    assert second.proof == "attempt_1 of torchrun"


def test_a_file_goes_to_the_job_of_its_folder_or_is_alone(tmp_path: Path) -> None:
    for name, world in (("x", 4), ("y", 8)):
        log(tmp_path / name / "0.log", f"world_size={world}", waited(0))
        log(tmp_path / name / "1.log", waited(1))
    assert [len(job.signs) for job in jobs_of(tmp_path)] == [3, 3]
    log(tmp_path / "other.log", waited(3))
    assert [len(job.signs) for job in jobs_of(tmp_path)] == [3, 3, 1]


def test_what_proves_nothing_is_one_job(tmp_path: Path) -> None:
    log(tmp_path / "0.log", "world_size=4", waited(0))
    log(tmp_path / "1.log", waited(1, when="1122 09:41:00.0"))
    log(
        tmp_path / "2.log", "Gathering on 2 ranks", waited(2, when="1122 17:36:10.4")
    )  # another host, another time zone
    assert jobs_of(tmp_path) == ()
