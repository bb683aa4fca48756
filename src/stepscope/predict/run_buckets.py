"""The bucket size for a cell that has run: its backward profile, a calibration, and what both slow each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import grouped, named
from stepscope.predict.calibrated import FitWanted, time_of
from stepscope.predict.overlap import Transport, link_share, transport_of
from stepscope.predict.specs import specs_of
from stepscope.predict.timeline import CANDIDATES_MB, TIE, CommTime, best_bucket, slowest_of, step_timeline
from stepscope.records.calibration import Calibration
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Measured
from stepscope.records.prediction import BackwardProfile, BucketAdvice, BucketChoice, Timeline
from stepscope.records.samples import CellResult
from stepscope.stats.measured import step_of

BUCKETED = ("ddp", "bucketed")
DEFAULT = "default"
"""The way of a cell that names no bucket size."""


def choose_buckets(
    cell: CellResult,
    calibration: Calibration,
    *,
    naive: CellResult | None = None,
    transport: Transport | None = None,
    also_mb: Sequence[float] = (),
) -> BucketChoice:
    """Return which bucket size a timeline recommends for ``cell`` (ddp or bucketed, any size).

    naive: the same cell with ``naive``, for its own backward profile. transport: None: the backend's, nothing slowed.
    also_mb: sizes (MiB) to choose from beside the usual ones.
    No step time of any cell is used. Raises DataError for a cell without a profile.
    """
    spec = cell.spec
    specs = specs_of(spec)
    return best_bucket(
        profile_of(cell),
        specs.facts,
        specs.setting,
        _comm_time(spec, calibration),
        strategy=spec.strategy,
        options=spec.strategy_options,
        candidates_mb=(*CANDIDATES_MB, *also_mb),
        transport=transport,
        naive_profile=None if naive is None else profile_of(naive),
    )


def own_timeline(cell: CellResult, calibration: Calibration, *, transport: Transport | None = None) -> Timeline:
    """Predict the step that the collectives of ``cell``, as its strategy launches them, allow: what is exposed, what hides.

    transport: None: the backend's, nothing slowed. Raises DataError for a cell without a profile, UsageError for
    collectives that were not calibrated.
    """
    spec = cell.spec
    return step_timeline(
        profile_of(cell),
        specs_of(spec).comm_plan,
        _comm_time(spec, calibration),
        transport=transport or transport_of(spec.backend),
        link=lambda op: link_share(op, spec.world_size, backend=spec.backend),
    )


def _comm_time(spec: CellSpec, calibration: Calibration) -> CommTime:
    """Return the time of a collective, ns, by the calibration of this backend and network."""
    asked = FitWanted(backend=spec.backend, network=spec.network)

    def time(op: str, size_bytes: int) -> float:
        return time_of(calibration, op, size_bytes, spec.world_size, asked=asked).time_ns

    return time


def profile_of(cell: CellResult) -> BackwardProfile:
    """Return the backward profile, at every point the slowest rank's. Raises DataError for a cell that has none."""
    profiles = [summary.backward for summary in cell.summaries if summary.backward is not None]
    if not profiles:
        raise DataError(
            f"cell {cell.spec.cell_id} has no backward profile",
            why="it did not finish, or an earlier stepscope measured it",
            fix="run it again with this version: `stepscope bench`; a sharded strategy beside ddp on as many ranks",
        )
    return slowest_of(profiles)


def pick_cell(cells: Sequence[CellResult], cell_id: str | None) -> CellResult:
    """The cell asked for, or the only one with buckets and several ranks. UsageError lists them when it is not clear."""
    able = [c for same in bucket_kinds(cells).values() for c in same]
    if cell_id is not None:
        ids = named(cell_id, [c.spec.cell_id for c in able])
        able = [c for c in able if c.spec.cell_id in ids]
    if not able:
        raise UsageError(
            "there is no cell with buckets" if cell_id is None else f"cell {cell_id} has no buckets",
            why=f"only {' and '.join(BUCKETED)} on 2 ranks or more have them",
            fix="name a run of `stepscope bench` with such a cell",
        )
    kinds = {name: same[0] for name, same in bucket_kinds(able).items()}
    if len(kinds) > 1:
        raise UsageError(
            f"{len(kinds)} kinds of cells have buckets",
            fix=f"add --cell with one of {', '.join(c.spec.cell_id for c in kinds.values())}",
        )
    return next(iter(kinds.values()))


