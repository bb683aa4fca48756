"""A run folder with known samples, rendered: what a user reads, letter by letter.

To renew after a wanted change: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``, then read the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden.agreed import agreed

from stepscope.diagnose.engine import diagnose
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.training import TrainingRun
from stepscope.report.render import terminal
from stepscope.report.summary import write_summary
from stepscope.report.views.runs import of_cells as build
from stepscope.results.open import load_evidence
from stepscope.results.run_figures import rows_csv, write_results
from stepscope.results.runs import Planned, build_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record

MS = 1_000_000
PLANS = {
    "one00000": Planned(num_parameters=1000, comm_bytes_per_step=0),
    "ddp00000": Planned(num_parameters=1000, comm_bytes_per_step=4000),
    "ddp11111": Planned(num_parameters=1000, comm_bytes_per_step=4000),
    "news0000": Planned(num_parameters=2000, comm_bytes_per_step=8000),
    "late0000": Planned(num_parameters=2000, comm_bytes_per_step=8000),
}


@pytest.fixture
def run(fakes: Any, tmp_path: Path) -> tuple[RunLayout, tuple[TrainingRun, ...]]:
    layout = RunLayout(tmp_path / "run")
    wobble = [0, 3, 1, 4, 2, 5, 1, 3, 0, 4, 2, 3]
    one = fakes.single("one00000")
    ddp = fakes.spec("ddp00000", strategy_options={"bucket_cap_mb": 1.0, "hook": "none"})
    lost = fakes.spec("ddp11111", strategy_options={"bucket_cap_mb": 25.0, "hook": "bf16"})
    text = {"workload": "text_classifier", "model": {}, "dataset": "ag_news", "steps": None}
    news = fakes.spec("news0000", **text, epochs=3, precision="amp_bf16", accumulation=2, micro_batch=16)
    late = fakes.spec(
        "late0000", **text, epochs=3, strategy="naive", precision="amp_bf16", accumulation=2, micro_batch=16
    )
    fakes.write_cell(
        layout, one,
        ranks=[[fakes.step(n, 20 * MS + w * MS // 10, exposed_comm_ns=0) for n, w in enumerate(wobble)]],
    )  # fmt: skip
    fakes.write_cell(
        layout, ddp,
        ranks=[[fakes.step(n, 12 * MS + r * MS + w * MS // 10) for n, w in enumerate(wobble)] for r in (0, 1)],
        notes=("labels are random",),
    )  # fmt: skip
    failed = CellStatus(
        cell_id="ddp11111", status="killed", failing_rank=1, failing_host="node-a", group_id="g2",
        reason="received SIGKILL in step 7 (the out-of-memory killer?)",
    )  # fmt: skip
    fakes.write_cell(layout, lost, ranks=[fakes.series([12 * MS] * 7)] * 2, summaries=False, status=failed)
    write_bytes(layout.group("g2").launcher_log, b"log\n")
    epochs = [
        fakes.epoch(0, 900 * MS, test_accuracy=0.7),
        fakes.epoch(1, 800 * MS, test_accuracy=0.8, train_loss=0.9),
        fakes.epoch(2, 820 * MS, test_accuracy=0.875, train_loss=0.5),
    ]
    steps = [fakes.step(n, 200 * MS + w * MS, epoch=n // 4, warmup=n < 3) for n, w in enumerate(wobble)]
    fakes.write_cell(layout, news, ranks=[steps, steps], epochs=[epochs, epochs], num_parameters=2000)
    rows = build_runs(layout, [one, ddp, lost, news, late], plans=PLANS)
    write_record(
        layout.environment,
        EnvironmentRecord(
            host="node-a", os="Linux", kernel="6.1", python="3.11.2", cpu_model="Example CPU", logical_cores=4,
            physical_cores=2, usable_cores=2, memory_bytes=8 * 2**30, memory_available_bytes=6 * 2**30, packages={},
            variables={}, scheduler=None, unavailable={"gpus": "no NVIDIA driver"},
        ),
    )  # fmt: skip
    write_record(
        layout.run,
        RunRecord(
            kind="bench", name="golden", matrix={"version": 1}, cells=tuple(run.run_id for run in rows),
            argv=("stepscope", "bench", "golden file.yaml"),
        ),
    )  # fmt: skip
    return layout, rows


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_terminal_table_reads_as_agreed(run: tuple[RunLayout, tuple[TrainingRun, ...]], width: int) -> None:
    agreed(f"summary/terminal-{width}.txt", terminal.render(build(run[1]), width=width).plain + "\n")


def test_the_summary_file_reads_as_agreed(run: tuple[RunLayout, tuple[TrainingRun, ...]]) -> None:
    layout, rows = run
    write_results(layout, rows)
    found = diagnose(load_evidence([layout.root])).findings
    write_summary(layout, rows, findings=found)
    agreed("summary/summary.md", layout.summary_md.read_text())


def test_the_csv_reads_as_agreed(run: tuple[RunLayout, tuple[TrainingRun, ...]]) -> None:
    layout, rows = run
    write_results(layout, rows)
    assert layout.results_csv.read_text() == rows_csv(rows)
    agreed("summary/results.csv", rows_csv(rows))
