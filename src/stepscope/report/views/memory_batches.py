"""Peak memory of a rank over the batch: what each further sample takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.records.training import TrainingRun
from stepscope.report.table import Column, Table, Value, binary_size, duration, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._training import measured, rate_column
from stepscope.results.evidence import CellEvidence
from stepscope.results.labels import failure_label
from stepscope.results.sweeps import BatchMemory, memory_by_batch

_KINDS = {"parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ"}


def build(runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()) -> Table:
    """One row a batch, of runs that differ in nothing else."""
    found = [each for group in memory_by_batch(runs, cells) for each in group]
    devices = {each.run.device for each in found}
    return tabled(
        "memory_batches",
        "Memory by batch size",
        (
            Column("group", "runs", lambda each: f"{each.run.group}, {each.run.label}", role="group"),
            Column(
                "micro_batch",
                "batch of a rank",
                lambda each: each.micro_batch,
                whole,
                short_title="batch",
                role="identity",
                lead=True,
            ),
            Column("peak_memory_bytes", "peak memory", lambda each: each.peak_bytes, binary_size, short_title="peak"),
            Column("per_sample_bytes", "per further sample", _per_sample, binary_size, short_title="per sample"),
            *(
                Column(kind, kind, _held(kind), binary_size, short_title=short, drop=2)
                for kind, short in _KINDS.items()
            ),
            Column("step_ns", "step", lambda each: measured(each.run.step_ns, duration, tight=True), duration, drop=1),
            rate_column([each.run for each in found], lambda each: each.run.samples_per_s),
        ),
        found,
        failure=lambda each: failure_label(each.run) if each.peak_bytes is None else None,
        footnotes=(
            *(
                (
                    "peak memory: on a CPU the resident set of the rank's process, with Python and torch in it;"
                    " what the batch takes is its growth.",
                )
                if "cpu" in devices
                else ()
            ),
            *(("peak memory: on a GPU what torch's allocator gave out.",) if "cuda" in devices else ()),
            *(
                (f"{', '.join(_KINDS)}: of the tensors that a step holds, counted one by one.",)
                if any(each.held for each in found)
                else ()
            ),
            "per further sample: growth of the peak since the next smaller batch, for each sample more.",
        ),
    )


def _held(kind: str) -> Callable[[BatchMemory], int | None]:
    return lambda each: each.held.get(kind)


def _per_sample(each: BatchMemory) -> Value | float | None:
    if each.per_sample_bytes is not None and each.per_sample_bytes <= 0:
        return Value(text="none seen", raw=each.per_sample_bytes, tone="dim")
    return each.per_sample_bytes


VIEW = View(key="memory_batches", title="Memory by batch size", needs=("runs", "cells"), table=build)
