"""Every analysis of one rank runs on every real trace, and its identities hold there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import Unavailable
from stepscope.records.codec import to_builtins
from stepscope.traces.activity import activity_of
from stepscope.traces.buckets import bucket_rows
from stepscope.traces.collectives import rank_communication
from stepscope.traces.diff import diff_profiles, work_profile
from stepscope.traces.idle import launch_statistics
from stepscope.traces.kernels import copy_table, kernel_table, sequence_rows
from stepscope.traces.load import load_traces
from stepscope.traces.memory import memory_timeline
from stepscope.traces.modules import annotation_rows
from stepscope.traces.nesting import launches_of
from stepscope.traces.operators import operator_table
from stepscope.traces.steps import phase_spans, step_budgets, step_windows
from stepscope.traces.utilisation import utilisation

SETS = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
NAMES = sorted(p.name for p in SETS.iterdir() if p.is_dir()) if SETS.is_dir() else []

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not SETS.is_dir(), reason="the real traces are not beside this checkout"),
]


@pytest.mark.parametrize("name", NAMES)
def test_operators_account_for_all_host_and_device_time(name: str) -> None:
    for each in load_traces(SETS / name).ranks:
        events = each.events
        launches = launches_of(events, activity_of(events).indices)
        table = operator_table(each, launches, by_shape=True)
        assert table is not None
        assert sum(r.host_self_ns for r in table.rows) == table.host_ns
        linked = sum(r.device_self_ns for r in table.rows)
        assert linked + table.outside_ns + table.unlinked_ns == table.device_ns
        assert table.device_ns == int(events.dur_ns[events.is_device].sum())
        assert all(r.host_self_ns <= r.host_total_ns and r.device_self_ns <= r.device_total_ns for r in table.rows)
        short = operator_table(each, launches, limit=3)
        assert short is not None
        assert sum(r.host_self_ns for r in short.rows) + short.left_out_host_self_ns == table.host_ns


@pytest.mark.parametrize("name", NAMES)
def test_every_record_can_be_written_as_json(name: str) -> None:
    for each in load_traces(SETS / name).ranks:
        events = each.events
        activity = activity_of(events)
        launches = launches_of(events, activity.indices)
        windows = step_windows(events, activity, launches)
        steps = step_budgets(each, activity, windows)
        profile = work_profile(each, activity, windows)
        assert not isinstance(profile, Unavailable)
        records: list[object] = [
            kernel_table(each, limit=5),
            launch_statistics(each, launches),
            copy_table(each),
            utilisation(each, steps),
            profile,
            diff_profiles(profile, profile, limit=3),
            *annotation_rows(each, launches),
            *sequence_rows(each),
            *bucket_rows(each, activity, launches, rank_communication(each).collectives),
        ]
        for record in records:
            if record is not None:
                to_builtins(record)
        assert isinstance(memory_timeline(each, phases=phase_spans(events)), Unavailable)


@pytest.mark.parametrize("name", NAMES)
def test_launch_statistics_leave_no_device_event_out(name: str) -> None:
    for each in load_traces(SETS / name).ranks:
        events = each.events
        found = launch_statistics(each, launches_of(events, activity_of(events).indices))
        devices = int(events.is_device.sum())
        if found is None:
            assert devices == 0
            continue
        assert found.launched + found.unlinked == devices
        if found.queue is not None:
            assert found.queue.longest == max(found.queue.longest_by_slice)
            assert 0 <= found.queue.empty_share <= 1
