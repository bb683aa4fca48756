"""The machine a step runs on, how the step is spread over it, and what makes such a layout impossible.

Layouts are typed as ``dp=8,tp=2,zero=1,mbs=4``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import counted, unknown
from stepscope.machine.peaks import Accelerator
from stepscope.predict.collectives.choose import call_us, candidates, known_gpu
from stepscope.predict.collectives.machine import Fabric, Place, find_fabric, place
from stepscope.predict.step.model import ModelShape


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one kind and what lies between them. gpus: all of them. gpus_per_node, network, adapters_per_node: None: what
    is usual for the GPU (with a note)."""

    gpu: Accelerator
    gpus: int
    gpus_per_node: int | None = None
    network: Fabric | None = None
    adapters_per_node: int | None = None
    sharp: bool = False

    @classmethod
    def of(cls, gpu: str, gpus: int, *, network: str | None = None, gpus_per_node: int | None = None) -> Cluster:
        """Make a cluster from names. Raises UsageError with did-you-mean."""
        fabric = None if network is None else find_fabric(network)
        return cls(gpu=known_gpu(gpu), gpus=gpus, gpus_per_node=gpus_per_node, network=fabric)

    @cached_property
    def whole(self) -> Place:
        """Where all its GPUs sit."""
        return place(
            self.gpu, n_gpus=self.gpus, gpus_per_node=self.gpus_per_node, fabric=self.network,
            adapters_per_node=self.adapters_per_node, sharp=self.sharp, caller="nccl-tests",
        )  # fmt: skip

    @cached_property
    def domain(self) -> int:
        """GPUs that reach each other without the network: a node, or an NVLink rack."""
        return max(1, round(self.whole.domain_ranks)) if self.whole.domains > 1 else self.gpus

    @cached_property
    def _times(self) -> dict[tuple[str, int, int, int], float]:
        return {}

    def group(self, size: int, domains: int) -> Place:
        """Return where a group of so many ranks in so many domains sits; other groups use the adapters, too."""
        whole = self.whole
        if domains == 1:
            near = place(
                self.gpu, n_gpus=size, gpus_per_node=size, fabric=None, adapters_per_node=None, sharp=self.sharp,
                caller="nccl-tests",
            )  # fmt: skip
            return replace(near, domain_ranks=size, domains=1)
        return replace(
            whole, ranks=size, domain_ranks=size / domains, domains=domains, node_net=whole.gpu_net * size / domains,
            all_pairs=False,
        )  # fmt: skip

    def time(self, op: str, size_bytes: float, size: int, stride: int) -> float:
        """Seconds of one collective of every ``stride``-th rank; size_bytes as nccl-tests counts them."""
        inside = min(size, max(1, self.domain // stride))
        return self.group_time(op, size_bytes, size, -(-size // inside))

    def domains_of(self, ranks: Iterable[int]) -> int:
        """Count the nodes, or NVLink racks, that these ranks are in."""
        return len({rank // self.domain for rank in ranks})

    def group_time(self, op: str, size_bytes: float, size: int, domains: int) -> float:
        """Seconds of one collective of ``size`` ranks in ``domains`` domains."""
        if size <= 1 or size_bytes <= 0:
            return 0.0
        key = op, round(size_bytes), size, domains
        if key not in self._times:
            where = self.group(size, domains)
            offered = [c for c in candidates(op, key[1], where) if c.offered]
            self._times[key] = (min(offered, key=lambda c: c.chosen_by_us).time_us + call_us(where)) / 1e6
        return self._times[key]


Recompute = Literal["none", "selective", "half", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
MOST_GPUS = 1_000_000
MOST_TOKENS = 1 << 30
"""Of a step; beyond, somebody counted tokens for sequences."""


@record
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
    def tokens(self) -> float:
        """Tokens of one micro-batch on a rank."""
        return self.micro_batch * self.seq_len / self.cp

    @property
    def spread(self) -> int:
        """Ranks among which norms, dropout and what stages send are split."""
        return self.tp if self.sequence_parallel else 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches per data-parallel rank and step."""
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
        """Bytes of one element of an activation."""
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
    problems = errors(model, cluster, layout)
    if problems:
        raise UsageError(
            "this layout cannot be" if len(problems) == 1 else f"this layout cannot be, for {len(problems)} reasons",
            why="; ".join(problems),
        )


def errors(model: ModelShape, cluster: Cluster, layout: Layout) -> list[str]:
    """What is wrong with it, one sentence each."""
    problems: list[str] = []
    counts = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "seq_len")
    problems += [f"{name} is {getattr(layout, name)}, not 1 or more" for name in counts if getattr(layout, name) < 1]
    if not 1 <= cluster.gpus <= MOST_GPUS:
        problems.append(f"{cluster.gpus} GPUs; 1 to {MOST_GPUS:,} can be predicted")
    if layout.zero not in (0, 1, 2, 3):
        problems.append(f"zero is {layout.zero}, not 0, 1, 2 or 3")
    if layout.precision not in PRECISIONS:
        problems.append(unknown("precision", layout.precision, PRECISIONS))
    for field, kind in (("recompute", Recompute), ("schedule", Schedule)):
        if getattr(layout, field) not in get_args(kind):
            problems.append(unknown(field, getattr(layout, field), get_args(kind)))
    return problems or _layout_mismatches(model, cluster, layout)


def _layout_mismatches(model: ModelShape, cluster: Cluster, layout: Layout) -> list[str]:
    """Say what of a layout does not fit cluster or model."""
    problems: list[str] = []
    if layout.gpus != cluster.gpus:
        problems.append(
            f"dp x tp x pp x cp = {layout.dp} x {layout.tp} x {layout.pp} x {layout.cp} = {layout.gpus}, "
            f"but there are {cluster.gpus} GPUs"
        )
    if model.heads % layout.tp:
        problems.append(f"{model.heads} heads are not divisible by tp {layout.tp}")
    if model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        problems.append(f"{model.kv_heads} key-value heads and tp {layout.tp}: neither divides the other")
    if model.ffn % layout.tp:
        problems.append(f"an MLP width of {model.ffn} is not divisible by tp {layout.tp}")
    if layout.pp * layout.vpp > model.layers + 2:
        problems.append(f"pp {layout.pp} x vpp {layout.vpp} are more stages than the {model.layers} layers")
    if layout.vpp > 1 and layout.pp == 1:
        problems.append(f"vpp {layout.vpp} needs pp above 1")
    if layout.seq_len % layout.cp:
        problems.append(f"sequences of {layout.seq_len} are not divisible by cp {layout.cp}")
    tokens = layout.global_batch * layout.seq_len
    if tokens > MOST_TOKENS:
        problems.append(
            f"a global batch of {layout.global_batch:,} sequences of {layout.seq_len:,} is {tokens:.3g} tokens per step: "
            "batches count sequences, not tokens"
        )
    elif layout.global_batch % (layout.dp * layout.micro_batch):
        problems.append(
            f"a global batch of {layout.global_batch} sequences is not a multiple of dp {layout.dp} x micro-batch "
            f"{layout.micro_batch}"
        )
    if layout.shard_group and layout.dp * layout.cp % layout.shard_group:
        problems.append(f"a shard group of {layout.shard_group} does not divide dp x cp = {layout.dp * layout.cp}")
    if layout.ep > 1 and not model.experts:
        problems.append(f"ep {layout.ep}, but {model.name} has no experts")
    elif layout.ep > 1 and (model.experts % layout.ep or (layout.dp * layout.cp) % layout.ep):
        problems.append(f"ep {layout.ep} must divide {model.experts} experts and dp x cp = {layout.dp * layout.cp}")
    if isinstance(cluster.gpu.peak(layout.precision), Unavailable):
        problems.append(f"{cluster.gpu.name} has no {layout.precision} rate")
    return problems


DEFAULT_SEQ_LEN = 4096
MICRO_BATCHES_PER_STAGE = 4

_NUMBERS = {
    "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "vpp": "vpp", "zero": "zero", "shard": "shard_group",
    "mbs": "micro_batch", "gbs": "global_batch", "seq": "seq_len",
}  # fmt: skip
_SWITCHES = {"sp": "sequence_parallel", "reshard": "reshard", "overlap": "overlap", "flash": "flash"}
_CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "precision": ("precision", PRECISIONS),
    "recompute": ("recompute", Recompute.__args__),  # type: ignore[attr-defined]
    "schedule": ("schedule", Schedule.__args__),  # type: ignore[attr-defined]
    "optimizer": ("optimizer", ("adam", "sgd")),
    "sync": ("sync_each", ("step", "each")),
}
_NOT_MODELLED = {
    "lora": "LoRA is not modelled: frozen weights have no gradients, and no published run grades that",
    "fp4": "FP4 is not modelled: too few published runs grade it",
    "nvfp4": "FP4 is not modelled: too few published runs grade it",
    "mxfp4": "FP4 is not modelled: too few published runs grade it",
}
KEYS = (*_NUMBERS, "acc", *_SWITCHES, *_CHOICES)


@record
class AskedLayout:
    """A layout for any number of GPUs: dp is deduced where it was not given. given: the fields that were. acc: micro-batches
    of a step and rank; None: global_batch was given. assumed: by key, in words, what was not said."""

    layout: Layout
    given: frozenset[str]
    acc: int | None
    assumed: Mapping[str, str]

    def on(self, gpus: int) -> Layout:
        """The layout on so many GPUs. Raises UsageError where they are no multiple of the rest."""
        layout = self.layout if "dp" in self.given else deduce_dp(self.layout, gpus)
        if self.acc is None:
            return layout
        return replace(layout, global_batch=layout.dp * layout.micro_batch * self.acc)


def parse_layout(texts: tuple[str, ...], model: ModelShape, *, seq_len: int | None = None) -> AskedLayout:
    """Read a layout. Keys: those of ``KEYS``; acc: micro-batches per step and rank. Raises UsageError with did-you-mean.

    seq_len: where the texts give none; None: a usual one, which is assumed.
    """
    given: dict[str, Any] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        key, equals, value = (word.strip().lower() for word in part.partition("="))
        for word in (key, value):
            if word in _NOT_MODELLED:
                raise UsageError(_NOT_MODELLED[word], fix="predict bf16 or fp8 of all weights")
        if key not in KEYS:
            raise UsageError(unknown("--layout key", key, KEYS), fix=f"keys: {', '.join(KEYS)}")
        if key in given:
            raise UsageError(f"--layout {key} is given twice", fix="give it once")
        given[key] = _layout_value(key, value if equals else "")
    if "gbs" in given and "acc" in given:
        raise UsageError(
            "--layout gbs and acc both given", why="the global batch is dp x mbs x acc", fix="give one of them"
        )
    names = {**_NUMBERS, **_SWITCHES, **{key: field for key, (field, _) in _CHOICES.items()}}
    stated = frozenset(names.get(key, key) for key in given)
    assumed: dict[str, str] = {}
    if "seq" not in given:
        given["seq"] = seq_len or min(DEFAULT_SEQ_LEN, model.positions or DEFAULT_SEQ_LEN)
        if seq_len is None:
            assumed["seq"] = f"seq not given: sequences of {given['seq']} tokens"
    if "mbs" not in given:
        assumed["mbs"] = "mbs not given: micro-batches of 1 sequence"
    acc = given.pop("acc", None)
    if acc is None and "gbs" not in given:
        pp = given.get("pp", 1)
        acc = 1 if pp == 1 else MICRO_BATCHES_PER_STAGE * pp
        why = "" if pp == 1 else f" ({MICRO_BATCHES_PER_STAGE} x pp)"
        assumed["acc"] = f"neither gbs nor acc given: {counted(acc, 'micro-batch')} per step and rank{why}"
    if given.get("vpp", 1) > 1 and "schedule" not in given:
        given["schedule"] = "interleaved"
    layout = Layout(**{names.get(key, key): value for key, value in given.items()})
    return AskedLayout(layout=layout, given=stated, acc=acc, assumed=assumed)


def _layout_value(key: str, text: str) -> Any:
    """Return the value of a key of --layout. Raises UsageError for one that the key does not take."""
    if key in _NUMBERS or key == "acc":
        if not text.isdecimal():
            raise UsageError(f"--layout {key}={text}", fix=f"give a whole number: {key}=2")
        return int(text)
    if key in _SWITCHES:
        if text not in ("on", "off"):
            raise UsageError(f"--layout {key}={text}", fix=f"give {key}=on or {key}=off")
        return text == "on"
    choices = _CHOICES[key][1]
    if text not in choices:
        raise UsageError(unknown(f"--layout {key}", text, choices))
    return text == "each" if key == "sync" else text


def layout_text(layout: Layout) -> str:
    """Write what :func:`parse_layout` reads: what differs from the defaults, and dp always."""
    default = {field.name: field.default for field in fields(Layout)}
    parts = [f"dp={layout.dp}"]
    for key, name in _NUMBERS.items():
        value = getattr(layout, name)
        if key not in ("dp", "gbs", "seq", "mbs") and value != default[name]:
            parts.append(f"{key}={value}")
    parts.append(f"mbs={layout.micro_batch}")
    parts += [f"recompute={layout.recompute}"] if layout.recompute != "none" else []
    return ",".join(parts)
