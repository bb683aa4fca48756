"""Charts, one file each: ``CHART`` with ``needs``, ``prepare`` (pure), ``draw`` and ``caption``. None yet."""

from typing import Any

from stepscope.core.registry import Registry

REGISTRY: Registry[Any] = Registry("stepscope.report.charts", "CHART", "chart")
