"""The host waits for the device inside the step, and the device then waits for the host.

What
----
Idle time of the device while the thread that launches next was in a call that returns only when the device has caught up
(`cudaStreamSynchronize`, a blocking copy, `cudaFree`), and until its next launch at most 0.1 ms, or 0.25 ms after a wait as
long, over the window; mean over ranks. The call with most of that time decides the advice: an explicit synchronisation, a
value that is read, or memory of the driver (`cudaMalloc`, `hipFree`, `cuMemUnmap`). Of the last, hundreds of calls that take
and give back say that the caching allocator is off, emptied again and again, or out of memory.

Why
---
After such a call the queue is empty, and the device idles until the host launches again. `.item()`, `.cpu()`,
`print(loss)`, boolean indexing and `nonzero` each cause one.

Known problems
--------------
A necessary wait at the end of a step (reading a loss that decides something) counts too. What the host does for longer
after the wait is `launch-bound` or `python-overhead`. If the host is late anyway, removing the wait moves the idle time to
`launch-bound`.

References
----------
PyTorch performance tuning guide, Avoid unnecessary CPU-GPU synchronization; `torch.cuda.set_sync_debug_mode`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.core.words import counted, in_words
from stepscope.diagnose.frameworks import in_words_of
from stepscope.diagnose.rule import Advices, Statement, advise, inspect
from stepscope.diagnose.trace_facts import RankShares, idle_share, on_device, share_rule
from stepscope.records.trace_summary import RankPass
from stepscope.traces.blocking_calls import blocks_on, is_pooled

GROW_IN_PLACE = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

_TORCH = (("torch.npu", ("acl", "rt", "AscendCL@")), ("torch.xpu", ("ur", "ze", "pi")), ("torch.musa", ("musa", "mu")))
"""Module of torch, and how the calls of its device's runtime begin; of all others torch.cuda."""


MANY_CALLS = 100
"""So many calls for memory a rank, or more, ask the driver again and again: a pool that grows in the first steps makes tens
of them (39 in a whole run of AlexNet), then none."""

GIVEN_BACK = 0.25
"""Share of the calls that give memory back: half where none is kept, none of a pool that grows."""

UNCACHED = 0.2
"""Calls for memory a kernel: 2 where every operator allocates, tens a step where a loop empties its cache."""


