"""How much of the device's peak each rank used: MFU and HFU, for the median step and step by step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, Tone, Value, duration, flops, percent, tabled, unknown
from stepscope.report.view import View
from stepscope.report.views._trace import NOTHING, by_ranks, many_note, rank_column, standing_out

MANY_OPERATORS = 4


def build(summary: TraceSummary) -> Table:
    """One row per rank for its median step, then one per step and rank; without MFU and HFU the rate that was reached, and
    why there are none."""
    known = [p.utilisation for p in summary.ranks if p.utilisation is not None]
    shown = [u for u in known if u.step_ns and (u.model_flop is not None or u.hardware_flop is not None)]
    kept = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    items = [
        _Use(u, "median", u.step_ns, u.mfu, u.hfu) for u in standing_out(shown, lambda u: -(u.hfu or u.mfu or 0.0))
    ]
    several = [u for u in shown if len(u.steps) > 1 and u.peak_flops_per_s is not None]
    for step in sorted({s.step for u in several for s in u.steps if s.step in kept[u.rank]}):
        items += [_Use(u, step, s.step_ns, s.mfu, s.hfu) for u in several for s in u.steps if s.step == step]
    return tabled(
        "utilisation",
        "Utilisation",
        (
            rank_column(lambda use: use.of.rank),
            Column("step", "step", lambda use: use.step, role="identity", lead=True),
            Column("duration", "step time", lambda use: use.step_ns, duration),
            Column("mfu", "MFU", lambda use: _share(use.mfu), percent),
            Column("hfu", "HFU", lambda use: _share(use.hfu), percent),
            Column("rate", "reached", _rate, flops),
            Column("peak", "peak", lambda use: use.of.peak_flops_per_s, flops),
            Column("dtype", "type", lambda use: use.of.dtype),
            Column("device", "device", lambda use: use.of.device_name, drop=1),
        ),
        items,
        footnotes=_footnotes(shown),
        notes=_notes(summary),
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """A rank's median step, or one of its steps."""

    of: Utilisation
    step: str | int
    step_ns: float | None
    mfu: float | None
    hfu: float | None


def _rate(use: _Use) -> float | None:
    flop = use.of.model_flop if use.of.model_flop is not None else use.of.hardware_flop
    return flop / (use.step_ns / 1e9) / use.of.devices if flop is not None and use.step_ns else None


def _share(fraction: float | None) -> Value:
    if fraction is None:
        return unknown()
    tone: Tone = "bad" if fraction > 1 else "plain"
    return Value(text=format_percent(fraction, digits=1 if fraction >= 0.01 else 2), raw=fraction, tone=tone)


def _footnotes(shown: list[Utilisation]) -> tuple[str, ...]:
    sources = {
        "given": "FLOP as given",
        "recorded": "FLOP recorded by the profiler",
        "shapes": "FLOP of matrix products and convolutions from recorded shapes",
    }
    flop = sorted({sources.get(u.flop_source, u.flop_source) for u in shown if u.flop_source})
    covers = [u.flop_coverage for u in shown if u.flop_coverage is not None]
    if covers:
        flop.append(f"they cover {_range(covers)} of the time of matrix kernels")
    peaks = sorted({u.peak_source for u in shown if u.peak_source})
    return (
        *sorted({u.formula for u in shown if u.peak_flops_per_s is not None}),
        "; ".join([*flop, *(f"peak: {p}" for p in peaks)]),
        "MFU counts the model's FLOP once, HFU what ran, recomputation included; 2 FLOP a multiply-add",
        *many_note(len(shown), "those with the lowest utilisation"),
    )


def _range(shares: list[float]) -> str:
    least, most = format_percent(min(shares)), format_percent(max(shares))
    return least if least == most else f"{least} to {most}"


def _notes(summary: TraceSummary) -> tuple[str, ...]:
    """Every reason once, with the ranks it holds for."""
    ranks_by_text: dict[str, list[int]] = defaultdict(list)
    for each in summary.ranks:
        u = each.utilisation
        if u is None:
            ranks_by_text[each.unread or NOTHING if each.budget is None else "not computed"].append(each.facts.rank)
            continue
        for text in (u.error, u.unavailable, _incomplete(u)):
            if text:
                ranks_by_text[text].append(u.rank)
    return by_ranks(summary, ranks_by_text)


def _incomplete(u: Utilisation) -> str | None:
    if not u.flop_incomplete or (u.model_flop is None and u.hardware_flop is None):
        return None
    names = ", ".join(u.flop_incomplete[:MANY_OPERATORS])
    more = len(u.flop_incomplete) - MANY_OPERATORS
    return f"FLOP not counted of {names}{f' and {more} more' if more > 0 else ''}: the figures are too low"


VIEW = View(key="trace_utilisation", title="Utilisation", needs=("trace",), table=build)
