"""Memory over time: the peak, where it falls, and what is unknown."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hand_events import mark, op, trace

from stepscope.core.errors import Unavailable
from stepscope.records.trace_work import DeviceMemory
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces import memory
from stepscope.traces.events import MemoryInstants, RankTrace, RankView
from stepscope.traces.memory import memory_timeline
from stepscope.traces.steps import phases_of


def instants(rows: list[tuple[int, int, int, int]], *, kind: int = 1, device: int = 0) -> MemoryInstants:
    """Rows of (time, bytes, allocated, reserved)."""
    table = np.array(rows, dtype=np.int64)
    return MemoryInstants(
        ts_ns=table[:, 0], size_bytes=table[:, 1], allocated_bytes=table[:, 2], reserved_bytes=table[:, 3],
        device_type=np.full(len(rows), kind, dtype=np.int32), device=np.full(len(rows), device, dtype=np.int32),
    )  # fmt: skip


def timelines(made: RankTrace, phases: dict[str, Spans] | None = None) -> tuple[DeviceMemory, ...]:
    view = RankView(made)
    if phases is not None:
        view.made[phases_of] = phases
    return memory_timeline(view)


GPU = instants([(10, 100, 1100, 4096), (20, 400, 1500, 4096), (30, -400, 1100, 4096), (60, 50, 1150, 8192)])


def test_a_peak_outside_everything_names_nothing() -> None:
    (gpu,) = timelines(trace(op("aten::mm", 90, 95), memory=GPU))
    assert (gpu.peak.step, gpu.peak.phase, gpu.peak.operator, gpu.peak.annotations) == (None, None, None, ())


def test_steps_have_their_own_peak_and_what_was_allocated_before_counts() -> None:
    made = trace(mark("ProfilerStep#7", 0, 50), mark("ProfilerStep#8", 50, 90), memory=GPU)
    (gpu,) = timelines(made)
    assert [(s.step, s.peak_bytes, s.end_bytes) for s in gpu.steps] == [(7, 1500, 1100), (8, 1150, 1150)]


def test_phases_have_their_peak_and_what_they_add() -> None:
    """forward from 5 to 40 begins with 1000 and reaches 1500; nothing is allocated in the optimizer's span."""
    phases = {
        "forward": spans.union(np.array([5]), np.array([40])),
        "backward": spans.union(np.array([40]), np.array([70])),
        "optimizer": spans.union(np.array([70]), np.array([80])),
    }
    (gpu,) = timelines(trace(op("a", 0, 1), memory=GPU), phases=phases)
    assert [(p.phase, p.peak_bytes, p.added_bytes) for p in gpu.phases] == [
        ("forward", 1500, 500),
        ("backward", 1150, 50),
    ]


def test_allocations_releases_and_growth_are_counted() -> None:
    (gpu,) = timelines(trace(op("a", 0, 1), memory=GPU))
    assert (gpu.allocations, gpu.releases, gpu.requested_bytes, gpu.growth_bytes) == (3, 1, 550, 150)


def test_the_timeline_keeps_the_highest_value_of_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLICES", 10)
    rows = [(t, 1, 1000 + (t % 10), 2000) for t in range(100)]
    (gpu,) = timelines(trace(op("a", 0, 1), memory=instants(rows)))
    assert gpu.times_ns == tuple(range(0, 100, 10))
    assert gpu.allocated_bytes == (1009,) * 10
    assert gpu.reserved_bytes == (2000,) * 10


def test_the_cpu_reserves_nothing_and_counts_from_the_start_of_the_capture() -> None:
    (cpu,) = timelines(trace(op("a", 0, 1), memory=instants([(5, 64, 64, 0), (6, -64, 0, 0)], kind=0, device=-1)))
    assert (cpu.device_type, cpu.device, cpu.from_capture_start) == ("cpu", None, True)
    assert (cpu.peak.reserved_bytes, cpu.reserved_bytes, cpu.slack_bytes) == (None, None, None)


def test_totals_that_are_not_recorded_are_summed_from_the_events() -> None:
    (gpu,) = timelines(trace(op("a", 0, 1), memory=instants([(1, 10, -1, -1), (2, 30, -1, -1), (3, -10, -1, -1)])))
    assert gpu.allocated_bytes == (10, 40, 30)
    assert (gpu.peak.allocated_bytes, gpu.peak_reserved_bytes) == (40, None)


def test_every_device_has_its_own_timeline_gpus_first() -> None:
    one, two = instants([(1, 5, 5, 9)], kind=0, device=-1), instants([(2, 7, 7, 9)], device=1)
    both = MemoryInstants(**{
        name: np.concatenate([getattr(one, name), getattr(two, name)]) for name in MemoryInstants.__slots__
    })  # fmt: skip
    assert [(d.device_type, d.device) for d in timelines(trace(op("a", 0, 1), memory=both))] == [
        ("gpu", 1),
        ("cpu", None),
    ]


def test_without_memory_events_the_reason_says_how_to_record_them() -> None:
    found = memory_timeline(RankView(trace(op("a", 0, 1))))
    assert isinstance(found, Unavailable)
    assert "profile_memory=True" in found.reason
