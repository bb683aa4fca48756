"""What a planted fault costs, by the job's own clocks, without stepscope: A/B of the job with and without the fault."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.own_jobs.planted import Planted
from benchmarks.own_jobs.running import Ended, run_command
from stepscope.core.dataclass import dataclass

WARM_UP_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the job alone does. step_s: median step (mean where events are planted), of the slowest rank; None: too few.

    low, high: what the fault takes of the step, or of the wall time; least and most over the ways to take it out, each the
    median of its rounds. spread: the largest distance of a round from that median. None: nothing is graded.
    """

    code: int | None
    out: str
    step_s: float | None
    low: float | None = None
    high: float | None = None
    spread: float | None = None


def measure(job: Planted, *, rounds: int, folder: Path, extra: Mapping[str, str]) -> Truth:
    """Run it alone, with and without its fault, in turns (A B, B A, ...). Where no stake is graded, one run is enough."""
    planted: tuple[str, ...] = ()
    ways = [planted, *((way,) for way in job.without if rounds)]
    seconds: dict[tuple[str, ...], list[float]] = {way: [] for way in ways}
    alone: Ended | None = None
    for number in range(max(rounds, 1) if job.without else 1):
        for way in ways if number % 2 == 0 else reversed(ways):
            ended, step_s = _once(job, way, folder / f"alone-{number}{''.join(way)}", extra)
            if step_s is not None:
                seconds[way].append(step_s)
            if way == planted:
                alone = ended
    assert alone is not None
    shares = [_shares(seconds[planted], seconds[way]) for way in ways[1:]]
    medians = [statistics.median(each) for each in shares if each]
    spreads = [abs(value - statistics.median(each)) for each in shares for value in each]
    return Truth(
        code=alone.code, out=alone.out, step_s=statistics.median(seconds[planted]) if seconds[planted] else None,
        low=min(medians, default=None), high=max(medians, default=None), spread=max(spreads, default=None),
    )  # fmt: skip


def _shares(planted_s: list[float], without_s: list[float]) -> list[float]:
    """Of each round; none where a run has no steps to time."""
    if len(planted_s) != len(without_s):
        return []
    return [1.0 - without / planted for planted, without in zip(planted_s, without_s, strict=True)]


def _once(
    job: Planted, arguments: tuple[str, ...], folder: Path, extra: Mapping[str, str]
) -> tuple[Ended, float | None]:
    """The run, and seconds a step of the rank that took longest."""
    with tempfile.TemporaryDirectory() as clocks:
        environ = {**extra, "OWN_JOBS_TRUTH": clocks}
        ended = run_command(job.command(*arguments), timeout_s=job.timeout_s, folder=folder, extra=environ)
        ticks = [json.loads(path.read_text()) for path in sorted(Path(clocks).iterdir())]
    return ended, step_seconds(ticks, mean=job.of == "wall")


def step_seconds(ticks: list[list[float]], *, mean: bool) -> float | None:
    """Median (or mean) distance of the ends of steps after the warm-up, of the slowest rank; None: nobody has two."""
    each = []
    for ends in ticks:
        kept = ends[WARM_UP_STEPS:] if len(ends) > 2 * WARM_UP_STEPS else ends
        if len(kept) > 1:
            between = [after - before for before, after in pairwise(kept)]
            each.append(statistics.fmean(between) if mean else statistics.median(between))
    return max(each, default=None)
