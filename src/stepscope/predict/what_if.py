"""One change to a job that a prediction is asked for, and how much longer the job's own work takes under it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.units import format_percent, parse_size_bytes
from stepscope.core.words import unknown
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.machine import find_fabric

if TYPE_CHECKING:
    from stepscope.predict.job import MeasuredJob

UNITS = {"amp_bf16": "bf16", "amp_fp16": "fp16"}
"""The matrix rate that a precision uses, where that is not its own name."""


@record
class WhatIf:
    """What is other than it was; None: as it was.

    gpu: key of the hardware table. link: ``pcie`` (no links between GPUs), or the key of a network between nodes. batch:
    factor on the batch of a rank. precision: as in a matrix (``amp_bf16``: products alone; ``bf16``: parameters and
    gradients too), or ``fp8``: products in FP8, the rest as it was. overlap: communication hides as much as it can.
    bucket_bytes: size of DDP's gradient buckets.
    """

    gpu: str | None = None
    link: str | None = None
    batch: float | None = None
    precision: str | None = None
    overlap: Literal["perfect"] | None = None
    bucket_bytes: int | None = None


FOLLOWS_BATCH = (0.85, 0.95, 1.0)
"""Share of computation in proportion to the batch: low, usual, high. The rest is launches, small kernels and weights read
once a step. Defaults: no table of them."""

ITEM_BYTES = {"fp32": 4, "tf32": 4, "amp_bf16": 2, "amp_fp16": 2, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of an activation. FP8 recipes keep activations outside products in 16 bits."""

MIXED = ("amp_bf16", "amp_fp16")


@record
class ComputeChange:
    """Factors on times. body: of computation before the tail, (low, usual, high); tail: of what follows the last reduction;
    input: of loading. payload: of gradients on the wire. assumptions: in sentences."""

    body: tuple[float, float, float] = (1.0, 1.0, 1.0)
    tail: float = 1.0
    input: float = 1.0
    payload: float = 1.0
    assumptions: tuple[str, ...] = ()


def compute_change(job: MeasuredJob, what: WhatIf, *, batch: float, stated: bool = True) -> ComputeChange:
    """Return what ``what`` makes of the job's own work. batch: factor on the batch of a rank, strong scaling included;
    stated: it is among the assumptions, too, which hold for one number of ranks.

    Raises UsageError where the job or the table does not tell what is needed.
    """
    assumptions: list[str] = []
    low, usual, high = (1.0, 1.0, 1.0)
    tail = payload = 1.0
    if what.gpu is not None or what.precision is not None:
        (low, usual, high), tail = _hardware_factors(job, what, assumptions)
    if what.precision is not None and job.divided:
        raise UsageError(
            f"--what-if precision: {job.name} sends activations",
            why="which of them take another type is not in its plan",
            fix="ask for another GPU, link or batch, or measure it in that precision",
        )
    if what.precision is not None and what.precision not in (*MIXED, "fp8"):
        payload = ITEM_BYTES[what.precision] / ITEM_BYTES[job.dtype or "fp32"]
    if batch != 1:
        factors = sorted(batch * share + 1 - share for share in FOLLOWS_BATCH)
        usual *= batch * FOLLOWS_BATCH[1] + 1 - FOLLOWS_BATCH[1]
        low, high = low * factors[0], high * factors[-1]
    if batch != 1 and stated:
        least, middle, most = (format_percent(share, digits=0) for share in FOLLOWS_BATCH)
        assumptions.append(
            f"the batch of a rank is {batch:.3g} times as large: {middle} ({least} to {most}) of computation and all "
            "loading follow it, the optimizer and what comes after reductions do not"
        )
    return ComputeChange(
        body=(low, usual, high), tail=tail, input=batch, payload=payload, assumptions=tuple(assumptions)
    )


def _hardware_factors(
    job: MeasuredJob, what: WhatIf, assumptions: list[str]
) -> tuple[tuple[float, float, float], float]:
    """Factors by the hardware table: products by their peak rate, the rest by the rate of memory."""
    if job.gpu is None:
        raise UsageError(
            f"--what-if {'gpu' if what.gpu else 'precision'} needs the job's GPU",
            why=f"{job.name} ran on {job.device}, which is not in the hardware table",
            fix="`stepscope hardware` lists the known ones",
        )
    if job.dtype is None or job.dtype not in ITEM_BYTES:
        raise UsageError(
            f"--what-if {'gpu' if what.gpu else 'precision'}: {job.name} does not show the type of its products",
            why=f"its matrix kernels' names say {job.dtype or 'none'}",
        )
    before, after = known_gpu(job.gpu), known_gpu(what.gpu or job.gpu)
    precision = what.precision or job.dtype
    rates = []
    for entry, kind in ((before, job.dtype), (after, precision)):
        rate = entry.peak(UNITS.get(kind, kind))
        if isinstance(rate, Unavailable):
            raise UsageError(f"no prediction for {entry.name} in {kind}", why=rate.reason)
        rates.append(rate)
    products = rates[0] / rates[1]
    bandwidth = before.memory_bytes_per_s / after.memory_bytes_per_s
    size = ITEM_BYTES[precision] / ITEM_BYTES[job.dtype]
    memory = bandwidth * (math.sqrt(size) if precision in MIXED else size)
    if job.products is None:
        usual = math.sqrt(products * memory)
        basis = "its products' share of computation is unknown, so half is assumed"
    else:
        usual = job.products * products + (1 - job.products) * memory
        basis = f"{format_percent(job.products, digits=0)} of computation multiplies matrices"
    ends = [math.sqrt(usual * end) for end in (products, memory)]
    low, high = min(usual, *ends), max(usual, *ends)
    assumptions.append(
        f"{basis} and takes {products:.2f} times as long on {after.name} in {precision} as on {before.name} in {job.dtype} "
        f"(peak rates), the rest {memory:.2f} times (memory rates); the interval reaches half-way to all being either; "
        "time in which the host launches nothing stays"
    )
    return (low, usual, high), bandwidth


