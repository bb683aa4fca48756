"""Reading ``calib.json``."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.store.reader import read_bytes


def read_calibration(file: Path) -> Calibration:
    """Raises DataError when there is none, or one without a curve to read times from."""
    try:
        data = read_bytes(file)
    except DataError as error:
        raise DataError(error.what, why=error.why, fix="`stepscope calibrate RUN` writes one") from error
    if file.suffix == ".jsonl":
        raise DataError(
            f"{file} is not a calibration",
            why="it holds a run's results",
            fix=f"`stepscope calibrate {file.parent}` makes {file.parent / 'calib.json'}",
        )
    calibration = codec.decode(data, Calibration, source=str(file))
    for number, fit in enumerate(calibration.fits, start=1):
        if not fit.curve.knots or any(knot.time_ns <= 0 for knot in fit.curve.knots):
            raise DataError(
                f"{file}: fit {number} ({fit.op} on {fit.world_size} ranks) has no curve",
                why="its points are missing, or have no time",
                fix="`stepscope calibrate RUN` writes it again",
            )
    return calibration
