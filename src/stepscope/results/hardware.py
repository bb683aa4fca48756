"""What the hardware did while a job ran: GPUs that ran at lower clocks than the others or than before, errors, memory.

A clock is compared while its GPU computes: one that waits for its host lowers its clock, and that slows nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.records.finding import ClockDrop
from stepscope.records.hardware import IDLE, REASONS, SampledDevice
from stepscope.results.diary import JobSteps
from stepscope.stats.step_table import Numbers
from stepscope.store.diary import RankDiary
from stepscope.store.hardware import HardwareSamples

LEAST_SAMPLES = 8
"""Fewest samples of a GPU that computes: fewer say nothing of its clock."""

BUSY = 0.5
"""Share of the driver's sampling period: a GPU that computes for less waits for its host."""

LOWER = 0.92
"""Most that a low clock may be of the other one: GPUs of one kind differ by 8% on average (Sinha et al., SC 2022)."""

OFTEN, OFTENER = 0.5, 0.3
"""Share of the samples that have a reason, and by how much it is larger than where the clock is higher."""

SAME_POWER, SAME_LIMIT = 1.05, 0.98
"""Power / the others' power: who draws more at the same limit has more to do, and its lower clock follows from that."""

POWER_CAP = 0x4
SPECIAL = {0x8: 0x40 | 0x80}
"""Reason -> reasons that say it more exactly: beside one of those it is left out."""

ERRORS: Mapping[str, str] = {
    "ecc_uncorrected": "uncorrected memory errors (ECC)",
    "ecc_corrected": "corrected memory errors (ECC)",
    "nvlink_errors": "NVLink errors",
    "pcie_replays": "PCIe replays",
    "receive_errors": "receive errors",
    "send_errors": "send errors",
    "symbol_errors": "symbol errors",
    "integrity_errors": "integrity errors of the link",
    "recoveries": "recoveries of the link",
    "downs": "times down",
}
"""Columns that count errors. A packet that is dropped is none: interfaces also drop what is not for them."""


@record
class RankDevice:
    """A GPU of a rank at its last sample; None: unknown. clock_fraction: median SM clock while it computes / its maximum."""

    rank: int
    device: SampledDevice
    clock_fraction: float | None
    memory_used_bytes: float | None
    errors: Mapping[str, int]


@record
class CountedErrors:
    """Errors of a GPU or a port since the first sample. unix_s, step: of the sample that has the last one. rank: None: of
    the host."""

    column: str
    count: int
    source: str
    host: str
    rank: int | None
    unix_s: float
    step: int


@lru_cache(maxsize=2)
def rank_devices(steps: JobSteps) -> tuple[RankDevice, ...]:
    """Every GPU of every rank that was sampled."""
    return tuple(
        _rank_device(diary, samples, at)
        for diary in steps.diaries
        if (samples := diary.devices) is not None and samples.unix_s.size
        for at in range(len(samples.header.devices))
    )


def fullest(steps: JobSteps) -> RankDevice | None:
    """The device with the least share of its memory left; None: unknown."""
    measured = [
        rank_device
        for rank_device in rank_devices(steps)
        if rank_device.memory_used_bytes is not None and rank_device.device.memory_bytes
    ]
    return max(measured, key=_memory_filled_share, default=None)


def _memory_filled_share(rank_device: RankDevice) -> float:
    return (rank_device.memory_used_bytes or 0.0) / (rank_device.device.memory_bytes or 1.0)


def _rank_device(diary: RankDiary, samples: HardwareSamples, at: int) -> RankDevice:
    """Return the state of the device at this place as last sampled."""

    def last(name: str) -> float | None:
        values = samples.columns[name][:, at]
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if finite.size else None

    device = samples.header.devices[at]
    clock = _computing_clock(diary, samples, at, np.ones(samples.step.size, dtype=bool))
    most = device.sm_clock_max_hz
    return RankDevice(
        rank=diary.rank,
        device=device,
        clock_fraction=None if clock is None or not most else min(1.0, clock.hz / most),
        memory_used_bytes=last("memory_used_bytes"),
        errors={name: int(value) for name in ERRORS if name in samples.columns and (value := last(name)) is not None},
    )


# Clocks


@record
class _Clock:
    """Clock of a GPU that computes: medians over an interval of steps, NaN: unknown. reasons: bit -> share of the
    samples."""

    rank: int
    kind: tuple[str, float | None]
    hz: float
    low_hz: float
    high_hz: float
    power_w: float
    limit_w: float
    temperature_c: float
    reasons: Mapping[int, float]


