"""What ``stepscope calibrate`` does: read the rows of a comm run, fit them, write and show the calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.blocks import print_block
from stepscope.cli.console import err, out, print_json
from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.predict.calibration import calibrate, machine_of
from stepscope.records import codec
from stepscope.records.calibration import Machine
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.figures import draw_charts
from stepscope.report.render import terminal
from stepscope.report.views.calibration import build
from stepscope.results.comm_rows import read_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import write_bytes

if TYPE_CHECKING:
    from stepscope.cli.commands.calibrate import Calibrate

FILE = "calib.json"


def run(options: Calibrate) -> int:
    """Write the calibration of a comm run and print it; returns the exit code. Raises StepscopeError."""
    run = options.run
    if not run.is_dir():
        raise DataError(
            f"{run} is not a run folder",
            why="there is no such folder" if not run.exists() else "it is a file",
            fix="pass the folder that `stepscope comm` printed",
        )
    rows = read_comm_rows(run)
    calibration = calibrate(rows, run=str(run), machine=_machine(run))
    target = options.output or run / FILE
    data = codec.encode(calibration)
    write_bytes(target, data)
    if options.charts:
        draw_charts(rows, RunLayout(run).report, calibration)
    if options.json:
        print_json(data)
    else:
        console = out()
        print_block(console, terminal.render(build(calibration), width=console.width))
    err().print(f"{counted(len(calibration.fits), 'fit')} in {target}", style="dim", soft_wrap=True)
    return 0


def _machine(run: Path) -> Machine:
    environment = read_if_there(RunLayout(run).environment, EnvironmentRecord)
    if environment is None:
        raise DataError(
            f"{run} has no environment.json",
            why="a calibration must say which machine it holds for",
            fix="run `stepscope comm` again",
        )
    return machine_of(environment)
