"""Facts that rules ask a trace for and that no table shows: kinds of kernels, who made the host late, gradient syncs."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """The compute kernels of one kind; ``traces.kernel_names`` names them. largest: the name with most time."""

    kind: str
    calls: int
    total_ns: int
    largest: str
    largest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMix:
    """The compute kernels of one rank by kind, most time first. Kernels at one time on two streams both count.

    short_calls, short_ns: kernels of at most ``short_limit_ns``.
    """

    rank: int
    kinds: tuple[KernelKind, ...]
    calls: int
    total_ns: int
    short_limit_ns: int
    short_calls: int
    short_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLateness:
    """What the host was in while the device waited for a launch that it had not made: parts of ``late_ns``.

    operator_ns: an operator or a call of the runtime, on any thread. python_ns: in neither.
    """

    rank: int
    late_ns: int
    operator_ns: int
    python_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlace:
    """Reductions of one rank launched in one part of the step. Those that run at one time count each.

    positions: in the rank's ``RankCommunication.collectives``.
    """

    positions: tuple[int, ...]
    total_ns: int
    exposed_ns: int

    @property
    def calls(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSync:
    """Where the reductions (all_reduce, reduce_scatter) of the marked steps were launched, against the autograd engine.

    before its first work in the step, after its last, or between the two (``inside``). steps: with a backward pass.
    """

    rank: int
    steps: int
    before: SyncPlace
    inside: SyncPlace
    after: SyncPlace
