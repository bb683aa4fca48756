# ruff: noqa: A004
"""The public functions, for type checkers: at run time ``__init__.py`` imports each on first use."""

from stepscope.api.answer import Answer as Answer
from stepscope.api.chart import DrawnChart as DrawnChart
from stepscope.api.job import Job as Job
from stepscope.api.job import open as open
from stepscope.diagnose.engine import diagnose_traces as diagnose_traces
from stepscope.monitor import StepMonitor as StepMonitor
from stepscope.rank.annotate import annotate as annotate
from stepscope.report.frame import Frame as Frame
from stepscope.report.trace_sections import table as trace_table
from stepscope.traces.job import analyse_job as analyse_job
from stepscope.traces.load import load_traces as load_traces

__version__: str
__all__ = [
    "Answer", "DrawnChart", "Frame", "Job", "StepMonitor", "__version__", "analyse_job", "annotate", "diagnose_traces",
    "load_traces", "open", "trace_table",
]  # fmt: skip
