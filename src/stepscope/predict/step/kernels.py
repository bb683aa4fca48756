"""Device time of the kernels of a step: matrix products by shape, fused attention, and what only moves bytes.

A product takes FLOP / rate + bytes / rate + a kernel's least time: a smooth roofline, slow for small and thin products.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.model import ModelShape

_REACHED = {
    "a100": 0.87, "a800": 0.87, "h100": 0.80, "h800": 0.80, "h200": 0.80, "gh200": 0.84, "b200": 0.78, "b300": 0.79,
    "gb200": 0.73, "gb300": 0.73, "mi300x": 0.51, "mi325x": 0.60, "mi355x": 0.63,
}  # fmt: skip
"""Share of the BF16 peak that the best matrix product reaches: stas00/ml-engineering, compute/accelerator, MAMF."""
_USUAL_REACH = 0.80


def reached(gpu: Accelerator) -> float:
    """Of the peak by large matrix products; a usual share where nobody has published one."""
    return _REACHED.get(gpu.key.split("-")[0], _USUAL_REACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds of device time. attention: the part of ``forward`` that is attention proper (a ring exchange hides there)."""

    forward: float
    backward: float
    attention: float = 0.0


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one rank. tokens: of one micro-batch on this rank."""

    model: ModelShape
    cluster: Cluster
    layout: Layout
    calibration: StepCalibration

    @property
    def tokens(self) -> float:
        return self.layout.micro_batch * self.layout.seq_len / self.layout.cp

    def peak(self, *, linear: bool = True) -> float:
        """FLOP/s reached by large products; only linear layers run in FP8."""
        precision = self.layout.precision
        if precision == "fp8" and not linear:
            precision = "bf16"
        peak = self.cluster.gpu.peak(precision)
        if isinstance(peak, Unavailable):
            raise UsageError(peak.reason)
        c = self.calibration
        return peak * reached(self.cluster.gpu) * (c.gemm_fp8_share if precision == "fp8" else c.gemm_share)

    def moved(self, size_bytes: float) -> float:
        """Seconds to read or write so many bytes of device memory."""
        return size_bytes / (self.cluster.gpu.memory_bytes_per_s * self.calibration.memory_share)

    def product(self, m: float, n: float, k: float, *, count: float = 1.0) -> float:
        """``count`` products of m x k by k x n."""
        size = self.layout.element_bytes * (m * k + k * n + m * n) * self.calibration.gemm_traffic
        return count * (2 * m * n * k / self.peak() + self.moved(size) + self.calibration.kernel_us / 1e6)

    def linear(self, m: float, n: float, k: float, *, count: float = 1.0) -> KernelTimes:
        """A linear layer of m tokens from k to n: forward, and the gradients of input and weight."""
        back = self.product(m, k, n, count=count) + self.product(k, n, m, count=count)
        return KernelTimes(forward=self.product(m, n, k, count=count), backward=back)

    def elementwise(self, elements: float, *, kernels: float = 1.0) -> KernelTimes:
        """Kernels that move so many activations in all, forward; twice as many backward."""
        c = self.calibration
        forward = self.moved(elements * self.layout.element_bytes * c.elementwise_factor) + kernels * c.kernel_us / 1e6
        return KernelTimes(forward=forward, backward=2 * forward)

    def attention(self) -> KernelTimes:
        """Scores and weighted sum of one layer, the mean of all (windows); backward 2.5 forward (FlashAttention-2)."""
        model, layout, c = self.model, self.layout, self.calibration
        flash_flop = (
            model.attention_flop(layout.seq_len, causal=model.causal) / 3 / model.layers * self.tokens / layout.tp
        )
        peak = self.cluster.gpu.peak("bf16" if layout.precision == "fp8" else layout.precision)
        assert not isinstance(peak, Unavailable)
        if layout.flash:
            forward = flash_flop / (peak * c.attention_share) + c.kernel_us / 1e6
            return KernelTimes(
                forward=forward, backward=2.5 * flash_flop / (peak * c.attention_backward_share), attention=forward
            )
        flop = model.attention_flop(layout.seq_len, causal=False) / 3 / model.layers * self.tokens / layout.tp
        scores = self.tokens * layout.seq_len * model.heads / layout.tp
        softmax = self.elementwise(6 * scores, kernels=4)
        forward = flop / self.peak(linear=False) + softmax.forward
        return KernelTimes(
            forward=forward, backward=2 * flop / self.peak(linear=False) + softmax.backward, attention=forward
        )

    def attention_block(self) -> KernelTimes:
        """Norm, projections, rotation, attention, output and residual of one layer."""
        model, tp = self.model, self.layout.tp
        t, h = self.tokens, model.hidden
        spread = tp if self.layout.sequence_parallel else 1
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
        spread = tp if self.layout.sequence_parallel else 1
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
        spread = layout.tp if layout.sequence_parallel else 1
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
