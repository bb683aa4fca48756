"""A slow rank in a grid of tensor x pipeline x data parallel ranks: is it named alone, and is the gain without it right?

``python -m benchmarks.late_in_grid [--jobs N] [--seed N]``: N made jobs of 8 to 64 ranks (GPipe, 1F1B, interleaved) with a
rank that computes 1.3 to 3 times as long, and each of them without it. Gain: what the job takes less, against the same job
made without the slow rank.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.grids import Grid, length_us, write_grid

from benchmarks._report import heading
from stepscope.records.trace_path import Straggler
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted

SHAPES = (
    (1, 2, 4), (1, 4, 2), (2, 2, 2), (2, 4, 2), (1, 4, 4), (2, 2, 4), (4, 2, 2), (2, 4, 4), (4, 4, 2), (4, 4, 4), (8, 4, 2),
    (4, 1, 4), (2, 1, 4), (8, 1, 2),
)  # fmt: skip
"""Tensor, stages, replicas."""

NEAR = 0.10


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late_in_grid", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(list(arguments) or sys.argv[1:])
    heading("a slow rank in a grid (bars: alone 95%, gain 90%, clean 0)")
    rng = random.Random(options.seed)
    alone = near = accused = 0
    for number in range(options.jobs):
        planted = _planted(rng, seed=options.seed * 1_000 + number)
        clean = replace(planted, slow={})
        (slow,) = planted.slow
        late = _late(planted)
        innocent = _late(clean)
        gain = length_us(planted) - length_us(clean)
        named = [s.rank for s in late]
        saved = next((s.saved_ns / 1e3 for s in late if s.rank == slow), None)
        is_near = saved is not None and abs(saved - gain) <= NEAR * gain
        alone += named == [slow]
        near += is_near
        accused += bool(innocent)
        if named != [slow] or not is_near or innocent:
            shown = "none" if saved is None else f"{saved / 1e3:.1f} ms"
            print(
                f"{planted.tensor}x{planted.stages}x{planted.replicas} {planted.schedule}, rank {slow} x "
                f"{planted.slow[slow]:.2f}: named {named}, gain {shown} of {gain / 1e3:.1f} ms; without: "
                f"{[s.rank for s in innocent]}",
                flush=True,
            )
    print(
        f"of {options.jobs}: named alone {alone}, gain within {NEAR:.0%} {near}, a rank accused without one {accused}"
    )


def _planted(rng: random.Random, *, seed: int) -> Grid:
    tensor, stages, replicas = rng.choice(SHAPES)
    schedule = rng.choice(("gpipe", "1f1b", "interleaved"))
    return Grid(
        tensor=tensor,
        stages=stages,
        replicas=replicas,
        schedule=schedule,
        micro_batches=stages * rng.choice((1, 2, 4)),
        steps=rng.choice((2, 3, 5)),
        slow={rng.randrange(tensor * stages * replicas): rng.uniform(1.3, 3.0)},
        noise=rng.choice((0.002, 0.01, 0.03)),
        seed=seed,
    )


def _late(grid: Grid) -> Sequence[Straggler]:
    with tempfile.TemporaryDirectory() as folder:
        report = analyse_job(write_grid(grid, Path(folder)), Wanted(processes=1)).stragglers
    return report.stragglers if report is not None else ()


if __name__ == "__main__":
    main()
