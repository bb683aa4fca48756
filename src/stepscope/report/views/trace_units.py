"""Communication by part of the model: FSDP units, tensor-parallel layers, gradient buckets."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from stepscope.core.units import format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_rules import DividedLayers, LayerCall, ShardedUnits, UnitCall
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.shared.traces import exposed_a_step, gaps, median_a_step, step_counts, step_length
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Value,
    binary_size,
    duration,
    identity_column,
    judged,
    lead_column,
    number,
    tabled,
    unknown,
    whole,
    with_share,
    wording,
)
from stepscope.report.views import View

UNITS_NONE = (
    "no sharded parameters: no group gathers in the forward pass and reduces and scatters in the backward pass alone"
)

_ON_CPU = ("on CPUs FSDP waits for a gather where it calls it: whether it was prefetched is not judged",)

_WRAPPERS = {"fsdp1": "FullyShardedDataParallel (FSDP1)", "fsdp2": "fully_shard (FSDP2)", "deepspeed": "DeepSpeed ZeRO"}


def units_table(summary: TraceSummary) -> Table:
    """Return the table: one row per unit in order of the forward pass; times per step, medians over ranks and steps."""
    sharded = [p.units for p in summary.ranks if p.units is not None]
    by_unit: dict[str, list[tuple[int, UnitCall]]] = defaultdict(list)
    for units in sharded:
        for call in units.calls:
            by_unit[call.unit or "unknown"].append((units.rank, call))
    steps = step_counts(sharded)
    window = step_length(summary, steps)

    def a_step(phase: str, op: str) -> Callable[[Sequence[tuple[int, UnitCall]]], float | None]:
        def spent(calls: Sequence[tuple[int, UnitCall]]) -> float | None:
            return median_a_step(calls, lambda c: c.end_ns - c.start_ns if (c.phase, c.op) == (phase, op) else None)

        return spent

    return tabled(
        "units",
        "Sharded units",
        by_unit.values(),
        lead_column("unit", "unit", lambda calls: calls[0][1].unit or "unknown"),
        Column(
            "size", "size", lambda calls: max((c.size_bytes or 0 for _, c in calls), default=0) or None, binary_size
        ),
        Column("gathers", "gathers", lambda calls: _calls_per_step(calls, steps), Format("{:g}".format)),
        Column("forward", "forward gather", a_step("forward", "all_gather"), duration, short="fwd gather"),
        Column("backward", "backward gather", a_step("backward", "all_gather"), duration, short="bwd gather"),
        Column("reduce", "reduce-scatter", a_step("backward", "reduce_scatter"), duration, short="reduce"),
        Column("early", "prefetched", _early_value),
        Column("exposed", "exposed", lambda calls: exposed_a_step(calls, window), duration),
        footnotes=(
            f"{_units_heading(sharded)}; size: gathered; times per step, medians over ranks and steps, with waiting",
            "prefetched: gathers that ran, or were queued, while the computation before them ran, of those that are not the "
            "first of their pass; exposed: under no computation, share of the step",
            *_ON_CPU[: any(u.source != "device" for u in sharded)],
        )
        if sharded
        else (),
        notes=gaps(summary, "units", otherwise=UNITS_NONE),
    )


def _units_heading(sharded: Sequence[ShardedUnits]) -> str:
    of = ", ".join(sorted({_WRAPPERS.get(u.wrapper, "sharded parameters") for u in sharded}))
    ordered = any(u.named_by == "order" for u in sharded)
    return f"units of {of}" + (", numbered in order of the forward pass" if ordered else "")


def _calls_per_step(calls: Sequence[tuple[int, UnitCall]], steps: dict[int, int]) -> float:
    gathers = sum(c.op == "all_gather" for _, c in calls)
    return round(gathers / sum(steps[r] for r in {rank for rank, _ in calls}), 1)


def _early_value(calls: Sequence[tuple[int, UnitCall]]) -> Value:
    judged = [c.early for _, c in calls if c.early is not None]
    return wording(f"{sum(judged)} of {len(judged)}", sum(judged) / len(judged)) if judged else unknown()


LAYERS_NONE = "no tensor parallelism: no group reduces or gathers activations in the forward pass"

Called = Sequence[tuple[int, LayerCall]]
"""Calls, each with its rank."""


def layers_table(summary: TraceSummary) -> Table:
    """Return the table: one row per layer in order of the forward pass; figures per step, medians over ranks and steps."""
    divided = [p.layers for p in summary.ranks if p.layers is not None]
    window = step_length(summary, step_counts(divided))
    by_layer: dict[str, list[tuple[int, LayerCall]]] = defaultdict(list)
    for rank_layers in divided:
        for call in sorted(rank_layers.calls, key=lambda c: c.phase != "forward"):
            by_layer[call.layer or "unknown"].append((rank_layers.rank, call))

    def a_step(of: Callable[[LayerCall], int | None]) -> Callable[[Called], float | None]:
        return lambda calls: median_a_step(calls, of)

    def spent(phase: str) -> Callable[[Called], float | None]:
        return a_step(lambda c: c.end_ns - c.start_ns if c.phase == phase else None)

    return tabled(
        "layers",
        "Tensor-parallel layers",
        by_layer.values(),
        lead_column("layer", "layer", lambda calls: calls[0][1].layer or "unknown"),
        Column("calls", "collectives", a_step(lambda _: 1), Format("{:g}".format)),
        Column("bytes", "bytes", a_step(lambda c: c.size_bytes), binary_size),
        Column("forward", "forward", spent("forward"), duration),
        Column("backward", "backward", spent("backward"), duration),
        Column("exposed", "exposed", lambda calls: exposed_a_step(calls, window), duration),
        footnotes=_layers_footnotes(divided, [c for calls in by_layer.values() for c in calls], window)
        if divided
        else (),
        notes=gaps(summary, "layers", otherwise=LAYERS_NONE),
    )


def _layers_footnotes(divided: Sequence[DividedLayers], calls: Called, window: int) -> tuple[str, ...]:
    """Say of which groups the calls are, and what the columns are."""
    sizes = sorted({d.group_size for d in divided if d.group_size})
    of = f"groups of {', '.join(map(str, sizes))} ranks" if sizes else "tensor-parallel groups"
    named = "" if all(d.named_by == "plan" for d in divided) else "; calls are numbered in order of the forward pass"
    whole = (median_a_step(calls, lambda c: c.exposed_ns) or 0) / max(window, 1)
    return (
        f"{of}{named}; figures per step, medians over ranks and steps, with waiting",
        f"exposed: under no computation, share of the step; all layers together {format_percent(whole)}",
    )


BUCKETS_NONE = (
    "no collective was launched while a gradient was being accumulated: no buckets of "
    "DistributedDataParallel or of gradient hooks"
)


def buckets_table(summary: TraceSummary) -> Table:
    """Return the table: one row per bucket (place in the step, size), medians over ranks and steps."""
    rows = [b for p in summary.ranks for b in _buckets_shown(p.buckets, {s.step for s in p.steps})]
    first = _first_ready(rows)
    by_bucket = grouped(rows, lambda b: (b.index, b.op, b.size_bytes, b.dtype))
    ranks = {b.rank for b in rows}
    steps = {b.step for b in rows}
    wrappers = sorted({b.wrapper for b in rows})

    def since(time: Callable[[BucketRow], int | None]) -> Callable[[Sequence[BucketRow]], float | None]:
        def median(buckets: Sequence[BucketRow]) -> float | None:
            times = [at - first[b.rank, b.step] for b in buckets if (at := time(b)) is not None]
            return statistics.median(times) if times else None

        return median

    return tabled(
        "buckets",
        "Gradient buckets",
        (same for _, same in sorted(by_bucket.items(), key=lambda item: (item[0][0], -(item[0][2] or 0)))),
        lead_column("bucket", "bucket", "0.index", whole),
        identity_column("op", "operation", "0.op"),
        identity_column("dtype", "type", "0.dtype"),
        lead_column("size", "size", "0.size_bytes", binary_size),
        Column("seen", "seen", len, number, drop=2),
        Column("members", "gradients", _usual_members, number, short="grads"),
        Column("ready", "ready", since(lambda b: b.ready_ns), duration),
        Column("launch", "launch", since(lambda b: b.launch_ns), duration),
        Column("waited", "queued", lambda of: statistics.median(b.waited_ns for b in of), duration),
        Column("duration", "took", lambda of: statistics.median(b.end_ns - b.start_ns for b in of), duration),
        Column("end", "end", since(lambda b: b.end_ns), duration, drop=1),
        Column("exposed", "exposed", _exposed_value, duration),
        footnotes=_buckets_footnotes(len(ranks), len(steps), wrappers),
        notes=(*gaps(summary, "buckets", otherwise=BUCKETS_NONE), *_member_notes(rows)),
    )


def _buckets_shown(buckets: Sequence[BucketRow], steps: set[int]) -> Sequence[BucketRow]:
    """Return the buckets of the steps that are shown; all where none of them belongs to one."""
    inside = [b for b in buckets if b.step in steps]
    return inside or buckets


def _first_ready(rows: Sequence[BucketRow]) -> dict[tuple[int, int | None], int]:
    """Return when the first bucket of each rank and step was ready: where its times count from."""
    first: dict[tuple[int, int | None], int] = {}
    for b in rows:
        at = b.launch_ns if b.ready_ns is None else min(b.ready_ns, b.launch_ns)
        key = (b.rank, b.step)
        first[key] = min(first.get(key, at), at)
    return first


def _exposed_value(buckets: Sequence[BucketRow]) -> Value:
    exposed = statistics.median(b.exposed_ns for b in buckets)
    share = sum(b.exposed_ns for b in buckets) / max(1, sum(b.end_ns - b.start_ns for b in buckets))
    return with_share(exposed, share, judged(share, 0.5, 0.9))


def _usual_members(buckets: Sequence[BucketRow]) -> int | None:
    counts = Counter(len(b.members) for b in buckets if b.members is not None)
    return counts.most_common(1)[0][0] if counts else None


def _buckets_footnotes(ranks: int, steps: int, wrappers: Sequence[str]) -> tuple[str, ...]:
    """Say what made the buckets, and of how many steps they are."""
    wrapper_names = {"ddp": "DistributedDataParallel", "hooks": "gradient hooks"}
    of = ", ".join(wrapper_names.get(w, w) for w in wrappers)
    over = f"medians over {counted(steps, 'step')} and {counted(ranks, 'rank')}"
    return (
        f"buckets of {of} in order of launch; {over}; MiB = 2^20 bytes",
        "ready, launch, end: since the step's first bucket was ready or launched; queued: from ready and "
        "launched to its start; exposed: under no computation, share of its time",
    )


def _member_notes(rows: Sequence[BucketRow]) -> list[str]:
    """Say why the members of some buckets are unknown."""
    reasons = Counter(b.members_unavailable for b in rows if b.members_unavailable)
    notes = [f"gradients of {n} of {len(rows)} buckets unknown: {why}" for why, n in reasons.most_common()]
    by_index: dict[int, set[int | None]] = defaultdict(set)
    for b in rows:
        by_index[b.index].add(b.size_bytes)
    if any(len(sizes) > 1 for sizes in by_index.values()):
        notes.append("the partition into buckets is not the same in all steps and ranks")
    return notes


VIEWS = (
    View("trace_units", table=units_table),
    View("trace_layers", table=layers_table),
    View("trace_buckets", table=buckets_table),
)
