"""From one step, night or run on steps take longer: named where it was planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bench_evidence import bench, made
from tests.borders import megatron_log
from tests.evidence import evidence, rate, run, step

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.step_time_change import RULE
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.records.nouns import Measured
from stepscope.records.training import StepChange
from stepscope.results.evidence import Evidence, Source
from stepscope.results.open import load_evidence


def nightly(folder: Path, *times_ms: float) -> Evidence:
    """Rows of one kind on the days from the first of May on."""
    rows = [f"2025-05-{i:02d},{i:07d},8,256,{ms}\n" for i, ms in enumerate(times_ms, 1)]
    (folder / "results.csv").write_text("date,commit,world_size,global_batch,step_time_ms\n" + "".join(rows))
    return load_evidence([folder / "results.csv"])


def fired(outcome: object) -> Finding:
    assert isinstance(outcome, tuple), outcome
    (found,) = outcome
    return found


def test_the_step_from_which_a_log_is_slower_is_named(tmp_path: Path) -> None:
    found = fired(check(RULE, megatron_log(tmp_path, *[1000.0] * 59, *[1300.0] * 41)))
    assert found.title == "steps take 30% longer from step 60 on"
    assert found.evidence[0] == "medians: 1.00 s before, 1.30 s from step 60 on; 41% of the logged steps come after"
    assert found.severity == "problem"
    assert found.stake_fraction == pytest.approx(0.41 * (1 - 1 / 1.3), abs=0.01)


def test_a_log_that_became_faster_is_quiet_and_says_so(tmp_path: Path) -> None:
    outcome = check(RULE, megatron_log(tmp_path, *[1000.0] * 50, *[800.0] * 50))
    assert isinstance(outcome, Quiet)
    assert outcome.looked_at.endswith("steps take 20% less time from step 51 on")


def test_one_level_is_quiet_and_few_steps_are_skipped(tmp_path: Path) -> None:
    assert check(RULE, megatron_log(tmp_path, *[1000.0] * 60)) == Quiet(
        rule=RULE.name, looked_at="the logged steps stay on one level"
    )
    assert isinstance(check(RULE, evidence(run("a", step_ns=step(10, n=20)))), Skipped)


def test_the_night_from_which_rows_are_slower_is_named_with_its_commit(tmp_path: Path) -> None:
    found = fired(check(RULE, nightly(tmp_path, 100, 101, 99, 100.5, 100.2, 119, 118, 120, 119.5)))
    assert found.title == "steps take 19% longer since 2025-05-06"
    assert "commit 0000005 before, commit 0000006 from there" in found.evidence
    assert "2025-05-05 and 2025-05-06" in found.advice[0].text


@pytest.mark.parametrize("times", [(100, 101, 99, 119, 120), (100, 101, 99, 100.5, 101, 99.2, 100)])
def test_few_nights_and_even_ones_name_none(tmp_path: Path, times: tuple[float, ...]) -> None:
    assert not isinstance(check(RULE, nightly(tmp_path, *times)), tuple)


def test_the_run_folder_from_which_all_cells_are_slower_is_named_once() -> None:
    sources, cells = [], []
    for number, level in enumerate((1.0, 1.01, 0.99, 1.0, 1.02, 1.25, 1.24, 1.26, 1.25, 1.27), 1):
        path = Path(f"results/nightly-{number}")
        sources.append(Source(path=path, kind="bench", created=f"2026-11-{number:02}T03:00:00Z"))
        for cell in bench(*(made(f"c{n}", world_size=2 + n) for n in range(3))).cells:
            cells.append(_slower(cell, path, level * (1 + 0.001 * (number % 3))))
    runs = tuple(cell.run for cell in cells)
    found = fired(check(RULE, Evidence(sources=tuple(sources), cells=tuple(cells), runs=runs)))
    assert found.title == "steps take 25% longer since nightly-6 (2026-11-06)"
    assert found.advice[0].command == "stepscope compare results/nightly-5 results/nightly-6"
    assert found.subject == "all 3 cells"


def _slower(cell: Any, path: Path, level: float) -> Any:
    from dataclasses import replace

    timed = replace(step(100), value=1e8 * level)
    return replace(cell, run=replace(cell.run, run_id=f"{path.name}/{cell.cell_id}", source=str(path), step_ns=timed))


def test_a_rate_that_falls_is_told_without_times() -> None:
    change = StepChange(step=400, ratio=1.25, share=0.5)
    found = fired(check(RULE, evidence(run("a", samples_per_s=rate(100, n=100), step_change=change))))
    assert found.evidence[0].startswith("medians: the logged rate is 1/1.25 of the one before")


def test_days_of_steps_samples_and_epochs_are_series_of_their_own() -> None:
    """Nine days of one pace: the last four state the time of an epoch alone, which is no slower step."""
    rate_runs = [run(f"r{day}", samples_per_s=rate(100), settings={"date": f"2025-05-{day:02}"}) for day in range(1, 6)]
    epoch_runs = [
        run(f"e{day}", epoch_ns=Measured(value=60e9), settings={"date": f"2025-05-{day:02}"}) for day in range(6, 10)
    ]
    assert not isinstance(check(RULE, evidence(*rate_runs, *epoch_runs)), tuple)
    slower = [run(f"s{day}", samples_per_s=rate(50), settings={"date": f"2025-05-{day:02}"}) for day in range(6, 10)]
    assert "100% longer since 2025-05-06" in fired(check(RULE, evidence(*rate_runs, *slower))).title
