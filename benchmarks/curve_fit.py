"""Five measured sizes predict the others: curve against baselines on published collectives. Needs DATA=DIR."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import heading
from stepscope.collectives import REGISTRY
from stepscope.predict.curve_fit import FAMILIES, fit_curve
from stepscope.predict.curve_shape import curve_interval_ns, curve_time_ns

Floats = NDArray[np.float64]
Model = Callable[[Floats, Floats, Floats], Floats]

BAR = 0.12
MIDDLE = (2**16, 2**24)
"""Sizes that are judged, bytes: where buckets lie."""

MIN_SIZES = 16
RANDOM_DRAWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published sweep; times in ns, one a size (out of place)."""

    source: str
    sizes: Floats
    times: Floats


def five_sizes(sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """The five of ``sizes_bytes`` to measure when five is all there is time for: the ends, and where curves bend.

    Smallest, largest, and the sizes nearest to 64 KiB, 1 MiB and 16 MiB: below the first a collective is all latency,
    above the last all bandwidth, and between them libraries change protocol. Where the range does not reach there,
    log-spaced sizes. Fewer than five sizes: all of them.
    """
    sizes = np.unique(np.asarray(sizes_bytes, dtype=np.float64))
    if sizes.size <= 5:
        return tuple(int(s) for s in sizes)
    bends = np.array([2.0**16, 2.0**20, 2.0**24])
    low, high = math.log(sizes[0]), math.log(sizes[-1])
    wanted = np.log(bends) if bends[0] > sizes[0] and bends[-1] < sizes[-1] else np.linspace(low, high, 5)[1:4]
    picked = [0, sizes.size - 1]
    for target in wanted:
        free = [i for i in range(sizes.size) if i not in picked]
        picked.append(min(free, key=lambda i: abs(math.log(sizes[i]) - target)))
    return tuple(int(sizes[i]) for i in sorted(picked))


def published(folder: Path) -> tuple[Published, ...]:
    """The sweeps with at least 16 sizes in ``folder``/collectives_*.csv. Without a time it follows from the bandwidth."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("collectives_*.csv")):
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                time = _time_ns(line)
                if time is not None:
                    name = f"{line['source']} {line['n_gpus']}"
                    found.setdefault(name, {}).setdefault(int(line["size_bytes"]), time)
    return tuple(
        Published(
            source=name,
            sizes=np.array(sorted(times), dtype=float),
            times=np.array([times[s] for s in sorted(times)]),
        )
        for name, times in found.items()
        if len(times) >= MIN_SIZES
    )


def _time_ns(line: dict[str, str]) -> float | None:
    size, world = int(line["size_bytes"]), int(line["n_gpus"])
    if line["time_us"]:
        return float(line["time_us"]) * 1e3
    if line["algbw_gbps"]:
        return size / float(line["algbw_gbps"])
    if line["busbw_gbps"] and line["collective"] in REGISTRY.names():
        return size * REGISTRY.load(line["collective"]).bus_factor(world) / float(line["busbw_gbps"])
    return None


def designs(sizes: Floats) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Ways to choose five of ``sizes``: name and indices. Those that do not give five different ones are left out."""
    last = sizes.size - 1
    for rounding in (np.round, np.floor, np.ceil):
        yield "ends, log-spaced", rounding(np.linspace(0, last, 5)).astype(np.int64)
    ours = set(five_sizes([int(s) for s in sizes]))
    yield "five_sizes()", np.array([i for i, s in enumerate(sizes) if int(s) in ours])
    for name, low, high in (("4 KiB-256 MiB", 2**12, 2**28), ("1 KiB-1 GiB", 2**10, 2**30)):
        wanted = np.geomspace(low, high, 5)
        yield name, np.unique(np.abs(np.log(sizes[:, None] / wanted[None])).argmin(axis=0))
    rng = np.random.default_rng(0)
    for _ in range(RANDOM_DRAWS):
        yield (
            "ends, 3 random",
            np.array([0, *np.sort(rng.choice(np.arange(1, last), 3, replace=False)), last]),
        )


def errors(curves: Sequence[Published], model: Model) -> dict[str, dict[str, list[float]]]:
    """design -> source -> larger / smaller of predicted and measured - 1, at the middle sizes that were not given."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in curves:
        for design, given in designs(one.sizes):
            if given.size != 5:
                continue
            asked = (one.sizes >= MIDDLE[0]) & (one.sizes <= MIDDLE[1])
            asked[given] = False
            predicted = model(one.sizes[given], one.times[given], one.sizes[asked])
            off = np.expm1(np.abs(np.log(predicted / one.times[asked])))
            found.setdefault(design, {}).setdefault(one.source, []).extend(off)
    return found


def two_points(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Latency and rate from the smallest and the largest size."""
    per_byte = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
    return times[0] + (asked - sizes[0]) * per_byte


def five_knots(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """Straight between the given sizes, in log-log."""
    return np.exp(np.interp(np.log(asked), np.log(sizes), np.log(times)))


def curve(sizes: Floats, times: Floats, asked: Floats) -> Floats:
    """What ``stepscope calibrate`` fits."""
    fitted = fit_curve(sizes, times)
    return np.array([curve_time_ns(fitted, size) for size in asked])


def every_nth(curves: Sequence[Published], model: Model, n: int) -> Floats:
    """Errors, as of ``errors``, at all sizes between every ``n``-th one, which are given; each size is given once."""
    off: list[float] = []
    for one in curves:
        for first in range(n):
            given = np.arange(first, one.sizes.size, n)
            asked = np.setdiff1d(np.arange(given[0], given[-1]), given)
            predicted = model(one.sizes[given], one.times[given], one.sizes[asked])
            off += list(np.expm1(np.abs(np.log(predicted / one.times[asked]))))
    return np.array(off)


def beyond(curves: Sequence[Published]) -> tuple[Floats, float]:
    """Errors up to 64 times above the largest or below the smallest of 8 given sizes or more; share inside 80% intervals."""
    off: list[float] = []
    held: list[bool] = []
    for one in curves:
        places = np.arange(one.sizes.size)
        for count in range(8, one.sizes.size - 3):
            for given in (places[:count], places[-count:]):
                fitted = fit_curve(one.sizes[given], one.times[given])
                for index in np.setdiff1d(places, given):
                    size = one.sizes[index]
                    if not one.sizes[given[0]] / 64 <= size <= 64 * one.sizes[given[-1]]:
                        continue
                    off.append(float(np.expm1(abs(np.log(curve_time_ns(fitted, size) / one.times[index])))))
                    low, high = curve_interval_ns(fitted, size) or (0, 0)
                    held.append(bool(low <= one.times[index] <= high))
    return np.array(off), float(np.mean(held))


def coverage(curves: Sequence[Published]) -> float:
    """Share of the middle sizes not given that lie within the 80% interval."""
    held = []
    for one in curves:
        for _, given in designs(one.sizes):
            if given.size != 5:
                continue
            fitted = fit_curve(one.sizes[given], one.times[given])
            for index in np.setdiff1d(np.arange(one.sizes.size), given):
                if MIDDLE[0] <= one.sizes[index] <= MIDDLE[1]:
                    low, high = curve_interval_ns(fitted, one.sizes[index]) or (0, 0)
                    held.append(low <= one.times[index] <= high)
    return float(np.mean(held))


def main() -> None:
    heading("curve_fit: five measured sizes predict the others, 64 KiB to 16 MiB, published curves")
    folder = Path(os.environ.get("DATA", "")) / "published"
    if not folder.is_dir():
        print("skipped: DATA=DIR with DIR/published/collectives_*.csv is needed", flush=True)
        return
    curves = published(folder)
    table = {name: errors(curves, model) for name, model in MODELS.items()}
    print(
        f"error: larger / smaller of predicted and measured - 1; {len(curves)} curves; median and mean over all sizes"
    )
    names = list(table[OURS])
    print(f"{'':<22}" + "".join(f"{name:>18}" for name in names))
    for name, by_design in table.items():
        print(f"{name:<22}" + "".join(f"{_figures(by_design[design]):>18}" for design in names))
    print(f"per source, {names[1]}, mean:")
    for source, own in table[OURS][names[1]].items():
        print(f"  {source:<32} {np.mean(own):6.1%}   {names[0]}: {np.mean(table[OURS][names[0]][source]):6.1%}")
    for n in (2, 3):
        for name in ("straight knots", OURS):
            every = every_nth(curves, MODELS[name], n)
            print(f"one size of {n} given, {name}: median {np.median(every):.1%}, mean {every.mean():.1%}")
    off, inside = beyond(curves)
    print(
        f"up to 64 times beyond 8 sizes or more: median {np.median(off):.1%}, mean {off.mean():.1%}; interval {inside:.0%}"
    )
    print(f"priors moved by one standard deviation either way, {names[0]}: {_moved(curves, names[0])}")
    print(f"80% interval, five sizes given: holds {coverage(curves):.0%}")
    for design in names[:2]:
        five = np.concatenate([np.array(v) for v in table[OURS][design].values()])
        reached = "reached" if np.median(five) <= BAR else "NOT REACHED"
        print(
            f"{design}: median {np.median(five):.1%}, mean {five.mean():.1%}; bar: median {BAR:.0%}: {reached}",
            flush=True,
        )


OURS = "curve"
MODELS: dict[str, Model] = {"two-point line": two_points, "straight knots": five_knots, OURS: curve}


def _figures(by_source: dict[str, list[float]]) -> str:
    off = np.concatenate([np.array(v) for v in by_source.values()])
    return f"{np.median(off):.1%} {off.mean():.1%}"


def _moved(curves: Sequence[Published], design: str) -> str:
    medians = []
    for family in FAMILIES:
        for index, (mean, sd) in enumerate(family.prior):
            for sign in (-1, 1):
                prior = list(family.prior)
                prior[index] = (mean + sign * sd, sd)
                before = family.prior
                object.__setattr__(family, "prior", tuple(prior))  # for this measurement only
                try:
                    off = errors(curves, curve)[design]
                finally:
                    object.__setattr__(family, "prior", before)
                medians.append(float(np.median(np.concatenate([np.array(v) for v in off.values()]))))
    return f"median {min(medians):.1%} to {max(medians):.1%}"


if __name__ == "__main__":
    main()
