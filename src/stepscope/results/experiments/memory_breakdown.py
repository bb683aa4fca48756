"""What fills a rank's memory? Bytes by kind, counted tensor by tensor, beside the formula of each."""

from __future__ import annotations

from stepscope.records.nouns import Measured
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, finished
from stepscope.results.held import held_by

MATRIX = """\
# What fills a rank's memory: parameters, gradients, the optimizer's state or activations? One rank and DDP hold whole
# replicas; ZeRO-1 shares the optimizer's state, FSDP2 all three. Recomputation keeps fewer activations.
version: 1
description: "memory by kind for one rank, DDP, ZeRO-1, FSDP2 and recomputation: counted beside the formulas"
base:
  workload: gpt
  model: {num_layers: 4, d_model: 128, vocab_size: 1024, max_seq_len: 64}
  dataset: synthetic
  dataset_options: {samples: 4096}
  optimizer: adamw
  micro_batch: 4
  steps: 10
  world_size: 2
include:
  - {strategy: single, world_size: 1}
  - {strategy: single, world_size: 1, activation_checkpointing: full}
  - {strategy: ddp}
  - {strategy: zero1}
  - {strategy: fsdp2}
measure: {budget_s: 10, timeout_s: 300}
"""

TOLERANCE = 0.01
"""The optimizers' step counters, batches and scalars of the loss, which no formula has."""

_MODELS = {
    "parameters": "elements x bytes of their type, over the ranks that share them",
    "gradients": "as the parameters",
    "optimizer": "two moments a parameter (Adam), over the ranks that share them",
    "activations": "what each layer keeps for the backward pass, times the micro-batch",
}


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    return tuple(check for cell in finished(evidence) for check in _memory_expectations(cell))


def _memory_expectations(cell: CellEvidence) -> list[Expectation]:
    """Return the checks of a cell: bytes of each kind as planned and as counted."""
    memory = held_by(cell)
    plan = None if memory is None else memory.plan
    planned = {} if memory is None or plan is None else {
        "parameters": plan.parameter_bytes, "gradients": plan.gradient_bytes, "optimizer": plan.optimizer_bytes,
        "activations": memory.planned_activations,
    }  # fmt: skip
    checks = []
    for kind, model in _MODELS.items():
        size = None if memory is None else memory.sizes.get(kind)
        expected = planned.get(kind)
        checks.append(
            Expectation(
                subject=cell.run.label, quantity=kind, unit="bytes", exact=True, tolerance=TOLERANCE, model=model,
                expected=None if expected is None else Measured(value=float(expected)),
                measured=None if size is None else Measured(value=float(size)),
                missing=f"{cell.spec.workload} has no formula for them" if size is not None else "not counted in this cell",
                hint="the formula or the count lacks a tensor",
            )
        )  # fmt: skip
    return checks


EXPERIMENT = Experiment(matrix=MATRIX, judge=judge)
