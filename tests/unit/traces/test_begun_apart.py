"""What ranks wait for one whose capture begins later lies before that capture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.grids import Grid, write_grid

from stepscope.diagnose.engine import diagnose_traces
from stepscope.records.trace_summary import TraceSummary
from stepscope.traces.job import analyse_job

GRID = Grid(replicas=3, micro_batches=4, steps=4, seed=5)
LATE_US = 2_000_000


def _apart(folder: Path, *, rank: int, late_us: float, idle_before: bool = False) -> TraceSummary:
    """A job whose rank enters its first reduction late, and with it all that follows. idle_before: its capture begins with
    the others', and it does nothing until then."""
    write_grid(GRID, folder)
    first_end = min(
        e["ts"] + e["dur"] for e in json.loads((folder / f"rank-{rank}.json").read_text())["traceEvents"]
        if e["name"].startswith("nccl")
    )  # fmt: skip
    for number in range(GRID.ranks):
        path = folder / f"rank-{number}.json"
        document = json.loads(path.read_text())
        for e in document["traceEvents"]:
            if number == rank or e["ts"] >= first_end:
                e["ts"] += late_us
            elif e["ts"] + e["dur"] >= first_end:
                e["dur"] += late_us
        if number == rank and idle_before:
            document["traceEvents"].append(
                {"ph": "X", "cat": "cpu_op", "name": "aten::load", "ts": 1_000.0, "dur": late_us, "pid": 1, "tid": 9}
            )
        path.write_text(json.dumps(document))
    return analyse_job(folder)


def test_waiting_until_a_capture_begins_is_left_out(tmp_path: Path) -> None:
    sound = analyse_job(write_grid(GRID, tmp_path / "sound"))
    apart = _apart(tmp_path / "apart", rank=1, late_us=LATE_US)
    assert [(f.kind, f.rank, f.time_ns, f.matters) for f in apart.quality] == [
        ("captures-apart", 1, LATE_US * 1_000, False)
    ]
    assert sound.quality == ()
    for one, other in zip(apart.ranks, sound.ranks, strict=True):
        assert one.budget is not None
        assert other.budget is not None
        parts = one.budget.parts
        assert parts.window_ns < 1.3 * other.budget.parts.window_ns
        assert parts.window_ns == parts.compute_ns + parts.exposed_comm_ns + parts.exposed_memory_ns + parts.idle_ns
        assert parts.busy_ns + parts.idle_ns == parts.window_ns
        assert parts.overlap_ns == parts.comm_ns - parts.exposed_comm_ns
        for step in one.steps:
            assert step.parts.window_ns == step.parts.busy_ns + step.parts.idle_ns
        assert sum(phase.exposed_comm_ns for phase in one.phases) == parts.exposed_comm_ns
    assert apart.collectives is not None
    assert all((m.waiting_ns or 0) < 100_000_000 for m in apart.collectives.instances)
    assert all(finding.rule != "straggler" for finding in diagnose_traces(apart).findings)


def test_one_rank_that_begins_before_all_others_does_not_wait(tmp_path: Path) -> None:
    write_grid(GRID, tmp_path)
    paths = [tmp_path / f"rank-{number}.json" for number in range(GRID.ranks)]
    documents = [json.loads(path.read_text()) for path in paths]
    first_end = min(e["ts"] + e["dur"] for e in documents[0]["traceEvents"] if e["name"].startswith("nccl"))
    for number, document in enumerate(documents):
        for e in document["traceEvents"]:
            if number or e["ts"] >= first_end:
                e["ts"] += LATE_US
            elif e["ts"] + e["dur"] >= first_end:
                e["dur"] += LATE_US
        paths[number].write_text(json.dumps(document))
    apart = analyse_job(tmp_path)
    late = range(1, GRID.ranks)
    assert [(f.rank, f.time_ns, f.names) for f in apart.quality] == [
        (rank, pytest.approx(LATE_US * 1_000, rel=0.01), ("rank 0",)) for rank in late
    ]
    assert all(finding.rule != "straggler" for finding in diagnose_traces(apart).findings)


def test_a_rank_that_is_late_inside_its_capture_is_waited_for(tmp_path: Path) -> None:
    late = _apart(tmp_path, rank=1, late_us=LATE_US, idle_before=True)
    assert late.quality == ()
    assert late.collectives is not None
    assert max(m.waiting_ns or 0 for m in late.collectives.instances) == pytest.approx(2 * LATE_US * 1_000, rel=0.01)
