"""A/B: figures of every side against the first, what differs in how they were made, parts of two traces' steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepscope.core.units import format_duration
from stepscope.core.words import counted, grouped
from stepscope.records.comparison import ComparedFigure, Comparison, Difference
from stepscope.records.nouns import Measured
from stepscope.records.trace_summary import DiffRow, TraceDiff
from stepscope.report.kernel_names import short_names
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    binary_size,
    duration,
    figure,
    group_column,
    lead_column,
    p_value,
    rate,
    tabled,
    unknown,
    whole,
    wording,
)
from stepscope.report.views import View
from stepscope.results.comparing import STEP_METRIC, lacking
from stepscope.results.differences import Conditions
from stepscope.results.figures import COMPARED, Unit

LACKING = {
    "test": "the interval leaves out no change, the test does not (p 0.05 or more)",
    "interval": "the replicates differ by the test, the interval holds no change",
}
"""What keeps a figure from being different."""

WIDE = 5
"""An interval that may reach this far either way says nothing more."""

MOST_DIFFERENCES = 16
"""Differences of machine, software and settings on one screen."""

MOST_NAMED = 8
"""Facts that all sides share, named in one line."""

_TONES: dict[str, Tone] = {"better": "good", "worse": "bad"}


def comparison_table(comparison: Comparison) -> Table:
    """Return the table: one row a figure; blocks by what is compared. Changes are shown against the first side."""
    many = many_sides(comparison)
    first, second = comparison.sides[0], comparison.sides[1]
    kinds = dict.fromkeys(f.replicate for f in comparison.figures if f.p_value is not None)
    footnotes = []
    if kinds:
        named = ", ".join(k for k in kinds if k)
        footnotes.append(f"p: Mann-Whitney U, two-sided; tested figures are medians over replicates: {named}")
    footnotes += [
        f"({key}): {text}" for key, text in LACKING.items() if any(lacking(f) == key for f in comparison.figures)
    ]
    if any(f.metric == STEP_METRIC for f in comparison.figures):
        footnotes.append(OF_RUNS)
    reasons = dict.fromkeys(f.untested for f in comparison.figures if f.untested and f.replicate)
    footnotes += [f"not tested: {reason}" for reason in reasons if reason]
    return tabled(
        "comparison",
        f"{second} against {first}" if not many else f"every run against {first}",
        comparison.figures,
        group_column("what", "", "what"),
        *([lead_column("side", "run", "side")] if many else []),
        lead_column("metric", "figure", lambda f: wording(_figure_title(f), f.metric)),
        Column("first", first, lambda f: _figure_value(f.metric, f.first), figure),
        Column("second", "value" if many else second, lambda f: _figure_value(f.metric, f.second), figure),
        Column(
            "change",
            "change",
            lambda f: wording(signed_percent(f.change), f.change, tone=_TONES.get(f.verdict, "plain")),
            figure,
        ),
        Column("interval", "95% interval", _interval_text, whole, drop=3),
        Column("p_value", "p", "p_value", p_value, drop=2),
        Column("verdict", "verdict", lambda f: wording(_verdict_text(f), f.verdict, tone=_TONES.get(f.verdict, "dim"))),
        footnotes=tuple(footnotes),
        notes=comparison.notes,
    )


MOST_ROWS = 24
"""Figures that are shown one by one; more are summed up by what they are of."""

MOST_LABELS = 16
"""Lines of a sum by label; of more labels only what all figures of one kind did is said."""


_Sum = tuple[str, str, Sequence[ComparedFigure]]
"""A kind of figure, a label, and the figures that have both."""


def build_summed(comparison: Comparison) -> Table:
    """Return the table of many figures: a line for each label of the first kind of figure, one for each other kind."""
    kinds = grouped(comparison.figures, lambda f: (f.side, metric_name(f)))
    first = dict(reversed(kinds))
    sums: list[_Sum] = []
    for (side, name), figures in kinds.items():
        labels = grouped(figures, lambda f: f.label or f.what)
        by_label = name == first[side] and 1 < len(labels) <= MOST_LABELS and len(comparison.sides) == 2
        if not by_label:
            labels = {side if many_sides(comparison) else "all": figures}
        sums += [(name, label, labelled) for label, labelled in labels.items()]

    def change(at: float) -> Callable[[_Sum], Value]:
        """Return what writes the quantile ``at`` of the changes."""

        def of(summed: _Sum) -> Value:
            quantile = float(np.quantile([f.ratio for f in summed[2]], at)) - 1
            return wording(signed_percent(quantile), quantile)

        return of

    def verdicts(summed: _Sum) -> str:
        counts: Counter[str] = Counter(f.verdict for f in summed[2])
        order = ("better", "worse", "not clear", "no significant difference", "not tested")
        return ", ".join(f"{counts[kind]} {kind}" for kind in order if counts[kind])

    return tabled(
        "comparison",
        f"Changes against {comparison.sides[0]}, {len(comparison.figures)} figures summed up",
        sums,
        group_column("metric", "figure", "0"),
        lead_column("label", "", "1"),
        Column("figures", "figures", lambda s: len(s[2]), whole, drop=2),
        Column("change", "median", change(0.5), figure),
        Column("least", "least", change(0), figure, drop=1),
        Column("most", "most", change(1), figure, drop=1),
        Column("verdict", "verdicts", verdicts),
        notes=comparison.notes,
    )


def many_sides(comparison: Comparison) -> bool:
    return len(comparison.sides) > 2


def _verdict_text(compared: ComparedFigure) -> str:
    """Write the verdict, and in brackets which of test and interval it lacks."""
    missing = lacking(compared)
    return compared.verdict if missing is None else f"{compared.verdict} ({missing})"


def side_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Say for each side how the step of two profiled jobs changed; else how many figures differ, and the largest."""
    return tuple(
        f"{side} against {comparison.sides[0]}: {_side_text(comparison, side)}" for side in comparison.sides[1:]
    )


