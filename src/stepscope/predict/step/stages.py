"""What each pipeline stage computes and sends for one micro-batch.

A matrix product takes FLOP / rate + bytes / rate + a kernel's least time: a smooth roofline, slow for small and thin ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.dataclass import record
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster, Layout
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.roofline import Roofline
from stepscope.predict.step.traffic import context_calls, expert_calls, message, seconds, tensor_calls


@record
class KernelTimes:
    """Seconds of device time. attention: the part of ``forward`` that is attention proper (a ring exchange hides there)."""

    forward: float
    backward: float
    attention: float = 0.0


@dataclass(frozen=True, slots=True)
class StepSetup:
    """What is priced, and the kernels of one rank of it. tokens: of one micro-batch on this rank."""

    model: ModelShape
    cluster: Cluster
    layout: Layout
    calibration: StepCalibration

    @property
    def tokens(self) -> float:
        return self.layout.tokens

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.cluster.gpu, self.calibration)

    def product(self, m: float, n: float, k: float, *, count: float = 1.0) -> float:
        """Return the seconds of ``count`` products of m x k by k x n."""
        size = self.layout.element_bytes * (m * k + k * n + m * n)
        return count * self.roofline.product(2 * m * n * k, size, self.layout.precision)

    def linear(self, m: float, n: float, k: float, *, count: float = 1.0) -> KernelTimes:
        """A linear layer of m tokens from k to n: forward, and the gradients of input and weight."""
        back = self.product(m, k, n, count=count) + self.product(k, n, m, count=count)
        return KernelTimes(forward=self.product(m, n, k, count=count), backward=back)

    def elementwise(self, elements: float, *, kernels: float = 1.0) -> KernelTimes:
        """Kernels that move so many activations in all, forward; twice as many backward."""
        c = self.calibration
        size = elements * self.layout.element_bytes * c.elementwise_factor
        forward = self.roofline.moved(size) + kernels * c.kernel_us / 1e6
        return KernelTimes(forward=forward, backward=2 * forward)

    def attention(self) -> KernelTimes:
        """Scores and weighted sum of one layer, the mean of all (windows); backward 2.5 forward (FlashAttention-2)."""
        model, layout, c = self.model, self.layout, self.calibration

        def flop(*, causal: bool) -> float:
            return model.attention_flop(layout.seq_len, causal=causal) / 3 / model.layers * self.tokens / layout.tp

        precision = "bf16" if layout.precision == "fp8" else layout.precision  # only linear layers run in FP8
        if layout.flash:
            work = flop(causal=model.causal)
            forward = self.roofline.attention(work, precision) + c.kernel_us / 1e6
            backward = self.roofline.attention(2.5 * work, precision, backward=True)
            return KernelTimes(forward=forward, backward=backward, attention=forward)
        work = flop(causal=False) / self.roofline.peak(precision)
        scores = self.tokens * layout.seq_len * model.heads / layout.tp
        softmax = self.elementwise(6 * scores, kernels=4)
        forward = work + softmax.forward
        return KernelTimes(forward=forward, backward=2 * work + softmax.backward, attention=forward)

    def attention_block(self) -> KernelTimes:
        """Norm, projections, rotation, attention, output and residual of one layer."""
        model, tp = self.model, self.layout.tp
        t, h = self.tokens, model.hidden
        spread = self.layout.spread
        projections: tuple[KernelTimes, ...]
        if model.latent:
            a = model.latent
            nope = model.head_dim - a.rope_dim
            projections = (
                self.linear(t, a.q_rank + a.kv_rank + a.rope_dim, h),
                self.linear(t, model.attention_width / tp, a.q_rank),
                self.linear(t, model.heads * (nope + a.value_dim) / tp, a.kv_rank),
            )
        else:
            kv = max(model.kv_heads / tp, 1)
            projections = (self.linear(t, (model.heads / tp + 2 * kv) * model.head_dim, h),)
        return total(
            *projections,
            self.attention(),
            self.linear(t, h, model.value_width / tp),
            self.elementwise(5 * t * h / spread, kernels=2),
            self.elementwise(4 * t * model.attention_width / tp),
        )

    def mlp(self) -> KernelTimes:
        """Norm, dense MLP and residual of one layer."""
        model, tp = self.model, self.layout.tp
        t, h, width = self.tokens, model.hidden, model.ffn / tp
        spread = self.layout.spread
        return total(
            self.linear(t, width * (model.matrices - 1), h),
            self.linear(t, h, width),
            self.elementwise(model.matrices * t * width),
            self.elementwise(5 * t * h / spread, kernels=2),
        )

    def experts(self) -> KernelTimes:
        """Norm, router, grouped products of the experts on this rank (equal loads), permutation and residual."""
        model, layout = self.model, self.layout
        t, h, width = self.tokens, model.hidden, model.moe_ffn / layout.tp
        local = max(model.experts / layout.ep, 1)
        visits = t * model.top_k
        spread = layout.spread
        work = [
            self.linear(t / spread, model.experts, h),
            self.linear(visits / local, width * (model.matrices - 1), h, count=local),
            self.linear(visits / local, h, width, count=local),
            self.elementwise(model.matrices * visits * width),
            self.elementwise(6 * visits * h / spread, kernels=4),
            self.elementwise(5 * t * h / spread, kernels=2),
        ]
        if model.shared:
            wide = width * model.shared
            work += [self.linear(t, wide * (model.matrices - 1), h), self.linear(t, h, wide)]
        return total(*work)

    def embedding(self) -> KernelTimes:
        return self.elementwise(3 * self.tokens * self.model.hidden)

    def head(self) -> KernelTimes:
        """Last norm, output projection and loss; the loss works in FP32."""
        t, v = self.tokens, self.model.vocab / self.layout.tp
        return total(self.linear(t, v, self.model.hidden), self.elementwise(6 * t * v, kernels=4))


def total(*works: KernelTimes) -> KernelTimes:
    return KernelTimes(
        forward=sum(w.forward for w in works),
        backward=sum(w.backward for w in works),
        attention=sum(w.attention for w in works),
    )


@record
class LayerTraffic:
    """Exposed seconds of one layer and micro-batch: tensor, context and expert parallelism, forward and backward."""

    tp: tuple[float, float]
    cp: tuple[float, float]
    ep: tuple[float, float]


@record
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
        return self._all(0)

    @property
    def backward(self) -> float:
        return self._all(1)

    def _all(self, way: int) -> float:
        return self.compute[way] + self.tp[way] + self.cp[way] + self.ep[way] + self.launch[way]


def split(model: ModelShape, layout: Layout) -> list[tuple[int, bool]]:
    """Layers of each stage, and whether it holds the output.

    balance ``layers``: as many each; what is left over goes to stages in the middle, as the ends hold embedding and output.
    ``cost``: a stage takes blocks until their parameters exceed its share (nanotron, models/base.py build_model).
    """
    if layout.balance == "cost":
        return _layers_by_cost(model, layout.pp)
    least, left = divmod(model.layers, layout.pp)
    counts = [least] * layout.pp
    middle = sorted(range(layout.pp), key=lambda i: abs(i - (layout.pp - 1) / 2))
    for index in middle[:left]:
        counts[index] += 1
    return [(count, index == layout.pp - 1) for index, count in enumerate(counts)]


def _layers_by_cost(model: ModelShape, stages: int) -> list[tuple[int, bool]]:
    """Return (layers, whether it has the head) of each stage, so that their costs are about equal."""
    layer, head = model.attention_params + model.mlp_params, model.embedding_params
    share = (layer * model.layers + head) / stages
    counts, at, sum_ = [0] * stages, 0, 0
    for _ in range(model.layers):
        counts[at] += 1
        sum_ += layer
        if sum_ > share * (at + 1):
            at += 1
    return [(count, index == at) for index, count in enumerate(counts)]


def stages_of(setup: StepSetup) -> list[Stage]:
    """All stages, first to last."""
    model, layout = setup.model, setup.layout
    attention, mlp = setup.attention_block(), setup.mlp()
    experts = setup.experts() if model.experts else mlp
    dense_traffic = _layer_traffic(setup, attention, moe=False)
    moe_traffic = _layer_traffic(setup, attention, moe=True) if model.experts else dense_traffic
    embedding, head = setup.embedding(), setup.head()
    send = seconds(setup.cluster, message(model, layout)) / setup.calibration.comm_rate
    made: dict[tuple[int, int, bool, bool], Stage] = {}
    stages: list[Stage] = []
    begun = 0
    for index, (count, output) in enumerate(split(model, layout)):
        dense = min(count, max(0, model.layers - model.moe_layers - begun))
        begun += count
        key = count, count - dense, index == 0, output
        if key not in made:
            made[key] = _pipeline_stage(
                setup, key, attention, (mlp, dense_traffic), (experts, moe_traffic), embedding, head, send
            )
        stages.append(made[key])
    return stages


def _pipeline_stage(
    setup: StepSetup,
    key: tuple[int, int, bool, bool],
    attention: KernelTimes,
    dense_layer: tuple[KernelTimes, LayerTraffic],
    moe_layer: tuple[KernelTimes, LayerTraffic],
    embedding: KernelTimes,
    head: KernelTimes,
    send: float,
) -> Stage:
    """Return the times of one stage, s: its layers, and embedding and head where it has them."""
    layers, moe, first, last = key
    layout, c = setup.layout, setup.calibration
    parts = [(layers - moe, dense_layer), (moe, moe_layer)]
    again = 1.0 if layout.recompute == "full" else 0.0
    forward = sum(n * (attention.forward + mlp.forward) for n, (mlp, _) in parts)
    backward = sum(n * (attention.backward + mlp.backward) for n, (mlp, _) in parts) + again * forward
    if layout.recompute == "half":
        backward += 0.5 * (forward - layers * setup.attention().forward)
    if layout.recompute == "selective" and not layout.flash:
        backward += layers * setup.attention().forward

    def traffic(name: str) -> tuple[float, float]:
        there = sum(n * getattr(t, name)[0] for n, (_, t) in parts)
        back = sum(n * getattr(t, name)[1] for n, (_, t) in parts)
        return there, back + again * there

    for at, work in ((first, embedding), (last, head)):
        if at:
            forward, backward = forward + work.forward, backward + work.backward
    tp, cp, ep = traffic("tp"), traffic("cp"), traffic("ep")
    calls = 2 * _call_us(setup) if layout.tp > 1 else 0.0
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


def _call_us(setup: StepSetup) -> float:
    """The host's time for one tensor-parallel collective."""
    layout, cluster, c = setup.layout, setup.cluster, setup.calibration
    far = c.launch_tp_far_us * layout.tp if layout.tp > cluster.domain else 0.0
    pipeline = c.launch_tp_pipeline_us * layout.tp if layout.pp > 1 and cluster.gpus > cluster.domain else 0.0
    return max(c.launch_tp_us, far, pipeline)


def _layer_traffic(setup: StepSetup, attention: KernelTimes, *, moe: bool) -> LayerTraffic:
    """The ring of keys and values hides under the attention that needs it; a share of the rest under other work."""
    model, layout, cluster, c = setup.model, setup.layout, setup.cluster, setup.calibration
    tp = seconds(cluster, tensor_calls(model, layout)) * (1 - c.tp_overlap) / c.comm_rate
    ring = seconds(cluster, context_calls(model, layout)) / c.comm_rate
    ep = seconds(cluster, expert_calls(model, layout)) * (1 - c.ep_overlap) / c.comm_rate if moe else 0.0
    cp = max(0.0, ring - attention.attention)
    return LayerTraffic(tp=(tp, tp), cp=(cp, 2 * cp), ep=(ep, ep))
