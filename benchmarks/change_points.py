"""Steps that become slower for good: how soon and where it is found while the job runs, and how often of a job that stays.

``python -m benchmarks.change_points [REPEATS]``; default 100 of each kind (5 minutes). Step times are lognormal and
autocorrelated; the job is looked at every 100 steps, of the last 5,000, as ``stepscope run`` looks at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import heading
from stepscope.diagnose.jobs import LATEST
from stepscope.stats.lasting_change import LEAST_STEPS, lasting_change

REPEATS, STEPS, EVERY = 100, 10_000, 100
SOON = 200
"""Steps after a change until it is to be found, and between the true place and the one found."""

Numbers = NDArray[np.float64]


def noise(
    rng: np.random.Generator, size: int, *, sigma: float = 0.05, rho: float = 0.3, freedom: float = 0.0
) -> Numbers:
    """Logarithms about 0 of this spread, an AR(1); freedom: of Student's t in place of the normal."""
    drawn = rng.standard_t(freedom, size) / np.sqrt(freedom / (freedom - 2)) if freedom else rng.normal(0, 1, size)
    found = np.empty(size)
    found[0] = drawn[0]
    for at in range(1, size):
        found[at] = rho * found[at - 1] + np.sqrt(1 - rho**2) * drawn[at]
    return sigma * found


def looks(times: Numbers, begin: int = LEAST_STEPS) -> Iterator[tuple[int, int]]:
    """(steps made, step of the change) of every look that finds steps to have become slower, which is news."""
    for made in range(begin, times.size + 1, EVERY):
        first = max(0, made - LATEST)
        found = lasting_change(times[first:made])
        if found is not None and found.ratio.value > 1:
            yield made, first + found.at


def _is_news(times: Numbers) -> bool:
    return any(True for _ in looks(times))


def _at_the_end(times: Numbers) -> bool:
    return lasting_change(times) is not None


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    repeats = int(asked[0]) if asked else REPEATS
    heading(f"a change of {STEPS:,} steps, looked at every {EVERY} of them")
    rows: dict[str, tuple[float, dict[str, float]]] = {
        "3%": (0.03, {}), "2%": (0.02, {}), "5%": (0.05, {}), "3%, independent": (0.03, {"rho": 0.0}),
        "3%, autocorrelation 0.6": (0.03, {"rho": 0.6}), "3%, Student's t of 3": (0.03, {"freedom": 3.0}),
    }  # fmt: skip
    for name, (change, shape) in rows.items():
        live, after, off = 0, 0, []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            at = int(rng.integers(2_000, 8_000)) // EVERY * EVERY
            times = np.exp(noise(rng, STEPS, **shape) + np.log1p(change) * (np.arange(STEPS) >= at))
            live += any(abs(place - at) <= SOON for _, place in looks(times[: at + SOON], begin=at + EVERY))
            found = lasting_change(times)
            after += found is not None and abs(found.at - at) <= SOON
            off += [] if found is None else [abs(found.at - at)]
        middle = f"the middle one {np.median(off or [np.nan]):.0f} away"
        print(f"{name}: found {SOON} steps later {live} of {repeats}; after the job {after} of {repeats} within "
              f"{SOON} steps of its place, {middle}; bar: 95", flush=True)  # fmt: skip
    heading("no change: jobs of which any look while they run, or the one after them, finds one")
    clean: dict[str, Callable[[np.random.Generator], Numbers]] = {
        "as ever": lambda rng: noise(rng, STEPS),
        "independent": lambda rng: noise(rng, STEPS, rho=0.0),
        "autocorrelation 0.6": lambda rng: noise(rng, STEPS, rho=0.6),
        "Student's t of 3": lambda rng: noise(rng, STEPS, freedom=3.0),
        "warm-up over 300 steps": lambda rng: noise(rng, STEPS) + 0.5 * np.exp(-np.arange(STEPS) / 100),
        "every 20th step three times as long": lambda rng: noise(rng, STEPS) + np.log(3) * (np.arange(STEPS) % 20 == 0),
        "two kinds of steps at random": lambda rng: noise(rng, STEPS) + 0.3 * (rng.random(STEPS) < 0.5),
    }
    for name, drawn in clean.items():
        jobs = [np.exp(drawn(np.random.default_rng(seed))) for seed in range(repeats)]
        news, ends = (sum(map(found_in, jobs)) for found_in in (_is_news, _at_the_end))
        print(f"{name}: {news} and {ends} of {repeats}; bar: 1 of 100", flush=True)


if __name__ == "__main__":
    main()
