"""Data sets are read, checked and prepared before any rank starts: once, on no cell's time, and never by two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from stepscope.core.errors import StepscopeError
from stepscope.predict.specs import Specs, specs_of
from stepscope.records.cell import CellSpec


def prepare_data(
    cells: Iterable[CellSpec], *, data_dir: Path | None, cache_dir: Path, announce: Callable[[str], None]
) -> dict[str, StepscopeError]:
    """Fill the cache with the arrays that ``cells`` train on; cell id -> why its data cannot be used.

    Cells that share a data set, its options and the model's input share the work and the reason. announce: called
    with a data set's name before its files are read.
    """
    seen: dict[str, StepscopeError | None] = {}
    unusable = {}
    for cell in cells:
        specs = specs_of(cell)
        key = f"{cell.dataset} {specs.dataset_options.model_dump_json()} {specs.needs!r}"
        if key not in seen:
            seen[key] = _prepare(specs, data_dir, cache_dir, announce)
        if (error := seen[key]) is not None:
            unusable[cell.cell_id] = error
    return unusable


def _prepare(
    specs: Specs, data_dir: Path | None, cache_dir: Path, announce: Callable[[str], None]
) -> StepscopeError | None:
    dataset, options = specs.dataset, specs.dataset_options
    try:
        files = dataset.locate(options, data_dir)
        if files:  # without files there is nothing to check, and every rank draws its own arrays
            announce(dataset.key)
            dataset.prepare(options, specs.needs, files, cache_dir)
    except StepscopeError as error:
        return error
    return None
