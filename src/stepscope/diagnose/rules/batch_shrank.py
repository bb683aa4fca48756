"""The global batch shrank with another mesh: samples per second of unequal batches are compared.

What
----
Cells with a fixed micro-batch and accumulation whose mesh has tensor or pipeline ranks, beside a cell of the same model and
settings on as many ranks or fewer that trains on a larger global batch, because more of its ranks are data parallel.

Why
---
Ranks of ``tp`` and ``pp`` share samples: 4 of them train on the batch of one. The smaller batch costs fewer samples per
communicated gradient, so that samples per second are lower for that reason alone, and the model makes other updates.

Known problems
--------------
Quiet where the mesh is also measured with the larger batch, where the user fixed the global batch, and where micro-batch or
accumulation differ: those are the user's choice. Who only wants the fastest step compares steps, not samples.

References
----------
docs/reference/metrics.md, Scaling. McCandlish et al., An Empirical Model of Large-Batch Training, 2018.
"""

from __future__ import annotations

from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records import mesh
from stepscope.results.cell_facts import differing
from stepscope.results.evidence import CellEvidence, Evidence

FREE = {"strategy", "strategy_options", "mesh", "world_size", "global_batch", "network", "threads_per_rank"}
"""What may differ between two cells whose samples per second are compared; the global batch follows from the mesh."""


def check(evidence: Evidence) -> Statement:
    """Look for: the global batch shrank with a larger mesh."""
    fixed = [c for c in evidence.cells if c.run.status == "ok" and c.spec.batch_rule == "micro_batch"]
    divided = [c for c in fixed if _model_ranks(c) > 1]
    if not divided:
        return skipped(
            "no cell with a fixed micro-batch divides the model over ranks", "stepscope bench --preset tp-vs-dp"
        )
    return [
        _batch_shrank_finding(evidence, cell, other)
        for cell in divided
        if (other := _cell_with_larger_batch(evidence, fixed, cell)) is not None
    ] or f"{len(divided)} cells with tensor or pipeline ranks, none beside a larger batch on as many ranks"


def _model_ranks(cell: CellEvidence) -> int:
    return mesh.size(cell.spec.mesh, cell.spec.world_size, "tp") * mesh.size(cell.spec.mesh, cell.spec.world_size, "pp")


def _cell_with_larger_batch(evidence: Evidence, fixed: list[CellEvidence], cell: CellEvidence) -> CellEvidence | None:
    """The cell on as many ranks or fewer with the largest batch, unless this mesh was measured with it, too."""
    spec = cell.spec
    others = [
        c
        for c in fixed
        if differing(c.spec, spec) <= FREE
        if c.spec.world_size <= spec.world_size and c.spec.global_batch > spec.global_batch
    ]
    most = max(others, key=lambda c: (c.spec.global_batch, -c.spec.world_size), default=None)
    if most is None:
        return None
    too = (
        c.spec.global_batch == most.spec.global_batch and (c.spec.strategy, c.spec.mesh) == (spec.strategy, spec.mesh)
        for c in evidence.cells
        if c.run.status == "ok" and c.spec.workload == spec.workload and c.spec.model == spec.model
    )
    return None if any(too) else most


def _batch_shrank_finding(evidence: Evidence, cell: CellEvidence, other: CellEvidence) -> Finding:
    """Return the finding, with evidence, stake and advice: the global batch shrank with a larger mesh."""
    ours, theirs = cell.spec, other.spec
    factor, rest = divmod(theirs.global_batch, ours.global_batch)
    rate, larger = cell.run.samples_per_s, other.run.samples_per_s
    shape = mesh.text(ours.mesh)
    return finding(
        f"{shape} shrinks the global batch: {ours.global_batch}, against {theirs.global_batch} with {other.run.label}",
        f"{_model_ranks(cell)} ranks of {shape} share their samples: micro-batch {ours.micro_batch} x "
        f"{mesh.size(ours.mesh, ours.world_size, 'dp')} data shards x accumulation {ours.accumulation}",
        rate is not None
        and larger is not None
        and f"samples/s: {cell.run.label} {rate.value:.3g}, {other.run.label} {larger.value:.3g}",
        confidence="certain: from the batches",
        advice=[
            (
                "compare at the same global batch",
                None if rest else again(evidence, cell, ("accumulation", factor * ours.accumulation)),
            )
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="the global batch shrank with a larger mesh",
    needs=("cells",),
    look=check,
    folded=True,
    decided_by="fixed micro-batch; `tp` or `pp` ranks beside a cell with a larger global batch on as many ranks or fewer",
    protocol=1,
)
