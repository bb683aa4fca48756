"""Peak memory of one rank by kind, per pipeline stage."""

from __future__ import annotations

from stepscope.core.dataclass import record
from stepscope.predict.step.exposed import held_parameters
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.stages import Stage, StepSetup


@record
class PredictedMemory:
    """Bytes of one rank at its peak. gathered: whole for a while: layers of FSDP, inputs of tensor parallelism that the host
    launched ahead; logits: output and its loss; base: context, libraries, communication buffers; slack: allocator's
    fragmentation."""

    params: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    base: float
    slack: float

    @property
    def total(self) -> float:
        return self.states + self.gathered + self.activations + self.logits + self.base + self.slack

    @property
    def states(self) -> float:
        """Parameters, gradients and optimizer state."""
        return self.params + self.gradients + self.optimizer


LOGIT_BYTES = 9.0
"""Of an element of the output: as computed, in FP32, and most of its gradient; fitted."""
AHEAD_LIMIT = 0.8
"""Share of a GPU's memory up to which the host runs ahead: where the allocator runs short, it waits for the device."""
AHEAD_PIPELINE_GPUS, AHEAD_PIPELINE_TP = 128, 16
"""Pipelines of more GPUs, or wider tensor parallelism in them, wait for the host."""


def stage_memory(setup: StepSetup, stage: Stage, index: int) -> PredictedMemory:
    """Predict the peak memory of stage ``index`` (0: first)."""
    model, layout, calibration = setup.model, setup.layout, setup.calibration
    have = held_parameters(setup, stage)
    n = have.all
    shared = have.shared(layout)
    wide = layout.element_bytes == 4
    param_bytes = 4 if wide or (layout.zero == 3 and layout.master) else 2
    optimizer_bytes = (8 if layout.optimizer == "adam" else 4) + (4 if layout.master and param_bytes == 2 else 0)
    gradient_bytes = layout.grad_bytes * calibration.gradient_factor
    unit = n / max(stage.layers, 1)
    gathered = 2 * unit * layout.element_bytes + unit * layout.reduce_bytes if layout.zero == 3 else 0.0
    activations = _micro_batches_in_flight(layout, index) * stage.layers * layer_activations(model, layout)
    if layout.recompute in ("full", "half"):
        activations += layer_activations(model, layout, everything=True)
    logits = 0.0
    if stage.last:
        logits = layout.tokens * model.vocab / layout.tp * LOGIT_BYTES
    params = (shared if layout.zero == 3 else n) * param_bytes
    whole = layout.zero < 2 or not (layout.syncs_each or layout.micro_batches == 1)
    gradients = (n if whole else shared) * gradient_bytes
    optimizer = (shared if layout.zero >= 1 else n) * optimizer_bytes
    rest = params + gradients + optimizer + gathered + activations + logits
    gathered += _gathered_ahead_bytes(setup, AHEAD_LIMIT * setup.cluster.gpu.memory_bytes - rest)
    moving = gathered + activations + logits
    return PredictedMemory(
        params=params,
        gradients=gradients,
        optimizer=optimizer,
        gathered=gathered,
        activations=activations,
        logits=logits,
        base=calibration.base_bytes,
        slack=(calibration.fragmentation - 1) * moving,
    )


def _gathered_ahead_bytes(setup: StepSetup, room: float) -> float:
    """Return the bytes of gathered inputs of tensor parallelism that live until the device is done with them, where the code
    leaves them to the allocator and the host is that far ahead. Receiving from another stage waits: that leaves them to
    warm-up."""
    layout = setup.layout
    if layout.tp == 1 or not layout.sequence_parallel:
        return 0.0
    share = 1.0
    if layout.pp > 1:
        waits = layout.gpus > AHEAD_PIPELINE_GPUS or layout.tp > AHEAD_PIPELINE_TP
        share = 0.0 if waits else 1 - 2 / layout.pp
    want = share * setup.calibration.gathered_ahead * setup.tokens * setup.model.hidden * layout.element_bytes
    return want if want <= room else max(0.0, room) / 2


def layer_activations(model: ModelShape, layout: Layout, *, everything: bool = False) -> float:
    """Bytes that one layer keeps of one micro-batch for its backward pass (Korthikanti et al., arXiv 2205.05198, counted
    from the dimensions: 34 s b h for a GPT layer with dropout). everything: as if nothing were recomputed.
    """
    kind = "none" if everything else layout.recompute
    item = layout.element_bytes
    tokens, spread, h = layout.tokens, layout.spread, model.hidden
    if kind == "full":
        return tokens * h * item / spread
    kept = 0.5 if kind == "half" else 1.0
    kv = max(model.kv_heads / layout.tp, 1) * model.head_dim
    wide = 2 if model.gated else 1  # rotated queries and keys stay in 4 bytes too
    attention = 2 * wide * (model.attention_width / layout.tp + kv) + 4 * model.heads / layout.tp / item
    if model.experts and model.moe_layers > model.layers / 2:
        visits = model.top_k + model.shared
        mlp = visits * (2 * h / spread + (model.matrices) * model.moe_ffn / layout.tp)
    else:
        mlp = model.matrices * model.ffn / layout.tp
    norms = 6 * h / spread
    size = kept * tokens * item * (norms + attention + mlp)
    if not layout.flash and kind == "none":
        size += 2.5 * item * tokens * layout.seq_len * model.heads / layout.tp
    return size


def _micro_batches_in_flight(layout: Layout, index: int) -> float:
    """Micro-batches whose activations a stage holds at once; for interleaving in whole stages (Narayanan et al.,
    arXiv 2104.04473)."""
    m, p, v = layout.micro_batches, layout.pp, layout.vpp
    if layout.schedule == "gpipe":
        return float(m)
    if v > 1:
        return min(m * v, 2 * (p - index - 1) + (v - 1) * p + 1) / v
    return float(min(m, p - index))
