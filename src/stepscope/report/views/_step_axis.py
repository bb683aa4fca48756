"""Steps of a long job in a picture: which ones are drawn, so that no long or short one is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.results.diary import JobSteps

Numbers = NDArray[np.float64]


def extremes(values: Numbers, buckets: int) -> NDArray[np.int64]:
    """Places of the first, the last, and of each bucket's smallest and largest value, in order; all where they are few.

    buckets: equal runs of steps. Values that are no number are left out.
    """
    places = np.flatnonzero(np.isfinite(values)).astype(np.int64)
    if places.size <= 2 * buckets:
        return places
    found = values[places]
    starts = np.linspace(0, places.size, buckets, endpoint=False).astype(np.int64)
    bucket = np.repeat(np.arange(buckets), np.diff([*starts, places.size]))
    ordered = np.lexsort((found, bucket))
    lowest, highest = ordered[starts], ordered[np.append(starts[1:], places.size) - 1]
    kept = np.unique(np.concatenate(([0], lowest, highest, [places.size - 1])))
    return np.asarray(places[kept])


def middles(values: Numbers, buckets: int) -> tuple[list[float], list[float]]:
    """(middle step, median) of each bucket of equal runs of steps; steps count from 1."""
    edges = np.linspace(0, values.size, buckets + 1).astype(np.int64)
    pairs = list(pairwise(edges.tolist()))
    return [(low + 1 + high) / 2 for low, high in pairs], [float(np.nanmedian(values[low:high])) for low, high in pairs]


def bucketed(values: Numbers, buckets: int) -> Numbers:
    """Means of runs of steps along the last axis, at most ``buckets`` of them."""
    count = values.shape[-1]
    buckets = min(buckets, count)
    starts = np.linspace(0, count, buckets, endpoint=False).astype(np.int64)
    sizes = np.diff([*starts, count])
    return np.asarray(np.add.reduceat(values, starts, axis=-1) / sizes)


def drawn_steps(steps: JobSteps) -> int:
    """Where the axis of steps ends: the steps of the rank that made most."""
    return max(each.steps for each in steps.diaries)
