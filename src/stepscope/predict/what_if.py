"""One change to a job that a prediction is asked for."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass

UNITS = {"amp_bf16": "bf16", "amp_fp16": "fp16"}
"""The matrix rate that a precision uses, where that is not its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
