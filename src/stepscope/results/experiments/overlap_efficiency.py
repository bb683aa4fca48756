"""How much communication hides behind the backward pass, and how much could? The timeline of the buckets beside the step."""

from __future__ import annotations

from stepscope.predict.run_buckets import same_work
from stepscope.records.nouns import EXPOSED_COMM, Measured
from stepscope.records.prediction import Timeline
from stepscope.results.comm_costs import comm_costs
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, finished, model_error

MATRIX = """\
# How much communication hides behind the backward pass, and how much could? The step that reduces after the backward pass
# shows all of it; the buckets' timeline, of a backward pass and of collectives measured alone, says what overlap can hide.
version: 1
description: "blocking all-reduces beside bucketed and DDP: the communication hidden and what the buckets' timeline expects"
base:
  workload: deep_mlp
  model: {depth: 16, width: 512}
  loss: mse
  dataset: synthetic
  dataset_options: {samples: 8192}
  optimizer: sgd
  lr: 0.01
  micro_batch: 128
  steps: 60
  strategy_options: {bucket_cap_mb: 4}
axes:
  strategy: [naive, bucketed, ddp]
  world_size: [2]
include:
  - {strategy: single, world_size: 1}
comm: {ops: all_reduce, sizes: "4K:16M:4", overlap: true, budget_s: 1}
measure: {budget_s: 30, timeout_s: 300}
"""

HINT = (
    "ranks that share cores compute while they reduce, so that either takes longer: on a CPU communication is work of the "
    "cores that compute"
)


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Check every cell on several ranks; ``naive`` gives the communication that there is to hide."""
    cells = [cell for cell in finished(evidence) if cell.spec.world_size > 1]
    return tuple(check for cell in cells for check in _overlap_expectations(evidence, cell, cells))


def _overlap_expectations(evidence: Evidence, cell: CellEvidence, cells: list[CellEvidence]) -> list[Expectation]:
    """Return the checks of a cell: exposed communication, and but for ``naive`` its overlap efficiency."""
    costs = comm_costs(evidence)
    prediction = "no collective was measured beside the run" if costs is None else costs.timeline(cell.result)
    line, missing = (prediction, "") if isinstance(prediction, Timeline) else (None, prediction)
    error = model_error(costs, cell.spec.world_size)
    exposed = None if line is None else Measured(value=float(line.exposed_ns + line.waits_ns))
    checks = [
        Expectation(
            subject=cell.run.label, quantity=EXPOSED_COMM, unit="time", expected=exposed,
            measured=cell.run.exposed_comm_ns, model="the buckets' timeline", tolerance=error,
            missing=missing or "not measured", hint=HINT,
        )
    ]  # fmt: skip
    if cell.spec.strategy == "naive":
        return checks
    naive = next((c for c in cells if c.spec.strategy == "naive" and same_work(c.result, cell.result)), None)
    whole = None if naive is None else naive.run.exposed_comm_ns
    reached = (
        None
        if line is None or not whole or not whole.value
        else _measured_efficiency(cell, line.compute_ns, whole.value)
    )
    if reached is not None and reached.value > 1:  # nothing hides more than there is
        reached, missing = (
            None,
            "computation, communication and step contradict each other: the machine was not the same for all",
        )
    checks.append(
        Expectation(
            subject=cell.run.label, quantity="overlap efficiency", unit="share", tolerance=error, hint=HINT,
            expected=None if line is None or line.overlap_efficiency is None else Measured(value=line.overlap_efficiency),
            measured=reached,
            model="(computation + communication - step) / the smaller of the two",
            missing=missing or "no step that reduces after the backward pass",
        )
    )  # fmt: skip
    return checks


def _measured_efficiency(cell: CellEvidence, compute_ns: float, comm_ns: float) -> Measured | None:
    """Return the overlap efficiency, from the step as it ran, its computation without reductions, and the communication of
    ``naive``."""
    step = cell.run.step_ns
    return None if step is None else step.mapped(lambda ns: (compute_ns + comm_ns - ns) / min(compute_ns, comm_ns))


EXPERIMENT = Experiment(matrix=MATRIX, judge=judge)
