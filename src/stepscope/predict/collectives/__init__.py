"""Collectives on NCCL and RCCL from the hardware's specification alone. Offline."""

from stepscope.predict.collectives.choose import OPS, predict_collective
from stepscope.predict.collectives.measured import read_measured_table, read_measured_tables
from stepscope.predict.collectives.measured_rows import Given, MeasuredRow, MeasuredTable
from stepscope.predict.collectives.validate import ValidationReport, validate

__all__ = [
    "OPS",
    "Given",
    "MeasuredRow",
    "MeasuredTable",
    "ValidationReport",
    "predict_collective",
    "read_measured_table",
    "read_measured_tables",
    "validate",
]