MOST_GPUS = 1_000_000
"""More than any system has: a number beyond is a slip."""

PRECISIONS = ("fp32", "tf32", "amp_bf16", "amp_fp16", "bf16", "fp8")
KEYS = ("gpu", "link", "batch", "precision", "overlap", "bucket")


def gpu_numbers(gpus: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of GPUs ascending, each once. Raises UsageError."""
    if not gpus or not all(1 <= number <= MOST_GPUS for number in gpus):
        numbers = ",".join(map(str, gpus))
        raise UsageError(
            f"--gpus {numbers!r}", fix=f"give numbers from 1 to {MOST_GPUS:,}: --gpus 64, or --gpus 8,64,512"
        )
    return tuple(sorted(set(gpus)))


def parse_gpus(text: str) -> tuple[int, ...]:
    """Read ``8,64,512`` as numbers, ascending, each once. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--gpus {text!r}", fix=f"give numbers from 1 to {MOST_GPUS:,}: --gpus 64, or --gpus 8,64,512")
    return gpu_numbers([int(part) for part in parts])


def parse_what_if(texts: Sequence[str]) -> WhatIf:
    """Read ``gpu=h200``, ``batch=2x,precision=bf16``, ... as what is other. Raises UsageError, naming what is known."""
    changes: dict[str, Any] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise UsageError(f"--what-if {part!r}", fix=f"give KEY=VALUE; keys: {', '.join(KEYS)}")
        if key not in KEYS:
            raise UsageError(unknown("--what-if key", key, KEYS))
        name = "bucket_bytes" if key == "bucket" else key
        if name in changes:
            raise UsageError(f"--what-if {key} is given twice", fix="give it once")
        changes[name] = _what_if_value(key, value)
    return keyed(WhatIf(**changes))


DRY_KEYS = ("gpu", "link", "overlap", "compile", "bucket", "reshard", "recompute", "sync")
_OF_SCRIPT = ("batch", "micro-batch", "precision", "tp", "pp", "cp", "ep", "dp", "seq", "gbs", "mbs", "acc", "zero")


@record
class DryWhatIf:
    """What is other than in a script. priced: of machine and overlap. compiled: as if its model were given to torch.compile.
    forced: what its wrappers are made to do: ``bucket`` (bytes), ``reshard`` (yes, no), ``recompute`` (full, no), ``sync``
    (last: of the passes of a step)."""

    priced: WhatIf = field(default_factory=WhatIf)
    compiled: bool = False
    forced: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> bool:
        """Whether anything is other."""
        return bool(self.forced) or self.compiled or self.priced != WhatIf()


def parse_dry_what_if(texts: Sequence[str]) -> DryWhatIf:
    """Read ``gpu=h200``, ``reshard=no``, ... of a script's dry run. Raises UsageError, naming what is known."""
    priced, forced, compiled = [], dict[str, str](), False
    choices = {"compile": ("yes",), "reshard": ("yes", "no"), "recompute": ("full", "no"), "sync": ("last",)}
    for part in (part.strip() for text in texts for part in text.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key in _OF_SCRIPT:
            raise UsageError(
                f"--what-if {part}: the script decides that",
                why="it runs as it is, and no wrapper of it decides that",
                fix="give the script's own option after --, and compare the two: stepscope compare DRY_A DRY_B",
            )
        if key not in DRY_KEYS:
            raise UsageError(unknown("--what-if key", key, DRY_KEYS))
        if key in choices and value not in choices[key]:
            raise UsageError(unknown(f"--what-if {key}", value, choices[key]))
        if key in ("reshard", "recompute", "bucket", "sync"):
            forced[key] = str(parse_size_bytes(value)) if key == "bucket" else value
        elif key == "compile":
            compiled = True
        else:
            priced.append(part)
    return DryWhatIf(priced=parse_what_if(priced) if priced else WhatIf(), compiled=compiled, forced=forced)


def _what_if_value(key: str, text: str) -> object:
    """Return the value of a key of --what-if. Raises UsageError for one that the key does not take."""
    if key == "batch":
        number = re.fullmatch(r"(\d+(?:\.\d+)?)x", text.lower())
        if number is None:
            raise _no_factor(text)
        return float(number[1])
    return parse_size_bytes(text) if key == "bucket" else text


def keyed(what: WhatIf) -> WhatIf:
    """Return what is other with the keys of the tables. Raises UsageError, naming what is known."""
    if what.batch is not None and not 0 < what.batch < math.inf:
        raise _no_factor(f"{what.batch:g}x")
    for key, value, choices in (("precision", what.precision, PRECISIONS), ("overlap", what.overlap, ("perfect",))):
        if value is not None and value not in choices:
            raise UsageError(unknown(f"--what-if {key}", value, choices))
    if what.bucket_bytes is not None and what.bucket_bytes < 1:
        raise UsageError(f"--what-if bucket={what.bucket_bytes}", fix="give a size: bucket=8MiB")
    link = what.link
    if link is not None:
        link = "pcie" if link.lower() == "pcie" else find_fabric(link).key
    return replace(what, gpu=None if what.gpu is None else known_gpu(what.gpu).key, link=link)


def _no_factor(text: str) -> UsageError:
    return UsageError(f"--what-if batch={text}", fix="give a factor on the batch of a rank: batch=2x, batch=0.5x")
