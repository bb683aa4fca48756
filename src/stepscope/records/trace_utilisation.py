"""How much of the device's peak a rank used, step by step."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUtilisation:
    """One step: MFU and HFU = FLOP / (step time x devices x peak); None where that FLOP count is unknown."""

    step: int
    step_ns: int
    mfu: float | None
    hfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Model and hardware FLOP utilisation of one rank, against the dense peak of ``dtype``.

    model_flop: per step, forward and backward as the architecture asks (2 FLOP per multiply-add). hardware_flop: per
    step, recomputation included. mfu, hfu: of the median step. devices: that share ``model_flop``.
    flop_source: given | recorded | shapes. flop_coverage: share of the matrix kernels' time that these FLOP account for;
    None where they are given or no such kernel ran. A figure that is None has its reason in ``unavailable``. ``error``
    says what cannot be: a utilisation above 1.
    """

    rank: int
    device_name: str | None
    dtype: str | None
    dtype_source: str | None  # given | kernels | inputs
    peak_flops_per_s: float | None
    peak_source: str | None
    devices: int
    model_flop: float | None
    hardware_flop: float | None
    flop_source: str | None
    flop_incomplete: tuple[str, ...]  # operators that multiply matrices and are not counted
    step_ns: float | None
    mfu: float | None
    hfu: float | None
    steps: tuple[StepUtilisation, ...]
    formula: str
    unavailable: str | None
    error: str | None
    flop_coverage: float | None = None
