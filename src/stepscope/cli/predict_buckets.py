"""``stepscope predict --buckets RUN``: which gradient bucket size, and the picture of the step it gives."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.console import log, out, print_document
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.predict.calibrated import machine_warnings
from stepscope.predict.calibration import machine_of
from stepscope.predict.overlap import Transport, measured_transport
from stepscope.predict.run_buckets import DEFAULT, advised, choose_buckets, measured_steps, naive_twin, pick_cell
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.cell_result import CellResult
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.render import terminal
from stepscope.report.views import bucket_choice, timeline
from stepscope.results.comm_rows import read_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell, read_if_there, read_run


def run(folder: Path, *, calibration: Calibration, cell_id: str | None, json: bool) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
    layout = RunLayout(folder)
    record = read_run(folder)
    if record.kind != "bench":
        raise UsageError(f"{folder} is a {record.kind} run", fix="--buckets takes a run folder of `stepscope bench`")
    cells = [read_cell(layout.cell(known)) for known in record.cells]
    cell = pick_cell(cells, cell_id)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    if environment is not None:
        for warning in machine_warnings(calibration, machine_of(environment)):
            log(f"warning: {warning}", "yellow")
    measured = measured_steps(cells, cell)
    choice = choose_buckets(
        cell,
        calibration,
        naive=naive_twin(cells, cell),
        transport=_transport(calibration, cell),
        also_mb=[float(way) for way in measured if way not in ("naive", DEFAULT)],
    )
    advice = advised(choice, measured)
    if json:
        steps = {way: step.value for way, step in measured.items()}
        plain = {"choice": codec.plain(choice), "measured": steps, "advice": codec.plain(advice)}
        print_document({**codec.headed("buckets/1"), **plain})
        return 0
    console = out()
    width = min(console.width, 120)
    for number, line in enumerate(bucket_choice.verdict(choice, advice)):
        console.print(line, style="bold" if number == 0 else None, soft_wrap=True)
    console.print(terminal.render(bucket_choice.build(choice, measured, advice), width=width), soft_wrap=True)
    console.print(f"\n{choice.strategy} with {choice.bucket_cap_mb:g} MiB, as predicted")
    console.print("\n".join(timeline.picture(choice.chosen.timeline, width=width)))
    return 0


def _transport(calibration: Calibration, cell: CellResult) -> Transport | None:
    """With slow-downs where the calibrated run measured overlap; None: the backend's lanes, nothing slowed."""
    folder = Path(calibration.run)
    try:
        return measured_transport(cell.spec.backend, read_comm_rows(folder))
    except StepscopeError:
        note = "overlap was not measured (`stepscope comm --overlap`): communication is assumed not to slow computation"
        log(f"note: {note}")
        return None
