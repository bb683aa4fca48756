"""A dry run on ranks of the host: what a profile of the same script on one of them measured, and what its network costs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from stepscope.core.errors import DataError
from stepscope.core.units import format_percent
from stepscope.predict.dry.host import HostPricing, measured_rank
from stepscope.predict.dry.measured import kernel_name, names_in
from stepscope.predict.prices import calibrated_prices
from stepscope.records.dry_run import DryProfile, DryRank, ProfiledOperator
from stepscope.records.trace_work import OperatorRow
from stepscope.results.diary import job_steps, parts_of
from stepscope.store.diary import read_diaries
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_calibration
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.load import load_traces
from stepscope.traces.marks import step_marks
from stepscope.traces.operators import rows_by_shapes

WAITING = ("transfer", "waiting")
"""Parts of a step that are no work of the rank."""
LEAST = 0.5
"""Share of the operators' time that a profile has to measure: less is another script."""


def profiled_rank(profile: Path) -> RankTrace:
    """Return the first rank's trace, of the latest window of a profiled job. Raises DataError."""
    layout = ProfileLayout(profile)
    windows = layout.windows() if layout.is_there else ()
    return load_traces(layout.traces(windows[-1]) if windows else profile).ranks[0]


def of_host(trace: RankTrace) -> bool:
    """Whether no device computed."""
    return not trace.meta.device_names and not trace.events.is_device.any()


def require_shapes(profile: Path, trace: RankTrace) -> None:
    """Raises DataError for a trace whose operators cannot be told apart."""
    if not len(trace.events.shapes):
        raise DataError(
            f"{profile}: no operator has the shapes of its inputs",
            why="two steps after the window record them, and the job has to make those",
            fix="stepscope profile --shapes, or let it train for longer",
        )


def measured_rows(trace: RankTrace, ranks: Iterable[DryRank]) -> tuple[OperatorRow, ...]:
    """Return what a trace measured of the operators that these ranks call, by name and shapes."""
    called = {kernel_name(row.op) for rank in ranks for row in rank.operators}
    return tuple(rows_by_shapes(RankView(trace), names_in(called)))


def require_measured(profile: Path | str, share: float) -> None:
    """Raises DataError for a profile that measures too little of what the script's operators take."""
    if share < LEAST:
        raise DataError(
            f"{profile} measures {format_percent(share, digits=0)} of what this script's operators take",
            why="operators are known by their names and shapes: another script, batch or precision was profiled",
            fix="profile the same script with the batch of one rank",
        )


def read_profile(profile: Path, trace: RankTrace, ranks: Iterable[DryRank], calib: Path) -> DryProfile:
    """Return what was measured of the operators that these ranks call. Raises DataError."""
    require_shapes(profile, trace)
    return DryProfile(
        source=str(profile),
        world_size=trace.meta.world_size or 1,
        operators=tuple(
            ProfiledOperator(name=row.name, shapes=row.shapes, calls=row.calls, time_ns=row.host_total_ns)
            for row in measured_rows(trace, ranks)
            if row.shapes is not None
        ),
        parts=_parts(profile, trace),
        network=read_calibration(calib),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _parts(profile: Path, trace: RankTrace) -> dict[str, float]:
    """Return ns of a step by key of records/parts.py, less waiting for communication: medians of the steps without the
    profiler; of a trace alone the step's mean as ``other``."""
    layout = ProfileLayout(profile)
    steps = job_steps(read_diaries(layout)) if layout.is_there else None
    if steps is not None and steps.steps:
        return {key: float(np.median(ns[0])) for key, ns in parts_of(steps).items() if key not in WAITING}
    marks = step_marks(trace.events)
    return {"other": float(np.mean(marks.ends - marks.starts))} if len(marks.starts) else {}


def host_pricing(profile: DryProfile, ranks: Iterable[DryRank], *, overlap: bool = False) -> HostPricing:
    """Return what prices a dry run whose ranks these are. Raises DataError where the profile says nothing of them."""
    own = next((rank for rank in ranks if rank.world_size == profile.world_size and not rank.rank), None)
    if own is None:
        raise DataError(f"the dry run has no step of {profile.world_size}, the ranks of {profile.source}")
    measured = measured_rank(own, profile.operators, profile.parts)
    require_measured(profile.source, measured.operators.share)
    prices = calibrated_prices(profile.network, backend="gloo", network=None)
    return HostPricing(
        measured=measured,
        prices=prices,
        source=profile.source,
        memory_bytes=profile.memory_bytes,
        overlap=overlap,
    )
