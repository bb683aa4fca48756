"""What ``stepscope demo`` does: a small matrix with traces, the collectives behind it, and the report of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cli.bench_run import run_plan
from stepscope.cli.commands.bench import Bench
from stepscope.cli.commands.report import Report
from stepscope.cli.console import out
from stepscope.cli.report_run import run as run_report
from stepscope.core.errors import ExitCode
from stepscope.launch.torchrun import require_torch
from stepscope.matrix.run_place import default_run_dir
from stepscope.matrix.session import make_plan

if TYPE_CHECKING:
    from stepscope.cli.commands.demo import Demo


def run(options: Demo) -> int:
    """Measure and report into one folder; the exit code of the first part that failed."""
    require_torch()
    folder, json = options.output or default_run_dir("demo"), options.json
    overrides = [] if options.data_dir is None else ["base.dataset=mnist", "base.dataset_options=null"]
    plan = make_plan("demo", overrides=overrides, data_dir=options.data_dir)
    trained = run_plan(plan, Bench(output=folder, profile=True), printed=not json)
    if trained == ExitCode.ALL_CELLS_FAILED:
        return trained
    if not json:
        out().print()
    reported = run_report(Report(paths=(folder,), output=folder / "report", title="stepscope demo", json=json))
    return trained or reported
