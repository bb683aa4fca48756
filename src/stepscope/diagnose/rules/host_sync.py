"""The host waits for the device inside the step, and the device then waits for the host.

What
----
Idle time of the device while the thread that launches next was in a call that returns only when the device has caught up
(`cudaStreamSynchronize`, a blocking copy, `cudaFree`), and at most 0.1 ms until its next launch, over the window; mean over
ranks. The call with most of that time decides the advice: the allocator, an explicit synchronisation, or a value that is
read.

Why
---
After such a call the queue is empty, and the device idles until the host launches again. `.item()`, `.cpu()`,
`print(loss)`, boolean indexing and `nonzero` each cause one.

Known problems
--------------
A necessary wait at the end of a step (reading a loss that decides something) counts too. What the host does for longer
than 0.1 ms after the wait is `launch-bound` or `python-overhead`. If the host is late anyway,
removing the wait moves the idle time to `launch-bound`.

References
----------
PyTorch performance tuning guide, Avoid unnecessary CPU-GPU synchronization; `torch.cuda.set_sync_debug_mode`.
"""

from __future__ import annotations

import re
from collections import Counter

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.rule import Statement, advise, inspect
from stepscope.diagnose.trace_facts import RankShares, idle_share, on_device, share_rule

_ALLOCATES = re.compile(r"Malloc|Free|HostAlloc", re.IGNORECASE)
_EXPLICIT = re.compile(r"(Device|Ctx)Synchronize")


def _report(part: RankShares) -> Statement:
    gaps = [i for p in part.ranks for i in p.idle if i.cause == "sync"]
    spent: Counter[str] = Counter()
    for gap in gaps:
        spent[gap.call or ""] += gap.idle_ns
    call = max(spent, key=spent.__getitem__, default="")
    look = part.command("--show idle,operators --sort host_self")
    if _ALLOCATES.search(call):
        advice = [
            advise(
                "the allocator asks the driver inside the step: remove torch.cuda.empty_cache(), make sizes repeat, or "
                "let segments grow in place",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                key="fewer waits for the device",
            ),
            inspect("see when it does", part.command("--show idle,memory")),
        ]
    elif _EXPLICIT.search(call):
        advice = [
            advise(
                "remove torch.cuda.synchronize() and timers that call it from the step",
                look,
                key="fewer waits for the device",
            ),
            advise(
                "time steps with torch.cuda.Event, and read them only every N steps", key="fewer waits for the device"
            ),
        ]
    else:
        advice = [
            advise(
                "look for .item(), .cpu(), print(loss) and blocking copies inside the step; "
                'torch.cuda.set_sync_debug_mode("warn") names the lines',
                look,
                key="fewer waits for the device",
            ),
            advise("keep losses on the device and read them only every N steps", key="fewer waits for the device"),
        ]
    return part.finding(
        f"the host waits for the device, which then idles: {part}",
        f"{sum(i.gap_count for i in gaps):,} gaps after such waits on {counted(len(part.ranks), 'rank')}, "
        f"the longest {format_duration(max(i.largest_ns for i in gaps))}" + (f"; mostly in {call}" if call else ""),
        confidence="measured from launches and their kernels",
        advice=advice,
    )


RULE = share_rule(
    symptom="the device idles after the host waited for it",
    ranks=on_device,
    without="no device work: a CPU job does not wait for a device",
    measure=lambda ranks: [idle_share(p, "sync") for p in ranks],
    figures=lambda part: f"the device idles {part} after the host waited for it",
    report=_report,
    claims=("idle",),
    kind="host-bound",
    protocol=4,
)
