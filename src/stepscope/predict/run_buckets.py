"""The bucket size for a cell that has run: its backward profile, a calibration, and what both slow each other."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.calibrated import Asked, time_of
from stepscope.predict.promise import promise_of
from stepscope.predict.timeline import best_bucket, slowest_of
from stepscope.predict.transport import Transport
from stepscope.records.backward import BackwardProfile
from stepscope.records.calibration import Calibration
from stepscope.records.cell_result import CellResult
from stepscope.records.timeline import BucketChoice

BUCKETED = ("ddp", "bucketed")


def choose_buckets(
    cell: CellResult,
    calibration: Calibration,
    *,
    naive: CellResult | None = None,
    transport: Transport | None = None,
) -> BucketChoice:
    """Which bucket size a timeline recommends for ``cell`` (ddp or bucketed, any size).

    naive: the same cell with ``naive``, for its own backward profile. transport: None: the backend's, nothing slowed.
    No step time of any cell is used. Raises DataError for a cell without a profile.
    """
    spec = cell.spec
    promise = promise_of(spec)
    asked = Asked(backend=spec.backend, network=spec.network)

    def comm_time(op: str, size_bytes: int) -> float:
        return time_of(calibration, op, size_bytes, spec.world_size, asked=asked).time_ns

    options = {key: value for key, value in spec.strategy_options.items() if key != "bucket_cap_mb"}
    return best_bucket(
        profile_of(cell),
        promise.facts,
        promise.setting,
        comm_time,
        strategy=spec.strategy,
        options=options,
        transport=transport,
        naive_profile=None if naive is None else profile_of(naive),
    )


def profile_of(cell: CellResult) -> BackwardProfile:
    """The slowest rank's, at every point. Raises DataError for a cell that has none."""
    profiles = [summary.backward for summary in cell.summaries if summary.backward is not None]
    if not profiles:
        raise DataError(
            f"cell {cell.spec.cell_id} has no backward profile",
            why="it did not finish, or an earlier stepscope measured it",
            fix="run it again with this version: `stepscope bench`",
        )
    return slowest_of(profiles)


def pick_cell(cells: Sequence[CellResult], cell_id: str | None) -> CellResult:
    """The cell asked for, or the only one with buckets and several ranks. UsageError lists them when it is not clear."""
    able = [c for c in cells if c.spec.strategy in BUCKETED and c.spec.world_size > 1]
    if cell_id is not None:
        able = [c for c in able if c.spec.cell_id == cell_id]
    if not able:
        raise UsageError(
            "there is no cell with buckets" if cell_id is None else f"cell {cell_id} has no buckets",
            why=f"only {' and '.join(BUCKETED)} on 2 ranks or more have them",
            fix="name a run of `stepscope bench` with such a cell",
        )
    # Cells that differ in the size alone ask for the same advice.
    kinds = {_but_for_size(c): c for c in reversed(able)}
    if len(kinds) > 1:
        raise UsageError(
            f"{len(kinds)} kinds of cells have buckets",
            fix=f"add --cell with one of {', '.join(c.spec.cell_id for c in kinds.values())}",
        )
    return next(iter(kinds.values()))


def naive_twin(cells: Sequence[CellResult], cell: CellResult) -> CellResult | None:
    """The finished cell that differs from ``cell`` in being ``naive``."""
    return next(
        (
            other
            for other in cells
            if other.spec.strategy == "naive"
            and same_work(other, cell)
            and any(s.backward for s in other.summaries)
        ),
        None,
    )


def same_work(cell: CellResult, other: CellResult) -> bool:
    """Whether two cells train the same model in the same way, strategies apart."""
    return _work(cell) == _work(other)


def _work(cell: CellResult) -> str:
    spec = cell.spec
    return repr(
        (spec.workload, dict(spec.model), spec.world_size, spec.micro_batch, spec.precision, spec.accumulation,
         spec.network, dict(spec.env))
    )  # fmt: skip


def _but_for_size(cell: CellResult) -> str:
    options = {key: value for key, value in cell.spec.strategy_options.items() if key != "bucket_cap_mb"}
    return f"{_work(cell)} {cell.spec.strategy} {options!r}"
