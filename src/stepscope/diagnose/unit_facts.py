"""What rules on sharded units share: the ranks judged, the same call on all ranks, lengths, words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.rule import Threshold
from stepscope.diagnose.trace_facts import read_in_full, trace_command, unread
from stepscope.records.finding import Advice, Skipped
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_units import ShardedUnits, UnitCall
from stepscope.results.evidence import TraceEvidence

WORTH = Threshold(
    value=0.05, unit="share of the steps", source="stepscope's choice, 2026-11: a setting is one argument to change"
)

Key = tuple[int | None, int]
"""A call's step and its place there, alike on all ranks."""


def units_of(summary: TraceSummary) -> list[ShardedUnits] | Skipped:
    """The ranks whose units can be judged: on GPUs, since on CPUs every gather is waited for where it is called."""
    if not read_in_full(summary):
        return unread(summary, "no rank was read in full")
    found = [p.units for p in summary.ranks if p.units is not None]
    if not found:
        return Skipped(reason="no sharded parameters in these traces (or --show left units out)")
    on_device = [u for u in found if u.source == "device"]
    return on_device or Skipped(reason="sharded on CPUs, where a gather is waited for where it is called")


def matched(sharded: Sequence[ShardedUnits]) -> list[list[UnitCall]]:
    """The same call on all ranks that show it, by step and place; those of no step left out where steps are marked."""
    calls: dict[Key, list[UnitCall]] = defaultdict(list)
    for units in sharded:
        for call in units.calls:
            calls[call.step, call.place].append(call)
    if any(step is not None for step, _ in calls):
        calls = {key: mine for key, mine in calls.items() if key[0] is not None}
    return list(calls.values())


def exposed_ns(mine: Iterable[UnitCall]) -> int:
    """Of several ranks the least: what is left is transfer, not waiting for a late one."""
    return min(c.exposed_ns for c in mine)


def steps_ns(summary: TraceSummary, calls: Sequence[Sequence[UnitCall]]) -> float:
    """Length of the steps of these calls together, median over ranks; of the window, where none are marked."""
    chosen = {mine[0].step for mine in calls}
    marked = [sum(s.parts.window_ns for s in p.steps if s.step in chosen) for p in summary.ranks if p.steps]
    windows = [p.budget.parts.window_ns for p in summary.ranks if p.budget is not None]
    return float(median(marked or windows or [0])) or 1.0


def sizes(calls: Sequence[Sequence[UnitCall]]) -> dict[str, int]:
    """Gathered bytes of each unit whose name and size are known."""
    found: dict[str, int] = {}
    for mine in calls:
        call = mine[0]
        if call.op == "all_gather" and call.unit is not None and call.size_bytes:
            found[call.unit] = max(found.get(call.unit, 0), call.size_bytes)
    return found


def where(sharded: Sequence[ShardedUnits], calls: Sequence[Sequence[UnitCall]]) -> tuple[int, tuple[int, int]]:
    """The first rank, and when the call that exposes most ran there."""
    most = max(calls, key=exposed_ns)[0]
    return sharded[0].rank, (most.start_ns, most.end_ns)


def confidence(sharded: Sequence[ShardedUnits], limit: str) -> str:
    """``limit``: what the figure does not say."""
    one = "; from one rank's trace: waiting for others may be part of it" if len(sharded) == 1 else ""
    return f"measured{one}; {limit}"


def advice(job: TraceEvidence, sharded: Sequence[ShardedUnits], topic: str) -> tuple[Advice, ...]:
    """The option in the words of the job's frameworks, then the table to look at."""
    used = used_in(job.summary) | {u.wrapper for u in sharded}
    said = in_words_of(topic, used, otherwise=("fsdp2", "fsdp1", "deepspeed"))
    return (*said, Advice(text="see every unit", command=trace_command(job, "--show units,overlap")))
