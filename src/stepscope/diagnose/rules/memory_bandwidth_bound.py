"""Kernels that only move memory dominate the computation.

What
----
Share of compute kernel time in elementwise work, normalisation, reductions, softmax, dropout, optimizer updates, copies
by kernel and layout changes, by the kernels' names. Fires from {kernels} on, if that is
{warning}.

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
Roofline, 2009. A published checklist asks it, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.diagnose.frameworks import in_words_of
from stepscope.diagnose.rule import Limit, Statement, advise
from stepscope.diagnose.trace_facts import RankShares, kinds_shares, largest_text, share_rule, total_ns, with_kernels
from stepscope.records.trace_summary import RankPass
from stepscope.traces.kernel_names import BANDWIDTH, MATRIX

_DOMINATES = Limit(
    0.4,
    unit="share of all compute kernel time",
    source="Ivanov et al., MLSys 2021, table 1: 39% of BERT in PyTorch, where fusing gained 1.19 to 1.30",
)

_CONVOLUTION = re.compile(r"conv|fprop|dgrad|wgrad|cudnn|miopen|nchw|batch_?norm|bn_[fb]w|im2col|pool", re.IGNORECASE)
_HALF = re.compile(r"b?float16|bf16|fp16|half", re.IGNORECASE)


def _of_kernels(ranks: Sequence[RankPass], *kinds: str) -> float:
    """Share of these kinds in all compute kernel time."""
    part = RankShares((), ranks=ranks)
    total = sum(mix.total_ns for mix in part.mixes)
    return total_ns(part.kinds(*kinds)) / total if total else 0.0


def _memory_bandwidth_bound_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: kernels that only move memory dominate the computation."""
    kinds = part.kinds(BANDWIDTH)
    return part.finding(
        f"memory-bandwidth-bound: {part} goes to kernels that only move memory",
        f"elementwise, normalisation and the like: {_DOMINATES.of(part.also)}, in "
        f"{sum(kind.calls for kind in kinds):,} kernels; matrix products: "
        f"{format_percent(_of_kernels(part.ranks, *MATRIX))} of it",
        largest_text(kinds),
        confidence="likely: inferred from kernel names; fusing recovers only a part",
        advice=[
            advise("fuse these kernels: fused norms and attention", "--show sequences,kernels", key="larger kernels"),
            advise("update in few kernels: a fused optimizer (fused=True)", key="fused optimizer"),
            in_words_of("compile", part.frameworks, plain="torch.compile(model) fuses element-wise kernels"),
            any(_CONVOLUTION.search(kind.largest) for kind in part.kinds())
            and advise("use channels_last for convolutions", key="channels last"),
            not _HALF.search(max(kinds, key=lambda kind: kind.largest_ns).largest)
            and advise("use bf16 activations, which halve the bytes of fp32", key="autocast"),
        ],
    )


RULE = share_rule(
    symptom="kernels that only move memory dominate the computation",
    ranks=with_kernels,
    without="no compute kernels: a CPU job has none",
    measure=lambda ranks: kinds_shares(ranks, BANDWIDTH),
    also=(lambda ranks: _of_kernels(ranks, BANDWIDTH), _DOMINATES),
    figures=lambda part: f"{_DOMINATES.of(part.also)} and {part}",
    report=_memory_bandwidth_bound_statement,
    claims=("computation",),
    kind="memory-bound",
    protocol=4,
    thresholds={"kernels": _DOMINATES},
)
