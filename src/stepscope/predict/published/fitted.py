"""Which rows the shipped constants (:mod:`stepscope.predict.step.fitted`) were fitted on."""

from __future__ import annotations

import zlib

from stepscope.predict.published.rows import TrainingRow


def fitted_on(row: TrainingRow) -> bool:
    """Half of the groups of one source, model and number of GPUs, whole groups."""
    return zlib.crc32(f"{row.source}|{row.model}|{row.n_gpus}".encode()) % 2 == 0
