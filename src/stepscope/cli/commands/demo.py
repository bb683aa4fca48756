"""``stepscope demo``: the shortest way to a first table of this machine."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, option, switch
from stepscope.core.errors import ExitCode


class Demo(Options):
    """Train a small model in every strategy on this machine, trace it, and report: two minutes, no GPU needed."""

    output: Path | None = option("Run folder; default: ./stepscope-runs/demo-TIME.", "DIR", "-o")
    data_dir: Path | None = option("Train on the MNIST files in this folder, not on synthetic data.", "DIR")
    json: bool = switch("One JSON document on stdout instead of the table.")


def run(options: Demo) -> int:
    """Measure and report into one folder; the exit code of the first part that failed."""
    from stepscope.cli.bench_run import run_plan
    from stepscope.cli.commands.bench import Bench
    from stepscope.cli.commands.report import Report
    from stepscope.cli.console import say
    from stepscope.cli.report_run import run as run_report
    from stepscope.launch.torchrun import require_torch
    from stepscope.matrix.run_folder import default_run_dir
    from stepscope.matrix.session import make_plan

    require_torch()
    folder, json = options.output or default_run_dir("demo"), options.json
    overrides = [] if options.data_dir is None else ["base.dataset=mnist", "base.dataset_options=null"]
    plan = make_plan("demo", overrides=overrides, data_dir=options.data_dir)
    trained = run_plan(
        plan, Bench(output=folder, profile=True), printed=not json, judged=False
    )  # the report judges all of it
    if trained == ExitCode.ALL_CELLS_FAILED:
        return trained
    if not json:
        say()
    reported = run_report(Report(paths=(folder,), output=folder / "report", title="stepscope demo", json=json))
    return trained or reported


COMMAND = Command(options=Demo, where="stepscope.cli.commands.demo", panel="Start here")
