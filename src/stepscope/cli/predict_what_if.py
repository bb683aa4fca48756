"""Options that several modes of ``stepscope predict`` share: ``--gpus 8,64,512`` and ``--what-if KEY=VALUE``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.core.units import parse_size_bytes
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.fabrics import find_fabric
from stepscope.predict.what_if import WhatIf

MOST_GPUS = 1_000_000
"""More than any system has: a number beyond is a slip."""

PRECISIONS = ("fp32", "tf32", "amp_bf16", "amp_fp16", "bf16", "fp8")
KEYS = ("gpu", "link", "batch", "precision", "overlap", "bucket")


def parse_gpus(text: str) -> tuple[int, ...]:
    """``8,64,512`` -> the numbers, ascending, each once. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_GPUS for part in parts):
        raise UsageError(f"--gpus {text!r}", fix=f"give numbers from 1 to {MOST_GPUS:,}: --gpus 64, or --gpus 8,64,512")
    return tuple(sorted({int(part) for part in parts}))


def parse_what_if(texts: Sequence[str]) -> WhatIf:
    """``gpu=h200``, ``batch=2x,precision=bf16``, ... -> what is other. Raises UsageError, naming what is known."""
    found: dict[str, Any] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value:
            raise UsageError(f"--what-if {part!r}", fix=f"give KEY=VALUE; keys: {', '.join(KEYS)}")
        if key not in KEYS:
            raise UsageError(unknown("--what-if key", key, KEYS))
        name = "bucket_bytes" if key == "bucket" else key
        if name in found:
            raise UsageError(f"--what-if {key} is given twice", fix="give it once")
        found[name] = _value(key, value)
    return WhatIf(**found)


def _value(key: str, value: str) -> object:
    if key == "gpu":
        return known_gpu(value).key
    if key == "link":
        return "pcie" if value.lower() == "pcie" else find_fabric(value).key
    if key == "batch":
        number = re.fullmatch(r"(\d+(?:\.\d+)?)x", value.lower())
        if number is None or not 0 < (factor := float(number[1])) < math.inf:
            raise UsageError(
                f"--what-if batch={value}", fix="give a factor on the batch of a rank: batch=2x, batch=0.5x"
            )
        return factor
    known = {"precision": PRECISIONS, "overlap": ("perfect",)}.get(key)
    if known is not None:
        if value not in known:
            raise UsageError(unknown(f"--what-if {key}", value, known))
        return value
    size = parse_size_bytes(value)
    if size < 1:
        raise UsageError(f"--what-if bucket={value}", fix="give a size: bucket=8MiB")
    return size
