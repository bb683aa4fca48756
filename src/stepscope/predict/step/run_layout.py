"""A published row as what the step model takes: model, cluster, layout; or why it cannot be.

What a source leaves open is settled by what its framework does (``_HABITS``), never by its measured value. A row counts
as complete only if it states or implies parallel sizes, micro-batch, global batch, sequence length and precision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator, find
from stepscope.predict.collectives.machine import Fabric, read_fabric
from stepscope.predict.step.layout import Cluster, Layout, errors
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.run_rows import SkipRowError, TrainingRow, gpu_key

_HABITS: Mapping[str, Mapping[str, Any]] = {
    "nanotron": {"zero": 0, "balance": "cost", "grad_bytes": 4, "reduce_bytes": 4, "overlap": False},
    "composer": {"zero": 3, "reduce_bytes": 2, "sequence_parallel": False},
    "megatron-2021": {"sequence_parallel": False, "flash": False, "overlap": False, "reduce_bytes": 2, "zero": 0},
    "fsdp2": {"zero": 3, "reduce_bytes": 4},
    "ddp": {"flash": False, "sequence_parallel": False, "reduce_bytes": 2, "zero": 0},
}
"""By the code that ran: what it does where the table is silent."""
_USUAL: Mapping[str, Any] = {"zero": 1, "reduce_bytes": 2}
"""Of all other code, Megatron-LM's today: optimizer states are shared, gradients travel in the dtype of computation."""

_CODES = (
    ("nanotron", r"nanotron"),
    ("fsdp2", r"torchtitan|torchao|fsdp2"),
    ("composer", r"llm-?foundry|composer|FULL_SHARD/"),
    ("megatron", r"megatron|nemo|primus|dgxc"),
)
"""Words of a row that name the code that ran."""

_ZERO = ((r"(zero|stage)[ _]?(\d)", None), (r"fsdp|full_shard|hsdp", 3), (r"distopt", 1))
_BEFORE_H100 = re.compile(r"[VA][18]00", re.IGNORECASE)
_POWER = re.compile(r"\b(\d{3,4}) ?W\b")
_CLOCK = 0.6
"""Speed goes with power to about this exponent: H100 PCIe (350 W, 114 SMs) reaches 0.58 of SXM (700 W, 132) in large
products (stas00/ml-engineering, MAMF)."""


@record
class Asked:
    """One question for the step model."""

    row: TrainingRow
    model: ModelShape
    cluster: Cluster
    layout: Layout

    @property
    def stack(self) -> str | None:
        """The code that ran the step."""
        if "tokendrop" in self.row.model:  # experts of fixed capacity: no waiting for how many tokens each gets
            return "megatron tokendrop"
        return _code_name(self.row)

    @property
    def gpu(self) -> str:
        return self.cluster.gpu.key

    @property
    def padded(self) -> bool:
        """Its tokens count padding, whose share is not stated."""
        return self.stack == "ddp"


def as_asked(row: TrainingRow) -> Asked | str:
    """The row as a question; a text says why it is none, in words that group well."""
    if row.shape is None:
        return "model dimensions not stated"
    if not row.accelerator:
        return "accelerator not stated"
    if "lora" in f"{row.model} {row.flags}".lower():
        return "LoRA: frozen weights are not modelled"
    gpu = _table_gpu(row.accelerator, row.hardware)
    if isinstance(gpu, str):
        return gpu
    layout = as_layout(row)
    if isinstance(layout, str):
        return layout
    cluster = Cluster(
        gpu=gpu, gpus=row.n_gpus, gpus_per_node=row.gpus_per_node, network=_fabric_or_none(row.network, gpu.key)
    )
    wrong = errors(row.shape, cluster, layout)
    if not wrong and _above_the_peak(row, row.shape, gpu, layout):
        return "a speed above the GPU's peak"
    if wrong:
        return f"the source's layout cannot be: {re.sub(r'[0-9]+', 'N', wrong[0])}"
    return Asked(row=row, model=row.shape, cluster=cluster, layout=layout)


def _above_the_peak(row: TrainingRow, model: ModelShape, gpu: Accelerator, layout: Layout) -> bool:
    peak = gpu.peak(layout.precision)
    if isinstance(peak, Unavailable) or row.tokens_per_s is None:
        return False
    return model.flop_per_token(layout.seq_len, "no attention") * row.tokens_per_s > peak


