"""Two traces side by side: parts of the step, kernels and operators that changed, by how much."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.trace_diff import DiffRow, TraceDiff
from stepscope.report.kernel_names import short_names
from stepscope.report.tables._common import Column, Row, Table, Tone, Value, unknown

NOISE_P = 0.05


def build(diff: TraceDiff) -> tuple[Table, ...]:
    """Parts, kernels and operators of one pair of ranks; lists without rows are left out."""
    tables = (
        _table("parts", "Parts of a step", diff.parts),
        _table("kernels", "Kernels that changed most", diff.kernels),
        _table("operators", "Operators that changed most (host time)", diff.operators),
    )
    return tuple(t for t in tables if t.rows)


def _table(key: str, title: str, rows: Sequence[DiffRow]) -> Table:
    shown = [r for r in rows if r.before_ns or r.after_ns]
    names = short_names([r.name for r in shown]) if key == "kernels" else {}
    tested = any(r.p_value is not None for r in shown)
    return Table(
        key=f"diff_{key}",
        title=title,
        columns=(
            Column(key="name", title="", align="left", role="identity", lead=True),
            Column(key="before", title="before", unit="ns"),
            Column(key="after", title="after", unit="ns"),
            Column(key="delta", title="change", unit="ns"),
            Column(key="ratio", title="after/before"),
            Column(key="p_value", title="p", drop=1),
        ),
        rows=tuple(_row(r, names.get(r.name, r.name)) for r in shown),
        footnotes=(
            "per step, median over steps" + ("; p: Mann-Whitney over steps, corrected for all rows" if tested else ""),
        ),
    )


def _row(row: DiffRow, name: str) -> Row:
    mark = {"new": " (new)", "gone": " (gone)"}.get(row.presence, "")
    certain = row.p_value is not None and row.p_value < NOISE_P
    tone: Tone = "plain" if not certain else "bad" if row.delta_ns > 0 else "good"
    sign = "+" if row.delta_ns > 0 else "-" if row.delta_ns < 0 else ""
    return Row(
        values=(
            Value(text=name + mark, raw=row.name),
            Value(text=format_duration(row.before_ns), raw=row.before_ns),
            Value(text=format_duration(row.after_ns), raw=row.after_ns),
            Value(text=sign + format_duration(abs(row.delta_ns)), raw=row.delta_ns, tone=tone),
            unknown() if row.ratio is None else Value(text=f"{row.ratio:.3f}", raw=row.ratio),
            unknown() if row.p_value is None else Value(text=f"{row.p_value:.2g}", raw=row.p_value),
        )
    )
