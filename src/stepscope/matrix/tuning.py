"""Trials of `tune` as cells of a matrix: the matrix of a rung, what its cells came to, the better cell as changed keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from stepscope.core.units import format_percent
from stepscope.matrix.expand import named
from stepscope.matrix.proposals import changed
from stepscope.predict.halving import BASELINE, Lost, Score
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Estimate
from stepscope.records.samples import CellResult
from stepscope.records.tuning import Proposal
from stepscope.stats.compare import MIN_REPLICATES, change
from stepscope.stats.measured import estimate
from stepscope.stats.step_table import cell_table, common_steps
from stepscope.store.yaml_loader import Document, parse_yaml

GROUPS = ("model", "dataset_options", "strategy_options", "env")
KEYS = (
    "workload", "dataset", "strategy", "world_size", "precision", "accumulation", "activation_checkpointing", "optimizer",
    "lr", "momentum", "lr_warmup", "weight_decay", "clip", "loss", "seed", "num_workers", "pin_memory",
    "persistent_workers", "cudnn_benchmark", "network", "inject", "steps",
)  # fmt: skip
PROBE = 8
"""Factor of the batch at a second point, which tells what of the computation follows it."""

LEAST_LOSS_STEPS = 4
"""Below so many steps on a side nothing is said of the loss."""

LOSS_STEPS = 24
"""Optimizer steps of the largest batch over which losses are compared."""


def cell_settings(spec: CellSpec) -> dict[str, Any]:
    """Return the cell as one writes it into a matrix."""
    settings: dict[str, Any] = {key: getattr(spec, key) for key in KEYS if getattr(spec, key) is not None}
    settings |= {key: dict(getattr(spec, key)) for key in GROUPS if getattr(spec, key)}
    if spec.mesh:
        settings["mesh"] = dict(spec.mesh)
    return {**settings, "micro_batch": spec.micro_batch}


def matrix_of(
    specs: Iterable[CellSpec],
    *,
    name: str,
    launch: Mapping[str, Any],
    measure: Mapping[str, Any],
    comm: Mapping[str, Any] | None = None,
) -> Document:
    """Return a matrix of exactly these cells, in this order. comm: a sweep of collectives beside them."""
    document = {
        "version": 1,
        "name": name,
        "base": {},
        "include": [cell_settings(spec) for spec in specs],
        "equal_buckets": "each",
        "launch": dict(launch),
        "measure": dict(measure),
        **({} if comm is None else {"comm": dict(comm)}),
    }
    return parse_yaml(json.dumps(document), source=name)


def trial_spec(spec: CellSpec, changes: Mapping[str, Any] | None = None, *, steps: int | None = None) -> CellSpec:
    """Return the cell with ``changes``, with the id that it gets in a matrix. steps: None: as many as its figures need."""
    base = replace(spec, steps=steps or "auto", epochs=None, batch_rule="micro_batch")
    return named(changed(base, changes or {}))


def trial_specs(baseline: CellSpec, proposals: Sequence[Proposal]) -> dict[str, CellSpec]:
    """Map the key of each trial to its cell, the baseline first."""
    return {BASELINE: trial_spec(baseline)} | {
        proposal.key: trial_spec(baseline, proposal.changes) for proposal in proposals
    }


def repeated(specs: Mapping[str, CellSpec], times: int) -> dict[tuple[str, int], CellSpec]:
    """Repeat each cell so often, taking turns: a machine that changes changes for all of them. Another seed makes another
    cell."""
    return {(key, n): named(replace(s, seed=s.seed + n)) for n in range(times) for key, s in specs.items()}


def loss_samples(baseline: CellSpec, proposals: Sequence[Proposal]) -> int:
    """Return so many samples that the largest batch among them makes ``LOSS_STEPS`` steps."""
    return LOSS_STEPS * max(spec.global_batch for spec in trial_specs(baseline, proposals).values())


def loss_specs(baseline: CellSpec, proposals: Sequence[Proposal], samples: int) -> dict[str, CellSpec]:
    """Return cells that all train on as many samples, the baseline first."""
    changes = {BASELINE: None} | {proposal.key: proposal.changes for proposal in proposals}
    return {
        key: trial_spec(baseline, change, steps=-(-samples // trial_spec(baseline, change).global_batch))
        for key, change in changes.items()
    }


def failure_of(cell: CellResult | None) -> Lost | None:
    """Say why a cell has no result, or None where it has one."""
    if cell is None or cell.status is None:
        return Lost(reason="not measured")
    status = cell.status
    if status.status in ("oom", "host_oom"):
        return Lost(reason="out of memory" if status.status == "oom" else "out of the host's memory")
    if status.status == "ok" and cell_table(cell) is not None:
        return None
    why = (status.reason or status.exception or status.phase or "no timed step").strip().splitlines()[0]
    return Lost(reason=f"{status.status}: {why}")


def score_of(cells: Sequence[CellResult | None]) -> Score:
    """Return the time of a sample, ns, over all repeats of a cell; Lost where one of them did not finish."""
    failed = next((lost for cell in cells if (lost := failure_of(cell))), None)
    if failed is not None:
        return failed
    measured = [cell for cell in cells if cell is not None]
    times = {
        n: [t for step_times in _steps_by_round(cell).values() for t in step_times] for n, cell in enumerate(measured)
    }
    step = estimate(times)
    if step is None:
        return Lost(reason="no timed step")
    return step.times(1 / measured[0].spec.global_batch)


def gain_of(before: Sequence[CellResult], after: Sequence[CellResult]) -> Estimate | None:
    """Return the throughput of ``after`` over that of ``before``, repeat by repeat; None: too few repeats for an
    interval."""
    pairs = [[median(t for step in _steps_by_round(c).values() for t in step) / c.spec.global_batch for c in side]
             for side in (before, after)]  # fmt: skip
    if min(map(len, pairs)) < MIN_REPLICATES:
        return None
    difference = change(pairs[0], pairs[1], paired=True)
    return None if difference is None else difference.ratio.mapped(lambda ratio: 1 / ratio)


def _steps_by_round(cell: CellResult) -> dict[int, list[float]]:
    table = cell_table(cell)
    return {} if table is None else table.by_round(table.step_ns)


def learned_less(baseline: CellResult | None, cell: CellResult | None, most: float) -> str | None:
    """Say why the loss of ``cell`` is not accepted; None: it is. most: share that it may be above the baseline's."""
    lost = failure_of(cell) or failure_of(baseline)
    if lost is not None or baseline is None or cell is None:
        return lost.reason if lost else "not measured"
    losses = loss_change(baseline, cell)
    if losses is None:
        return "its loss is not finite, or the baseline's"
    if losses[1] <= most:
        return None
    above, limit = format_percent(losses[1], digits=1, signed=True), format_percent(most, digits=1)
    return f"loss {losses[0]:.4g}, {above} against the baseline's at the same samples, allowed {limit}"


