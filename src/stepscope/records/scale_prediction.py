"""A measured job on other numbers of ranks, as predicted. Times in ns."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass
from stepscope.records.training import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep:
    """The job on ``ranks`` ranks. low_ns, high_ns: 80% interval of the step.

    step_ns = compute_ns + copies_ns + input_ns + idle_ns + straggling_ns + exposed_ns + unexplained_ns: slowest of so many
    ranks beyond that of the measured job; computation waits for collectives; what the replay of the measured step lacks.
    throughput: over the measured job's. efficiency: throughput / ``base_throughput`` / ratio of ranks; None on fewer ranks
    than the base's. dominant: largest of these parts.
    comm_ns: collectives one after the other.
    """

    ranks: int
    step_ns: float
    low_ns: float
    high_ns: float
    throughput: float
    throughput_low: float
    throughput_high: float
    efficiency: float | None
    samples_per_s: float | None
    compute_ns: float
    copies_ns: float
    input_ns: float
    idle_ns: float
    straggling_ns: float
    exposed_ns: float
    unexplained_ns: float
    comm_ns: float
    dominant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """The same job where it was measured."""

    ranks: int
    step_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePrediction:
    """Would it scale? name: the job; ranks: those it was measured on; change: what is other, in words, empty for nothing.

    replay_ns: the measured step put together again from its parts and prices; step_ns: the measured one.
    replay_checks: whether that says anything: False where prices were fitted to it. prices: where they come from.
    base_throughput: of the job with the change on ``ranks`` ranks, over the measured job's: what efficiencies refer to.
    knee: most ranks up to which efficiency stays at ``KNEE`` or above, of those looked at; None: not even the fewest.
    knee_open: whether it is the most that were looked at. assumptions: what the answer rests on; notes: what was not read
    or is doubtful.
    """

    name: str
    source: str
    device: str
    ranks: int
    scaling: Scaling
    change: str
    step_ns: float
    replay_ns: float
    replay_checks: bool
    prices: str
    steps: tuple[ScaledStep, ...]
    measured: tuple[MeasuredPoint, ...]
    base_throughput: float
    knee: int | None
    knee_open: bool
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is counted: GPU | rank."""
        return "rank" if self.device == "CPU" else "GPU"

    def measured_throughput(self, point: MeasuredPoint) -> float:
        """Of ``point`` over the measured job's: with weak scaling more ranks have more work."""
        work = point.ranks / self.ranks if self.scaling == "weak" else 1.0
        return work * self.step_ns / point.step_ns

    def measured_samples_per_s(self, global_batch: int) -> float:
        """Of the measured job. global_batch: its samples of a step."""
        return global_batch / self.step_ns * 1e9

    @property
    def replay_error(self) -> float:
        """replay / measured - 1."""
        return self.replay_ns / self.step_ns - 1
