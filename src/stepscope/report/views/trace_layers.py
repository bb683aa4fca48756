"""Tensor parallelism layer by layer: collectives, bytes, time, and how much of it nothing hid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from stepscope.core.units import format_percent
from stepscope.records.trace_rules import DividedLayers, LayerCall
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Format, Table, binary_size, duration, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import exposed_a_step, gaps, median_a_step, step_counts, step_length

NONE = "no tensor parallelism: no group reduces or gathers activations in the forward pass"

Called = Sequence[tuple[int, LayerCall]]
"""Rank and call."""


def build(summary: TraceSummary) -> Table:
    """One row per layer in order of the forward pass; figures per step, medians over ranks and steps."""
    divided = [p.layers for p in summary.ranks if p.layers is not None]
    window = step_length(summary, step_counts(divided))
    by_layer: dict[str, list[tuple[int, LayerCall]]] = defaultdict(list)
    for each in divided:
        for call in sorted(each.calls, key=lambda c: c.phase != "forward"):
            by_layer[call.layer or "unknown"].append((each.rank, call))

    def a_step(of: Callable[[LayerCall], int | None]) -> Callable[[Called], float | None]:
        return lambda mine: median_a_step(mine, of)

    def spent(phase: str) -> Callable[[Called], float | None]:
        return a_step(lambda c: c.end_ns - c.start_ns if c.phase == phase else None)

    return tabled(
        "layers",
        "Tensor-parallel layers",
        (
            Column("layer", "layer", lambda mine: mine[0][1].layer or "unknown", role="identity", lead=True),
            Column("calls", "collectives", a_step(lambda _: 1), Format("{:g}".format)),
            Column("bytes", "bytes", a_step(lambda c: c.size_bytes), binary_size),
            Column("forward", "forward", spent("forward"), duration),
            Column("backward", "backward", spent("backward"), duration),
            Column("exposed", "exposed", lambda mine: exposed_a_step(mine, window), duration),
        ),
        by_layer.values(),
        footnotes=_footnotes(divided, [c for mine in by_layer.values() for c in mine], window) if divided else (),
        notes=gaps(summary, "layers", otherwise=NONE),
    )


def _footnotes(divided: Sequence[DividedLayers], calls: Called, window: int) -> tuple[str, ...]:
    sizes = sorted({d.group_size for d in divided if d.group_size})
    of = f"groups of {', '.join(map(str, sizes))} ranks" if sizes else "tensor-parallel groups"
    named = "" if all(d.named_by == "plan" for d in divided) else "; calls are numbered in order of the forward pass"
    whole = (median_a_step(calls, lambda c: c.exposed_ns) or 0) / max(window, 1)
    return (
        f"{of}{named}; figures per step, medians over ranks and steps, with waiting",
        f"exposed: under no computation, share of the step; all layers together {format_percent(whole)}",
    )


VIEW = View(key="trace_layers", title="Tensor-parallel layers", needs=("trace",), table=build)
