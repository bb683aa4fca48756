"""Reserved memory is split into pieces that no request fits: allocation fails before the memory is full.

What
----
Inactive split bytes over reserved bytes in a memory snapshot: free blocks inside segments that are partly in use. Fully
free segments can be released and do not count, nor do expandable segments.

Why
---
A request needs one free block of its size. With a third of the pool fragmented, a third of the device is lost to large
activations, and the allocator frees memory and calls the driver again (`allocator-pressure`).

Known problems
--------------
1 - allocated / reserved is not fragmentation: it includes blocks that can be reused whole. A snapshot between steps
shows the pool after backward has freed the activations: the rule is quiet where the history shows that the peak used
nine tenths of what is reserved, unless a request failed. Small pools have large shares of few bytes; below 256 MiB the
rule is quiet.

References
----------
docs/reference/metrics.md, Memory; PyTorch documentation, CUDA semantics, Memory management (max_split_size_mb,
expandable_segments); NVIDIA NeMo documentation, Memory tuning (expandable segments first).
"""

from __future__ import annotations

from pathlib import Path

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding
from stepscope.records.imported import MemorySnapshot
from stepscope.results.evidence import Evidence

MOST_SHARE = Limit(
    0.20,
    unit="inactive split / reserved",
    source="three real snapshots have 0 to 10% (read 2026-11); a fifth of an 80 GB device is 16 GB, enough for a "
    "micro-batch of most models",
)
USED = Limit(
    0.9,
    unit="requested at the peak / reserved",
    source="stepscope's choice, 2026-11: rounding to 512 bytes and 2 MiB leaves a few per cent",
)
LEAST_BYTES = Limit(256 << 20, unit="inactive split bytes", source="13 segments of the 20 MiB minimum")


def check(evidence: Evidence) -> Statement:
    """Look for: reserved memory is split into pieces that no request fits."""
    bad = [m for m in evidence.memory if _is_split(m) and (m.oom_events or not _is_refilled(m))]
    worst = max(evidence.memory, key=lambda m: m.fragmentation_fraction or 0.0)
    split = (
        f"{format_percent(worst.fragmentation_fraction or 0.0)} of {format_bytes_binary(worst.segment_bytes)} reserved "
        "is split"
    )
    return [_fragmentation_finding(m) for m in sorted(bad, key=lambda m: -m.inactive_split_bytes)] or (
        f"{split} at the snapshot, but the peak used {format_bytes_binary(worst.peak_requested_bytes or 0)} of it"
        if _is_split(worst) and _is_refilled(worst)
        else f"{split} ({format_bytes_binary(worst.inactive_split_bytes)}), limit {format_percent(MOST_SHARE)}"
    )


def _is_refilled(memory: MemorySnapshot) -> bool:
    """Whether the peak used nearly all that is reserved: the pieces that are free now fit its requests."""
    return (memory.peak_requested_bytes or 0) >= USED * memory.segment_bytes


def _is_split(memory: MemorySnapshot) -> bool:
    share = memory.fragmentation_fraction
    return share is not None and share >= MOST_SHARE and memory.inactive_split_bytes >= LEAST_BYTES


def _fragmentation_finding(memory: MemorySnapshot) -> Finding:
    """Return the finding, with evidence, stake and advice: reserved memory is split into pieces that no request fits."""
    split, failed = memory.inactive_split_bytes, memory.oom_request_bytes
    pieces = format_bytes_binary(split)
    return finding(
        f"{format_percent(memory.fragmentation_fraction or 0.0)} of reserved memory ({pieces}) is split "
        "into unusable pieces",
        f"{pieces} of {format_bytes_binary(memory.segment_bytes)} reserved are free blocks inside segments in use; the "
        f"largest free block is {format_bytes_binary(memory.largest_free_bytes)}",
        f"{format_bytes_binary(memory.allocated_bytes)} in use, {counted(memory.segments, 'segment')}",
        memory.oom_events > 0
        and failed is not None
        and f"a request of {format_bytes_binary(failed)} failed: {'less' if failed <= split else 'more'} than the split "
        "memory",
        severity="problem" if memory.oom_events else "warning",
        confidence="measured at the time of the snapshot",
        advice=[
            not memory.expandable_segments
            and ("let segments grow in place", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
            (
                "if that is not available, keep large blocks whole",
                "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512",
            ),
            "make sizes repeat: pad sequences to few lengths; allocate permanent tensors before temporary ones",
        ],
        of=f"{Path(memory.path).name}, device {memory.device}",
    )


RULE = Rule(
    symptom="reserved memory is split into pieces that no request fits",
    needs=("memory",),
    look=check,
    protocol=3,
    thresholds={"share": MOST_SHARE, "bytes": LEAST_BYTES, "used": USED},
)
