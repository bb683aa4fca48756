"""Kernels that only move memory dominate the computation.

What
----
Share of compute kernel time in elementwise work, normalisation, reductions, softmax, dropout, optimizer updates, copies
by kernel and layout changes, by the kernels' names. Fires from 40% of the compute kernel time on, if that is a tenth of
the window.

Why
---
Such kernels do a few FLOP per byte, while an A100 needs 12.5 (19.5 TFLOP/s over 1.56 TB/s). They run at memory speed;
neither tensor cores nor lower precision of products help. One fused kernel reads and writes once instead of five times.

Known problems
--------------
Kernels are classified by name; traces contain no byte counters. Kernels that a compiler fused (`triton_poi_`,
`triton_red_`) do not count: they are the remedy. The stake is all of their time, of which fusing recovers a part
(Ivanov: 39% outside products, 1.30 times as fast when fused).

References
----------
Ivanov et al., Data Movement Is All You Need, MLSys 2021, table 1 (BERT in PyTorch: 39% of the time and 0.2% of the
FLOP are outside products; fused, an encoder layer runs 1.30 and all of BERT 1.19 times as fast). Williams et al.,
Roofline, 2009. Document 004, "Memory bandwidth limited?".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.frameworks import option, used_in
from stepscope.diagnose.job_facts import AdviceFor
from stepscope.diagnose.rule import Limit, Rule, Statement
from stepscope.diagnose.trace_facts import (
    SHARES,
    WORTH,
    Part,
    cut,
    kinds_ns,
    on_device,
    severity_of,
    trace_command,
    unread,
    window_ns,
)
from stepscope.records.finding import Advice, Finding
from stepscope.records.trace_rules import KernelMix
from stepscope.results.evidence import TraceEvidence
from stepscope.traces.kernel_names import BANDWIDTH, MATRIX

_DOMINATES = Limit(
    value=0.4,
    unit="share of all compute kernel time",
    source="Ivanov et al., MLSys 2021, table 1: 39% of BERT in PyTorch, where fusing gained 1.19 to 1.30",
)


_CONVOLUTION = re.compile(r"conv|fprop|dgrad|wgrad|cudnn|miopen|nchw|batch_?norm|bn_[fb]w|im2col|pool", re.IGNORECASE)
_HALF = re.compile(r"b?float16|bf16|fp16|half", re.IGNORECASE)


def _fewer_bytes(mixes: Sequence[KernelMix], largest: str) -> Iterator[Advice]:
    """What halves the bytes: not where the largest kernel has 16 bits already; a layout only where something convolves."""
    if any(_CONVOLUTION.search(kind.largest) for mix in mixes for kind in mix.kinds):
        yield Advice(text="use channels_last for convolutions")
    if not _HALF.search(largest):
        yield Advice(text="use bf16 activations, which halve the bytes of fp32")


def _look(job: TraceEvidence) -> Statement:
    ranks = [(p, p.mix) for p in on_device(job.summary) if p.mix is not None]
    if not ranks:
        return unread(job.summary, "no compute kernels: a CPU job has none")
    total = sum(mix.total_ns for _, mix in ranks)
    moved = sum(kinds_ns(mix, BANDWIDTH) for _, mix in ranks)
    part = Part([kinds_ns(mix, BANDWIDTH) / window_ns(p) for p, mix in ranks])
    of_kernels = moved / total if total else 0.0
    if of_kernels < _DOMINATES.value or part.share < WORTH:
        return (
            f"{format_percent(of_kernels)} of the kernels' time and {part} of the window, limits "
            f"{format_percent(_DOMINATES.value)} and {format_percent(WORTH)}"
        )
    kinds = [kind for _, mix in ranks for kind in mix.kinds if kind.kind == BANDWIDTH]
    largest = max(kinds, key=lambda kind: kind.largest_ns)
    products = sum(kinds_ns(mix, *MATRIX) for _, mix in ranks) / total
    return Finding(
        severity=severity_of(part.share),
        title=f"memory-bandwidth-bound: {format_percent(of_kernels)} of the computation is kernels that only move memory",
        evidence=(
            f"elementwise, normalisation and the like: {part} of the window, in "
            f"{sum(kind.calls for kind in kinds):,} kernels; matrix products: {format_percent(products)} of "
            "the computation",
            *part.spread,
            f"the largest: {cut(largest.largest)}, {format_duration(largest.largest_ns)}",
        ),
        stake_fraction=min(1.0, part.share),
        confidence="likely: inferred from kernel names; fusing recovers only a part",
        advice=(
            Advice(
                text="fuse these kernels: fused norms and attention",
                command=trace_command(job, "--show sequences,kernels"),
            ),
            AdviceFor(text="update in few kernels: a fused optimizer (fused=True)", applies_to=("trains",)),
            AdviceFor(
                text=option("compile", used_in(job.summary), plain="torch.compile(model) fuses element-wise kernels"),
                applies_to=("eager",),
            ),
            *_fewer_bytes([mix for _, mix in ranks], largest.largest),
        ),
    )


RULE = Rule(
    symptom="kernels that only move memory dominate the computation",
    look_at_job=_look,
    claims=("step/computation/memory",),
    kind="memory-bound",
    protocol=4,
    thresholds={"kernels": _DOMINATES, **SHARES},
)
