"""A comparison as a comment on a pull request: what came out, the figures that differ, and what differs around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.core.words import counted
from stepscope.records.comparison import ComparedFigure, Comparison
from stepscope.report.conditions import Condition, changed_too_far
from stepscope.report.documents import compare_changes
from stepscope.report.render.files import as_markdown, plain_text
from stepscope.report.table import Table
from stepscope.report.views.comparison import (
    comparison_table,
    most_telling,
    said_of_conditions,
    short_setting,
    side_sentences,
    signed_percent,
)
from stepscope.results.comparing import STEP_METRIC
from stepscope.results.figures import COMPARED
from stepscope.results.scaling_budget import verdict

MOST_LINES = 20

MOST_FIGURES = 8

MOST_SETTINGS = 6

_ORDER = ("worse", "better", "not clear", "not tested", "no significant difference")
"""The order in which figures are shown, by verdict; those of the last one only where they are asked for."""


def write_comment(comparison: Comparison, conditions: Sequence[Condition] = ()) -> str:
    """Write Markdown of at most ``MOST_LINES`` lines. conditions: of ``--fail-if``; those that hold are named first, and the
    figures that they are about."""
    failed = dict(changed_too_far(conditions, compare_changes(comparison)))
    lines = [line for budget in comparison.scaling for line in verdict(budget)] + [*side_sentences(comparison)]
    stated = "; ".join(map(plain_text, lines))
    fails = f"Fails: {plain_text('; '.join(failed))}. " if failed else ""
    shown = _figures_to_show(comparison.figures, asked={condition.key for condition in conditions})
    table = _comparison_table(comparison, shown)
    rows = [*as_markdown(table, footnotes=False).splitlines(), ""] if shown else []
    text = [f"**{fails}{stated}**", "", *rows]
    around = (_differing_settings_text(comparison), *said_of_conditions(comparison))
    asides = [f"- {plain_text(line)}" for line in (*around, *table.footnotes, *table.notes, *comparison.unmatched)]
    if left := len(comparison.figures) - len(shown):
        asides.insert(0, f"- {counted(left, 'more figure')} without a clear difference, or with a smaller one")
    room = MOST_LINES - len(text)
    if len(asides) > room:
        asides[room - 1 :] = [f"- and {counted(len(asides) - room + 1, 'more remark')}: `stepscope compare` shows them"]
    return "\n".join((*text, *asides)) + "\n"


def _figures_to_show(figures: Sequence[ComparedFigure], asked: Collection[str]) -> list[ComparedFigure]:
    """Return the figures that differ, those asked for and the worst first; where none does, the first of all.

    The step of whole jobs is one of them whatever it did, shares of their wall time are none.
    """

    def differs(figure: ComparedFigure) -> bool:
        changed = figure.verdict != _ORDER[-1] and signed_percent(figure.change) != signed_percent(0)
        return figure.metric == STEP_METRIC or (changed and COMPARED[figure.metric].of != "wall")

    shown = [figure for figure in figures if figure.metric in asked or differs(figure)]
    shown.sort(key=lambda f: (f.metric not in asked, _ORDER.index(f.verdict), -abs(f.change)))
    return shown[:MOST_FIGURES] or [*figures[:1]]


def _comparison_table(comparison: Comparison, shown: Sequence[ComparedFigure]) -> Table:
    """Return one table: what its blocks are of is a column where they are of several things."""
    table = comparison_table(replace(comparison, figures=tuple(shown)))
    several = len({(f.side, f.what) for f in shown}) > len({f.side for f in shown})
    columns = [replace(c, role="lead", title="of") if c.role == "group" else c for c in table.columns]
    kept = [n for n, column in enumerate(table.columns) if several or column.role != "group"]
    rows = [replace(row, values=tuple(row.values[n] for n in kept)) for row in table.rows]
    return replace(table, columns=tuple(columns[n] for n in kept), rows=tuple(rows))


def _differing_settings_text(comparison: Comparison) -> str:
    """Say what differs in machine, software and settings: each with its values, in the order of the sides."""
    telling = most_telling(comparison.differences)
    if not telling:
        return "no known difference in machine, software or settings"
    values = (
        f"{d.key} {' → '.join('?' if v is None else short_setting(v) for v in d.values)}"
        for d in telling[:MOST_SETTINGS]
    )
    more = len({d.key for d in comparison.differences}) - MOST_SETTINGS
    return f"differs: {', '.join(values)}" + (f" and {more} more" if more > 0 else "")
