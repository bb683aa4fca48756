"""What each pipeline stage computes and sends for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.kernels import Kernels, KernelTimes
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.traffic import context_calls, expert_calls, message, seconds, tensor_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """Exposed seconds of one layer and micro-batch: tensor, context and expert parallelism, forward and backward."""

    tp: tuple[float, float]
    cp: tuple[float, float]
    ep: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage, one micro-batch: seconds (forward, backward; recomputation belongs to backward).

    layers: how many; first, last: with the embedding, with the output.
    compute: device time of kernels; tp, cp, ep: exposed traffic; launch: what the host adds as it
    cannot launch as fast as the device works. send: activations to the next stage, one way.
    """

    layers: int
    moe_layers: int
    first: bool
    last: bool
    compute: tuple[float, float]
    tp: tuple[float, float]
    cp: tuple[float, float]
    ep: tuple[float, float]
    launch: tuple[float, float]
    send: float

    @property
    def forward(self) -> float:
        return self.compute[0] + self.tp[0] + self.cp[0] + self.ep[0] + self.launch[0]

    @property
    def backward(self) -> float:
        return self.compute[1] + self.tp[1] + self.cp[1] + self.ep[1] + self.launch[1]


def split(model: ModelShape, layout: Layout) -> list[tuple[int, bool]]:
    """Layers of each stage, and whether it holds the output.

    balance ``layers``: as many each; what is left over goes to stages in the middle, as the ends hold embedding and output.
    ``cost``: a stage takes blocks until their parameters exceed its share (nanotron, models/base.py build_model).
    """
    if layout.balance == "cost":
        return _by_cost(model, layout.pp)
    least, left = divmod(model.layers, layout.pp)
    counts = [least] * layout.pp
    middle = sorted(range(layout.pp), key=lambda i: abs(i - (layout.pp - 1) / 2))
    for index in middle[:left]:
        counts[index] += 1
    return [(count, index == layout.pp - 1) for index, count in enumerate(counts)]


def _by_cost(model: ModelShape, stages: int) -> list[tuple[int, bool]]:
    layer, head = model.attention_params + model.mlp_params, model.embedding_params
    share = (layer * model.layers + head) / stages
    counts, at, sum_ = [0] * stages, 0, 0
    for _ in range(model.layers):
        counts[at] += 1
        sum_ += layer
        if sum_ > share * (at + 1):
            at += 1
    return [(count, index == at) for index, count in enumerate(counts)]


def stages_of(model: ModelShape, cluster: Cluster, layout: Layout, calibration: StepCalibration) -> list[Stage]:
    """All stages, first to last."""
    kernels = Kernels(model, cluster, layout, calibration)
    attention, mlp = kernels.attention_block(), kernels.mlp()
    experts = kernels.experts() if model.experts else mlp
    dense_traffic = _traffic(kernels, attention, moe=False)
    moe_traffic = _traffic(kernels, attention, moe=True) if model.experts else dense_traffic
    embedding, head = kernels.embedding(), kernels.head()
    send = seconds(cluster, message(model, layout)) / calibration.comm_rate
    made: dict[tuple[int, int, bool, bool], Stage] = {}
    stages: list[Stage] = []
    begun = 0
    for index, (count, output) in enumerate(split(model, layout)):
        dense = min(count, max(0, model.layers - model.moe_layers - begun))
        begun += count
        key = count, count - dense, index == 0, output
        if key not in made:
            made[key] = _stage(
                kernels, key, attention, (mlp, dense_traffic), (experts, moe_traffic), embedding, head, send
            )
        stages.append(made[key])
    return stages


def _stage(
    kernels: Kernels,
    key: tuple[int, int, bool, bool],
    attention: KernelTimes,
    dense_layer: tuple[KernelTimes, LayerTraffic],
    moe_layer: tuple[KernelTimes, LayerTraffic],
    embedding: KernelTimes,
    head: KernelTimes,
    send: float,
) -> Stage:
    layers, moe, first, last = key
    layout, c = kernels.layout, kernels.calibration
    parts = [(layers - moe, dense_layer), (moe, moe_layer)]
    again = 1.0 if layout.recompute == "full" else 0.0
    forward = sum(n * (attention.forward + mlp.forward) for n, (mlp, _) in parts)
    backward = sum(n * (attention.backward + mlp.backward) for n, (mlp, _) in parts) + again * forward
    if layout.recompute == "half":
        backward += 0.5 * (forward - layers * kernels.attention().forward)
    if layout.recompute == "selective" and not layout.flash:
        backward += layers * kernels.attention().forward

    def traffic(name: str) -> tuple[float, float]:
        there = sum(n * getattr(t, name)[0] for n, (_, t) in parts)
        back = sum(n * getattr(t, name)[1] for n, (_, t) in parts)
        return there, back + again * there

    for at, work in ((first, embedding), (last, head)):
        if at:
            forward, backward = forward + work.forward, backward + work.backward
    tp, cp, ep = traffic("tp"), traffic("cp"), traffic("ep")
    calls = 2 * _call_us(kernels) if layout.tp > 1 else 0.0
    host = (
        (layers * (c.launch_forward_us + calls) + moe * c.launch_moe_us) / 1e6,
        (layers * (c.launch_backward_us + calls + again * c.launch_forward_us) + moe * c.launch_moe_us) / 1e6,
    )
    device = (forward + tp[0] + cp[0] + ep[0], backward + tp[1] + cp[1] + ep[1])
    return Stage(
        layers=layers,
        moe_layers=moe,
        first=first,
        last=last,
        compute=(forward, backward),
        tp=tp,
        cp=cp,
        ep=ep,
        launch=(max(0.0, host[0] - device[0]), max(0.0, host[1] - device[1])),
        send=send,
    )


def _call_us(kernels: Kernels) -> float:
    """The host's time for one tensor-parallel collective."""
    layout, cluster, c = kernels.layout, kernels.cluster, kernels.calibration
    far = c.launch_tp_far_us * layout.tp if layout.tp > cluster.domain else 0.0
    pipeline = c.launch_tp_pipeline_us * layout.tp if layout.pp > 1 and cluster.gpus > cluster.domain else 0.0
    return max(c.launch_tp_us, far, pipeline)


def _traffic(kernels: Kernels, attention: KernelTimes, *, moe: bool) -> LayerTraffic:
    """The ring of keys and values hides under the attention that needs it; a share of the rest under other work."""
    model, layout, cluster, c = kernels.model, kernels.layout, kernels.cluster, kernels.calibration
    tp = seconds(cluster, tensor_calls(model, layout)) * (1 - c.tp_overlap) / c.comm_rate
    ring = seconds(cluster, context_calls(model, layout)) / c.comm_rate
    ep = seconds(cluster, expert_calls(model, layout)) * (1 - c.ep_overlap) / c.comm_rate if moe else 0.0
    cp = max(0.0, ring - attention.attention)
    return LayerTraffic(tp=(tp, tp), cp=(cp, 2 * cp), ep=(ep, ep))
