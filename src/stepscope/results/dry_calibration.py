"""``--calibrate PROFILE``: operators of a dry run as a profile of the same script has measured them on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.core.errors import DataError, Unavailable
from stepscope.core.units import format_percent
from stepscope.machine.peaks import find
from stepscope.predict.dry.measured import calibrated, kernel_name, names_in
from stepscope.predict.dry.step import Pricing
from stepscope.results.dry_host import profiled_rank
from stepscope.results.dry_job import DryJob
from stepscope.traces.events import RankView
from stepscope.traces.operators import rows_by_shapes

LEAST = 0.5
"""Share of the predicted time that a profile has to measure: less is another script."""


def calibrated_job(job: DryJob, profile: Path) -> tuple[DryJob, str]:
    """Return the job with its operators as measured, and what that rests on. Raises DataError where the profile measures too
    few of them."""
    trace = profiled_rank(profile)
    called = {kernel_name(row.op) for rank in job.ranks for row in rank.operators}
    rows = rows_by_shapes(RankView(trace), names_in(called))
    if not rows:
        raise DataError(
            f"{profile}: no operator has the shapes of its inputs",
            fix="stepscope profile records them with --shapes, and torch.profiler with record_shapes=True",
        )
    names = trace.meta.device_names
    gpu = find(names[0]) if names else Unavailable("its trace has no device")
    if isinstance(gpu, Unavailable):
        raise DataError(f"{profile}: {gpu.reason}", why="its operators are laid beside the roofline of their GPU")
    world = max(job.worlds)
    rank, pricing = job.worlds[world][0], Pricing(cluster=job.cluster(world))
    there = pricing.roofline_ns(rank)
    here = replace(pricing, cluster=replace(pricing.cluster, gpu=gpu)).roofline_ns(rank)
    made = calibrated(rank, rows, there, here=here)
    share = format_percent(made.share, digits=0)
    if made.share < LEAST:
        raise DataError(
            f"{profile} measures {share} of what this script's step takes",
            why="operators are known by their names and shapes: another script, batch or precision was profiled",
            fix="profile the same script with the batch of one rank",
        )
    return replace(job, kernel_ns=made.kernel_ns), f"{share} of computation as measured on {gpu.name}"
