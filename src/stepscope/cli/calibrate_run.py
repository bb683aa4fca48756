"""What ``stepscope calibrate`` does: read the rows of a comm run, fit them, write and show the calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.console import log, print_json
from stepscope.cli.findings import show_table
from stepscope.core.errors import DataError, UsageError
from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.predict.calibration import calibrate, machine_of
from stepscope.predict.line_fit import MIN_SIZES, MIN_SPAN
from stepscope.predict.step.measured import fit_machine
from stepscope.predict.step.run_fit import fit_rows
from stepscope.records import codec
from stepscope.records.calibration import CalibratedMachine, Calibration
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.charts import draw_charts
from stepscope.report.table import Table
from stepscope.report.views.predicted import build_steps, calibration_table
from stepscope.results.comm_rows import read_comm_rows
from stepscope.store.layout import ProfileLayout, RunLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import write_bytes

if TYPE_CHECKING:
    from stepscope.cli.commands.calibrate import Calibrate

FILE = "calib.json"


def _why_not(run: Path) -> str:
    if run.is_dir():
        return "it has neither run.json nor profile.json"
    return "it is a file" if run.exists() else "there is no such folder"


def run(options: Calibrate) -> int:
    """Write the calibration of a comm run and print it; returns the exit code. Raises StepscopeError."""
    run = options.run
    if _is_table(run):
        return _of_rows(options, run)
    if not any(file.is_file() for file in (ProfileLayout(run).record, RunLayout(run).run)):
        raise DataError(
            f"{run} is not a run folder",
            why=_why_not(run),
            fix="pass the folder that `stepscope comm` or `stepscope profile` printed, or a csv of training runs",
        )
    if ProfileLayout(run).record.is_file():
        rows, calibration = _of_profile(run)
    else:
        rows = read_comm_rows(run)
        calibration = calibrate(rows, run=str(run), machine=_machine(run))
    steps, unused = fit_machine(calibration)
    calibration = replace(calibration, steps=steps, skipped=(*calibration.skipped, *unused))
    tables = (calibration_table(calibration), *((build_steps(calibration),) if steps else ()))
    target = _write(options, calibration, options.output or run / FILE, tables)
    if options.charts:
        draw_charts(rows, RunLayout(run).report, calibration)
    log(f"{counted(len(calibration.fits), 'fit')} in {target}")
    return 0


def _of_profile(run: Path) -> tuple[tuple[CommRow, ...], Calibration]:
    """What the collectives of a profiled job cost it. Raises DataError, UsageError with the sizes that are missing."""
    from stepscope.cli.evidence import traces_of
    from stepscope.results.comm_costs import OF_A_JOB, SECTIONS, machine_of_traces, rows_of_traces
    from stepscope.traces.job import analyse_job
    from stepscope.traces.load import Wanted

    (folder,) = traces_of(str(run), None)
    summary = analyse_job(Path(folder), wanted=Wanted(sections=SECTIONS))
    rows = rows_of_traces(summary, name=str(run))
    try:
        found = calibrate(rows, run=str(run), machine=machine_of_traces(summary))
    except UsageError as error:
        sizes = "; ".join(f"{op} of {', '.join(map(format_size, each))}" for op, each in _sizes(rows).items())
        raise UsageError(
            f"{run}: {error.what}",
            why=f"this job sends {sizes}: a latency and a rate need {MIN_SIZES} sizes over a factor of {MIN_SPAN}",
            fix="stepscope predict --from uses what there is; stepscope comm -o COMM measures the network itself",
        ) from error
    fits = tuple(replace(fit, notes=(*fit.notes, OF_A_JOB)) for fit in found.fits)
    return rows, replace(found, fits=fits)


def _sizes(rows: Sequence[CommRow]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row.op, set()).add(row.size_bytes or 0)
    return {op: sorted(sizes) for op, sizes in found.items()}


def _write(options: Calibrate, calibration: Calibration, target: Path, tables: tuple[Table, ...]) -> Path:
    """Write the calibration, and print it as JSON or ``tables``; its file."""
    data = codec.encode(calibration)
    write_bytes(target, data)
    if options.json:
        print_json(data)
    else:
        for table in tables:
            show_table(table, folded=True)
    return target


def _is_table(path: Path) -> bool:
    """A csv, or a folder of them that is not a run."""
    if path.is_dir():
        return not RunLayout(path).run.exists() and any(path.glob("*.csv"))
    return path.suffix == ".csv" and path.exists()


def _of_rows(options: Calibrate, path: Path) -> int:
    if options.charts:
        raise UsageError("--charts needs a run of `stepscope comm`", why=f"{path} is a table of training runs")
    steps, skipped = fit_rows(path)
    nobody = CalibratedMachine(
        hosts=(), cpu_model=None, usable_cores=None, gpus=(), torch_version=None, backend_version=None
    )  # fmt: skip
    calibration = Calibration(run=str(path), machine=nobody, fits=(), steps=steps, skipped=skipped)
    folder = path if path.is_dir() else path.parent
    target = _write(options, calibration, options.output or folder / FILE, (build_steps(calibration),))
    log(f"corrections of {counted(len(steps), 'GPU')} in {target}")
    return 0


def _machine(run: Path) -> CalibratedMachine:
    environment = read_if_there(RunLayout(run).environment, EnvironmentRecord)
    if environment is None:
        raise DataError(
            f"{run} has no environment.json",
            why="a calibration must say which machine it holds for",
            fix="run `stepscope comm` again",
        )
    return machine_of(environment)
