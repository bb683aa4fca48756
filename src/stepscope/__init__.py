"""stepscope: where a distributed PyTorch training step's time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.traces.job import analyse_job
    from stepscope.traces.load import load_traces

__version__ = "0.1.0"
__all__ = ["__version__", "analyse_job", "load_traces"]

_HOMES = {"analyse_job": "stepscope.traces.job", "load_traces": "stepscope.traces.load"}


def __getattr__(name: str) -> Any:
    """Public functions, imported on first use: ``import stepscope`` itself loads nothing."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
