"""stepscope: where a distributed PyTorch training step's time goes."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "open": ("stepscope.api.job", "open"),
    "Job": ("stepscope.api.job", "Job"),
    "Frame": ("stepscope.report.frame", "Frame"),
    "Answer": ("stepscope.api.answer", "Answer"),
    "DrawnChart": ("stepscope.api.chart", "DrawnChart"),
    "analyse_job": ("stepscope.traces.job", "analyse_job"),
    "StepMonitor": ("stepscope.monitor", "StepMonitor"),
    "annotate": ("stepscope.rank.annotate", "annotate"),
    "diagnose_traces": ("stepscope.diagnose.engine", "diagnose_traces"),
    "load_traces": ("stepscope.traces.load", "load_traces"),
    "trace_table": ("stepscope.report.trace_sections", "table"),
}
"""The public functions; ``__init__.pyi`` has their types."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Public functions, imported on first use: ``import stepscope`` itself loads nothing."""
    if name in _HOMES:
        from importlib import import_module

        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names only."""
    return sorted(__all__)
