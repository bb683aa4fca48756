"""Views, ONE FILE PER TOPIC: ``VIEW`` with its table and its charts, each described once for every output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.report.view import View

REGISTRY: Registry[View] = Registry("stepscope.report.views", "VIEW", "view")