def _host_sync_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: the device idles after the host waited for it."""
    gaps = [i for p in part.ranks for i in p.idle if i.cause == "sync"]
    spent: Counter[str] = Counter()
    for gap in gaps:
        spent[gap.call or ""] += gap.idle_ns
    call = max(spent, key=spent.__getitem__, default="")
    look = "--show idle,operators --sort host_self"
    torch = next((module for module, begins in _TORCH if call.startswith(begins)), "torch.cuda")
    blocks = "memory" if is_pooled(call) else blocks_on(call)
    if blocks == "memory" and (asked := _asked_again(part.ranks)):
        return _without_cache_statement(part, asked, torch)
    advice: list[Advices]
    if blocks == "memory":
        advice = [
            advise(
                f"the allocator asks the driver inside the step: remove {torch}.empty_cache(), make sizes repeat, or "
                "let segments grow in place",
                GROW_IN_PLACE if torch == "torch.cuda" else None,
                key="fewer waits for the device",
            ),
            inspect("see when it does", "--show idle,memory"),
        ]
    elif blocks == "device":
        advice = [
            advise(
                f"remove {torch}.synchronize() and timers that call it from the step",
                look,
                key="fewer waits for the device",
            ),
            advise(
                f"time steps with {torch}.Event, and read them only every N steps", key="fewer waits for the device"
            ),
        ]
    elif "Launch" in call:
        variable = f"{'HIP' if call.startswith('hip') else 'CUDA'}_LAUNCH_BLOCKING"
        text = (
            f"launches wait for their kernels: unset {variable}, or see what serialises them (a debugger, a profiler)"
        )
        advice = [advise(text, f"unset {variable}", key="fewer waits for the device")]
    else:
        names = '; torch.cuda.set_sync_debug_mode("warn") names the lines' if torch == "torch.cuda" else ""
        advice = [
            advise(
                f"look for .item(), .cpu(), print(loss) and blocking copies inside the step{names}",
                look,
                key="fewer waits for the device",
            ),
            advise(
                "keep losses on the device and read them only every N steps",
                key="fewer waits for the device",
                only_for=("trains",),
            ),
            *in_words_of(
                "fewer waits for the device",
                part.frameworks,
                plain="copy results to pinned memory without waiting, and read them while the next batch runs",
                only_for=("infers",),
            ),
            "Async" in call
            and advise(
                "copy to and from pinned memory (pin_memory(), non_blocking=True): a copy of pageable memory holds the host",
                key="fewer waits for the device",
            ),
        ]
    return part.finding(
        f"the host waits for {'memory of the driver, and the device' if blocks == 'memory' else 'the device, which'} "
        f"then idles: {part}",
        f"{sum(i.gap_count for i in gaps):,} gaps after such waits on {counted(len(part.ranks), 'rank')}, "
        f"the longest {format_duration(max(i.largest_ns for i in gaps))}" + (f"; mostly in {call}" if call else ""),
        confidence="measured from launches and their kernels",
        advice=advice,
    )


def _asked_again(ranks: Sequence[RankPass]) -> Counter[str] | None:
    """Calls for memory by name, of all ranks; None unless they are many, and many give back."""
    asked = [p.driver_memory for p in ranks if p.driver_memory is not None]
    calls: Counter[str] = Counter()
    for memory in asked:
        calls.update(dict(memory.calls))
    back = sum(memory.given_back for memory in asked)
    return calls if calls.total() >= MANY_CALLS * len(asked) and back >= GIVEN_BACK * calls.total() else None


def _without_cache_statement(part: RankShares, asked: Counter[str], torch: str) -> Statement:
    """Return the finding of a job whose allocator caches nothing, so that each free waits for the device."""
    names, steps = in_words([name for name, _ in asked.most_common(2)]), sum(len(p.steps) for p in part.ranks)
    kernels = sum(p.driver_memory.kernels for p in part.ranks if p.driver_memory is not None)
    uncached, maps = asked.total() >= UNCACHED * kernels, any("Map" in name for name in asked)
    variable = f"PYTORCH_NO_{'HIP' if 'hip' in names else 'CUDA'}_MEMORY_CACHING"
    pooled = any(map(is_pooled, asked))
    what = "gives its pool back" if pooled else "keeps no cache" if uncached else "asks the driver again and again"
    return part.finding(
        f"the allocator {what}: the device idles {part} in {names}",
        ", ".join(f"{number:,} {name}" for name, number in asked.most_common(4))
        + (f" in {counted(steps, 'step')}" if len(part.ranks) == 1 and steps else "")
        + f", {asked.total() / max(1, kernels):.1f} calls a kernel",
        confidence="measured from launches and their kernels; a trace does not show who empties the cache",
        advice=[
            pooled
            and advise(
                "use torch's own caching allocator, or let the pool keep its memory (a higher release threshold)",
                "export PYTORCH_CUDA_ALLOC_CONF=backend:native",
                key="cached memory",
            ),
            uncached
            and not pooled
            and torch == "torch.cuda"
            and advise(
                f"turn the caching allocator on: {variable} is set in its environment, or its cache is emptied after "
                "every operator",
                f"unset {variable}",
                key="cached memory",
            ),
            advise(f"remove {torch}.empty_cache() from the loop, and whatever calls it", key="cached memory"),
            advise(
                "segments are mapped and unmapped again: leave the cache more of the memory, or try without "
                "expandable_segments",
                key="cached memory",
            )
            if maps
            else advise(
                f"make sizes repeat{', or let segments grow in place' * (not pooled)}",
                GROW_IN_PLACE if torch == "torch.cuda" and not pooled else None,
                key="cached memory",
            ),
            ("see when it does", "--show idle,memory"),
        ],
    )


RULE = share_rule(
    symptom="the device idles after the host waited for it",
    ranks=on_device,
    without="no device work: a CPU job does not wait for a device",
    measure=lambda ranks: [idle_share(p, "sync") for p in ranks],
    figures=lambda part: f"the device idles {part} after the host waited for it",
    report=_host_sync_statement,
    claims=("idle",),
    kind="host-bound",
    protocol=4,
)
