"""What would make a layout fit into memory, and what each way costs in speed; cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.layout import Layout, errors
from stepscope.predict.step.scaling import speedup
from stepscope.predict.step.step import StepPrediction, predict_step

CHEAP = 0.05
"""Loss of speed up to which nobody minds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way, as changes to the layout. slower: step time of a token over that of the layout that does not fit, less 1."""

    what: str
    prediction: StepPrediction
    slower: float


def remedies(
    prediction: StepPrediction, calibration: StepCalibration | None = None, *, at_most: int = 5
) -> tuple[Remedy, ...]:
    """Single changes, and pairs of them where no single one is cheap; those that fit, by their cost in speed."""
    cluster, layout = prediction.cluster, prediction.layout
    single = list(_changes(cluster, layout))
    found = _fitting(prediction, single, calibration)
    if min((r.slower for r in found), default=1.0) > CHEAP:
        pairs = [
            (f"{first} and {second}", changed)
            for first, then in single
            for second, changed in _changes(cluster, then)
            if first.split()[0] != second.split()[0]
        ]
        found += _fitting(prediction, pairs, calibration)
    seen: dict[Layout, Remedy] = {}
    for remedy in sorted(found, key=lambda r: r.slower):
        seen.setdefault(remedy.prediction.layout, remedy)
    return tuple(seen.values())[:at_most]


def _fitting(
    before: StepPrediction, ways: list[tuple[str, Layout]], calibration: StepCalibration | None
) -> list[Remedy]:
    found = []
    for what, layout in ways:
        if errors(before.model, before.cluster, layout):
            continue
        after = predict_step(before.model, before.cluster, layout, calibration, simulated=False)
        if after.fits:
            slower = speedup(before, after) - 1
            found.append(Remedy(what=what, prediction=after, slower=slower))
    return found


def _changes(cluster: Cluster, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """(words whose first one names the kind of change, layout)."""
    if layout.micro_batch > 1:
        less = layout.micro_batch // 2
        while less >= 1:
            yield f"mbs={less}", replace(layout, micro_batch=less)
            less //= 2
    if layout.dp > 1:
        for stage in range(layout.zero + 1, 4):
            yield f"zero={stage}", replace(layout, zero=stage)
    if layout.recompute == "none":
        if not layout.flash:
            yield "recompute=selective", replace(layout, recompute="selective")
        yield "recompute=full", replace(layout, recompute="full")
    node = cluster.gpus_per_node or 8
    for name in ("tp", "pp", "cp"):
        for factor in (2, 4, 8):
            size = getattr(layout, name) * factor
            if layout.dp % factor or (name == "tp" and size > node):
                continue
            kept = replace(layout, **{name: size, "dp": layout.dp // factor})
            if kept.global_batch % (kept.dp * kept.micro_batch) == 0:
                yield f"{name}={size}", kept
    if layout.shard_group:
        yield "shard=all", replace(layout, shard_group=None)
