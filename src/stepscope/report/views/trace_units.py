"""Sharded training (FSDP, ZeRO) unit by unit: what each gathers and reduces, and how much of it nothing hid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from stepscope.records.trace_rules import ShardedUnits, UnitCall
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Format, Table, Value, binary_size, duration, said, tabled, unknown
from stepscope.report.view import View
from stepscope.report.views._trace import exposed_a_step, gaps, median_a_step, step_counts, step_length

NONE = "no sharded parameters: no group gathers in the forward pass and reduces and scatters in the backward pass alone"

_ON_CPU = ("on CPUs FSDP waits for a gather where it calls it: whether it was prefetched is not judged",)

_WRAPPERS = {"fsdp1": "FullyShardedDataParallel (FSDP1)", "fsdp2": "fully_shard (FSDP2)", "deepspeed": "DeepSpeed ZeRO"}


def build(summary: TraceSummary) -> Table:
    """One row per unit in order of the forward pass; times per step, medians over ranks and steps."""
    sharded = [p.units for p in summary.ranks if p.units is not None]
    by_unit: dict[str, list[tuple[int, UnitCall]]] = defaultdict(list)
    for units in sharded:
        for call in units.calls:
            by_unit[call.unit or "unknown"].append((units.rank, call))
    steps = step_counts(sharded)
    window = step_length(summary, steps)

    def a_step(phase: str, op: str) -> Callable[[Sequence[tuple[int, UnitCall]]], float | None]:
        def spent(mine: Sequence[tuple[int, UnitCall]]) -> float | None:
            return median_a_step(mine, lambda c: c.end_ns - c.start_ns if (c.phase, c.op) == (phase, op) else None)

        return spent

    return tabled(
        "units",
        "Sharded units",
        (
            Column("unit", "unit", lambda mine: mine[0][1].unit or "unknown", role="identity", lead=True),
            Column(
                "size", "size", lambda mine: max((c.size_bytes or 0 for _, c in mine), default=0) or None, binary_size
            ),
            Column("gathers", "gathers", lambda mine: _calls(mine, steps), Format("{:g}".format)),
            Column("forward", "forward gather", a_step("forward", "all_gather"), duration, short_title="fwd gather"),
            Column("backward", "backward gather", a_step("backward", "all_gather"), duration, short_title="bwd gather"),
            Column("reduce", "reduce-scatter", a_step("backward", "reduce_scatter"), duration, short_title="reduce"),
            Column("early", "prefetched", _early),
            Column("exposed", "exposed", lambda mine: exposed_a_step(mine, window), duration),
        ),
        by_unit.values(),
        footnotes=(
            f"{_heading(sharded)}; size: gathered; times per step, medians over ranks and steps, with waiting",
            "prefetched: gathers that ran, or were queued, while the computation before them ran, of those that are not the "
            "first of their pass; exposed: under no computation, share of the step",
            *_ON_CPU[: any(u.source != "device" for u in sharded)],
        )
        if sharded
        else (),
        notes=gaps(summary, "units", otherwise=NONE),
    )


def _heading(sharded: Sequence[ShardedUnits]) -> str:
    of = ", ".join(sorted({_WRAPPERS.get(u.wrapper, "sharded parameters") for u in sharded}))
    ordered = any(u.named_by == "order" for u in sharded)
    return f"units of {of}" + (", numbered in order of the forward pass" if ordered else "")


def _calls(mine: Sequence[tuple[int, UnitCall]], steps: dict[int, int]) -> float:
    gathers = sum(c.op == "all_gather" for _, c in mine)
    return round(gathers / sum(steps[r] for r in {rank for rank, _ in mine}), 1)


def _early(mine: Sequence[tuple[int, UnitCall]]) -> Value:
    judged = [c.early for _, c in mine if c.early is not None]
    return said(f"{sum(judged)} of {len(judged)}", sum(judged) / len(judged)) if judged else unknown()


VIEW = View(key="trace_units", title="Sharded units", needs=("trace",), table=build)
