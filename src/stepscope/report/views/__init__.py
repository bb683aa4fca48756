"""Views, ONE FILE PER TOPIC: ``VIEWS`` with its tables and its charts, each described once for every output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.core.dataclass import dataclass
from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.report.table import Table
    from stepscope.report.vega import Spec

C = TypeVar("C", bound=Any)


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts of a view. One view may draw several: ``prepare`` gives one frozen datum for each.

    needs: keywords of ``prepare`` without which there is nothing to draw (``rows``, ``calibration``); wants: those that
    it uses where they are there. prepare: pure; data have ``key`` (part of a file name) and ``title``. chart: the
    Vega-Lite description of a datum. caption: what is seen, in sentences that need no chart. stem: name of a datum's
    file without its ending, with ``KEY`` for the datum's key; None: ``VIEW-KEY``.
    """

    needs: tuple[str, ...]
    prepare: Callable[..., tuple[Any, ...]]
    chart: Callable[[Any], Spec]
    caption: Callable[[Any], str]
    _: KW_ONLY
    wants: tuple[str, ...] = ()
    stem: str | None = None

    def given(self, records: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the keywords for ``prepare`` out of ``records``; None where one that it needs is missing."""
        if any(records.get(name) is None for name in self.needs):
            return None
        return {n: records[n] for n in (*self.needs, *self.wants) if records.get(n) is not None}

    def data(self, records: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what there is to draw of ``records``."""
        keywords = self.given(records)
        return () if keywords is None else self.prepare(**keywords)


def distinct(charts: Iterable[C]) -> tuple[C, ...]:
    """Return ``charts``; the key of one that has the key of one before gets a number behind it."""
    numbered: list[C] = []
    seen: Counter[str] = Counter()
    for chart in charts:
        seen[chart.key] += 1
        numbered.append(replace(chart, key=f"{chart.key}-{seen[chart.key]}") if seen[chart.key] > 1 else chart)
    return tuple(numbered)


@dataclass(frozen=True, slots=True)
class View:
    """A table, or charts, or both of one topic, under the key that files and options name.

    needs: the records that ``table`` (or ``tables``, where a topic has several) takes, in that order.
    """

    key: str
    title: str
    _: KW_ONLY
    needs: tuple[str, ...] = ()
    table: Callable[..., Table] | None = None
    tables: Callable[..., tuple[Table, ...]] | None = None
    charts: Charts | None = None


def drawn(
    key: str,
    title: str,
    needs: tuple[str, ...],
    prepare: Callable[..., tuple[Any, ...]],
    chart: Callable[[Any], Spec],
    caption: Callable[[Any], str],
    *,
    table: Callable[..., Table] | None = None,
    tables: Callable[..., tuple[Table, ...]] | None = None,
    wants: tuple[str, ...] = (),
    stem: str | None = None,
) -> View:
    """Return a view with charts, and with tables where they need the same records."""
    charts = Charts(needs, prepare, chart, caption, wants=wants, stem=stem)
    return View(key, title, needs=needs if table or tables else (), table=table, tables=tables, charts=charts)


TOPICS: Registry[tuple[View, ...]] = Registry("stepscope.report.views", "VIEWS", "topic of views")


@cache
def views() -> dict[str, View]:
    """Return every view by its key, sorted; loads all files of the folder."""
    by_key = {view.key: view for topic in TOPICS.names() for view in TOPICS.load(topic)}
    return dict(sorted(by_key.items()))
