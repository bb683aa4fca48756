"""Which collectives a rank makes in a step, and of what size: the plan that is priced.

What stepscope can run (replicas, FSDP, tensor parallelism, pipelines) sends what its strategies' own plans say
(tests/unit/predict/step/test_traffic.py); context and expert parallelism and ZeRO-2 are planned here alone and never ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.predict.step.layout import Cluster, Layout
from stepscope.predict.step.model import ModelShape


@record
class Calls:
    """``count`` calls of one collective. size_bytes: S of nccl-tests. ranks of the group, each ``stride`` apart."""

    op: str
    group: str
    size_bytes: float
    ranks: int
    stride: int
    count: float = 1.0


@record
class HeldParameters:
    """Parameters that one rank of a stage holds before sharding: dense ones, and those of its experts."""

    dense: float
    expert: float

    @property
    def all(self) -> float:
        return self.dense + self.expert

    def shared(self, layout: Layout) -> float:
        """Return what is left on it where ranks that have the same share them out."""
        return self.dense / layout.shards + self.expert / max(layout.shards // layout.ep, 1)


def seconds(cluster: Cluster, calls: Iterable[Calls]) -> float:
    """Return the seconds of these calls, one after the other."""
    return sum(c.count * cluster.time(c.op, c.size_bytes, c.ranks, c.stride) for c in calls)


def _activation_bytes(model: ModelShape, layout: Layout) -> float:
    """Return the bytes of one micro-batch's activations between two layers, whole."""
    return layout.tokens * model.hidden * layout.element_bytes


def tensor_calls(model: ModelShape, layout: Layout) -> tuple[Calls, ...]:
    """Plan one pass of one layer. Sequence parallel: an all-gather before and a reduce-scatter after attention and MLP;
    without: two all-reduces (Korthikanti et al., arXiv 2205.05198)."""
    if layout.tp == 1:
        return ()
    ops = ("all_gather", "reduce_scatter") if layout.sequence_parallel else ("all_reduce",)
    size = _activation_bytes(model, layout)
    return tuple(Calls(op=op, group="tp", size_bytes=size, ranks=layout.tp, stride=1, count=2) for op in ops)


def context_calls(model: ModelShape, layout: Layout) -> tuple[Calls, ...]:
    """Plan a forward pass of one layer: keys and values once round the ring (arXiv 2310.01889); backward twice that."""
    if layout.cp == 1:
        return ()
    size = 2 * layout.tokens * max(model.kv_heads / layout.tp, 1) * model.head_dim * layout.element_bytes
    return (Calls(op="send_recv", group="cp", size_bytes=size, ranks=2, stride=layout.tp, count=layout.cp - 1),)


def expert_calls(model: ModelShape, layout: Layout) -> tuple[Calls, ...]:
    """Plan one pass of one layer of experts: dispatch and combine."""
    if layout.ep == 1:
        return ()
    size = _activation_bytes(model, layout) * model.top_k / layout.spread
    return (Calls(op="all_to_all", group="ep", size_bytes=size, ranks=layout.ep, stride=layout.tp, count=2),)


def message(model: ModelShape, layout: Layout) -> tuple[Calls, ...]:
    """Send one micro-batch from a stage to the next one; tensor-parallel ranks send their shares of a divided sequence."""
    if layout.pp == 1:
        return ()
    size = _activation_bytes(model, layout) / layout.spread
    stride = layout.tp * layout.cp * layout.dp
    return (Calls(op="send_recv", group="pp", size_bytes=size, ranks=2, stride=stride),)


def gather_calls(layout: Layout, parameters: HeldParameters, units: int) -> tuple[Calls, ...]:
    """Gather shared parameters once, unit by unit, in the dtype of computation."""
    return _unit_calls("all_gather", layout.element_bytes, layout, parameters, units)


def reduce_calls(layout: Layout, parameters: HeldParameters, units: int) -> tuple[Calls, ...]:
    """Reduce gradients once, unit by unit; with a shard group, the shards of all copies are then added up (HSDP)."""
    if not layout.zero:
        return _unit_calls("all_reduce", layout.reduce_bytes, layout, parameters, units)
    calls = _unit_calls("reduce_scatter", layout.reduce_bytes, layout, parameters, units)
    copies = layout.dp * layout.cp // layout.shards
    if copies == 1:
        return calls
    size = parameters.all * layout.reduce_bytes / layout.shards
    stride = layout.tp * layout.shards
    return (*calls, Calls(op="all_reduce", group="copies", size_bytes=size, ranks=copies, stride=stride))


def _unit_calls(op: str, item: int, layout: Layout, parameters: HeldParameters, units: int) -> tuple[Calls, ...]:
    """Return the calls of one operation for each unit: dense parameters, and experts on ranks of their own."""
    ranks = layout.shards if layout.zero else layout.dp * layout.cp
    dense = Calls(
        op=op, group="dp", size_bytes=parameters.dense * item / units, ranks=ranks, stride=layout.tp, count=units
    )  # fmt: skip
    if not parameters.expert:
        return (dense,)
    rest, stride = max(ranks // layout.ep, 1), layout.tp * layout.ep
    return dense, replace(dense, size_bytes=parameters.expert * item / units, ranks=rest, stride=stride)


def step_calls(
    model: ModelShape, layout: Layout, parameters: HeldParameters, *, layers: int, moe_layers: int
) -> tuple[Calls, ...]:
    """Plan one optimizer step of a rank in the middle of its pipeline; recomputation repeats the forward pass."""
    m = layout.micro_batches
    passes = m * (3 if layout.recompute == "full" else 2)
    calls = [replace(c, count=c.count * layers * passes) for c in tensor_calls(model, layout)]
    calls += [replace(c, count=c.count * layers * (passes + m)) for c in context_calls(model, layout)]
    calls += [replace(c, count=c.count * moe_layers * passes) for c in expert_calls(model, layout)]
    calls += [replace(c, count=2 * m * layout.vpp) for c in message(model, layout)]
    if layout.dp * layout.cp > 1:
        often = m if layout.syncs_each else 1
        gathers = (0, 1, 1, m * (2 if layout.reshard else 1))[layout.zero]
        units = max(layers, 1)
        calls += [replace(c, count=c.count * gathers) for c in gather_calls(layout, parameters, units) if gathers]
        calls += [replace(c, count=c.count * often) for c in reduce_calls(layout, parameters, units)]
    return tuple(c for c in calls if c.count)