def as_layout(row: TrainingRow) -> Layout | str:
    """How the row's step is spread; a text says what it does not state."""
    precision = precision_of(row)
    if row.seq_len is None:
        return "sequence length not stated"
    if precision is None:
        return "precision not modelled" if row.precision else "precision not stated"
    zero, code = _zero_stage(row.sharding), _code_name(row)
    if row.tp is None and row.pp is None and zero != 3:
        return "layout not stated"
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    dp = row.dp or row.n_gpus // (tp * pp * cp)
    micro, batch = row.micro_batch, row.global_batch
    if micro is None or (batch is None and row.grad_accum is None):
        return "batch not stated"
    batch = batch or micro * dp * (row.grad_accum or 1)
    habits = dict(_HABITS.get(code or "", _USUAL))
    if zero is not None:
        habits["zero"] = zero
    layout = Layout(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=row.ep or 1, vpp=(row.vpp or 1) if pp > 1 else 1, micro_batch=micro,
        global_batch=batch, seq_len=row.seq_len, precision=precision, recompute=_recompute_kind(row.recompute),
        schedule="interleaved" if pp > 1 and (row.vpp or 1) > 1 else "1f1b", **habits,
    )  # fmt: skip
    group = re.search(r"group=(\d+)", row.sharding)
    if group and int(group[1]) < dp * cp:
        layout = replace(layout, shard_group=int(group[1]))
    if "hsdp" in row.sharding.lower() and row.gpus_per_node:
        layout = replace(layout, shard_group=row.gpus_per_node)
    if code == "nanotron" and layout.zero == 0:
        layout = replace(layout, overlap=True)  # DDP's hooks; its ZeRO-1 reduces after the backward pass
    if code == "nanotron" and layout.pp > 1 and layout.zero == 0 and layout.dp > 1:
        layout = replace(layout, sync_each=True)  # its pipeline engine leaves DDP's hooks on for every micro-batch
    return layout


def _code_name(row: TrainingRow) -> str | None:
    """Return the code that ran the row, as any of its words names it, or precision and recomputation tell it."""
    if row.sharding == "ddp":
        return "ddp"
    old = _BEFORE_H100.match(row.accelerator) is not None
    if old and "fp16" in row.precision.lower() and row.recompute.startswith("full"):
        return "megatron-2021"
    words = f"{row.framework} {row.source} {row.sharding} {row.model_key} {row.flags} {row.notes}"
    named = next((code for code, word in _CODES if re.search(word, words, re.IGNORECASE)), None)
    return "megatron-2021" if named == "megatron" and old and "megatron-lm" in words.lower() else named


def precision_of(row: TrainingRow) -> str | None:
    """Return the products' precision: ``bf16``, ``fp16``, ``fp8``, ``tf32``, ``fp32``; None: another or none stated."""
    text = row.precision.lower()
    if "fp4" in text:
        return None
    if any(word in text for word in ("fp8", "float8", "tensorwise", "rowwise")):
        return "fp8"
    return next((name for name in ("bf16", "fp16", "tf32", "fp32") if name in text), None)


def _zero_stage(text: str) -> int | None:
    for pattern, stage in _ZERO:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return int(match[2]) if stage is None else stage
    return None


def _recompute_kind(text: str) -> Any:
    """Return what a row's words say of recomputation: full, half, selective or none."""
    words = text.lower()
    if words.startswith("full"):
        return "full"
    if words.startswith("selective(op)"):  # FSDP2 recipes save every second matrix product
        return "half"
    return "selective" if words.startswith("selective") else "none"


@cache
def _table_gpu(accelerator: str, hardware: str) -> Accelerator | str:
    """Return the table's GPU, or why there is none; slower where the hardware's words state less power."""
    try:
        gpu = find(gpu_key(accelerator))
    except SkipRowError as reason:
        return str(reason)
    if not isinstance(gpu, Accelerator):
        return gpu.reason
    power, full = _POWER.search(hardware), gpu.watts
    if not power or not full or float(power[1]) >= full:
        return gpu
    share = (float(power[1]) / full) ** _CLOCK
    return replace(gpu, peak_flops_per_s={k: v * share for k, v in gpu.peak_flops_per_s.items()})


@cache
def _fabric_or_none(text: str, gpu: str) -> Fabric | None:
    try:
        return read_fabric(text, gpu_key=gpu)
    except UsageError:
        return None
