"""How a step is spread over GPUs, and what makes such a layout impossible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.suggest import unknown
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.model import ModelShape

Recompute = Literal["none", "selective", "half", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
MOST_GPUS = 1_000_000
MOST_TOKENS = 1 << 30
"""Of a step; beyond, somebody counted tokens for sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """dp x tp x pp x cp = GPUs; neighbours in rank order: tp, then cp, dp, pp. ep: of the dp x cp ranks, those that share
    a layer's experts.

    zero: what the data-parallel ranks share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too (FSDP);
    shard_group: ranks over which they share it (None: all; less: HSDP). reshard: parameters are gathered again for the
    backward pass (zero 3). micro_batch, global_batch: sequences, micro_batch per data-parallel rank. vpp: chunks a
    pipeline rank holds. sequence_parallel: norms and dropout split over tp too. balance: how stages share layers
    (see stages.split). recompute ``half``: every second matrix product again. sync_each: gradients are reduced
    after every micro-batch; None: where they are shared (zero 2 and 3), which otherwise keep them whole until the last.
    grad_bytes: of a stored gradient; reduce_bytes: of one that travels. master: 4-byte copies of 2-byte parameters.
    overlap: gradient and parameter traffic runs beside computation.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    zero: int = 0
    shard_group: int | None = None
    reshard: bool = True
    micro_batch: int = 1
    global_batch: int = 1
    seq_len: int = 2048
    precision: str = "bf16"
    recompute: Recompute = "none"
    sequence_parallel: bool = True
    schedule: Schedule = "1f1b"
    balance: Literal["layers", "cost"] = "layers"
    sync_each: bool | None = None
    overlap: bool = True
    grad_bytes: int = 4
    reduce_bytes: int = 4
    master: bool = True
    optimizer: Literal["adam", "sgd"] = "adam"
    flash: bool = True

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        """Per data-parallel rank and step."""
        return max(1, self.global_batch // (self.dp * self.micro_batch))

    @property
    def syncs_each(self) -> bool:
        return self.zero >= 2 if self.sync_each is None else self.sync_each

    @property
    def shards(self) -> int:
        """Ranks over which states are shared."""
        return self.shard_group or self.dp * self.cp

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def element_bytes(self) -> int:
        """Of an activation."""
        return 4 if self.precision in ("fp32", "tf32") else 2


def deduce_dp(layout: Layout, gpus: int) -> Layout:
    """The layout with dp = gpus / (tp pp cp). Raises UsageError where that is no whole number."""
    rest = layout.tp * layout.pp * layout.cp
    if gpus % rest:
        raise UsageError(
            f"{gpus} GPUs are not a multiple of tp x pp x cp = {rest}", fix="change the number of GPUs or the layout"
        )
    return replace(layout, dp=gpus // rest)


def check(model: ModelShape, cluster: Cluster, layout: Layout) -> None:
    """Raises one UsageError with everything that is wrong."""
    found = errors(model, cluster, layout)
    if found:
        raise UsageError(
            "this layout cannot be" if len(found) == 1 else f"this layout cannot be, for {len(found)} reasons",
            why="; ".join(found),
        )


def errors(model: ModelShape, cluster: Cluster, layout: Layout) -> list[str]:
    """What is wrong with it, one sentence each."""
    found: list[str] = []
    counts = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "seq_len")
    found += [f"{name} is {getattr(layout, name)}, not 1 or more" for name in counts if getattr(layout, name) < 1]
    if not 1 <= cluster.gpus <= MOST_GPUS:
        found.append(f"{cluster.gpus} GPUs; 1 to {MOST_GPUS:,} can be predicted")
    if layout.zero not in (0, 1, 2, 3):
        found.append(f"zero is {layout.zero}, not 0, 1, 2 or 3")
    if layout.precision not in PRECISIONS:
        found.append(unknown("precision", layout.precision, PRECISIONS))
    for field, kind in (("recompute", Recompute), ("schedule", Schedule)):
        if getattr(layout, field) not in get_args(kind):
            found.append(unknown(field, getattr(layout, field), get_args(kind)))
    return found or _mismatches(model, cluster, layout)


def _mismatches(model: ModelShape, cluster: Cluster, layout: Layout) -> list[str]:
    found: list[str] = []
    if layout.gpus != cluster.gpus:
        found.append(
            f"dp x tp x pp x cp = {layout.dp} x {layout.tp} x {layout.pp} x {layout.cp} = {layout.gpus}, "
            f"but there are {cluster.gpus} GPUs"
        )
    if model.heads % layout.tp:
        found.append(f"{model.heads} heads are not divisible by tp {layout.tp}")
    if model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        found.append(f"{model.kv_heads} key-value heads and tp {layout.tp}: neither divides the other")
    if model.ffn % layout.tp:
        found.append(f"an MLP width of {model.ffn} is not divisible by tp {layout.tp}")
    if layout.pp * layout.vpp > model.layers + 2:
        found.append(f"pp {layout.pp} x vpp {layout.vpp} are more stages than the {model.layers} layers")
    if layout.vpp > 1 and layout.pp == 1:
        found.append(f"vpp {layout.vpp} needs pp above 1")
    if layout.seq_len % layout.cp:
        found.append(f"sequences of {layout.seq_len} are not divisible by cp {layout.cp}")
    tokens = layout.global_batch * layout.seq_len
    if tokens > MOST_TOKENS:
        found.append(
            f"a global batch of {layout.global_batch:,} sequences of {layout.seq_len:,} is {tokens:.3g} tokens per step: "
            "batches count sequences, not tokens"
        )
    elif layout.global_batch % (layout.dp * layout.micro_batch):
        found.append(
            f"a global batch of {layout.global_batch} sequences is not a multiple of dp {layout.dp} x micro-batch "
            f"{layout.micro_batch}"
        )
    if layout.shard_group and layout.dp * layout.cp % layout.shard_group:
        found.append(f"a shard group of {layout.shard_group} does not divide dp x cp = {layout.dp * layout.cp}")
    if layout.ep > 1 and not model.experts:
        found.append(f"ep {layout.ep}, but {model.name} has no experts")
    elif layout.ep > 1 and (model.experts % layout.ep or (layout.dp * layout.cp) % layout.ep):
        found.append(f"ep {layout.ep} must divide {model.experts} experts and dp x cp = {layout.dp * layout.cp}")
    if isinstance(cluster.gpu.peak(layout.precision), Unavailable):
        found.append(f"{cluster.gpu.name} has no {layout.precision} rate")
    return found
