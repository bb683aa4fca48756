"""``stepscope calibrate``: what collectives cost, and how far measured steps are from the step model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted, grouped

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration
    from stepscope.records.comm import CommRow
    from stepscope.store.layout import RunLayout


class Calibrate(Options):
    """Fit what collectives cost on this machine: latency, rate, and a curve where no straight line holds.

    From a profiled job: the fit is to the job's own collectives, which need four different sizes. From a table of measured
    training runs (csv): factors that correct the step model for that GPU. The result, calib.json, is for `--calib` of
    `predict` and `plan`.
    """

    run: Path = argument(
        "Run folder of `stepscope comm` or of `stepscope profile`, or a table of training runs (csv).", "RUN|CSV"
    )
    output: Path | None = option("Output file; default: RUN/calib.json.", "FILE", "-o")
    charts: bool = switch("Also draw predicted beside measured times (PNG) into RUN/report.")
    json: bool = switch("Print the calibration as one JSON document.")


def run(options: Calibrate) -> int:
    """Write the calibration and print it; the exit code. Raises StepscopeError."""
    from stepscope.cli.console import log, print_json
    from stepscope.cli.findings import show_table
    from stepscope.records.codec import encode
    from stepscope.report.charts import draw_charts
    from stepscope.report.views.predicted import build_steps, calibration_table
    from stepscope.store.layout import ProfileLayout, RunLayout
    from stepscope.store.writer import write_bytes

    path, layout = options.run, RunLayout(options.run)
    of_table = any(path.glob("*.csv")) and not layout.is_there if path.is_dir() else path.suffix == ".csv"
    rows: tuple[CommRow, ...] = ()
    if of_table and path.exists():
        if options.charts:
            raise UsageError("--charts needs a run of `stepscope comm`", why=f"{path} is a table of training runs")
        calibration = _of_rows(path)
    elif ProfileLayout(path).is_there:
        rows, calibration = _of_profile(path)
    elif layout.is_there:
        rows, calibration = _of_comm(layout)
    else:
        why = "it is a file" if path.is_file() else "there is no such folder"
        raise DataError(
            f"{path} is not a run folder",
            why="it has neither run.json nor profile.json" if path.is_dir() else why,
            fix="pass the folder that `stepscope comm` or `stepscope profile` printed, or a csv of training runs",
        )
    target = options.output or (path if path.is_dir() else path.parent) / "calib.json"
    data = encode(calibration)
    write_bytes(target, data)
    if options.json:
        print_json(data)
    else:
        tables = [calibration_table(calibration)] if rows else []
        for table in [*tables, *([build_steps(calibration)] if calibration.steps else [])]:
            show_table(table, folded=True)
    if options.charts:
        draw_charts(rows, layout.report, calibration)
    fitted = (
        counted(len(calibration.fits), "fit") if rows else f"corrections of {counted(len(calibration.steps), 'GPU')}"
    )
    log(f"{fitted} in {target}")
    return 0


def _of_rows(path: Path) -> Calibration:
    """Return corrections of the step model from measured training runs, on whatever machines."""
    from stepscope.predict.step.run_fit import fit_rows
    from stepscope.records.calibration import CalibratedMachine, Calibration

    steps, skipped = fit_rows(path)
    nobody = CalibratedMachine(
        hosts=(), cpu_model=None, usable_cores=None, gpus=(), torch_version=None, backend_version=None
    )
    return Calibration(run=str(path), machine=nobody, fits=(), steps=steps, skipped=skipped)


def _of_comm(layout: RunLayout) -> tuple[tuple[CommRow, ...], Calibration]:
    """Return what collectives cost on the machine that measured them."""
    from stepscope.predict.calibration import calibrate, machine_of
    from stepscope.records.environment import EnvironmentRecord
    from stepscope.results.comm_rows import read_comm_rows
    from stepscope.store.reader import read_if_there

    rows, environment = read_comm_rows(layout.root), read_if_there(layout.environment, EnvironmentRecord)
    if environment is None:
        raise DataError(
            f"{layout.root} has no environment.json",
            why="a calibration must say which machine it holds for",
            fix="run `stepscope comm` again",
        )
    return rows, _with_steps(calibrate(rows, run=str(layout.root), machine=machine_of(environment)))


def _of_profile(run: Path) -> tuple[tuple[CommRow, ...], Calibration]:
    """Return what the collectives of a profiled job cost it.

    Raises DataError, UsageError with the sizes that are missing.
    """
    from stepscope.api.traces import traces_of
    from stepscope.cli.console import log
    from stepscope.core.units import format_size
    from stepscope.predict.calibration import calibrate
    from stepscope.predict.line_fit import MIN_SIZES, MIN_SPAN
    from stepscope.results.comm_costs import OF_A_JOB, SECTIONS, machine_of_traces, rows_of_traces
    from stepscope.traces.job import analyse_job
    from stepscope.traces.sections import Wanted

    (folder,) = traces_of(str(run), None, log)
    summary = analyse_job(Path(folder), Wanted(sections=SECTIONS))
    rows = rows_of_traces(summary, name=str(run))
    try:
        calibration = calibrate(rows, run=str(run), machine=machine_of_traces(summary))
    except UsageError as error:
        sent = {
            op: sorted({row.size_bytes or 0 for row in op_rows})
            for op, op_rows in grouped(rows, lambda r: r.op).items()
        }
        sizes = "; ".join(f"{op} of {', '.join(map(format_size, op_sizes))}" for op, op_sizes in sent.items())
        raise UsageError(
            f"{run}: {error.what}",
            why=f"this job sends {sizes}: a latency and a rate need {MIN_SIZES} sizes over a factor of {MIN_SPAN}",
            fix="stepscope predict --from uses what there is; stepscope comm -o COMM measures the network itself",
        ) from error
    fits = tuple(replace(fit, notes=(*fit.notes, OF_A_JOB)) for fit in calibration.fits)
    return rows, _with_steps(replace(calibration, fits=fits))


def _with_steps(calibration: Calibration) -> Calibration:
    """Add what the same measurements say of the step model's constants, where they are of GPUs that the table knows."""
    from stepscope.predict.step.measured import fit_machine

    steps, unused = fit_machine(calibration)
    return replace(calibration, steps=steps, skipped=(*calibration.skipped, *unused))


COMMAND = Command(options=Calibrate, where="stepscope.cli.commands.calibrate", panel="Predict")
