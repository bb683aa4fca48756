"""Ranks from the names of files: each alone, or all side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text, write_job
from tests.trace_layout import write

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose_traces
from stepscope.results.job_folder import job_of
from stepscope.traces.discover import candidates
from stepscope.traces.file_names import rank_from_name, ranks_by_name
from stepscope.traces.job import analyse_captures


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["worker_rank[0].1736000123.pt.trace.json.gz", "worker_rank[1].1736000123.pt.trace.json.gz"], [0, 1]),
        (["1736000000.42-TP-0.trace.json.gz", "1736000000.42-TP-3.trace.json.gz"], [0, 3]),
        (["x-TP-0-EP-0.json", "x-TP-1-EP-1.json"], [0, 1]),
        (["x-TP-0-PP-0.json", "x-TP-1-PP-0.json", "x-TP-0-PP-1.json", "x-TP-1-PP-1.json"], [0, 1, 2, 3]),
        (["dp0_tp0.json", "dp1_tp0.json", "dp0_tp1.json", "dp1_tp1.json"], [0, 2, 1, 3]),
        (["dp0_tp0_rank4.17590000123.pt.trace.json", "dp0_tp1_rank5.17590000123.pt.trace.json"], [4, 5]),
        (["trace_0.json", "trace_1.json", "trace_2.json"], [0, 1, 2]),
        (["trace-h100-0.json", "trace-h100-1.json"], [0, 1]),
        (["r0-t.json", "r7-t.json"], [0, 7]),
        (["node0/gpu0/t.json", "node0/gpu1/t.json", "node1/gpu0/t.json", "node1/gpu1/t.json"], [0, 1, 2, 3]),
        (["gpu0/t.json", "gpu2/t.json"], [0, 2]),
        (["slurm-812.0/t.json", "slurm-812.3/t.json"], [0, 3]),
        (["local0_global2.json", "local1_global3.json"], [2, 3]),
        (["node_rank1_local_rank0.json", "node_rank0_local_rank1.json", "node_rank0_local_rank0.json",
          "node_rank1_local_rank1.json"], [2, 1, 0, 3]),
        (["h_57.17360000123.pt.trace.json", "h_61.17360000124.pt.trace.json"], [0, 1]),
        (["n2_57.17360000123.pt.trace.json", "n1_61.17360000124.pt.trace.json"], [1, 0]),
        (["node1_9.17360000123.pt.trace.json", "node1_10.17360000124.pt.trace.json", "node2_8.17360000123.pt.trace.json"],
         [0, 1, 2]),
        (["node17.40123.pt.trace.json", "node17.40130.pt.trace.json", "node18.40123.pt.trace.json"], [0, 1, 2]),
        (["trace.node17.40124.json", "trace.node17.40123.json"], [1, 0]),
        (["bs2048_8.json", "bs2048_9.json"], [8, 9]),
        (["r0_step10.json", "r1_step10.json", "r0_step20.json", "r1_step20.json"], [0, 1, 0, 1]),
        (["trace_step10.json", "trace_step20.json"], [None, None]),
        (["part0of2.json", "part1of2.json"], [None, None]),
        (["a_1736000123.json", "a_1736009123.json"], [None, None]),
        (["a.json", "b.json"], [None, None]),
    ],
)  # fmt: skip
def test_names_side_by_side(names: list[str], ranks: list[int | None]) -> None:
    assert [each.rank for each in ranks_by_name([Path(name) for name in names]).values()] == ranks


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json", 3), ("Rank(2).json", 2), ("rank=1.json", 1), ("traceRank4.json", 4), ("x-TP-3.json", 3),
        ("rank34of300.json", 34), ("trace_rank_0_of_8.json", 0), ("ddp_rank1.json", 1), ("profile_gpu2.json", 2),
        ("a/rank3/trace.json", 3), ("frank3.json", None), ("trace_5.json", None), ("x-TP-1-PP-1.json", None),
        ("node2/trace.json", None), ("h_57.17360000123.pt.trace.json", None),
    ],
)  # fmt: skip
def test_a_name_alone(name: str, rank: int | None) -> None:
    assert rank_from_name(Path(name)) == rank


def test_folders_of_devices_are_those_that_count_from_zero(tmp_path: Path) -> None:
    """``gpu4`` beside ``gpu2`` may be a job on four."""
    for name in ("job/node0/gpu0", "job/node0/gpu1", "sweep/gpu2", "sweep/gpu4", "plain/0", "plain/1"):
        write(tmp_path / name / "t.json", "{}")
    assert len(candidates([tmp_path / "job"])[0]) == 2
    assert len(candidates([tmp_path / "plain"])[0]) == 2
    with pytest.raises(DataError, match="no trace files"):
        candidates([tmp_path / "sweep"])
    assert job_of(Path("job/node0/gpu1/t.json"), tmp_path) == ("job", None)
    assert job_of(Path("sweep/gpu4/t.json"), tmp_path) == ("sweep/gpu4", None)


def test_settings_beside_folders_of_ranks_change_nothing(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path, name="rank{}/trace".format)
    (folder / "run.json").write_text('{"lr": 1}')
    (summary,) = analyse_captures(folder).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 1]


@pytest.mark.parametrize("recorded", [True, False])
def test_ranks_that_are_missing_are_a_fact(tmp_path: Path, recorded: bool) -> None:
    job = build(world=4, steps=6, late={2: 300_000})
    for rank in (0, 1, 3):
        write(tmp_path / f"rank{rank}.json", rank_text(job, rank, layout="kineto" if recorded else "bare"))
    (summary,) = analyse_captures(tmp_path).values()
    (fact,) = [fact for fact in summary.quality if fact.kind == "missing-ranks"]
    assert (fact.count, fact.of, fact.names, fact.matters) == (1, 4, ("rank 2",), False)
    assert any("rank 2" in note.text and note.kind == "missing" for note in summary.notes)
    exposed = [f for f in diagnose_traces(summary).findings if f.rule == "exposed-communication"]
    assert exposed
    assert not any("the rest transfer" in line for finding in exposed for line in finding.evidence)
    assert any("waiting for ranks without a trace" in line for finding in exposed for line in finding.evidence)


def test_ranks_by_process_ids_are_said_to_be_assumed(tmp_path: Path) -> None:
    for rank in range(2):
        write(
            tmp_path / f"h_{40 + rank}.173600000000{rank}.pt.trace.json", rank_text(build(world=2), rank, layout="bare")
        )
    (summary,) = analyse_captures(tmp_path).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 1]
    assert all("order of hosts and process ids" in p.notes[0].text for p in summary.ranks)
