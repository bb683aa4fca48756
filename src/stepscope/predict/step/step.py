"""Time, memory and utilisation of one training step from model, cluster, layout and batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.predict.step.calibration import EXTRAPOLATED, StepCalibration, reach_at, verdict
from stepscope.predict.step.exposed import exposed, held_parameters, pipeline_time
from stepscope.predict.step.layout import Cluster, Layout, check
from stepscope.predict.step.memory import PredictedMemory, stage_memory
from stepscope.predict.step.model import CONVENTIONS, ModelShape
from stepscope.predict.step.stages import Stage, StepSetup, stages_of
from stepscope.predict.step.traffic import Calls, step_calls


@record
class Budget:
    """Seconds of a step; they sum to it. Traffic counts where nothing hides it. bubble: waiting for other pipeline stages;
    launch: the host is slower than the device; other: fixed time, and waiting for the slowest GPU."""

    compute: float
    launch: float
    tp: float
    cp: float
    ep: float
    pp: float
    bubble: float
    dp: float
    optimizer: float
    other: float

    @property
    def step(self) -> float:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def times(self, factor: float) -> Budget:
        return Budget(**{name: value * factor for name, value in self.parts.items()})


@record
class StepPrediction:
    """One step. low_s, high_s: its 80% interval. mfu: by convention; hfu: all FLOP that are computed, recomputation too;
    None where the peak is unknown. memory: of the fullest stage, memory_stage.
    traffic: collectives of a rank in the middle of the pipeline. extrapolated: how it leaves what the
    calibration has seen. never_run: parts of the layout that stepscope itself has no run of."""

    model: ModelShape
    cluster: Cluster
    layout: Layout
    calibration: str
    budget: Budget
    low_s: float
    high_s: float
    mfu: Mapping[str, float]
    hfu: float
    memory: PredictedMemory
    memory_stage: int
    traffic: tuple[Calls, ...]
    notes: tuple[str, ...]
    extrapolated: tuple[str, ...]

    @property
    def step_s(self) -> float:
        return self.budget.step

    @property
    def tokens_per_s(self) -> float:
        return self.layout.tokens_per_step / self.step_s

    @property
    def low_tokens_per_s(self) -> float:
        """Lower end of the 80% interval, where the step takes longest."""
        return self.layout.tokens_per_step / self.high_s

    @property
    def high_tokens_per_s(self) -> float:
        return self.layout.tokens_per_step / self.low_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.layout.gpus

    @property
    def dominant(self) -> str:
        """The largest part after computation, or ``compute`` where no other takes a tenth of the step."""
        parts = {name: value for name, value in self.budget.parts.items() if name != "compute"}
        largest = max(parts, key=lambda name: parts[name])
        return largest if parts[largest] >= 0.1 * self.step_s else "compute"

    @property
    def fits(self) -> bool:
        return verdict(self.memory.total, self.cluster.gpu.total_bytes) == "fits"

    @property
    def tight(self) -> bool:
        return verdict(self.memory.total, self.cluster.gpu.total_bytes) == "tight"


def predict_step(
    model: ModelShape,
    cluster: Cluster,
    layout: Layout,
    calibration: StepCalibration | None = None,
    *,
    simulated: bool = True,
) -> StepPrediction:
    """Price one optimizer step. simulated: a pipeline pass by pass, not by formula (fast, for searches and fits).

    Raises UsageError with everything that makes the layout impossible.
    """
    check(model, cluster, layout)
    c = calibration or StepCalibration()
    setup = StepSetup(model, cluster, layout, c)
    stages = stages_of(setup)
    middle = stages[len(stages) // 2]
    memories = [stage_memory(setup, stage, index) for index, stage in enumerate(stages)]
    fullest = max(range(len(stages)), key=lambda index: memories[index].total)
    budget = _step_budget(setup, stages, simulated=simulated)
    missing = _extrapolation_notes(model, cluster, c)
    low, high = reach_at(c, cluster.gpus)
    wide = EXTRAPOLATED if missing else 1.0
    peak = cluster.gpu.peak(layout.precision)
    assert not isinstance(peak, Unavailable)
    per_flop = layout.tokens_per_step / budget.step / layout.gpus / peak
    return StepPrediction(
        model=model,
        cluster=cluster,
        layout=layout,
        calibration=c.name,
        budget=budget,
        low_s=budget.step / high**wide,
        high_s=budget.step / low**wide,
        mfu={name: model.flop_per_token(layout.seq_len, name) * per_flop for name in CONVENTIONS},
        hfu=hardware_flop_per_token(model, layout) * per_flop,
        memory=memories[fullest],
        memory_stage=fullest,
        traffic=step_calls(
            model, layout, held_parameters(setup, middle), layers=middle.layers, moe_layers=middle.moe_layers
        ),
        notes=tuple(_layout_notes(cluster, layout)),
        extrapolated=tuple(missing),
    )


def hardware_flop_per_token(model: ModelShape, layout: Layout) -> float:
    """FLOP that are computed for a token: recomputation of layers included (full: 4/3 of theirs); scores causal if they are
    with fused kernels, whole without."""
    causal = model.causal and layout.flash
    attention = model.attention_flop(layout.seq_len, causal=causal)
    again = {"none": 0.0, "selective": 0.0, "half": 1 / 6, "full": 1 / 3}[layout.recompute]
    layers = 6.0 * (model.matmul_params - model.embedding_params) + attention
    extra = attention / 3 if layout.recompute == "selective" and not layout.flash else 0.0
    return layers * (1 + again) + extra + 6.0 * model.embedding_params


def _step_budget(setup: StepSetup, stages: list[Stage], *, simulated: bool) -> Budget:
    """Return where the step's time goes, s, on the slowest stage."""
    layout, c, m = setup.layout, setup.calibration, setup.layout.micro_batches
    slowest = max(stages, key=lambda stage: stage.forward + stage.backward)
    bubble, sends = pipeline_time(setup, stages, simulated=simulated)
    dp = max(exposed(setup, stage) for stage in {id(s): s for s in stages}.values())
    optimizer = max(_optimizer_s(setup, stage) for stage in stages)
    parts = Budget(
        compute=m * sum(slowest.compute),
        launch=m * sum(slowest.launch),
        tp=m * sum(slowest.tp),
        cp=m * sum(slowest.cp),
        ep=m * sum(slowest.ep),
        pp=sends,
        bubble=bubble,
        dp=dp,
        optimizer=optimizer,
        other=c.step_us / 1e6,
    )
    spread = parts.step * c.spread_per_doubling * max(0.0, math.log2(layout.gpus / 8))
    return Budget(**{**parts.parts, "other": parts.other + spread}).times(c.factor)