def bucket_kinds(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Group cells with buckets on several ranks: those that differ in the size alone ask for the same advice."""
    return grouped((c for c in cells if c.spec.strategy in BUCKETED and c.spec.world_size > 1), _but_for_size)


def bucket_cap(spec: CellSpec) -> float | None:
    """The bucket size that a cell names, MiB; None: the strategy's default."""
    cap = spec.strategy_options.get("bucket_cap_mb")
    return float(cap) if isinstance(cap, int | float) else None


def measured_steps(cells: Sequence[CellResult], cell: CellResult) -> dict[str, Measured]:
    """Median steps of cells like ``cell``, ns: by bucket size in MiB (``4``), ``default`` and ``naive``."""
    steps: dict[str, Measured] = {}
    for other in cells:
        step = step_of(other)
        if step is None or not same_work(other, cell):
            continue
        if other.spec.strategy == "naive" and not other.spec.strategy_options.get("flat"):
            steps["naive"] = step
        elif _but_for_size(other) == _but_for_size(cell):
            cap = bucket_cap(other.spec)
            steps[DEFAULT if cap is None else f"{cap:g}"] = step
    return steps


def advised(choice: BucketChoice, measured: Mapping[str, Measured]) -> BucketAdvice:
    """What was measured wins over the model: the fastest way that was run, unless the model names one that was not run and
    gains more than the model has erred. measured: as :func:`measured_steps` gives them.
    """
    named = f"{choice.bucket_cap_mb:g}"
    foreseen, seen = _steps_by_way(choice, measured)
    predicted = choice.chosen.timeline.step_ns
    if not seen:
        return BucketAdvice(way=named, step=Measured(value=predicted), measured=False, error=None, ways=0)
    error = max(abs(foreseen[way] / step.value - 1) for way, step in seen.items())
    best = min(seen, key=lambda way: seen[way].value)
    if named not in seen and predicted * (1 + error) < seen[best].value:
        return BucketAdvice(way=named, step=Measured(value=predicted), measured=False, error=error, ways=len(seen))
    if named in seen and seen[named].value <= seen[best].value * (1 + TIE):
        best = named
    refuted = seen[named].value if named in seen and named != best else None
    return BucketAdvice(way=best, step=seen[best], measured=True, error=error, ways=len(seen), refuted=refuted)


def _steps_by_way(
    choice: BucketChoice, measured: Mapping[str, Measured]
) -> tuple[dict[str, float], dict[str, Measured]]:
    """Return every way's step, ns, as predicted and as measured where it ran; sizes that make the same buckets are one."""
    foreseen: dict[str, float] = {DEFAULT: choice.default.step_ns}
    seen = {DEFAULT: measured[DEFAULT]} if DEFAULT in measured else {}
    for candidate in choice.candidates:
        way = f"{max(candidate.bucket_caps_mb):g}"
        foreseen[way] = candidate.timeline.step_ns
        steps = [measured[key] for cap in candidate.bucket_caps_mb if (key := f"{cap:g}") in measured]
        if steps:
            seen[way] = min(steps, key=lambda step: step.value)
    return foreseen, seen


def naive_twin(cells: Sequence[CellResult], cell: CellResult) -> CellResult | None:
    """The finished cell that differs from ``cell`` in being ``naive``."""
    return next(
        (
            other
            for other in cells
            if other.spec.strategy == "naive" and same_work(other, cell) and any(s.backward for s in other.summaries)
        ),
        None,
    )


def same_work(cell: CellResult, other: CellResult) -> bool:
    """Whether two cells train the same model in the same way, strategies apart."""
    return _work_key(cell) == _work_key(other)


def _work_key(cell: CellResult) -> str:
    spec = cell.spec
    return repr(
        (spec.workload, dict(spec.model), spec.world_size, spec.micro_batch, spec.precision, spec.accumulation,
         spec.network, dict(spec.env), spec.inject)
    )  # fmt: skip


def _but_for_size(cell: CellResult) -> str:
    options = {key: value for key, value in cell.spec.strategy_options.items() if key != "bucket_cap_mb"}
    return f"{_work_key(cell)} {cell.spec.strategy} {options!r}"
