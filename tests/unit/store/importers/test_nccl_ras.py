"""What ncclras answers as JSON: the same findings as of its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence
from stepscope.store.importers import read_foreign


def member(rank: int, *, host: str = "", pid: int = 0, **more: Any) -> dict[str, Any]:
    place = {
        "host": host or f"10.8.0.{rank // 4}",
        "pid": pid or 900 + rank,
        "cuda_dev": rank % 4,
        "nvml_dev": rank % 4,
    }
    return {"rank": rank, **place, "status": {}, **more}


def ranks(counts: dict[int, dict[str, int]], **more: Any) -> list[dict[str, Any]]:
    return [member(rank, collective_counts=of, **more) for rank, of in counts.items()]


def communicator(name: str, size: int, there: list[Any], missing: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {
        "hash": name, "secondary_hash": "0x1:0x2", "size": size, "ranks_count": len(there),
        "missing_ranks_count": len(missing), "ranks": there, "missing_ranks": missing,
    }  # fmt: skip


def answer(folder: Path, *communicators: Any, name: str = "ras.json", before: str = "") -> Path:
    document = {"nccl_version": "2.28.3", "timestamp": "2026-02-03 04:05:06", "communicators_count": len(communicators)}
    path = folder / name
    path.write_text(before + json.dumps(document | {"communicators": communicators}, indent=2) + "\n")
    return path


def of_rule(path: Path) -> list[Finding]:
    return [found for found in diagnose(load_evidence([path])).findings if found.rule == "hang-in-log"]


EVEN = {rank: {"AllReduce": 40, "AllGather": 3} for rank in range(8)}


def test_a_rank_behind_is_named_with_its_operation(tmp_path: Path) -> None:
    behind = EVEN | {5: {"AllReduce": 37, "AllGather": 3}}
    path = answer(tmp_path, communicator("0xa", 8, ranks(behind)), name="out.txt", before="OK\n")
    (found,) = of_rule(path)
    assert found.title.startswith("rank 5 (10.8.0.1) had launched 37 operations, 7 ranks 40")
    assert "AllReduce in communicator 0xa" in found.evidence[0]


def test_counts_of_different_operations_are_not_compared(tmp_path: Path) -> None:
    uneven = EVEN | {1: {"AllReduce": 40, "AllGather": 4}, 2: {"AllReduce": 39, "AllGather": 3}}
    (found,) = of_rule(answer(tmp_path, communicator("0xa", 8, ranks(uneven))))
    assert found.severity == "warning"  # each is one call apart, not 37


@pytest.mark.parametrize("state", ["unresponsive", "considered_dead"])
def test_a_process_without_an_answer_is_named_once(tmp_path: Path, state: str) -> None:
    there = ranks({rank: EVEN[rank] for rank in range(7)})
    gone = member(7, status={state: True})
    inner = communicator("0xb", 4, ranks({rank: EVEN[rank] for rank in range(3)}), (gone | {"rank": 3},))
    (found,) = of_rule(answer(tmp_path, inner, communicator("0xa", 8, there, (gone,))))
    assert found.title == "NCCL's RAS has no answer of rank 7, process 907 on 10.8.0.1 (GPU 3)"
    assert found.ranks == (7,)
    assert any("considers it dead" in text for text in found.evidence) == (state == "considered_dead")


def test_ranks_of_equal_communicators_are_not_those_of_the_job(tmp_path: Path) -> None:
    halves = [
        communicator(
            name, 4, ranks(dict.fromkeys(range(3), EVEN[0])), (member(3, pid=pid, status={"unresponsive": 1}),)
        )
        for name, pid in (("0xb", 61), ("0xc", 62))
    ]
    (found,) = of_rule(answer(tmp_path, *halves))
    assert found.ranks == ()
    assert "process 61" in found.title
    assert "process 62" in found.title


def test_an_error_and_a_rank_that_left_are_said(tmp_path: Path) -> None:
    there = ranks({rank: EVEN[rank] for rank in range(6)})
    there[4]["status"]["async_error"] = 6
    there[5]["status"]["async_error"] = 7  # in progress
    left, failed = sorted(
        of_rule(answer(tmp_path, communicator("0xa", 7, there, (member(6),)))),
        key=lambda found: found.severity,
        reverse=True,
    )
    assert "rank 4, process 904" in failed.title
    assert "remote process error" in failed.title
    assert "rank 5" not in failed.title
    assert left.title.startswith("rank 6 answered NCCL's RAS, and is no member of communicator 0xa")


def test_a_job_at_work_is_silent_and_no_communicator_is_said(tmp_path: Path) -> None:
    path = answer(tmp_path, communicator("0xa", 8, ranks(EVEN)))
    assert not diagnose(load_evidence([path])).findings
    assert read_foreign(path).remarks == ("NCCL RAS: all ranks of 1 communicator answered, with equal counts",)
    assert "no communicator" in read_foreign(answer(tmp_path, name="b.json")).notes[0]


def test_an_answer_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = answer(tmp_path, communicator("0xa", 8, ranks(EVEN)))
    path.write_text(path.read_text()[:700])
    with pytest.raises(DataError, match="damaged answer"):
        read_foreign(path)
