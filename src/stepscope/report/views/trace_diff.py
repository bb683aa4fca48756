"""Two traces side by side: parts of the step, kernels and operators that changed, by how much."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.trace_summary import DiffRow, TraceDiff
from stepscope.report.kernel_names import short_names
from stepscope.report.table import Column, Format, Table, Tone, Value, duration, p_value, said, tabled
from stepscope.report.view import View

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
    test = "; p: permutation test over steps, corrected for all rows; none for what is new or gone"

    return tabled(
        f"diff_{key}",
        title,
        (
            Column(
                "name",
                "",
                lambda r: said(names.get(r.name, r.name) + _MARKS.get(r.presence, ""), r.name),
                role="identity",
                lead=True,
            ),
            Column("before", "before", lambda r: r.before_ns, duration),
            Column("after", "after", lambda r: r.after_ns, duration),
            Column("delta", "change", _change, duration),
            Column("ratio", "after/before", lambda r: r.ratio, Format("{:.3f}".format)),
            Column("p_value", "p", lambda r: r.p_value, p_value, drop=1),
        ),
        shown,
        footnotes=("per step, median over steps" + (test if tested else ""),),
    )


_MARKS = {"new": " (new)", "gone": " (gone)"}


def _change(row: DiffRow) -> Value:
    certain = row.p_value is not None and row.p_value < NOISE_P
    tone: Tone = "plain" if not certain else "bad" if row.delta_ns > 0 else "good"
    sign = "+" if row.delta_ns > 0 else "-" if row.delta_ns < 0 else ""
    return Value(text=sign + format_duration(abs(row.delta_ns)), raw=row.delta_ns, tone=tone)


VIEW = View(key="trace_diff", title="Two traces", needs=("diff",), tables=build)
