"""What a rank holds under each strategy, measured beside planned, and what that costs in time."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.report.table import Column, Table, Value, duration, said, size, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._training import measured
from stepscope.results.evidence import CellEvidence
from stepscope.results.held import KINDS, conclusions, held


def build(cells: Sequence[CellEvidence]) -> tuple[Table, ...]:
    """One table over all cells; nothing where no cell counted its tensors."""
    found = held(cells)
    if not found:
        return ()
    table = tabled(
        "held",
        "Memory of a rank by kind, against time",
        (
            Column("label", "strategy", lambda h: h.cell.run.strategy, role="identity", lead=True),
            Column("world_size", "ranks", lambda h: h.cell.run.world_size, whole, role="identity"),
            *(_column(kind) for kind in KINDS),
            Column("total", "all", lambda h: h.total, size),
            Column("buffers", "buffers", lambda h: h.planned_buffers, size, drop=1),
            Column("states_off", "states off plan", lambda h: _off(h.states, h.planned_states)),
            Column(
                "activations_off", "act. off plan", lambda h: _off(h.sizes.get("activations"), h.planned_activations)
            ),
            Column("comm_bytes", "bytes/step", lambda h: h.cell.run.comm_bytes_per_step, size),
            Column("step_ns", "step", lambda h: measured(h.cell.run.step_ns, duration, tight=True), duration),
        ),
        found,
        footnotes=(
            *conclusions(found),
            "tensors of the rank that holds most, counted in one step; gathered: whole parameters of a sharded model "
            "between forward and backward; activations: kept for the backward pass",
            "buffers: what communication holds beside them, as planned: buckets, and units that are whole for a moment",
            "off plan: measured over planned, less 1; states: parameters, gradients and optimizer",
        ),
    )
    return (table,)


def _column(kind: str) -> Column:
    return Column(kind, kind, lambda h: h.sizes.get(kind), size, drop=2)


def _off(found: int | None, planned: int | None) -> Value:
    if found is None or not planned:
        return said(None)
    share = found / planned - 1
    return Value(text=f"{share:+.1%}", raw=share)


VIEW = View(key="held", title="Memory of a rank by kind, against time", needs=("cells",), tables=build)
