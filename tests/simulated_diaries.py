"""Diaries of jobs whose ranks work, meet in one all-reduce at the end of the backward pass, and step: drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.diaries import write_diary


def simulate(
    root: Path,
    *,
    ranks: int,
    steps: int,
    seed: int,
    data_ms: float = 0.2,
    forward_ms: float = 4.0,
    backward_ms: float = 8.0,
    optimizer_ms: float = 1.0,
    transfer_ms: float = 0.5,
    noise: float = 0.03,
    dependence: float = 0.6,
    slow: Mapping[int, float] | None = None,
    delay: float = 0.01,
) -> None:
    """slow: rank -> factor of its forward and backward. noise: standard deviation / mean of every part, autocorrelated.

    Without noise a step is data + forward + backward + transfer (of several ranks) + optimizer.
    """
    rng = np.random.default_rng(seed)

    def series(mean_ms: float) -> np.ndarray:
        draws = rng.normal(0.0, np.sqrt(1 - dependence**2), steps)
        found = np.empty(steps)
        last = rng.normal()
        for at, draw in enumerate(draws):
            last = dependence * last + draw
            found[at] = last
        return np.maximum(mean_ms * (1 + noise * found), 0.0)

    factor = [(slow or {}).get(rank, 1.0) for rank in range(ranks)]
    parts = [
        {
            "data": series(data_ms),
            "forward": series(forward_ms) * factor[rank],
            "backward": series(backward_ms) * factor[rank],
            "optimizer": series(optimizer_ms),
        }
        for rank in range(ranks)
    ]
    entered = np.stack([each["data"] + each["forward"] + each["backward"] + each["optimizer"] for each in parts])
    transfer = series(transfer_ms) if ranks > 1 else np.zeros(steps)
    for rank, each in enumerate(parts):
        columns = {**each, "comm": entered.max(axis=0) - entered[rank] + transfer, "cpu": entered[rank] - each["data"]}
        write_diary(root, columns, rank=rank, world_size=ranks, delay=delay)
