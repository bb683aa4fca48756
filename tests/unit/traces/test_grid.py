"""A slow rank in a grid of ranks is named alone, with what the job takes without it; a sound grid has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.grids import Grid, length_us, write_grid

from stepscope.diagnose.engine import diagnose_traces
from stepscope.traces.job import analyse_job

GRIDS = [
    Grid(stages=2, replicas=3, schedule="gpipe", micro_batches=4, steps=3, slow={4: 1.5}, seed=1),
    Grid(tensor=2, stages=2, replicas=2, schedule="1f1b", micro_batches=4, steps=2, slow={6: 2.0}, seed=2),
    Grid(stages=4, replicas=2, schedule="interleaved", micro_batches=4, steps=3, slow={0: 1.7}, seed=3),
    Grid(tensor=4, replicas=2, micro_batches=2, steps=3, slow={5: 1.4}, seed=4),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.tensor}x{g.stages}x{g.replicas} {g.schedule}")
def test_a_slow_rank_is_named_alone_and_replayed_away(grid: Grid, tmp_path: Path) -> None:
    summary = analyse_job(write_grid(grid, tmp_path))
    assert summary.stragglers is not None
    (late,) = summary.stragglers.stragglers
    ((slow, factor),) = grid.slow.items()
    assert (late.rank, late.rule, late.cause) == (slow, "grid", "more compute")
    gain = 1_000 * (length_us(grid) - length_us(replace(grid, slow={})))
    assert late.saved_ns == pytest.approx(gain, rel=0.1)
    findings = diagnose_traces(summary).findings
    assert findings[0].rule == "straggler"
    assert findings[0].ranks == (slow,)
    assert all(finding.rule != "pipeline-imbalance" for finding in findings)
    assert factor > 1


def test_two_slow_ranks_that_hide_each_other_share_what_both_cost(tmp_path: Path) -> None:
    grid = Grid(stages=2, replicas=4, schedule="1f1b", micro_batches=4, steps=3, slow={1: 2.0, 6: 2.0}, seed=5)
    summary = analyse_job(write_grid(grid, tmp_path))
    assert summary.stragglers is not None
    late = summary.stragglers.stragglers
    assert {s.rank for s in late} == {1, 6}
    gain = 1_000 * (length_us(grid) - length_us(replace(grid, slow={})))
    assert sum(s.saved_ns for s in late) == pytest.approx(gain, rel=0.1)
    findings = diagnose_traces(summary).findings
    assert [f.ranks for f in findings[:2]] in ([(1,), (6,)], [(6,), (1,)])
    assert all(not line.startswith("stage") or "limits" not in line for f in findings for line in f.evidence)


def test_two_slow_ranks_of_one_stage_are_both_named(tmp_path: Path) -> None:
    grid = Grid(stages=2, replicas=4, micro_batches=4, steps=3, slow={4: 1.8, 6: 1.8}, seed=7)
    report = analyse_job(write_grid(grid, tmp_path)).stragglers
    assert report is not None
    assert {s.rank for s in report.stragglers} == {4, 6}


def test_a_rank_that_is_late_before_the_first_work_of_each_step_is_named(tmp_path: Path) -> None:
    """What comes before the first collective of the capture is not known, so the first step does not count."""
    grid = Grid(stages=4, replicas=2, micro_batches=4, steps=5, head_us={0: 9_000.0}, seed=8)
    report = analyse_job(write_grid(grid, tmp_path)).stragglers
    assert report is not None
    assert [(s.rank, s.steps) for s in report.stragglers] == [(0, 4)]


def test_a_late_rank_is_no_part_of_the_bubble(tmp_path: Path) -> None:
    grid = Grid(tensor=2, stages=4, schedule="gpipe", micro_batches=4, steps=3, slow={2: 2.0}, seed=6)
    findings = {f.rule: f for f in diagnose_traces(analyse_job(write_grid(grid, tmp_path))).findings}
    late, bubble = findings["straggler"].stake_fraction, findings["pipeline-bubble"].stake_fraction
    assert late is not None
    assert bubble is not None
    # What is left is the schedule's own 3 / (4 + 3), of a step without the late rank.
    assert bubble == pytest.approx(3 / 7 * (1 - late), abs=0.05)
    assert findings["pipeline-bubble"].ranks == ()


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.tensor}x{g.stages}x{g.replicas} {g.schedule}")
def test_a_sound_grid_has_no_late_rank(grid: Grid, tmp_path: Path) -> None:
    summary = analyse_job(write_grid(replace(grid, slow={}), tmp_path))
    assert summary.stragglers is not None
    assert summary.stragglers.stragglers == ()
    assert all(finding.rule != "straggler" for finding in diagnose_traces(summary).findings)


def test_stages_of_one_rank_have_no_straggler_but_a_larger_stage(tmp_path: Path) -> None:
    """The reduction of the gradients' norm ends last on the first stage, whoever is slow."""
    grid = Grid(stages=4, schedule="1f1b", micro_batches=8, steps=3, slow={2: 2.0})
    summary = analyse_job(write_grid(grid, tmp_path))
    assert summary.stragglers is not None
    assert (summary.stragglers.stragglers, summary.stragglers.pattern) == ((), "alone")
    finding = diagnose_traces(summary).findings[0]
    assert (finding.rule, finding.ranks) == ("pipeline-imbalance", (2,))


@pytest.mark.parametrize("both", [False, True])
def test_messages_that_name_one_side_are_paired(both: bool, tmp_path: Path) -> None:
    grid = Grid(stages=2, replicas=2, micro_batches=4, steps=2, peers_on_both=both)
    collectives = analyse_job(write_grid(grid, tmp_path)).collectives
    assert collectives is not None
    messages = [m for m in collectives.instances if m.op == "send_recv"]
    assert len(messages) == 2 * 2 * 4 * 2  # pipelines, steps, micro-batches, directions
    assert all(len(m.ranks) == 2 and m.complete for m in messages)
    waits = {r.rank for m in messages for r in m.ranks if r.waiting_ns and r.waiting_ns > 100_000}
    assert waits == {0, 1, 2, 3}
    assert all(
        m.transfer_ns == pytest.approx(20_000, abs=2_000) for m in messages if max(r.waiting_ns or 0 for r in m.ranks)
    )
