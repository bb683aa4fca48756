"""calib.json: what the collectives of one machine cost, fitted to its own measurements."""

from __future__ import annotations

from stepscope.core.dataclass import record


@record
class Line:
    """t = steps x alpha + max(0, wire_bytes - credit) / beta: the alpha-beta model of one op at one world size.

    alpha_ns: of one algorithm step; beta_bytes_per_s: payload rate on the wire, None where the measured sizes show none (a
    barrier, or sizes that all cost the same). Intervals are 95%; None: the data give none.
    wire_factor: wire bytes / S. credit_bytes: what passes before the rate applies (the burst of a token bucket, buffers of
    sockets); 0, the plain model, unless the measurement shows one. r_squared: of log(time). Errors are relative to the
    measured time, over the fitted sizes.
    """

    alpha_ns: float
    alpha_ns_low: float | None
    alpha_ns_high: float | None
    beta_bytes_per_s: float | None
    beta_bytes_per_s_low: float | None
    beta_bytes_per_s_high: float | None
    steps: int
    wire_factor: float
    r_squared: float
    mean_relative_error: float
    max_relative_error: float
    credit_bytes: float = 0.0


@record
class Knot:
    """A point of a curve; low_ns, high_ns: 80% interval of a call's median at this size, None: the data give none."""

    size_bytes: int
    time_ns: float
    low_ns: float | None = None
    high_ns: float | None = None


@record
class Curve:
    """Monotone piecewise-linear time in log(size), log(time) through ``knots``; outside them the end slopes go on.

    family: which of the candidate shapes cross-validation chose. cross_validated_error: mean relative error on sizes left
    out; None with too few sizes.
    """

    family: str
    knots: tuple[Knot, ...]
    mean_relative_error: float
    max_relative_error: float
    cross_validated_error: float | None


@record
class SizeError:
    """Measured against fitted at one size. line_ns, curve_ns: what the two models say."""

    size_bytes: int
    measured_ns: float
    line_ns: float
    curve_ns: float


@record
class CollectiveFit:
    """One op at one world size and placement.

    placement: ranks per host, in rank order of hosts, as ``2`` (one host) or ``1+1`` (two hosts, one rank each).
    line_fails: where and by how much the straight line is off; None where it holds.
    """

    op: str
    dtype: str
    in_place: bool
    pattern: str | None
    world_size: int
    placement: str
    backend: str
    device: str
    network: str | None
    algorithm: str
    line: Line
    curve: Curve
    errors: tuple[SizeError, ...]
    line_fails: str | None
    notes: tuple[str, ...] = ()


@record
class MatmulRate:
    """Achieved rate of square matrix products. size: rows = columns."""

    dtype: str
    size: int
    flops_per_s: float


@record
class CalibratedMachine:
    """What a calibration holds for; another machine's use of it is warned about."""

    hosts: tuple[str, ...]
    cpu_model: str | None
    usable_cores: int | None
    gpus: tuple[str, ...]
    torch_version: str | None
    backend_version: str | None


@record
class StepPart:
    """A factor on one constant of the step model that comes with stepscope (``name``: a field of StepCalibration).

    samples: measurements it is the median of. error_before, error: their mean relative error without and with it;
    left_out_error: of each with the median of the others, None where there is one.
    """

    name: str
    value: float
    samples: int
    error_before: float
    error: float
    left_out_error: float | None = None


@record
class StepFit:
    """What was measured on one GPU (``accelerator``: its key). gpus: how many, ascending; none: no step was measured.

    low, high: factors on a speed that give its 80% interval; None: parts alone say nothing of whole steps.
    """

    accelerator: str
    gpus: tuple[int, ...]
    parts: tuple[StepPart, ...]
    low: float | None = None
    high: float | None = None


@record
class Calibration:
    """One run's fits. run: the folder or table they come from. steps: corrections of the step model, one a GPU."""

    run: str
    machine: CalibratedMachine
    fits: tuple[CollectiveFit, ...]
    matmul: tuple[MatmulRate, ...] = ()
    steps: tuple[StepFit, ...] = ()
    skipped: tuple[str, ...] = ()
