"""Views, ONE FILE PER TOPIC: ``VIEWS`` with its tables and its charts, each described once for every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from stepscope.core.dataclass import dataclass
from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.report.table import Table
    from stepscope.report.vega import Chart


@dataclass(frozen=True, slots=True)
class View:
    """A table (or several), or charts, or both of one topic, under the key that files and options name.

    Each is a function of records by their names (``rows``, ``runs``); what it has a default for it can do without.
    title: before those of its charts. stem: name of a chart's file without its ending, with ``KEY`` for the chart's key;
    empty: ``VIEW-KEY``.
    """

    key: str
    title: str = ""
    _: KW_ONLY
    table: Callable[..., Table] | None = None
    tables: Callable[..., tuple[Table, ...]] | None = None
    charts: Callable[..., Iterable[Chart]] | None = None
    stem: str = ""

    def drawn(self, records: Mapping[str, Any]) -> tuple[Chart, ...]:
        """Return the charts of ``records``; none where one that they need is missing."""
        keywords = None if self.charts is None else given(self.charts, records)
        return () if self.charts is None or keywords is None else tuple(self.charts(**keywords))


def given(function: Callable[..., Any], records: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the keywords for ``function`` out of ``records``; None where one without a default is missing."""
    parameters = signature(function).parameters.values()
    if any(records.get(wanted.name) is None and wanted.default is wanted.empty for wanted in parameters):
        return None
    return {wanted.name: records[wanted.name] for wanted in parameters if records.get(wanted.name) is not None}


TOPICS: Registry[tuple[View, ...]] = Registry("stepscope.report.views", "VIEWS", "topic of views")


@cache
def views() -> dict[str, View]:
    """Return every view by its key, sorted; loads all files of the folder."""
    by_key = {view.key: view for topic in TOPICS.names() for view in TOPICS.load(topic)}
    return dict(sorted(by_key.items()))
