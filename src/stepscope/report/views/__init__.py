"""Views, ONE FILE PER TOPIC: ``VIEWS`` with its tables and its charts, each described once for every output."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.report.view import View

TOPICS: Registry[tuple[View, ...]] = Registry("stepscope.report.views", "VIEWS", "topic of views")


@cache
def views() -> dict[str, View]:
    """Every view by its key, sorted; loads all files of the folder."""
    found = {view.key: view for topic in TOPICS.names() for view in TOPICS.load(topic)}
    return dict(sorted(found.items()))
