"""``--calibrate PROFILE``: operators of a dry run as a profile of the same script has measured them on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.core.errors import DataError, Unavailable
from stepscope.core.units import format_percent
from stepscope.machine.peaks import find
from stepscope.predict.dry.measured import calibrated
from stepscope.predict.dry.step import Pricing
from stepscope.results.dry_host import measured_rows, profiled_rank, require_measured, require_shapes
from stepscope.results.dry_job import DryJob


def calibrated_job(job: DryJob, profile: Path) -> tuple[DryJob, str]:
    """Return the job with its operators as measured, and what that rests on. Raises DataError where the profile measures too
    few of them."""
    trace = profiled_rank(profile)
    require_shapes(profile, trace)
    names = trace.meta.device_names
    gpu = find(names[0]) if names else Unavailable("its trace has no device")
    if isinstance(gpu, Unavailable):
        raise DataError(f"{profile}: {gpu.reason}", why="its operators are laid beside the roofline of their GPU")
    world = max(job.worlds)
    rank, pricing = job.worlds[world][0], Pricing(cluster=job.cluster(world))
    there = pricing.roofline_ns(rank)
    here = replace(pricing, cluster=replace(pricing.cluster, gpu=gpu)).roofline_ns(rank)
    made = calibrated(rank, measured_rows(trace, job.ranks), there, here=here)
    require_measured(profile, made.share)
    share = format_percent(made.share, digits=0)
    return replace(job, kernel_ns=made.kernel_ns), f"{share} of computation as measured on {gpu.name}"
