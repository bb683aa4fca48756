"""One measured size of one collective, as every reader of tables hands it over."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable
from stepscope.machine.peaks import find
from stepscope.predict.collectives.fabrics import Fabric
from stepscope.predict.collectives.machine import Caller

NAMES = {
    "a100_sxm_40gb": "a100-sxm4-40gb", "a100_sxm_80gb": "a100-sxm4-80gb", "a800_sxm_80gb": "a800-sxm4-80gb",
    "v100_sxm_16gb": "v100-sxm2-16gb", "v100_sxm_32gb": "v100-sxm2-32gb", "v100_pcie": "v100-pcie-16gb",
    "gh200": "gh200-96gb", "h800_sxm": "h800-sxm",
}  # fmt: skip
"""Keys of published tables that are not those of the accelerator table with other punctuation."""

PRINTED_TYPES = {"float": "float32", "double": "float64", "half": "float16"}
"""What nccl-tests calls the types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured size. time_ns: of one call, out of place where both were measured. algorithm: the only one allowed.

    caller: how it was measured, see :func:`choose.predict_collective`.
    """

    source: str
    op: str
    size_bytes: int
    time_ns: float
    n_gpus: int
    gpu: str
    gpus_per_node: int | None
    fabric: Fabric | None
    dtype: str
    algorithm: str | None = None
    caller: Caller = "nccl-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """skipped: what could not be used, and why, each reason once with its count."""

    path: str
    rows: tuple[MeasuredRow, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the reader's caller knows and a file may not say."""

    gpu: str | None = None
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    inter_node: str | None = None


class SkipRowError(Exception):
    """Why a row cannot be used."""


def gpu_key(name: str) -> str:
    key = name.lower()
    key = NAMES.get(key, key.replace("_", "-"))
    found = find(key)
    if isinstance(found, Unavailable):
        raise SkipRowError(found.reason)
    return found.key