def clocks_of_late(steps: JobSteps, late: Collection[int]) -> tuple[ClockDrop, ...]:
    """Return the ranks, of those that the others wait for, whose GPU ran clearly below the others' while both computed."""
    first, end = int(steps.numbers[0]), int(steps.numbers[-1])
    clocks = [clock for diary in steps.diaries if (clock := _slowest_clock(diary, first, end)) is not None]
    drops = []
    for alike in grouped(clocks, lambda rank_clock: rank_clock.kind).values():
        others = [rank_clock for rank_clock in alike if rank_clock.rank not in late]
        if others:
            drops += [(rank_clock, _usual_clock(others)) for rank_clock in alike if rank_clock.rank in late]
    return _clock_drops([pair for pair in drops if _is_clearly_lower(*pair)], before=False)


def clocks_of_change(steps: JobSteps, step: int, ranks: Collection[int]) -> tuple[ClockDrop, ...]:
    """Return those of ``ranks`` whose GPU, since that step, runs clearly below its own earlier clock."""
    first, end = int(steps.numbers[0]), int(steps.numbers[-1])
    pairs = [
        (now, before)
        for diary in steps.diaries
        if diary.rank in ranks
        if (now := _slowest_clock(diary, step, end)) is not None
        and (before := _slowest_clock(diary, first, step - 1)) is not None
    ]
    return _clock_drops([pair for pair in pairs if _is_clearly_lower(*pair)], before=True)


def _slowest_clock(diary: RankDiary, first: int, end: int) -> _Clock | None:
    """Return the clock of the rank's slowest GPU; None where too little is known of it while it computes."""
    samples = diary.devices
    if samples is None:
        return None
    inside = (samples.step >= first) & (samples.step <= end)
    clocks = (_computing_clock(diary, samples, at, inside) for at in range(len(samples.header.devices)))
    return min((clock for clock in clocks if clock is not None), key=lambda fastest: fastest.hz, default=None)


def _computing_clock(diary: RankDiary, samples: HardwareSamples, at: int, inside: np.ndarray) -> _Clock | None:
    """Return the clock of one GPU in the samples that are ``inside`` and in which it computes; None: too few of them."""
    columns = {name: values[:, at].astype(float) for name, values in samples.columns.items()}
    clock, reasons, busy = columns["sm_clock_hz"], columns["throttle_reasons"], columns["busy_fraction"]
    finite = np.isfinite(reasons)
    bits = np.where(finite, reasons, 0).astype(int)
    computes = np.where(np.isfinite(busy), busy >= BUSY, finite) & ((bits & IDLE) == 0)
    kept = inside & np.isfinite(clock) & computes
    if kept.sum() < LEAST_SAMPLES:
        return None
    device = samples.header.devices[at]
    low, middle, high = (float(hz) for hz in np.quantile(clock[kept], (0.25, 0.5, 0.75)))
    return _Clock(
        rank=diary.rank,
        kind=(device.name, device.sm_clock_max_hz),
        hz=middle,
        low_hz=low,
        high_hz=high,
        power_w=_finite_median(columns["power_w"][kept]),
        limit_w=_finite_median(columns["power_limit_w"][kept]),
        temperature_c=_finite_median(columns["temperature_c"][kept]),
        reasons={bit: float(((bits[kept] & bit) != 0).mean()) for bit in REASONS} if finite[kept].any() else {},
    )


def device_busy(steps: JobSteps) -> float | None:
    """Median share of the time in which the least busy device of the job ran something, over the samples of the timed steps;
    None: of some rank not known."""
    first, end = int(steps.numbers[0]), int(steps.numbers[-1])
    medians = []
    for diary in steps.diaries:
        if diary.devices is None:
            return None
        inside = (diary.devices.step >= first) & (diary.devices.step <= end)
        busy = diary.devices.columns["busy_fraction"][inside].astype(float)
        if np.isfinite(busy).sum() < LEAST_SAMPLES:
            return None
        medians.append(float(np.nanmedian(busy)))
    return min(medians, default=None)


def _finite_median(values: Numbers) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")


def _usual_clock(others: Sequence[_Clock]) -> _Clock:
    """Return the usual one of these clocks. low_hz: a quarter of their medians lie below it."""

    def middle(name: str) -> float:
        return _finite_median(np.array([getattr(other, name) for other in others]))

    return _Clock(
        rank=-1,
        kind=others[0].kind,
        hz=middle("hz"),
        low_hz=float(np.quantile([other.hz for other in others], 0.25)) if len(others) > 1 else others[0].low_hz,
        high_hz=middle("high_hz"),
        power_w=middle("power_w"),
        limit_w=middle("limit_w"),
        temperature_c=middle("temperature_c"),
        reasons={bit: float(np.mean([other.reasons.get(bit, 0.0) for other in others])) for bit in REASONS},
    )


def _is_clearly_lower(clock: _Clock, other: _Clock) -> bool:
    """Whether a clock is clearly below, and not because its GPU has more to do."""
    if clock.hz > LOWER * other.hz or clock.high_hz >= other.low_hz:
        return False
    limited = clock.limit_w < SAME_LIMIT * other.limit_w
    own_cause = limited or bool(set(_frequent_reason_bits(clock, other)) - {POWER_CAP})
    return own_cause or not clock.power_w > SAME_POWER * other.power_w


