"""The same job otherwise: on other numbers of GPUs, with one change, so that it fits; and what a layout wastes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_percent
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.machine import find_fabric
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster, Layout, errors
from stepscope.predict.step.step import StepPrediction, predict_step
from stepscope.predict.what_if import UNITS, WhatIf

KNEE = 0.8
"""Efficiency against the smallest number of GPUs below which adding GPUs is no longer good."""

MOST_DOUBLINGS = 6


def efficiency(prediction: StepPrediction, base: StepPrediction) -> float:
    """Tokens per second and GPU over those of ``base``."""
    return prediction.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu


def speedup(after: StepPrediction, before: StepPrediction) -> float:
    """Tokens per second of the whole job over those of ``before``."""
    return after.tokens_per_s / before.tokens_per_s


def knee(base: StepPrediction, at: Callable[[int], StepPrediction]) -> int | None:
    """The largest number of GPUs, doubling from that of ``base``, up to which efficiency stays above :data:`KNEE`; None:
    it stays above in all doublings looked at, or until the batch cannot be split any further."""
    gpus = base.layout.gpus
    for _ in range(MOST_DOUBLINGS):
        try:
            if efficiency(at(2 * gpus), base) < KNEE:
                return gpus
        except UsageError:
            return None
        gpus *= 2
    return None


def base_of(predictions: Sequence[StepPrediction]) -> StepPrediction:
    """Return the prediction on fewest GPUs."""
    return min(predictions, key=lambda p: p.layout.gpus)


def changed(
    cluster: Cluster, layout: Layout, calibration: StepCalibration, what: WhatIf
) -> tuple[Cluster, Layout, StepCalibration]:
    """Apply ``what`` to the three. batch: the micro-batch times a whole number, or the accumulation where it is none.

    Raises UsageError for what this model cannot obey.
    """
    if what.bucket_bytes is not None:
        raise UsageError("--what-if bucket needs --from or --buckets", why="a named model is priced layer by layer")
    cluster = changed_cluster(cluster, what)
    if what.batch is not None:
        layout = _layout_with_batch(layout, what.batch)
    if what.precision is not None:
        layout = replace(layout, precision=UNITS.get(what.precision, what.precision))
    if what.overlap is not None:
        calibration = replace(calibration, tp_overlap=1.0, pp_overlap=1.0, ep_overlap=1.0, overlap_slowdown=1.0)
        layout = replace(layout, overlap=True, sync_each=False)
    return cluster, layout, calibration


def changed_cluster(cluster: Cluster, what: WhatIf) -> Cluster:
    """Return the machine with other GPUs or links. Raises UsageError for unknown ones."""
    if what.gpu is not None:
        cluster = replace(cluster, gpu=known_gpu(what.gpu))
    if what.link == "pcie":
        return replace(cluster, gpu=replace(cluster.gpu, link=None))
    return cluster if what.link is None else replace(cluster, network=find_fabric(what.link), adapters_per_node=None)


def _layout_with_batch(layout: Layout, factor: float) -> Layout:
    """Return the layout with a batch so many times as large, by micro-batch where that stays whole, else by accumulation."""
    micro, whole = layout.micro_batch * factor, layout.global_batch * factor
    if micro >= 1 and micro == int(micro):
        return replace(layout, micro_batch=int(micro), global_batch=round(whole))
    if whole != int(whole) or int(whole) % (layout.dp * layout.micro_batch):
        raise UsageError(
            f"--what-if batch={factor:g}x leaves no whole micro-batches",
            why=f"micro-batch {layout.micro_batch}, {layout.micro_batches} a step and rank",
        )
    return replace(layout, global_batch=int(whole))


CHEAP = 0.05
"""Loss of speed up to which nobody minds."""


@record
class Remedy:
    """One way, as changes to the layout. slower: step time of a token over that of the layout that does not fit, less 1."""

    what: str
    prediction: StepPrediction
    slower: float


REMEDIES = 5
"""At most so many are told."""


def remedies(prediction: StepPrediction, calibration: StepCalibration | None = None) -> tuple[Remedy, ...]:
    """Find single changes that fit, and pairs of them where no single one is cheap, by their cost in speed."""
    cluster, layout = prediction.cluster, prediction.layout
    single = list(_layout_changes(cluster, layout))
    fitting = _fitting_remedies(prediction, single, calibration)
    if min((r.slower for r in fitting), default=1.0) > CHEAP:
        pairs = [
            (f"{first} and {second}", changed)
            for first, then in single
            for second, changed in _layout_changes(cluster, then)
            if first.split()[0] != second.split()[0]
        ]
        fitting += _fitting_remedies(prediction, pairs, calibration)
    seen: dict[Layout, Remedy] = {}
    for remedy in sorted(fitting, key=lambda r: r.slower):
        seen.setdefault(remedy.prediction.layout, remedy)
    return tuple(seen.values())[:REMEDIES]


def _fitting_remedies(
    before: StepPrediction, ways: list[tuple[str, Layout]], calibration: StepCalibration | None
) -> list[Remedy]:
    """Return the ways that fit into memory, each with its step."""
    fitting = []
    for what, layout in ways:
        if errors(before.model, before.cluster, layout):
            continue
        after = predict_step(before.model, before.cluster, layout, calibration, simulated=False)
        if after.fits:
            slower = speedup(before, after) - 1
            fitting.append(Remedy(what=what, prediction=after, slower=slower))
    return fitting


def _layout_changes(cluster: Cluster, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield (words whose first one names the kind of change, layout)."""
    if layout.micro_batch > 1:
        less = layout.micro_batch // 2
        while less >= 1:
            yield f"mbs={less}", replace(layout, micro_batch=less)
            less //= 2
    if layout.dp > 1:
        for stage in range(layout.zero + 1, 4):
            yield f"zero={stage}", replace(layout, zero=stage)
    if layout.recompute == "none":
        if not layout.flash:
            yield "recompute=selective", replace(layout, recompute="selective")
        yield "recompute=full", replace(layout, recompute="full")
    node = cluster.gpus_per_node or 8
    for name in ("tp", "pp", "cp"):
        for factor in (2, 4, 8):
            size = getattr(layout, name) * factor
            if layout.dp % factor or (name == "tp" and size > node):
                continue
            kept = replace(layout, **{name: size, "dp": layout.dp // factor})
            if kept.global_batch % (kept.dp * kept.micro_batch) == 0:
                yield f"{name}={size}", kept
    if layout.shard_group:
        yield "shard=all", replace(layout, shard_group=None)


SYNC, ACROSS, LAUNCHES = "sync per micro-batch", "TP across nodes", "launch-bound"

MUCH_SLOWER = 0.5
"""Speed over that of a better layout below which ``cause_of`` names a cause."""

LAUNCH, BUBBLE, GRADIENTS, TENSOR = 0.1, 0.2, 0.25, 0.2
"""Shares of the step from which on a part is worth a warning."""


@record
class Warned:
    """A warning. share: of the step that the cause takes; advice: what to change."""

    cause: str
    share: float
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}, {format_percent(self.share)} of the step: {self.advice}"


def warnings_of(prediction: StepPrediction) -> tuple[Warned, ...]:
    """Return the warnings, largest share first."""
    layout, budget, step = prediction.layout, prediction.budget, prediction.step_s
    warned: list[Warned] = []

    def warn(cause: str, seconds: float, least: float, advice: str) -> None:
        if seconds >= least * step:
            warned.append(Warned(cause=cause, share=seconds / step, advice=advice))

    if layout.syncs_each and layout.zero < 2 and layout.micro_batches > 1:
        warn(SYNC, budget.dp, 0.05, "reduce gradients once a step (no_sync, or zero=1)")
    else:
        warn("exposed gradients", budget.dp, GRADIENTS, "a larger batch per rank, or fewer data-parallel ranks")
    warn(LAUNCHES, budget.launch, LAUNCH, "a larger micro-batch, less tensor parallelism, or CUDA graphs")
    if layout.tp > prediction.cluster.domain:
        warn(ACROSS, budget.tp, TENSOR, f"keep tp at {prediction.cluster.domain} or below")
    advice = "more micro-batches, interleaving (vpp), or fewer stages"
    warn("bubble", budget.bubble, BUBBLE, advice)
    return tuple(sorted(warned, key=lambda w: -w.share))


def cause_of(prediction: StepPrediction, better: StepPrediction) -> str | None:
    """Return what takes most time of a token above ``better``'s, in the words of the warnings, else the part of the step; a
    mistake that is worth a warning and costs nothing to correct comes first. None: the layout is not much slower than
    ``better``."""
    if prediction.tokens_per_s_per_gpu >= MUCH_SLOWER * better.tokens_per_s_per_gpu:
        return None
    if any(warned.cause == SYNC for warned in warnings_of(prediction)):
        return SYNC
    layout = prediction.layout
    own, other = (1 / p.layout.tokens_per_step * p.layout.gpus for p in (prediction, better))
    more = {name: value * own - better.budget.parts[name] * other for name, value in prediction.budget.parts.items()}
    part = max(more, key=lambda name: more[name])
    if part == "tp" and layout.tp > prediction.cluster.domain:
        return ACROSS
    return {"launch": LAUNCHES, "compute": LAUNCHES, "tp": "TP traffic", "dp": "gradient traffic"}.get(part, part)
