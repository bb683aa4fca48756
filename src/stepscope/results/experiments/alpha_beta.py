"""Does a straight line say what an all-reduce takes? Alpha and beta of half of the sizes predict the others, and a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.units import format_bandwidth, format_duration, format_percent, format_size
from stepscope.core.words import counted
from stepscope.predict.calibration import calibrate
from stepscope.predict.line_fit import line_time_ns
from stepscope.predict.specs import specs_of
from stepscope.records.calibration import Line
from stepscope.records.comm import CommRow
from stepscope.records.nouns import Measured
from stepscope.results.comm_costs import NOWHERE
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, finished

MATRIX = """\
# Does latency + bytes / bandwidth say what an all-reduce takes? Half of the sizes give alpha and beta, which then predict
# the other half, and the communication of a step that reduces its gradients one by one.
version: 1
description: "alpha and beta of an all-reduce from half of the sizes, held against the others and against a training step"
base:
  workload: deep_mlp
  model: {depth: 8, width: 512}
  loss: mse
  dataset: synthetic
  dataset_options: {samples: 8192}
  optimizer: sgd
  lr: 0.01
  micro_batch: 64
  steps: 60
  strategy: naive
axes:
  strategy_options.flat: [false, true]
  world_size: [2]
include:
  - {strategy: single, world_size: 1}
comm: {ops: all_reduce, sizes: "1K:16M:2", budget_s: 1}
measure: {budget_s: 30, timeout_s: 300}
"""

OP = "all_reduce"


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Check for each world size the sizes left out, then the steps of ``naive``."""
    rows = [row for row in evidence.comm if row.kind == "collective" and row.op == OP and row.status == "ok"]
    checks: list[Expectation] = []
    for world in sorted({row.world_size for row in rows}):
        ours = sorted(
            (row for row in rows if row.world_size == world and row.size_bytes), key=lambda r: r.size_bytes or 0
        )
        line = _fitted_line(ours[::2])
        checks += [_size_expectation(row, line) for row in ours[1::2]]
        checks += [_step_expectation(cell, line) for cell in finished(evidence) if cell.spec.world_size == world]
    return tuple(checks)


def _fitted_line(rows: Sequence[CommRow]) -> Line | str:
    """The line through these sizes, or why there is none."""
    try:
        fit = calibrate(rows, run="", machine=NOWHERE).fits[0]
    except (UsageError, IndexError) as error:
        return error.line if isinstance(error, UsageError) else "too few sizes for a line"
    return fit.line


def _made_of(line: Line | str) -> str:
    """What the line is made of; empty without one."""
    if isinstance(line, str):
        return ""
    beta = "no beta" if line.beta_bytes_per_s is None else f"beta {format_bandwidth(line.beta_bytes_per_s)}"
    return (
        f"{line.steps} x alpha {format_duration(line.alpha_ns)} + wire bytes / {beta}, "
        f"mean error {format_percent(line.mean_relative_error)}"
    )


def _size_expectation(row: CommRow, line: Line | str) -> Expectation:
    """Return the check of one size: its time beside that of the line."""
    size = row.size_bytes or 0
    return _line_expectation(
        f"{OP}, {row.world_size} ranks", format_size(size), line,
        None if isinstance(line, str) else line_time_ns(line, size),
        Measured(value=row.time_ns or 0.0, low=row.time_ns_low, high=row.time_ns_high),
        hint="the times do not follow a line here: the curve of `stepscope calibrate` follows it", detail=_made_of(line),
    )  # fmt: skip


def _step_expectation(cell: CellEvidence, line: Line | str) -> Expectation:
    """Return the check of a cell's step: its exposed communication beside the sum of its calls by the line."""
    plan = specs_of(cell.spec).comm_plan
    total = None if isinstance(line, str) else sum(line_time_ns(line, op.size_bytes) for op in plan)
    return _line_expectation(
        cell.run.label, f"{counted(len(plan), 'blocking all-reduce')} of a step", line, total, cell.run.exposed_comm_ns,
        hint="in a step, ranks also wait for each other before they reduce, and caches are cold",
    )  # fmt: skip


def _line_expectation(
    subject: str, quantity: str, line: Line | str, expected: float | None, measured: Measured | None, **words: Any
) -> Expectation:
    """Return the check of a time, ns, against the line; missing where there is no line."""
    return Expectation(
        subject=subject, quantity=quantity, unit="time", measured=measured, **words,
        model="line through every second size", expected=None if expected is None else Measured(value=expected),
        tolerance=0.0 if isinstance(line, str) else line.mean_relative_error,
        missing=line if isinstance(line, str) else "not measured",
    )  # fmt: skip


EXPERIMENT = Experiment(matrix=MATRIX, judge=judge)
