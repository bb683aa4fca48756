"""What a planted fault costs, by the job's own clocks, without stepscope: steps with the fault against steps without it.

The speed of a machine that others share changes by a fifth from minute to minute, so steps of one run are compared where the
fault can come and go in it; else runs of the job with and without the fault in turns.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.own_jobs.jobs._clock import BLOCK
from benchmarks.own_jobs.planted import Planted
from benchmarks.own_jobs.running import Ended, run_command
from stepscope.core.dataclass import dataclass

WARM_UP_STEPS = 20
SETTLING_STEPS = 4
"""Of a block, after the fault has come or gone: ranks and loaders settle."""
ALTERNATE = "--alternate"

Ticks = Sequence[Sequence[float]]
"""Ends of steps (s), of each rank."""


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
    ticks: dict[tuple[str, ...], list[Ticks]] = {way: [] for way in ways}
    alone: Ended | None = None
    for number in range(max(rounds, 1) if job.without or job.every else 1):
        for way in ways if number % 2 == 0 else reversed(ways):
            ended, found = _once(job, way, folder / f"alone-{number}{''.join(way)}", extra)
            ticks[way].append(found)
            if way == planted:
                alone = ended
    assert alone is not None
    mean = job.of == "wall"
    shares = [_shares(ticks[planted], ticks[way], alternate=way == (ALTERNATE,)) for way in ways[1:]]
    if job.every and rounds:
        shares.append([each for run in ticks[planted] if (each := share_of_events(run, job.every)) is not None])
    medians = [statistics.median(each) for each in shares if each]
    spreads = [abs(value - statistics.median(each)) for each in shares for value in each]
    seconds = [each for run in ticks[planted] if (each := step_seconds(run, mean=mean)) is not None]
    return Truth(
        code=alone.code, out=alone.out, step_s=statistics.median(seconds) if seconds else None,
        low=min(medians, default=None), high=max(medians, default=None), spread=max(spreads, default=None),
    )  # fmt: skip


def _shares(planted: Sequence[Ticks], without: Sequence[Ticks], *, alternate: bool) -> list[float]:
    """Of each round; none where a run has no steps to time."""
    if alternate:
        return [each for run in without if (each := share_of_blocks(run)) is not None]
    pairs = [(step_seconds(a, mean=False), step_seconds(b, mean=False)) for a, b in zip(planted, without, strict=True)]
    return [1.0 - b / a for a, b in pairs if a is not None and b is not None]


def _once(job: Planted, arguments: tuple[str, ...], folder: Path, extra: Mapping[str, str]) -> tuple[Ended, Ticks]:
    """The run, and the ends of steps of each rank."""
    with tempfile.TemporaryDirectory() as clocks:
        environ = {**extra, "OWN_JOBS_TRUTH": clocks}
        ended = run_command(job.command(*arguments), timeout_s=job.timeout_s, folder=folder, extra=environ)
        ticks = [json.loads(path.read_text()) for path in sorted(Path(clocks).iterdir())]
    return ended, ticks


def step_seconds(ticks: Ticks, *, mean: bool) -> float | None:
    """Median (or mean) distance of the ends of steps after the warm-up, of the slowest rank; None: nobody has two."""
    each = []
    for ends in ticks:
        kept = ends[WARM_UP_STEPS:] if len(ends) > 2 * WARM_UP_STEPS else ends
        if len(kept) > 1:
            between = [after - before for before, after in pairwise(kept)]
            each.append(statistics.fmean(between) if mean else statistics.median(between))
    return max(each, default=None)


def share_of_blocks(ticks: Ticks) -> float | None:
    """1 - median step without / median step with the fault, of blocks in turns: the rank whose steps with it are longest."""
    found = []
    for ends in ticks:
        kinds: tuple[list[float], list[float]] = ([], [])
        for step, (before, after) in enumerate(pairwise(ends), 1):
            if step >= WARM_UP_STEPS and step % BLOCK >= SETTLING_STEPS:
                kinds[step // BLOCK % 2].append(after - before)
        if all(kinds):
            found.append((statistics.median(kinds[0]), statistics.median(kinds[1])))
    if not found:
        return None
    planted, without = max(found)
    return 1.0 - without / planted


def share_of_events(ticks: Ticks, every: int) -> float | None:
    """1 - mean step without an event / mean step, of the rank where that is most; the last step of ``every`` has one."""
    found = []
    for ends in ticks:
        steps = [(step % every == 0, after - before) for step, (before, after) in enumerate(pairwise(ends), 2)]
        kept = steps[WARM_UP_STEPS:]
        usual = [seconds for event, seconds in kept if not event]
        if usual and len(usual) < len(kept):
            found.append(1.0 - statistics.fmean(usual) / statistics.fmean(seconds for _, seconds in kept))
    return max(found, default=None)