def _frequent_reason_bits(clock: _Clock, other: _Clock) -> tuple[int, ...]:
    """Return the bits that are set in most samples, and far oftener than where the clock is higher."""
    bits = [
        bit
        for bit, share in clock.reasons.items()
        if bit != IDLE and share >= OFTEN and share - other.reasons.get(bit, 0.0) >= OFTENER
    ]
    return tuple(bit for bit in bits if not any(bit in SPECIAL and SPECIAL[bit] & cause for cause in bits))


def _clock_drops(pairs: Sequence[tuple[_Clock, _Clock]], *, before: bool) -> tuple[ClockDrop, ...]:
    """Return one drop for all ranks whose clocks are low for the same reasons, the lowest clock first."""
    drops = []
    for bits, same in grouped(pairs, lambda pair: _frequent_reason_bits(*pair)).items():
        lowest, other = min(same, key=lambda pair: pair[0].hz)
        capped = lowest.limit_w < SAME_LIMIT * other.limit_w and POWER_CAP in bits
        drops.append(
            ClockDrop(
                ranks=tuple(sorted(clock.rank for clock, _ in same)),
                sm_clock_hz=_finite_median(np.array([clock.hz for clock, _ in same])),
                against_hz=_finite_median(np.array([reference.hz for _, reference in same])),
                before=before,
                reasons=tuple(REASONS[bit] for bit in bits),
                temperature_c=lowest.temperature_c if np.isfinite(lowest.temperature_c) else None,
                power_limit_w=lowest.limit_w if capped else None,
                power_limit_against_w=other.limit_w if capped else None,
            )
        )
    return tuple(sorted(drops, key=lambda drop: drop.sm_clock_hz))


# Errors


def counted_errors(steps: JobSteps) -> tuple[CountedErrors, ...]:
    """Errors that GPUs and ports have counted since the first sample of each process, in order of time."""
    errors = [
        *_of_devices(steps.processes),
        *(increase for port in steps.ports for increase in _counted_errors(port, rank=None)),
    ]
    return tuple(sorted(errors, key=lambda error: error.unix_s))


def _of_devices(processes: Iterable[RankDiary]) -> Iterable[CountedErrors]:
    for process in processes:
        if process.devices is not None:
            yield from _counted_errors(process.devices, rank=process.rank)


def _counted_errors(samples: HardwareSamples, *, rank: int | None) -> Iterable[CountedErrors]:
    """Yield the errors that each device and port has counted, at the time of the last one."""
    for name in ERRORS:
        values = samples.columns.get(name)
        if values is None or not values.size:
            continue
        names = [*(device.name for device in samples.header.devices), *(port.name for port in samples.header.ports)]
        for at, source in enumerate(names):
            counts = values[:, at]
            finite = np.flatnonzero(np.isfinite(counts))
            if not finite.size or not counts[finite[-1]] > 0:
                continue
            last = finite[np.argmax(counts[finite] >= counts[finite[-1]])]
            yield CountedErrors(
                column=name,
                count=int(counts[last]),
                source=source,
                host=samples.header.host,
                rank=rank,
                unix_s=float(samples.unix_s[last]),
                step=int(samples.step[last]) + 1,
            )


def hardware_figures(steps: JobSteps, ranks: Collection[int] | None = None) -> dict[str, float | None]:
    """Return the figures ``of`` hardware of these ranks' GPUs; without ``ranks``, of all GPUs and ports. None where nothing
    was sampled."""
    devices = [rank_device for rank_device in rank_devices(steps) if ranks is None or rank_device.rank in ranks]
    used = [device.memory_used_bytes for device in devices if device.memory_used_bytes is not None]
    clocks = [device.clock_fraction for device in devices if device.clock_fraction is not None]

    def count(*names: str) -> float | None:
        """Return how many of these errors devices counted, and ports where all ranks are asked for; None: nothing counts
        them."""
        counts = [device.errors[name] for device in devices for name in names if name in device.errors]
        if ranks is None:
            counts += [
                int(np.nansum(port.columns[name][-1]))
                for port in steps.ports
                for name in names
                if port.unix_s.size and name in port.columns
            ]
        return float(sum(counts)) if counts else None

    links = [name for name in ERRORS if not name.startswith("ecc_")]
    return {
        "device_used_bytes": max(used, default=None),
        "sm_clock_fraction": min(clocks, default=None),
        "ecc_corrected_errors": count("ecc_corrected"),
        "ecc_uncorrected_errors": count("ecc_uncorrected"),
        "link_errors": count(*links),
        "dropped_packets": count("receive_drops", "send_drops"),
    }
