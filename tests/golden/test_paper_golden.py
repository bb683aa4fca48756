"""Tables of training runs and the text of a report, letter by letter.

To renew after a wanted change: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``, then read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import evidence
from tests.golden.agreed import agreed
from tests.training_records import everything, imported, study

from stepscope import __version__
from stepscope.records.finding import Advice, Diagnosis, Finding, Quiet, Skipped
from stepscope.report.charts import charts_of
from stepscope.report.files import write_tables

DIAGNOSIS = Diagnosis(
    findings=(
        Finding(
            rule="quality-lost",
            severity="problem",
            title="4 ranks reach 73.5% accuracy, 1 rank 79.0%",
            evidence=("the same number of epochs: 10", "3.42x per epoch"),
            stake_fraction=None,
            confidence="measured",
            advice=(Advice(text="scale the learning rate with the global batch"),),
            subject="transformer on IMDB",
        ),
        Finding(
            rule="poor-overlap",
            severity="warning",
            title="25% of the step is communication that nothing hides",
            evidence=("3.00 ms of 12.0 ms",),
            stake_fraction=0.25,
            confidence="measured",
            advice=(Advice(text="try smaller buckets", command="stepscope bench --preset bucket-size"),),
        ),
    ),
    skipped=(Skipped(rule="straggler", reason="no trace was given", command="stepscope bench MATRIX.yaml --profile"),),
    quiet=(Quiet(rule="noisy-measurement", looked_at="spread 1%, limit 10%"),),
)


FILES = (
    "summary_table.tex", "scaling.tex", "findings.tex", "summary_table.md", "comprehensive_summary.csv",
    "performance_report.txt",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_paper_files_read_as_agreed(tmp_path: Path, name: str) -> None:
    paths = write_tables(evidence(*study(), *imported()), DIAGNOSIS, tmp_path)
    assert name in {path.name for path in paths}
    agreed(f"paper/{name}", (tmp_path / name).read_text().replace(__version__, "VERSION"))


def test_charts_are_described_as_agreed() -> None:
    """Charts of collectives have their own."""
    records = {**everything(), "rows": None, "calibration": None}
    found = {f.stem: {"caption": f.caption, **described_alone(f.spec)} for f in charts_of(records)[0]}
    agreed("paper/charts.json", json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def described_alone(spec: dict[str, Any]) -> dict[str, Any]:
    """Without what all charts have in common."""
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
