"""Real snapshots: every total equals what a plain sum over the pickle's own values gives."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepscope.records.imported import MemorySnapshot, Stated
from stepscope.store.importers.memory_snapshot import IMPORTER, read_snapshot

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "memory_snapshots"
FILES = (
    "gpt_ctx256_forward.pickle",
    "gpt_medium_ctx128_inference.pickle",
    "gpt_medium_ctx128_training.pickle",
)

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no snapshots at {DATA}"),
]


class NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name}")


@cache
def both(name: str) -> tuple[MemorySnapshot, dict[str, Any]]:
    (found,) = read_snapshot(DATA / name)
    return found, NoClasses(io.BytesIO((DATA / name).read_bytes())).load()


def test_every_file_of_the_set_is_here() -> None:
    assert {p.name for p in DATA.glob("*.pickle")} == set(FILES)
    assert len(IMPORTER.read(DATA, Stated()).memory) == len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_totals_equal_the_segments_own(name: str) -> None:
    found, plain = both(name)
    segments = plain["segments"]
    assert found.segment_bytes == sum(s["total_size"] for s in segments)
    assert found.allocated_bytes == sum(s["allocated_size"] for s in segments)
    assert found.active_bytes == sum(s["active_size"] for s in segments)
    assert found.notes == ()
    actions = Counter(e["action"] for trace in plain["device_traces"] for e in trace)
    assert found.driver_allocations == actions["segment_alloc"] + actions["segment_map"]
    assert found.driver_frees == actions["segment_free"] + actions["segment_unmap"]
    assert found.oom_events == actions["oom"]


@pytest.mark.parametrize("name", FILES)
def test_the_history_and_the_blocks_agree(name: str) -> None:
    """Forward through the history from what the backward walk says was there first ends at what lives now."""
    found, plain = both(name)
    (trace,) = [t for t in plain["device_traces"] if t]
    signs = {"alloc": 1, "free_requested": -1}
    change = [signs.get(e["action"], 0) * e["size"] for e in trace]
    first = (found.requested_bytes or 0) - sum(change)
    level = peak = first
    for each in change:
        level += each
        peak = max(peak, level)
    assert level == found.requested_bytes
    assert peak == found.peak_requested_bytes
    assert sum(h.size_bytes for h in found.peak_holders) <= peak
    assert first >= 0
    assert found.history_complete is (first == 0)
    assert sum(size for _, size in found.kinds) == found.requested_bytes
    assert sum(size for _, size in found.peak_kinds) == found.peak_requested_bytes
    assert found.over_time is not None
    moments = zip(*(sizes for _, sizes in found.over_time.bytes_by_kind), strict=True)
    assert max(map(sum, moments)) == found.peak_requested_bytes


def test_a_real_step_holds_twice_its_gradients_in_adam_s_state() -> None:
    found, _ = both(FILES[2])
    kinds = dict(found.kinds)
    assert 0.999 < kinds["parameters"] / kinds["gradients"] <= 1  # 49 vectors have the size of another block
    assert kinds["optimizer"] == 2 * kinds["gradients"]
    assert kinds["unknown"] < 0.01 * (found.requested_bytes or 0)
