"""What does a slow rank cost everybody, and is it found? Faults are planted, and their price is known beforehand."""

from __future__ import annotations

import numpy as np

from stepscope.records.injection import injection_of
from stepscope.records.nouns import Measured
from stepscope.results.cell_facts import same_but
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, difference, finished
from stepscope.results.slow_ranks import comparable_ranks, slow_ranks
from stepscope.stats.compare import bootstrap_median_interval
from stepscope.stats.measured import BOOTSTRAP_SEED
from stepscope.stats.order import median
from stepscope.stats.step_table import Numbers, StepTable, excess_ns

MATRIX = """\
# What does one slow rank cost all of them? The same DDP step without a fault, with a rank that computes 30% longer, with
# ranks that are late at random, and with a slow loader: each planted, so that what must come out is known.
version: 1
description: "a slow rank, jitter and a slow loader, planted into a DDP step: the price beside the one expected"
base:
  workload: deep_mlp
  model: {depth: 8, width: 512}
  loss: mse
  dataset: synthetic
  dataset_options: {samples: 8192}
  optimizer: sgd
  lr: 0.01
  micro_batch: 128
  steps: 120
  strategy: ddp
axes:
  inject: [null, "slow_rank=1:30%", "jitter=50%", "loader=50%"]
  world_size: [2]
include:
  - {strategy: single, world_size: 1}
measure: {budget_s: 30, timeout_s: 300}
"""

STEP_TOLERANCE = 0.10
"""Tolerance of a planted delay: processors change their clock around a sleep, and a collective starts a little later."""


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Check the planted cells, each beside the same cell without a fault."""
    checks = [
        check
        for cell in finished(evidence)
        if cell.spec.inject is not None
        for check in _fault_expectations(evidence, cell)
    ]
    return tuple(checks)


def _fault_expectations(evidence: Evidence, cell: CellEvidence) -> list[Expectation]:
    """Return the checks of a cell with a planted fault: the slow ranks, the loader and the step, beside the cell without
    it."""
    plain = same_but(evidence, cell, inject=None)
    if plain is None or plain.run.step_ns is None:
        return [
            Expectation(
                subject=_case_name(cell), quantity="step, longer by", unit="time", expected=None, measured=cell.run.step_ns,
                model="time planted", missing="the same cell without a fault has no step time",
            )
        ]  # fmt: skip
    faults = injection_of(cell.spec.inject)
    checks = []
    for slow in faults.slow:
        checks += _slow_rank_expectations(cell, plain, slow.rank)
    if faults.loader is not None:
        checks.append(_loader_expectation(cell, plain))
    return [*checks, *_step_expectations(cell, plain)]


def _lost_ns_by_rank(cell: CellEvidence, kind: str) -> list[int]:
    """Return what ranks lost to a fault in a median step, ns; ranks that lost nothing are left out."""
    return [summary.planted_ns[kind] for summary in cell.result.summaries if kind in summary.planted_ns]


def _case_name(cell: CellEvidence) -> str:
    return f"{cell.spec.strategy}, {cell.spec.inject or 'no fault'}"


def _step_expectations(cell: CellEvidence, plain: CellEvidence) -> list[Expectation]:
    """Check the step, in which all ranks meet: it is as long as the latest rank's."""
    ours, theirs = cell.run.step_ns, plain.run.step_ns
    assert ours is not None
    assert theirs is not None
    faults = injection_of(cell.spec.inject)
    certain = max(_lost_ns_by_rank(cell, "slow_rank"), default=0) + max(_lost_ns_by_rank(cell, "loader"), default=0)
    drawn = _lost_ns_by_rank(cell, "jitter")
    ranks = cell.spec.world_size
    # The median of a uniform time is half its greatest; that of the latest of several is further up.
    delay = certain + (2 * sum(drawn) / len(drawn) * 0.5 ** (1 / ranks) if drawn else 0.0)
    model = "time planted in the slowest rank"
    if faults.jitter is not None:
        model = f"median of the latest of {ranks} ranks: greatest delay x 0.5^(1/{ranks})"
    longer = difference(ours, theirs)
    hint = "part of the delay hides in waiting that was there without it, or ranks disturb each other"
    return [
        Expectation(
            subject=_case_name(cell), quantity="step, longer by", unit="time",
            expected=Measured(value=delay), measured=longer,
            model=model, tolerance=STEP_TOLERANCE, hint=hint,
        ),
        Expectation(
            subject=_case_name(cell), quantity="throughput lost", unit="share",
            expected=Measured(value=delay / (theirs.value + delay)),
            measured=longer.mapped(lambda more: more / (theirs.value + more)),
            model="delay / (step without it + delay)", tolerance=STEP_TOLERANCE, hint=hint,
        ),
    ]  # fmt: skip


def _loader_expectation(cell: CellEvidence, plain: CellEvidence) -> Expectation:
    """Return the check of the wait for data beyond that of the plain cell, ns."""
    waits = [_data_wait(side) for side in (cell, plain)]
    measured = None if waits[0] is None or waits[1] is None else difference(waits[0], waits[1])
    return Expectation(
        subject=_case_name(cell), quantity="waiting for data, longer by", unit="time",
        expected=Measured(value=float(max(_lost_ns_by_rank(cell, "loader"), default=0))), measured=measured,
        model="time planted in the loader", tolerance=STEP_TOLERANCE, missing="no steps that all ranks have",
        hint="the batches themselves took another time",
    )  # fmt: skip


def _data_wait(cell: CellEvidence) -> Measured | None:
    times = comparable_ranks(cell.result)
    return None if times is None else _median_with_interval(times.parts_ns["data"].max(axis=0))


def _slow_rank_expectations(cell: CellEvidence, plain: CellEvidence, rank: int) -> list[Expectation]:
    """Return the checks of a slowed rank: what it takes beyond the others, and that it is named."""
    times, before = comparable_ranks(cell.result), comparable_ranks(plain.result)
    named = None if times is None else next((s.rank for s in slow_ranks(times) if s.kind == "chronic"), None)
    planted = next((float(s.planted_ns["slow_rank"]) for s in cell.result.summaries if s.rank == rank), None)
    ahead = None if before is None else _median_excess(before, rank)
    excess = None if times is None else _median_excess(times, rank)
    return [
        Expectation(
            subject=_case_name(cell), quantity=f"rank {rank} computes beyond the others", unit="time",
            expected=None if planted is None else Measured(value=planted),
            measured=None if excess is None or ahead is None else difference(excess, ahead),
            model="time planted; measured: less what it took beyond them without", tolerance=STEP_TOLERANCE,
            missing="no steps that all ranks have",
            hint="the ranks share cores: what one loses by sleeping, the others gain",
        ),
        Expectation(
            subject=_case_name(cell), quantity="rank that the others wait for", unit="whole",
            expected=Measured(value=rank), measured=None if named is None else Measured(value=named), exact=True,
            model="the planted one", missing="no rank stands out of the noise in every step",
            hint="another rank is slower still, for a reason of its own",
        ),
    ]  # fmt: skip


def _median_excess(times: StepTable, rank: int) -> Measured:
    return _median_with_interval(excess_ns(times)[rank])


def _median_with_interval(values: Numbers) -> Measured:
    ends = bootstrap_median_interval(values, rng=np.random.default_rng(BOOTSTRAP_SEED))
    return Measured.between(median(values), ends, n=len(values))


EXPERIMENT = Experiment(matrix=MATRIX, judge=judge)
