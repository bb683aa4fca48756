"""The allocator calls the driver again and again in steady state; each call costs a synchronisation or a stall.

What
----
Reads the history of a memory snapshot. Once a training loop has settled, the caching allocator serves every request
from its pool. The rule fires if, in the second half of the recorded requests, cached segments were released directly
before new ones were allocated (a failed allocation retried after emptying the cache, or torch.cuda.empty_cache()), or
if more than 1 request in 100 went to the driver.

Why
---
cudaMalloc takes 0.1 to 1 ms and cudaFree waits for the device, so the queue of kernels runs empty. A retry frees the
whole cache, and the next step has to fill it again.

Known problems
--------------
The history is a ring (`max_entries`). If it is short, its second half may still be the first step, in which the pool
grows as it should; record steps after the first two. Ever new sequence lengths also keep growing the pool. Where a
request failed, retries come before it: then memory is short, and no call of empty_cache() is blamed.

References
----------
PyTorch documentation, CUDA semantics, Memory management (num_alloc_retries, expandable_segments); PyTorch blog,
Understanding GPU memory 1.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.imported import MemorySnapshot
from stepscope.results.evidence import Evidence

MOST_SHARE = Limit(
    0.01,
    unit="share of late requests that the driver serves",
    source="a settled loop has 0; a request takes about 1 us from the pool and 100 us or more from the driver, so one in "
    "100 doubles the cost of allocation",
)
MOST_RETRIES = Limit(0, unit="late retries", source="each retry empties the cache and waits for the device")
LEAST = Limit(200, unit="late requests", source="one training step of a small model makes more")


def check(evidence: Evidence) -> Statement:
    """Look for: the allocator calls the driver in steady state."""
    looked = [m for m in evidence.memory if m.late_allocations >= LEAST]
    if not looked:
        return skipped(
            "no snapshot has a history long enough to show a settled loop",
            "torch.cuda.memory._record_memory_history(max_entries=200000)",
        )
    ranked = sorted(looked, key=lambda m: (-m.late_retries, -_late_share(m)))
    worst = max(looked, key=_late_share)
    return [
        _allocator_pressure_finding(m) for m in ranked if m.late_retries > MOST_RETRIES or _late_share(m) > MOST_SHARE
    ] or (f"{worst.late_driver_allocations} of {worst.late_allocations} late requests went to the driver")


def _late_share(memory: MemorySnapshot) -> float:
    return memory.late_driver_allocations / max(1, memory.late_allocations)


def _allocator_pressure_finding(memory: MemorySnapshot) -> Finding:
    """Return the finding, with evidence, stake and advice: the allocator calls the driver in steady state."""
    full, retries = memory.oom_events > 0, memory.late_retries
    smaller = "free memory: use a smaller micro-batch with accumulation; the global batch stays the same"
    if not retries:
        confidence = "likely: valid if the recording starts after the first steps"
    elif full:
        confidence = f"measured; {counted(memory.oom_events, 'request')} failed beside it: the memory is full"
    else:
        confidence = "measured; a retry looks like a call of empty_cache() in the history"
    return finding(
        f"the allocator emptied its cache {counted(retries, 'time')} in steady state"
        if retries
        else f"{memory.late_driver_allocations} late requests went to the driver: the pool was still growing",
        f"second half of the history: {memory.late_driver_allocations} of {memory.late_allocations} requests went to the "
        f"driver ({format_percent(_late_share(memory))}), {counted(memory.late_driver_frees, 'segment')} released",
        f"reserved {format_bytes_binary(memory.segment_bytes)} in {counted(memory.segments, 'segment')}",
        [f"{format_bytes_binary(holder.size_bytes)} held at {holder.where}" for holder in memory.peak_holders[:3]],
        memory.history_complete and "the history begins with an empty pool: it includes part of the first step",
        severity="problem" if retries else "warning",
        confidence=confidence,
        advice=[
            smaller
            if full
            else "remove torch.cuda.empty_cache() from the loop"
            if retries
            else "if memory grows in every step, tensors are kept: log loss.item(), not loss; detach stored tensors",
            not memory.expandable_segments
            and (
                "let segments grow in place, so that differing sizes fit",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            "make sizes repeat: pad sequences to few lengths, drop the odd last batch",
            not full and smaller,
        ],
        of=f"{Path(memory.path).name}, device {memory.device}",
    )


RULE = Rule(
    symptom="the allocator calls the driver in steady state",
    needs=("memory",),
    look=check,
    protocol=3,
    thresholds={"share": MOST_SHARE, "retries": MOST_RETRIES, "requests": LEAST},
)
