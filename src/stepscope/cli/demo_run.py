"""What ``stepscope demo`` does: a small matrix with traces, the collectives behind it, and the report of both."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.bench_run import run_plan
from stepscope.cli.comm_options import CommOptions
from stepscope.cli.comm_run import run_comm
from stepscope.cli.console import err, out
from stepscope.cli.evidence_options import EvidenceOptions
from stepscope.cli.report_run import ALL_FORMATS, Request
from stepscope.cli.report_run import run as run_report
from stepscope.cli.run_place import default_run_dir
from stepscope.core.errors import ExitCode
from stepscope.matrix.session import make_plan

COLLECTIVES = CommOptions(ops="all_reduce,all_gather", sizes="1K:4M:8", ranks="2", budget="1s")
"""A few seconds: from what latency decides to what bandwidth decides."""


def run(*, output: Path | None, data_dir: Path | None, json: bool) -> int:
    """Measure and report into one folder; the exit code of the first part that failed."""
    folder = output or default_run_dir("demo")
    overrides = [] if data_dir is None else ["base.dataset=mnist", "base.dataset_options=null"]
    plan = make_plan("demo", overrides=overrides, data_dir=data_dir)
    trained = run_plan(plan, output=folder, json=False, profile=True, printed=not json)
    if trained == ExitCode.ALL_CELLS_FAILED:
        return trained
    err().print("\nthe collectives behind these steps", style="bold")
    swept = run_comm(
        COLLECTIVES,
        output=folder / "comm",
        plan=False,
        charts=False,
        format_="table",
        force=False,
        json=False,
        printed=False,
    )
    paths = (folder,) if swept == ExitCode.ALL_CELLS_FAILED else (folder, folder / "comm")
    if not json:
        out().print()
    reported = run_report(
        Request(
            evidence=EvidenceOptions(paths=paths),
            output=folder / "report",
            formats=ALL_FORMATS,
            datasets=(),
            title="stepscope demo",
            json=json,
        )
    )
    return trained or swept or reported