def loss_change(baseline: CellResult, cell: CellResult) -> tuple[float, float] | None:
    """Return (mean loss of a sample, that over the baseline's - 1), both over the later half of the samples that both have
    seen.

    Both begin with the same parameters: a step of more samples is compared after as many samples, not after as many steps.
    None where a loss is not finite, or one has too few steps there.
    """
    curves = [curve for curve in (_sample_losses(baseline), _sample_losses(cell)) if curve is not None]
    if len(curves) < 2:
        return None
    end = min(sum(samples for samples, _ in curve) for curve in curves)
    means = []
    for curve in curves:
        seen, total, count, steps = 0, 0.0, 0, 0
        for samples, loss in curve:
            seen += samples
            if end / 2 < seen <= end:
                total, count, steps = total + loss, count + samples, steps + 1
        if steps < LEAST_LOSS_STEPS:
            return None
        means.append(total / count)
    return (means[1], means[1] / means[0] - 1) if means[0] > 0 else None


def _sample_losses(cell: CellResult) -> list[tuple[int, float]] | None:
    """Return (samples, sum of their losses) of every step of the first round, all ranks together; None: not finite, or
    none."""
    losses: list[tuple[int, float]] = []
    for (number, _), ranks in sorted(common_steps(cell.samples, cell.spec.world_size).by_key.items()):
        if number:
            break
        sums = [rank.loss_sum for rank in ranks]
        finite = [loss for loss in sums if loss is not None]
        if len(finite) < len(sums):
            return None
        losses.append((ranks[0].global_samples, sum(finite)))
    return losses or None


def settings_diff(before: CellSpec, after: CellSpec, proposal: Proposal) -> tuple[str, ...]:
    """Return ``- micro_batch: 4`` and ``+ micro_batch: 16``: the user's own keys; global_batch where that one is fixed."""
    lines: list[str] = []
    for name, now in proposal.changes.items():
        key, value = name, now
        group, _, option = key.rpartition(".")
        old = getattr(before, group).get(option) if group else getattr(before, key)
        if key == "micro_batch" and before.batch_rule == "global_batch":
            key, old, value = "global_batch", before.global_batch, after.global_batch
        if old != value:
            lines += [f"- {key}: {json.dumps(old)}", f"+ {key}: {json.dumps(value)}"]
    return tuple(lines)


def overrides_of(diff: Sequence[str]) -> tuple[str, ...]:
    """Return the same as options of `bench`: ``--set base.micro_batch=16``."""
    added = [line[2:].partition(": ") for line in diff if line.startswith("+")]
    return tuple(f"--set base.{key}={value}" for key, _, value in added)
