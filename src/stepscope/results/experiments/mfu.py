"""How much of the peak does training reach? The rate of a step beside that of the same matrix products alone."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_flops
from stepscope.records.comm import CommRow
from stepscope.records.nouns import Measured
from stepscope.results.epochs import mfu
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, finished

MATRIX = """\
# How much of the peak does training reach, and what takes the rest? The micro-batch is as large as the layers are wide, so
# that every product of the step is one of square matrices, whose rate is measured alone beside it.
version: 1
description: "model FLOP utilisation of layers 256, 512 and 1024 wide beside the rate of their matrix products alone"
base:
  workload: deep_mlp
  loss: mse
  dataset: synthetic
  dataset_options: {samples: 8192}
  optimizer: sgd
  lr: 0.01
  steps: 30
include:
  - {model: {depth: 8, width: 256}, micro_batch: 256, axes: {strategy: [single], world_size: [1]}}
  - {model: {depth: 8, width: 256}, micro_batch: 256, axes: {strategy: [ddp], world_size: [2]}}
  - {model: {depth: 8, width: 512}, micro_batch: 512, axes: {strategy: [single], world_size: [1]}}
  - {model: {depth: 8, width: 512}, micro_batch: 512, axes: {strategy: [ddp], world_size: [2]}}
  - {model: {depth: 4, width: 1024}, micro_batch: 1024, axes: {strategy: [single], world_size: [1]}}
  - {model: {depth: 4, width: 1024}, micro_batch: 1024, axes: {strategy: [ddp], world_size: [2]}}
launch: {threads_per_rank: 1}
comm: {ops: none, matmul: true, sizes: "256K:4M:4", budget_s: 2}
measure: {budget_s: 30, timeout_s: 300}
"""

TOLERANCE = 0.15
"""Allowance for what of the passes is no product: activation functions, biases, the loss. It was not measured."""


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    products = [row for row in evidence.comm if row.kind == "matmul" and row.status == "ok" and row.flops_per_s]
    return tuple(check for cell in finished(evidence) for check in _mfu_expectations(cell, products))


def _mfu_expectations(cell: CellEvidence, products: Sequence[CommRow]) -> list[Expectation]:
    """Return the checks of a cell's FLOP/s: against its largest product alone, and against the peak; none without times."""
    run = cell.run
    if run.model_flop is None or run.step_ns is None or run.phases is None:
        return []
    flop = run.model_flop / cell.spec.world_size
    achieved = run.step_ns.mapped(lambda step: flop / step * 1e9)
    here = [row for row in products if row.world_size == cell.spec.world_size] or list(products)
    alike = next((row for row in here if row.numel == cell.spec.micro_batch**2), None)
    share = (run.phases.forward_ns + run.phases.backward_compute_ns) / run.step_ns.value
    expected = None if alike is None else _row_flop_per_s(alike).mapped(lambda rate: rate * share)
    peak, is_peak, whose = _peak_flop_per_s(cell, here)
    missing = f"no product of {cell.spec.micro_batch} x {cell.spec.micro_batch} was measured"
    size = f"{cell.spec.micro_batch} x {cell.spec.micro_batch}"
    model = f"{size} product alone x the passes' share of the step"
    hint = "the layers' products reach another rate in the step than alone: memory, caches, the other rank"
    return [
        Expectation(
            subject=str(run.model), detail=run.label, quantity="FLOP/s of a rank", unit="flops", expected=expected,
            measured=achieved, model=model, tolerance=TOLERANCE, missing=missing, hint=hint,
        ),
        Expectation(
            subject=str(run.model), detail=run.label, quantity="MFU" if is_peak else "of the best product", unit="share",
            model=f"the same / {whose}", tolerance=TOLERANCE, hint=hint,
            expected=None if peak is None or expected is None else expected.mapped(lambda rate: rate / peak),
            measured=None if peak is None else achieved.mapped(lambda rate: rate / peak),
            missing=missing if peak is not None else whose,
        ),
    ]  # fmt: skip


def _row_flop_per_s(row: CommRow) -> Measured:
    """Return the row's FLOP/s, with the interval that its time gives."""
    rate, time = row.flops_per_s or 0.0, row.time_ns_median
    if not time or not row.time_ns_low or not row.time_ns_high:
        return Measured(value=rate)
    return Measured(value=rate, low=rate * time / row.time_ns_high, high=rate * time / row.time_ns_low)


def _peak_flop_per_s(cell: CellEvidence, products: Sequence[CommRow]) -> tuple[float | None, bool, str]:
    """Return the FLOP/s to take a share of, whether they are the device's peak, and whose they are: the best product's where
    no peak is known.

    A share of the best product is no MFU: a step may reach a little more than 100% of it.
    """
    run = cell.run
    used = mfu(run)
    if not isinstance(used, Unavailable) and run.model_flop and run.step_ns:
        return run.model_flop / cell.spec.world_size / run.step_ns.value * 1e9 / used, True, "the device's dense peak"
    best = max((row.flops_per_s or 0.0 for row in products), default=0.0)
    if not best:
        return (
            None,
            False,
            f"{used.reason if isinstance(used, Unavailable) else 'peak unknown'}, and no product was measured",
        )
    return best, False, f"{format_flops(best)}, the best product here (peak unknown)"


EXPERIMENT = Experiment(matrix=MATRIX, judge=judge)