def _side_text(comparison: Comparison, side: str) -> str:
    tested = [f for f in comparison.figures if f.side == side and f.verdict != "not tested"]
    clear = [f for f in tested if f.verdict in ("better", "worse")]
    step = next((f for f in comparison.figures if f.side == side and f.metric == STEP_METRIC), None)
    unclear = [f for f in tested if f.verdict == "not clear"]
    if step is not None:
        parts = [f"{metric_name(f)} {signed_percent(f.change)}" for f in clear if f is not step]
        return "; ".join((step_sentence(step), *parts))
    if clear:
        most = max(clear, key=lambda f: abs(f.change))
        kinds = ("better", "worse", "not clear")
        counts = ", ".join(f"{n} {k}" for k in kinds if (n := sum(f.verdict == k for f in tested)))
        largest = f"{metric_name(most)} {signed_percent(most.change)}"
        return f"{counts} of {counted(len(tested), 'tested figure')}; largest: {largest}"
    if unclear:
        most = max(unclear, key=lambda f: abs(f.change))
        return f"not clear in {len(unclear)} of {counted(len(tested), 'tested figure')}: {unclear_sentence(most)}"
    return f"no significant difference in {counted(len(tested), 'tested figure')}" if tested else "nothing was tested"


def step_sentence(compared: ComparedFigure) -> str:
    """Say what came out of all steps of two jobs, and what it rests on."""
    if compared.p_value is None:
        return f"step {signed_percent(compared.change)}, not tested: {compared.untested}"
    change = f"{signed_percent(compared.change)} (95% interval {_interval_text(compared)}, p {compared.p_value:.2g})"
    if compared.verdict in _TONES:
        slower = "slower" if compared.ratio > 1 else "faster"
        return f"steps are {slower}: {change}"
    missing = lacking(compared)
    if missing == "interval":
        return f"no significant difference: blocks of steps differ, but two runs of one command may differ so: step {change}"
    if missing == "test":
        return f"not clear: the interval leaves out no change, the test does not: step {change}"
    return f"no significant difference: step {change}"


def unclear_sentence(compared: ComparedFigure) -> str:
    """Say of a figure on which test and interval disagree the change, and which of the two does not show it."""
    change = f"{metric_name(compared)} {signed_percent(compared.change)}, 95% interval {_interval_text(compared)}"
    if lacking(compared) == "test":
        return f"{change}, but p {compared.p_value:.2g} from {compared.first.n} + {compared.second.n} replicates"
    return f"{change}, which holds no change, but p {compared.p_value:.2g}"


def build_differences(comparison: Comparison) -> Table:
    """Return the table of what is not the same in how the sides were made."""
    return differences_table(comparison.differences, comparison.sides)


def differences_table(differences: Sequence[Difference], sides: Sequence[str]) -> Table:
    """Return the table of any differences, a column a side."""

    def side(number: int) -> Callable[[Difference], Value]:
        def value(difference: Difference) -> Value:
            setting = difference.values[number]
            return unknown() if setting is None else wording(short_setting(setting), setting)

        return value

    return tabled(
        "differences",
        "What differs before any figure",
        differences,
        group_column("where", "", "where"),
        lead_column("key", "", "key"),
        *(Column(f"side_{i}", name, side(i)) for i, name in enumerate(sides)),
    )


