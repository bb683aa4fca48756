"""What a scaling budget says, in lines."""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.comparison import ScalingBudget, ScalingPart, ScalingReading

PARTS = {
    "compute": "compute", "exposed_comm": "exposed communication", "waiting": "waiting for a peer", "input": "input",
    "copies": "exposed copies", "idle": "idle: host and gaps", "slowest_rank": "slowest rank beyond the mean",
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "other": "other", "rest": "rest of the step",
}  # fmt: skip

LEAST = 0.05
"""Share of the loss below which a part is not named."""


def verdict(budget: ScalingBudget) -> tuple[str, ...]:
    """The answer in one line for each reading: speed-up, interval or why none, efficiency."""
    ranks = f"{_on(budget.run, budget.world_size)} against {_on(budget.base, budget.base_world_size, short=True)}"
    lines = []
    for each in budget.readings:
        interval = budget.no_interval if each.low is None or each.high is None else None
        known = interval or f"95% interval {each.low:.3g} to {each.high:.3g}"
        rating = f", {each.rating}" if each.rating else ", above the ideal of that many ranks"
        how = f"{each.scaling} scaling: " if each.scaling else ""
        lines.append(
            f"{how}{each.speedup:.2f}x ({known}), efficiency {format_percent(each.efficiency)}{rating}; {ranks}"
        )
    if len(budget.readings) > 1:
        lines.append(
            "unknown whether the batch per rank was kept (weak) or divided (strong): state it with --scaling, or record"
            " traces with record_shapes=True"
        )
    return tuple(lines)


def _on(name: str, ranks: int, *, short: bool = False) -> str:
    """``8-gpus on 8 ranks``; a name that says so already is left as it is."""
    if name.endswith(f"on {counted(ranks, 'rank')}"):
        return name
    return f"{name} on {ranks if short else counted(ranks, 'rank')}"


def loss(budget: ScalingBudget, reading: ScalingReading) -> str:
    """``a step takes 4.9 ms, 2.5 ms would be ideal: 2.4 ms lost; of the loss 61% exposed communication, ...``.

    In times with their signs, which sum to the loss, where parts gained: ``2.4 ms lost: +2.7 ms ..., -0.3 ms ...``.
    """
    text = (
        f"{_a(budget.unit)} takes {format_duration(budget.time.value)}, {format_duration(reading.ideal_ns)} would be"
        f" ideal ({format_duration(budget.base_time.value)} on {counted(budget.base_world_size, 'rank')})"
    )
    if reading.lost_ns <= 0:
        return f"{text}: no loss"
    text, least = f"{text}: {format_duration(reading.lost_ns)} lost", LEAST * reading.lost_ns
    worth = [part for part in ranked(reading) if abs(part.lost_ns) >= least]
    if any(part.lost_ns < 0 for part in worth):
        return f"{text}: {', '.join(f'{_signed(part.lost_ns)} {PARTS[part.key]}' for part in worth)}"
    shares = ", ".join(f"{format_percent(part.lost_ns / reading.lost_ns)} {PARTS[part.key]}" for part in worth[:4])
    return text + (f"; of the loss {shares}" if shares else "")


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"


def ranked(reading: ScalingReading) -> list[ScalingPart]:
    """Parts, the largest loss first."""
    return sorted(reading.parts, key=lambda part: -part.lost_ns)


def _a(unit: str) -> str:
    return f"an {unit}" if unit[0] in "aeiou" else f"a {unit}"
