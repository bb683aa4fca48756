"""A cell ran out of memory, or nearly did.

What
----
Cells that ran out of memory (GPU or host), with the size of their training state according to the strategy's plan, and
cells whose peak is near the capacity: of the device on GPUs (not of the allocator's reserved pool), of the job's limit
on CPUs, all ranks of a host together. Remedies are ordered by cost: none, precision, time, work.

Why
---
A job near the limit fails on a longer sequence, a larger last batch or another library's workspace, often hours after
its start.

Known problems
--------------
The peak on GPUs is torch's; NCCL's buffers, the CUDA context and other processes add 0.5 to 1 GB per rank. The plan
leaves out activations, which depend on the micro-batch and the sequence length.

References
----------
METRICS, Memory. Rajbhandari et al., ZeRO, SC20 (bytes per parameter). Chen et al., Training Deep Nets with Sublinear
Memory Cost, 2016 (recomputation: 4/3 of the FLOP).
"""

from __future__ import annotations

from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.predict.specs import specs_of
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.results.cell_facts import NEAR_CAPACITY, capacity_of, memory_share
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.scaling import shards

NEAR = Threshold(
    value=NEAR_CAPACITY,
    unit="peak / capacity",
    source="torch does not count the CUDA context and NCCL buffers, 0.5 to 1 GB a rank: 1 to 6% of 16 to 80 GB",
)
OUT = ("oom", "host_oom")


def check(evidence: Evidence) -> Said:
    out = [cell for cell in evidence.cells if cell.run.status in OUT]
    groups: dict[str, list[CellEvidence]] = {}
    for cell in out:
        groups.setdefault(cell.run.group, []).append(cell)
    found = [_ran_out(evidence, group) for group in groups.values()]
    shares = [
        (cell, share) for cell in evidence.cells if (share := memory_share(cell, evidence.environment)) is not None
    ]
    near = [(cell, share) for cell, share in shares if share > NEAR.value]
    if near:
        found.append(_near(evidence, *max(near, key=lambda each: each[1]), count=len(near)))
    if found:
        return tuple(found)
    if not shares:
        return Skipped(reason="no memory peak, or no capacity to compare it with, was recorded")
    cell, share = max(shares, key=lambda each: each[1])
    return (
        f"{cell.run.group}, {cell.run.label}: {format_percent(share)} of the memory in use at the peak, limit "
        f"{format_percent(NEAR.value)}"
    )


def _ran_out(evidence: Evidence, cells: list[CellEvidence]) -> Finding:
    cell = min(cells, key=lambda c: (c.spec.micro_batch, c.run.num_parameters or 0))
    what = "host" if cell.run.status == "host_oom" else "GPU"
    said = [f"{cell.run.label}, micro-batch {cell.spec.micro_batch}: {cell.run.error or 'no message'}"]
    capacity, state = capacity_of(cell, evidence.environment), _state_bytes(cell)
    if state is not None:
        of = "" if capacity is None else f" of {format_bytes_binary(capacity)}"
        said.append(f"parameters, gradients and optimizer alone: {format_bytes_binary(state)}{of} a rank")
    if len(cells) > 1:
        said.append(f"{len(cells)} cells of this model ran out of memory; this cell needs the least")
    fits = [c for c in evidence.cells if c.run.group == cell.run.group and c.run.status == "ok"]
    if fits:
        largest = max(fits, key=lambda c: c.spec.micro_batch)
        peak = largest.run.peak_memory_bytes
        said.append(
            f"micro-batch {largest.spec.micro_batch} fits"
            + (f" ({format_bytes_binary(peak)} at the peak)" if peak is not None else "")
        )
    return Finding(
        severity="problem",
        title=f"out of {what} memory: {counted(len(cells), 'cell')} of {cell.run.group}",
        evidence=tuple(said),
        confidence="certain: the run failed",
        priority="failure",
        advice=_remedies(evidence, cell, state, capacity),
        subject=f"{cell.run.group}: {cell.run.label}",
    )


def _near(evidence: Evidence, cell: CellEvidence, share: float, *, count: int) -> Finding:
    capacity, state = capacity_of(cell, evidence.environment), _state_bytes(cell)
    peak = format_bytes_binary(cell.run.peak_memory_bytes or 0)
    said = [f"{cell.run.label}: {peak} a rank at the peak, of {format_bytes_binary(capacity or 0)}"]
    if cell.spec.device == "cpu" and cell.spec.world_size > 1:
        said[0] += " for all ranks of the host"
    if state is not None:
        said.append(f"parameters, gradients and optimizer alone: {format_bytes_binary(state)}")
    if count > 1:
        said.append(f"{count} cells are this close to the capacity")
    return Finding(
        severity="warning",
        title=f"{format_percent(share)} of the memory is in use at the peak",
        evidence=tuple(said),
        confidence="measured",
        advice=_remedies(evidence, cell, state, capacity),
        subject=f"{cell.run.group}: {cell.run.label}",
    )


def _state_bytes(cell: CellEvidence) -> int | None:
    """What one rank holds beside activations, by the strategy's own plan."""
    try:
        specs = specs_of(cell.result.spec)
    except (StepscopeError, ValueError):
        return None
    return specs.strategy.memory_plan(specs.facts, specs.setting, specs.strategy_options).total_bytes


def _remedies(evidence: Evidence, cell: CellEvidence, state: int | None, capacity: int | None) -> tuple[Advice, ...]:
    """Cheapest first; where the state alone does not fit, a smaller batch does not help."""
    spec = cell.spec
    too_large = state is not None and capacity is not None and state > capacity
    found = []
    if spec.micro_batch > 1 and not too_large:
        half = max(1, spec.micro_batch // 2)
        changes: list[tuple[str, object]] = [("accumulation", 2 * spec.accumulation)]
        if spec.batch_rule == "micro_batch":
            changes.append(("micro_batch", half))
        found.append(
            Advice(
                text=f"halve the micro-batch ({half}) and double the accumulation: same global batch and mathematics",
                command=again(evidence, cell, *changes),
            )
        )
    if spec.precision in ("fp32", "tf32"):
        found.append(
            Advice(
                text="use BF16 parameters and activations, which halves both (check the loss); autocast halves "
                "activations only",
                command=again(evidence, cell, ("precision", "bf16")),
            )
        )
    if not too_large and spec.activation_checkpointing != "full":
        found.append(Advice(text="recompute activations in the backward pass, for about a third more computation"))
    if spec.world_size > 1 and not shards(spec.strategy):
        found.append(
            Advice(
                text=f"shard the training state over the ranks (ZeRO, FSDP): down to 1/{spec.world_size} of the state "
                "per rank"
            )
        )
    found.append(Advice(text="use a device with more memory, or a smaller model"))
    return tuple(found)


RULE = Rule(
    name="memory-peak",
    symptom="a cell ran out of memory, or nearly did",
    needs=("cells",),
    look=check,
    protocol=3,
    thresholds={"near": NEAR},
)
