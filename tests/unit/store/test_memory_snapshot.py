"""Memory snapshots: what the allocator held, what the history says, and what must not be loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.memory_pickles import MIB, alloc, contents, dump, event, free, live, pending, release, segment

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.store.importers import detect, read_foreign
from stepscope.store.importers.memory_snapshot import IMPORTER, read_snapshot
from stepscope.store.memory_history import place

MODEL, LOSS = "/home/me/proj/model.py:12 forward", "/home/me/proj/train.py:40 loss"
INSIDE = "/usr/lib/python3/site-packages/torch/nn/modules/linear.py:125 forward"


def test_totals_are_those_of_the_blocks(tmp_path: Path) -> None:
    path = dump(
        tmp_path / "s.pickle",
        [
            segment(live(3 * MIB, asked=3 * MIB - 100), free(5 * MIB), pending(2 * MIB), free(10 * MIB)),
            segment(free(20 * MIB)),
            segment(live(2 * MIB), free(6 * MIB), expandable=True),
        ],
    )
    (found,) = read_snapshot(path)
    assert (found.segments, found.segment_bytes, found.device) == (3, 48 * MIB, 0)
    assert (found.allocated_bytes, found.requested_bytes, found.active_bytes) == (
        5 * MIB,
        5 * MIB - 100,
        7 * MIB,
    )
    assert found.largest_free_bytes == 20 * MIB
    assert found.notes[0].startswith("no history")
    assert found.peak_requested_bytes is None


def test_fragments_are_free_blocks_beside_used_ones(tmp_path: Path) -> None:
    """A segment that is free as a whole can be given back; expandable segments give back their free parts."""
    parts = [
        segment(live(3 * MIB), free(5 * MIB)),
        segment(free(20 * MIB)),
        segment(live(1), free(9), expandable=True),
    ]
    (found,) = read_snapshot(dump(tmp_path / "s.pickle", parts))
    assert found.inactive_split_bytes == 5 * MIB
    assert found.fragmentation_fraction == pytest.approx(5 * MIB / (28 * MIB + 10))


def test_the_peak_is_found_by_walking_back_from_the_snapshot(tmp_path: Path) -> None:
    """10 lives from the start of the history on; 10 + 30 + 20 is the peak; 10 + 20 are left."""
    trace = [
        event("segment_alloc", 40 * MIB, us=10),
        alloc(1, 30 * MIB, MODEL),
        event("segment_alloc", 20 * MIB),
        alloc(2, 20 * MIB, LOSS),
        *release(1, 30 * MIB, MODEL),
        event("segment_free", 40 * MIB, us=4010),
    ]
    held = [segment(live(10 * MIB, at=9), live(20 * MIB, at=2, where=LOSS))]
    (found,) = read_snapshot(dump(tmp_path / "s.pickle", held, trace))
    assert (found.peak_requested_bytes, found.peak_reserved_bytes) == (60 * MIB, 70 * MIB)
    assert found.history_complete is False
    assert found.history_ns == 4_010_000
    assert [(h.where, h.size_bytes) for h in found.peak_holders] == [
        ("proj/model.py:12 forward", 30 * MIB),
        ("proj/train.py:40 loss", 20 * MIB),
        ("unknown place (allocated before the recorded history)", 10 * MIB),
    ]
    assert found.holders[0].where == "proj/train.py:40 loss"


def test_every_device_has_a_record(tmp_path: Path) -> None:
    path = dump(tmp_path / "s.pickle", [segment(live(1), device=1), segment(live(2), device=0)])
    assert [(m.device, m.allocated_bytes) for m in read_snapshot(path)] == [(0, 2), (1, 1)]


def test_the_place_is_the_innermost_line_outside_torch() -> None:
    def frame(text: str) -> dict[str, object]:
        at, _, name = text.partition(" ")
        file, _, line = at.rpartition(":")
        return {"filename": file, "line": int(line), "name": name}

    assert place([{"filename": "??", "line": 0, "name": "malloc"}, frame(INSIDE), frame(MODEL), frame(LOSS)]) == (
        "proj/model.py:12 forward"
    )
    assert place([frame(INSIDE)]) == "modules/linear.py:125 forward"
    assert place([{"filename": "x.cpp", "line": 1, "name": "f"}]) == "inside torch (no Python frame)"
    assert place([]).startswith("unknown place")


def test_a_pickle_with_code_is_refused_and_says_so(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[Code()]]}))
    with pytest.raises(DataError, match="refused: the pickle imports") as caught:
        read_foreign(path)
    assert "loading anything else would run its code" in (caught.value.why or "")
    assert not (tmp_path / "made").exists()


def test_a_checkpoint_is_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps({"epoch": 3, "loss": 0.5}))
    with pytest.raises(DataError, match="not a memory snapshot") as caught:
        read_foreign(path)
    assert "['epoch', 'loss']" in (caught.value.why or "")


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_pickle_is_damaged(tmp_path: Path, share: float) -> None:
    path = dump(tmp_path / "s.pickle", [segment(live(1, where=MODEL))] * 20)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataError, match="damaged pickle"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "wrong", [{"segments": 5}, {"segments": [{"blocks": "x"}]}, {"segments": [{"total_size": "a"}]}]
)
def test_values_of_another_kind_are_damage(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(wrong))
    with pytest.raises(DataError, match="damaged memory snapshot"):
        read_snapshot(path)


@pytest.mark.parametrize("value", [-1, -(10**60), 10**60, 1 << 60, 1.5, "much", float("nan")])
@pytest.mark.parametrize("where", ["total_size", "allocated_size", "size", "requested_size", "event", "device"])
def test_sizes_that_no_memory_has_are_damage_with_their_place(tmp_path: Path, where: str, value: object) -> None:
    whole = contents([segment(live(7), free(9))], [alloc(0, 7)])
    if where == "event":
        whole["device_traces"][0][0]["size"] = value
    else:
        (whole["segments"][0] if where in whole["segments"][0] else whole["segments"][0]["blocks"][1])[where] = value
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(whole))
    with pytest.raises(DataError, match="damaged memory snapshot") as caught:
        read_snapshot(path)
    assert "at `$" in (caught.value.why or "")


def test_an_empty_snapshot_says_when_to_take_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty") as caught:
        read_snapshot(dump(tmp_path / "s.pickle", []))
    assert "_record_memory_history" in (caught.value.fix or "")


def test_the_list_of_segments_alone_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(contents([segment(live(7))])["segments"]))
    assert read_snapshot(path)[0].allocated_bytes == 7


def test_a_folder_of_snapshots(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path / f"rank{rank}.pickle", [segment(live(rank + 1))])
    (tmp_path / "README.md").write_text("what this is")
    (tmp_path / "broken.pickle").write_bytes(b"\x80\x04}")
    assert detect(tmp_path)[0] == "memory_snapshot"
    read = IMPORTER.read(tmp_path, Stated())
    assert [m.allocated_bytes for m in read.memory] == [1, 2]
    assert len(read.notes) == 2
