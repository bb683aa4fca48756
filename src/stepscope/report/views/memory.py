"""Peak memory of a rank by what holds it, over batch size and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_bytes_binary
from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.names import clean
from stepscope.report.vega import COLORS, FAINT
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import by_dataset, facets, failure
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, failed_text, stacks_chart

KINDS = {
    "parameters": COLORS[0],
    "gradients": COLORS[1],
    "optimizer": COLORS[2],
    "activations": COLORS[3],
    "buffers": COLORS[4],
    "slack": COLORS[5],
}
UNKNOWN = "kind unknown"


def prepare(runs: Sequence[TrainingRun]) -> tuple[Stacks, ...]:
    """One chart a data set: bytes a rank by kind, small batches first; the peak as a whole where kinds are unknown."""
    shown = [run for run in runs if _total(run) or run.status in ("oom", "host_oom")]
    charts = []
    for part in by_dataset(sorted(shown, key=_order), MAX_ROWS):
        mine = part.runs
        if sum(_total(run) > 0 for run in mine) < 2:
            continue
        kinds = [kind for kind in dict.fromkeys((*KINDS, *_others(mine))) if any(kind in run.memory for run in mine)]
        if any(_unknown(run) for run in mine):
            kinds.append(UNKNOWN)
        largest = max(_total(run) for run in mine)
        scale, unit = (1 / 2**30, "GiB") if largest >= 2**30 else (1 / 2**20, "MiB")
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=tuple(clean(kind) for kind in kinds),
                colors=(COLORS[0],) if kinds == [UNKNOWN] else tuple(KINDS.get(kind, FAINT) for kind in kinds),
                rows=tuple(_row(run, name, kinds) for run, name in part.named),
                axis=f"peak memory of a rank ({unit})",
                scale=scale,
            )
        )
    return tuple(charts)


def _total(run: TrainingRun) -> int:
    return max(sum(run.memory.values()), run.peak_memory_bytes or 0) if run.status == "ok" else 0


def _unknown(run: TrainingRun) -> int:
    """Bytes of the peak that no kind accounts for."""
    return _total(run) - sum(run.memory.values()) if run.status == "ok" else 0


def _others(runs: Sequence[TrainingRun]) -> list[str]:
    return [kind for run in runs for kind in run.memory]


def _order(run: TrainingRun) -> tuple[str, str, str, int, int]:
    told = facets(run)
    return (
        told["model"],
        told["strategy"],
        told["precision"],
        run.world_size or 0,
        run.micro_batch or run.global_batch or 0,
    )


def _row(run: TrainingRun, name: str, kinds: Sequence[str]) -> StackRow:
    if run.status != "ok":
        return StackRow(name=name, failure=failure(run))
    found = {**run.memory, UNKNOWN: _unknown(run)}
    return StackRow(
        name=name, parts=tuple(float(found.get(kind, 0)) for kind in kinds), text=format_bytes_binary(_total(run))
    )


def caption(data: Stacks) -> str:
    done = sorted((row for row in data.rows if row.failure is None), key=lambda row: -sum(row.parts))
    parts = f"by kind ({', '.join(data.kinds)})" if len(data.kinds) > 1 else "as a whole"
    if data.kinds == (UNKNOWN,):
        parts = "as a whole: what holds it was not recorded"
    return (
        f"Peak memory of the rank that needs most, {parts}, on {data.title}, {counted(len(data.rows), 'run')}. Most:"
        f" {done[0].name} with {done[0].text}; least: {done[-1].name} with {done[-1].text}.{failed_text(data.rows)}"
    )


VIEW = View(
    key="memory",
    title="Peak memory",
    figures=Figures(needs=("runs",), prepare=prepare, chart=stacks_chart, caption=caption),
)
