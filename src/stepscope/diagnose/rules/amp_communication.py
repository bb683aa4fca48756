"""Mixed precision leaves the all-reduce as large as it was.

What
----
Compares the payload per step of cells under autocast on several ranks with that of the same FP32 cell (or, without one,
with 4 bytes per parameter). It is a warning if {matters} or more is exposed communication, otherwise a note.

Why
---
Autocast casts activations and the inputs of matrix products; parameters and gradients stay FP32. Computation gets
faster and communication does not, so communication takes a larger share. BF16 parameters or a hook that compresses
gradients halve the bytes.

Known problems
--------------
Fewer bytes save time only if bandwidth dominates the cost of collectives; small messages cost latency. BF16 parameters
change the arithmetic: check the loss. A payload below 1 MiB is a note: half of its time is latency. Hooks belong to DDP;
for sharded, tensor and pipeline parallel cells only BF16 parameters are named. BF16 is not advised on devices without it.

References
----------
torch.amp documentation (gradients have the parameters' dtype).
Measured on gloo, 1 Gbit/s, 2 ranks: 315 to 326 ms per step, with the fp16 hook 177 to 189 (2026-11).
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_bytes, format_duration, format_percent, format_size
from stepscope.diagnose.bounds import OF_STEP
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Limit, Rule, Statement, finding, skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.cell_facts import TimedCell, exposed, timed_cells
from stepscope.results.evidence import CellEvidence, Evidence

SAVED = Limit(
    0.95, unit="bytes under AMP / bytes in FP32", source="a higher ratio saves nothing; a 2-byte type gives 0.5"
)
SMALL = Limit(
    2**20, unit="bytes per step", source="8 A100 and 8 H100, nccl-tests logs: half of an all-reduce of 1 MiB is latency"
)
FP32_BYTES = 4
_REPLICATED = ("ddp", "naive", "bucketed", "interleaved")
"""Strategies that reduce whole gradients, as DDP does with its hooks."""


def check(evidence: Evidence) -> Statement:
    """Look for: mixed precision does not reduce communication."""
    cells = [c for c in timed_cells(evidence, least_ranks=2) if c.spec.precision.startswith("amp_")]
    compared = [(c, ratio) for c in cells if (ratio := _bytes_ratio(c, evidence.cells)) is not None]
    if not compared:
        return skipped("no finished cell on several ranks uses AMP", "stepscope bench --preset precision")
    same = [c for c, ratio in compared if ratio > SAVED]
    if not same:
        cell, ratio = compared[0]
        return f"{cell.name}: {format_percent(ratio)} of the bytes of FP32"
    return _amp_communication_statement(evidence, sorted(same, key=_exposed_share, reverse=True))


def _bytes_ratio(cell: TimedCell, cells: Sequence[CellEvidence]) -> float | None:
    """Bytes per step under AMP / in FP32; None where a plan or the number of parameters is unknown."""
    sent, parameters = cell.run.comm_bytes_per_step, cell.run.num_parameters
    twin = _fp32_twin(cell, cells)
    full = None if twin is None else twin.run.comm_bytes_per_step
    if full is None and parameters is not None:
        full = FP32_BYTES * parameters
    return None if sent is None or not full else sent / full


def _fp32_twin(cell: TimedCell, cells: Sequence[CellEvidence]) -> CellEvidence | None:
    """Return the same cell in FP32, without a hook of its own."""
    spec = cell.spec
    return next(
        (
            other
            for other in cells
            if other.spec.precision == "fp32" and other.spec.strategy_options.get("hook", "none") == "none"
            if (other.spec.workload, dict(other.spec.model), other.spec.strategy, other.spec.world_size)
            == (spec.workload, dict(spec.model), spec.strategy, spec.world_size)
        ),
        None,
    )


def _exposed_share(cell: TimedCell) -> float:
    exposure = exposed(cell.cell.result)
    return 0.0 if exposure is None else exposure.net_ns / cell.step_ns


def _amp_communication_statement(evidence: Evidence, ranked: list[TimedCell]) -> Statement:
    """Return the finding, or why there is none: mixed precision does not reduce communication."""
    cell, share, spec = ranked[0], _exposed_share(ranked[0]), ranked[0].spec
    twin, size = _fp32_twin(cell, evidence.cells), cell.run.comm_bytes_per_step or 0
    fp32 = ": 4 bytes per parameter, as in fp32"
    if twin is not None:
        fp32 = f", fp32: {format_bytes(twin.run.comm_bytes_per_step or 0)}"
    small = size < SMALL
    matters = share > OF_STEP and not small
    torch = evidence.environment.torch if evidence.environment is not None else None
    bf16 = torch is None or torch.bf16
    return finding(
        f"AMP does not make the all-reduce smaller: {format_bytes(size)} per step, as in FP32",
        f"{spec.precision}: {format_bytes(size)} per step{fp32}",
        f"{format_percent(share)} of the step is {EXPOSED_COMM}",
        twin is not None
        and twin.run.step_ns is not None
        and f"step: {format_duration(cell.step_ns)} under {spec.precision}, "
        f"{format_duration(twin.run.step_ns.value)} in fp32",
        len(ranked) > 1 and "also " + ", ".join(c.run.group for c in ranked[1:4]),
        small and f"half of an all-reduce below {format_size(int(SMALL))} is latency, which fewer bytes do not cut",
        severity="warning" if matters else "info",
        stake=share / 2 if matters else None,
        confidence="certain: bytes are counted; half the bytes saves at most half the time",
        advice=[
            not small
            and spec.strategy in _REPLICATED
            and (
                f"halve the bytes with a hook that sends gradients in {'BF16 or ' * bf16}FP16",
                again(
                    evidence,
                    cell.cell,
                    ("strategy", ["ddp"]),
                    ("strategy_options.hook", ["none", "bf16" if bf16 else "fp16"]),
                ),
            ),
            not small
            and bf16
            and (
                "keep parameters and gradients in BF16 (check the loss)",
                again(evidence, cell.cell, ("precision", [spec.precision, "bf16"])),
            ),
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="mixed precision does not reduce communication",
    needs=("cells",),
    look=check,
    protocol=3,
    thresholds={"saved": SAVED, "matters": OF_STEP, "small": SMALL},
)
