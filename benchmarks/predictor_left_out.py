"""Spec-only collective predictor, one author's tables left out at a time: refitted to the others, tried on them.

    python -m benchmarks.predictor_left_out [--published DIR]

Refitted by coordinate descent (mean over sources of the median |log(predicted / measured)|) are the constants that are
ours: shares of links and switches, the torch call, the rounding, and shares and latencies of fabrics without published
figures. What is published (NCCL's and RCCL's tables, EFA's latency, launch cost, adapters' rate) stays, and so does a
constant that nothing but the tables left out depends on: the last column names these.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from benchmarks._report import heading
from benchmarks.validate.collectives import SIZE_CLASSES, Compared, predict_row
from benchmarks.validate.tables import MeasuredRow, read_measured_table
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.machine import Fabric

CONSTANTS = (
    "RING_SHARE", "MESH_SHARE", "PEER_SHARE", "SWITCH_SHARE", "TORCH_CALL_US", "ROUNDING",
)  # fmt: skip
FACTORS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)
FABRIC_CLASSES = {"efa": "libfabric", "slingshot": "libfabric", "gpudirect": "gpudirect"}
"""Key beginnings of the fabrics whose figures are not published, and the class that shares one constant."""
FITTED = (*CONSTANTS, "libfabric.share", "gpudirect.share", "gpudirect.latency")
FAMILIES = ("superbench-a100", "mleng", "oci", "amd", "coreweave", "gcp", "aws")
"""Beginnings of source names that stem from one author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Factors on the constants, by name."""

    factors: dict[str, float]

    def fabric(self, fabric: Fabric | None) -> Fabric | None:
        if fabric is None:
            return None
        kind = next((name for key, name in FABRIC_CLASSES.items() if fabric.key.startswith(key)), "")
        return replace(
            fabric,
            rate_share=min(fabric.rate_share * self.factors.get(f"{kind}.share", 1.0), 1.0),
            latency_us=fabric.latency_us * self.factors.get(f"{kind}.latency", 1.0),
        )


def compare(rows: Sequence[MeasuredRow], setting: Setting) -> list[Compared]:
    values = {name: getattr(constants, name) * setting.factors.get(name, 1.0) for name in CONSTANTS}
    values["ROUNDING"] = min(values["ROUNDING"], 1.0)
    with patch.multiple(constants, **values):
        return [
            Compared(row=row, predicted=predict_row(replace(row, fabric=setting.fabric(row.fabric)))) for row in rows
        ]


def loss(compared: Sequence[Compared]) -> float:
    by_source: dict[str, list[float]] = {}
    for one in compared:
        by_source.setdefault(one.row.source, []).append(abs(log_ratio(one)))
    return statistics.mean(statistics.median(errors) for errors in by_source.values())


def log_ratio(one: Compared) -> float:
    return math.log(one.row.time_ns / one.predicted.time_ns)


def fit(rows: Sequence[MeasuredRow]) -> Setting:
    """Coordinate descent, one pass over the constants."""
    best = Setting(factors={})
    least = loss(compare(rows, best))
    for name in FITTED:
        for factor in FACTORS:
            tried = Setting(factors={**best.factors, name: factor})
            found = loss(compare(rows, tried))
            if found < least - 1e-6:
                best, least = tried, found
    return best


def undetermined(rows: Sequence[MeasuredRow]) -> list[str]:
    """Constants that no prediction for ``rows`` depends on."""
    as_is = [one.predicted.time_ns for one in compare(rows, Setting(factors={}))]
    return [
        name
        for name in FITTED
        if [one.predicted.time_ns for one in compare(rows, Setting(factors={name: 0.9}))] == as_is
    ]


def families(rows: Sequence[MeasuredRow]) -> Iterator[tuple[str, Callable[[MeasuredRow], bool]]]:
    names = sorted({_family(row.source) for row in rows})
    for name in names:
        yield name, lambda row, name=name: _family(row.source) == name  # type: ignore[misc]


def _family(source: str) -> str:
    return next((family for family in FAMILIES if source.startswith(family)), source)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "published")
    asked = parser.parse_args(arguments if arguments is not None else [])
    heading("spec-only collective predictor, one author's tables left out at a time")
    files = sorted(asked.published.glob("collectives_*.csv"))
    if not files:
        print(f"skipped: no collectives_*.csv in {asked.published}")
        return
    rows = [row for file in files for row in read_measured_table(file).rows]
    held_out: list[Compared] = []
    for name, belongs in families(rows):
        others = [row for row in rows if not belongs(row)]
        setting = fit(others)
        own = compare([row for row in rows if belongs(row)], setting)
        held_out += own
        changed = ", ".join(f"{key} x{value:g}" for key, value in setting.factors.items() if value != 1.0)
        median = statistics.median(abs(one.relative_error) for one in own)
        kept = ", ".join(undetermined(others)) or "-"
        print(
            f"{name:<22} {len(own):>3} rows  median error {median:6.1%}   refitted: {changed or '-'}; undetermined: {kept}",
            flush=True,
        )
    print()
    for size_class, _ in SIZE_CLASSES:
        chosen = [one for one in held_out if one.size_class == size_class]
        as_is = [one for one in compare(rows, Setting(factors={})) if one.size_class == size_class]
        print(
            f"{size_class:<16} {len(chosen):>3} rows  left out: median error {_median(chosen):.1%}, 80% interval holds "
            f"{_coverage(chosen):.0%};  as shipped: {_median(as_is):.1%}, {_coverage(as_is):.0%}"
        )


def _median(compared: Sequence[Compared]) -> float:
    return statistics.median(abs(one.relative_error) for one in compared)


def _coverage(compared: Sequence[Compared]) -> float:
    return sum(one.covered for one in compared) / len(compared)


if __name__ == "__main__":
    main(sys.argv[1:])