def _optimizer_s(setup: StepSetup, stage: Stage) -> float:
    """Return the optimizer's seconds: it reads gradients, master weights and moments and writes them, 30 bytes a parameter;
    the norm reads gradients again."""
    layout, have = setup.layout, held_parameters(setup, stage)
    here = have.shared(layout) if layout.zero else have.all
    moved = (
        here * (30 if layout.optimizer == "adam" else 18) + (have.all if layout.zero < 2 else here) * layout.grad_bytes
    )
    return setup.roofline.optimized(moved)


def _extrapolation_notes(model: ModelShape, cluster: Cluster, c: StepCalibration) -> list[str]:
    """Note what lies beyond what the calibration has measured."""
    if c.range is None:
        return []
    notes = []
    low, high = c.range.gpus
    if not low <= cluster.gpus <= high:
        notes.append(f"{cluster.gpus} GPUs; calibrated on {low} to {high}")
    smallest, largest = c.range.params
    if not smallest <= model.params <= largest:
        notes.append(
            f"{model.params / 1e9:.3g} B parameters; calibrated on {smallest / 1e9:.3g} to {largest / 1e9:.3g} B"
        )
    if cluster.gpu.key not in c.range.accelerators:
        notes.append(f"{cluster.gpu.name}; calibrated on {', '.join(c.range.accelerators)}")
    return notes


def _layout_notes(cluster: Cluster, layout: Layout) -> list[str]:
    """Note what the calibration never ran, and what the cluster assumes."""
    notes = [*cluster.whole.notes]
    never = [f"{name} {value}" for name, value, ran in (("cp", layout.cp, 1), ("ep", layout.ep, 1)) if value != ran]
    if layout.zero == 2:
        never.append("ZeRO-2")
    if never:
        notes.append(f"{', '.join(never)}: priced from a plan; stepscope has never run it")
    notes.append("data loading, checkpoints and evaluation are not counted")
    return notes
