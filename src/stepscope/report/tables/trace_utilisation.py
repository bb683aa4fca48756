"""How much of the device's peak each rank used: MFU and HFU, for the median step and step by step."""

from __future__ import annotations

from collections import defaultdict

from stepscope.core.units import format_flops
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_utilisation import Utilisation
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.report.tables._trace import NOTHING, duration, many_note, standing_out, who, words

MANY_OPERATORS = 4


def build(summary: TraceSummary) -> Table:
    """One row per rank for its median step, then one per step and rank. Without any MFU or HFU the notes say why."""
    known = [p.utilisation for p in summary.ranks if p.utilisation is not None]
    shown = [u for u in known if u.mfu is not None or u.hfu is not None or u.error is not None]
    kept = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    rows = [
        _row(u, Value(text="median", raw="median"), u.step_ns, u.mfu, u.hfu)
        for u in standing_out(shown, lambda u: -(u.hfu or u.mfu or 0.0))
    ]
    several = [u for u in shown if len(u.steps) > 1]
    for step in sorted({s.step for u in several for s in u.steps if s.step in kept[u.rank]}):
        rows += [
            _row(u, Value(text=str(step), raw=step), s.step_ns, s.mfu, s.hfu)
            for u in several
            for s in u.steps
            if s.step == step
        ]
    return Table(
        key="utilisation",
        title="Utilisation",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="step", title="step", align="left", role="identity", lead=True),
            Column(key="duration", title="step time", unit="ns"),
            Column(key="mfu", title="MFU"),
            Column(key="hfu", title="HFU"),
            Column(key="rate", title="reached", unit="1/s"),
            Column(key="peak", title="peak", unit="1/s"),
            Column(key="dtype", title="type", align="left"),
            Column(key="device", title="device", align="left", drop=1),
        ),
        rows=tuple(rows),
        footnotes=_footnotes(shown) if rows else (),
        notes=_notes(summary),
    )


TABLE = TableKind(key="utilisation", title="Utilisation", needs=("trace",), build=build)


def _row(u: Utilisation, step: Value, step_ns: float | None, mfu: float | None, hfu: float | None) -> Row:
    flop = u.model_flop if u.model_flop is not None else u.hardware_flop
    rate = flop / (step_ns / 1e9) / u.devices if flop is not None and step_ns else None
    return Row(
        values=(
            Value(text=str(u.rank), raw=u.rank),
            step,
            duration(step_ns),
            _share(mfu),
            _share(hfu),
            unknown() if rate is None else Value(text=format_flops(rate), raw=rate),
            unknown()
            if u.peak_flops_per_s is None
            else Value(text=format_flops(u.peak_flops_per_s), raw=u.peak_flops_per_s),
            words(u.dtype),
            words(u.device_name),
        )
    )


def _share(fraction: float | None) -> Value:
    if fraction is None:
        return unknown()
    tone: Tone = "bad" if fraction > 1 else "plain"
    return Value(text=f"{fraction:.1%}" if fraction >= 0.01 else f"{fraction:.2%}", raw=fraction, tone=tone)


def _footnotes(shown: list[Utilisation]) -> tuple[str, ...]:
    sources = {
        "given": "FLOP as given",
        "recorded": "FLOP recorded by the profiler",
        "shapes": "FLOP of matrix products and convolutions from recorded shapes",
    }
    flop = sorted({sources.get(u.flop_source, u.flop_source) for u in shown if u.flop_source})
    peaks = sorted({u.peak_source for u in shown if u.peak_source})
    return (
        *sorted({u.formula for u in shown}),
        "; ".join([*flop, *(f"peak: {p}" for p in peaks)]),
        "MFU counts the model's FLOP once, HFU what ran, recomputation included; 2 FLOP a multiply-add",
        *many_note(len(shown), "those with the lowest utilisation"),
    )


def _notes(summary: TraceSummary) -> tuple[str, ...]:
    """Every reason once, with the ranks it holds for."""
    ranks_by_text: dict[str, list[int]] = defaultdict(list)
    for each in summary.ranks:
        u = each.utilisation
        if u is None:
            ranks_by_text[NOTHING if each.budget is None else "not computed"].append(each.facts.rank)
            continue
        for text in (u.error, u.unavailable, _incomplete(u)):
            if text:
                ranks_by_text[text].append(u.rank)
    return tuple(
        text if len(ranks) == len(summary.ranks) else f"{who(ranks)}: {text}" for text, ranks in ranks_by_text.items()
    )


def _incomplete(u: Utilisation) -> str | None:
    if not u.flop_incomplete or (u.mfu is None and u.hfu is None):
        return None
    names = ", ".join(u.flop_incomplete[:MANY_OPERATORS])
    more = len(u.flop_incomplete) - MANY_OPERATORS
    return f"FLOP not counted of {names}{f' and {more} more' if more > 0 else ''}: the figures are too low"