def most_telling(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the first difference of each key, machine and software before settings, no more than a screen has room for."""
    first: dict[str, Difference] = {}
    for difference in differences:
        first.setdefault(difference.key, difference)
    return tuple(first.values())[:MOST_DIFFERENCES]


def said_of_conditions(comparison: Comparison | Conditions) -> tuple[str, ...]:
    """Say what all sides share, and what some or all of them do not tell: a line each."""
    lines = []
    if comparison.same:
        values = grouped(comparison.same, lambda difference: difference.key)
        several = {key: f"{len(value)} values" for key, value in values.items() if len(value) > 1}
        keys = [f"{key} {several.get(key) or short_setting(values[key][0].values[0] or '', most=40)}" for key in values]
        more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
        lines.append(f"the same: {', '.join(keys[:MOST_NAMED])}{more}")
    partly = [difference for difference in comparison.unknown if any(difference.values)]
    if partly:
        texts = (
            f"{difference.key} ({' / '.join(short_setting(v, most=40) if v else '?' for v in difference.values)})"
            for difference in partly
        )
        lines.append(f"unknown on some side: {', '.join(texts)}")
    nowhere = [difference.key for difference in comparison.unknown if not any(difference.values)]
    if nowhere:
        lines.append(f"unknown on every side: {', '.join(nowhere)}")
    return tuple(lines)


def short_setting(text: str, *, most: int = 60) -> str:
    """Return the first line, cut where it is long: a link matrix is a page of text."""
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= most and line == text else f"{line[: most - 3]}..."


OF_RUNS = "intervals hold what two runs of one command differ by (0.9% each, and more where the machine had other work)"

_OWN = ("step", "call")
"""Replicates whose median is a run's own figure, too."""


def _figure_title(compared: ComparedFigure) -> str:
    """Write ``step``, or ``step, median of blocks`` where that is not the figure that the run has by itself."""
    name, kind = metric_name(compared), compared.replicate
    return name if kind is None or kind in _OWN else f"{name}, median of {kind.partition(' ')[0]}s"


def metric_name(compared: ComparedFigure) -> str:
    """Write ``step``; a throughput by what it counts: ``tokens/s``."""
    if compared.unit is not None:
        return f"{compared.unit}/s"
    return COMPARED[compared.metric].title


def _interval_text(compared: ComparedFigure) -> str | None:
    if compared.low is None or compared.high is None:
        return None
    if compared.high > compared.low * WIDE**2:
        return f"{WIDE}x either way and more"
    return f"{signed_percent(compared.low - 1)} to {signed_percent(compared.high - 1)}"


_CELLS: Mapping[Unit, Callable[[float], Value]] = {"ns": duration, "bytes": binary_size, "per s": rate}


def _figure_value(metric: str, measured: Measured) -> Value:
    return _CELLS.get(COMPARED[metric].unit, figure)(measured.value)


def signed_percent(change: float) -> str:
    """Write ``+3.1%``; whole numbers from 100% on."""
    return f"{change * 100:+.0f}%" if abs(change) >= 1 else f"{change * 100:+.1f}%"


def comparison_tables(comparison: Comparison) -> tuple[Table, ...]:
    """Return the tables of what differs in how the sides were made, then of the figures."""
    return build_differences(comparison), comparison_table(comparison)


NOISE_P = 0.05


def diff_table(diff: TraceDiff) -> tuple[Table, ...]:
    """Return the tables of parts, kernels and operators of one pair of ranks; lists without rows are left out."""
    tables = (
        _diff_table("parts", "Parts of a step", diff.parts),
        _diff_table("kernels", "Kernels that changed most", diff.kernels),
        _diff_table("operators", "Operators that changed most (host time)", diff.operators),
    )
    return tuple(t for t in tables if t.rows)


def _diff_table(key: str, title: str, rows: Sequence[DiffRow]) -> Table:
    """Return the table of one kind of rows that changed."""
    shown = [r for r in rows if r.before_ns or r.after_ns]
    names = short_names([r.name for r in shown]) if key == "kernels" else {}
    tested = any(r.p_value is not None for r in shown)
    test = "; p: permutation test over steps, corrected for all rows; none for what is new or gone"

    return tabled(
        f"diff_{key}",
        title,
        shown,
        lead_column("name", "", lambda r: wording(names.get(r.name, r.name) + _MARKS.get(r.presence, ""), r.name)),
        Column("before", "before", "before_ns", duration),
        Column("after", "after", "after_ns", duration),
        Column("delta", "change", _change_value, duration),
        Column("ratio", "after/before", "ratio", Format("{:.3f}".format)),
        Column("p_value", "p", "p_value", p_value, drop=1),
        footnotes=("per step, median over steps" + (test if tested else ""),),
    )


_MARKS = {"new": " (new)", "gone": " (gone)"}


def _change_value(row: DiffRow) -> Value:
    certain = row.p_value is not None and row.p_value < NOISE_P
    tone: Tone = "plain" if not certain else "bad" if row.delta_ns > 0 else "good"
    sign = "+" if row.delta_ns > 0 else "-" if row.delta_ns < 0 else ""
    return Value(sign + format_duration(abs(row.delta_ns)), row.delta_ns, tone=tone)


VIEWS = (
    View("comparison", tables=comparison_tables),
    View("trace_diff", tables=diff_table),
)
