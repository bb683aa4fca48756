"""ColumnBuilder: odd types are read as far as they make sense, damage is one error with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace_builder import build, rank_text
from tests.trace_layout import write

from stepscope.core.errors import DataError
from stepscope.traces.decode import ColumnBuilder
from stepscope.traces.events import Category, Events
from stepscope.traces.load import load_file


def built(*blocks: str | bytes) -> tuple[Events, list[str]]:
    builder = ColumnBuilder("file")
    for block in blocks:
        builder.add(block.encode() if isinstance(block, str) else block, offset=0)
    return builder.build(), [n.text for n in builder.notes()]


def event(**changes: Any) -> str:
    whole: dict[str, Any] = {
        "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5.25, "dur": 2,
        "args": {"correlation": 3, "External id": 4, "stream": 9, "device": 1},
    }  # fmt: skip
    return json.dumps({**whole, **changes})


def columns(events: Events) -> tuple[list[int], ...]:
    return tuple(
        getattr(events, key).tolist()
        for key in ("ts_ns", "dur_ns", "category", "stream", "device", "correlation", "external_id")
    )


PLAIN = ([5250], [2000], [1], [9], [1], [3], [4])


@pytest.mark.parametrize(
    "changes",
    [
        {"ts": "5.25"}, {"dur": "2"}, {"dur": 2.0}, {"pid": "0"}, {"pid": 0.0}, {"tid": [7]}, {"name": 12},
        {"args": {"correlation": 3.0, "External id": "4", "stream": "9", "device": 1}},
        {"args": {"correlation": "3", "External id": 4, "stream": 9, "device": "1", "Input Dims": {"a": []}}},
        {"args": {"correlation": 3, "External id": 4, "stream": 9, "device": 1, "Group size": "two", "flops": "x"}},
        {"args": {"correlation": 3, "External id": 4, "stream": 9, "device": 1, "bytes": [], "Collective name": 3}},
    ],
)  # fmt: skip
def test_values_of_other_types_are_read_as_far_as_they_make_sense(changes: dict[str, Any]) -> None:
    events, _ = built(f"{event()}, {event(**changes)}, {event()}")
    assert columns(events) == tuple(v * 3 for v in PLAIN)


@pytest.mark.parametrize("args", [None, [], [1], "text", 5, {"stream": None}, {"correlation": "none"}, {"device": {}}])
def test_arguments_that_make_no_sense_are_as_if_not_recorded(args: object) -> None:
    events, notes = built(f"{event()}, {event(args=args)}")
    assert events.ts_ns.tolist() == [5250, 5250]
    assert events.correlation.tolist() == [3, -1]
    assert events.stream.tolist() == [9, 7]  # from the thread: device events run on a stream
    assert len(notes) == (0 if args is None else 1)
    assert all(n.startswith("1 events with values of unexpected types") for n in notes)


def test_the_count_of_odd_events_is_exact() -> None:
    _, notes = built(", ".join([event(), event(pid=1.5), event(), event(dur="9"), event()]))
    assert notes == ["2 events with values of unexpected types; invalid values count as not recorded"]


@pytest.mark.parametrize("thing", ["5", '"x"', "null", "[]", "[{}]", "true"])
def test_things_between_events_that_are_no_events_are_left_out(thing: str) -> None:
    events, notes = built(f"{event()}, {thing}, {event()}")
    assert len(events) == 2
    assert notes == ["1 events that are not objects (left out)"]


def test_times_stay_exact_where_events_are_read_loosely() -> None:
    events, _ = built(
        event(ts="1712195495505582.988"), event(ts=1, args=5).replace('"ts": 1', '"ts": 1712195495505582.988')
    )
    assert events.ts_ns.tolist() == [1712195495505582988] * 2


def test_an_unset_stream_is_none_and_a_large_correlation_fits() -> None:
    events, _ = built(event(cat="cuda_sync", args={"stream": 2**32 - 1, "correlation": 2**40, "External id": 2**70}))
    assert (events.stream[0], events.correlation[0], events.external_id[0]) == (-1, 2**40, -1)


@pytest.mark.parametrize("generation", ["relative", "lines", "absolute"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"name": "aten::mm"', '"name": "aten::mm "x" y"'),
        ('"name": "aten::mm"', '"name": "a\x02b"'),
        ('"External id": 6', '"External id": NaN'),
        ('"bytes": 1048576', '"bytes": 1048576, "memory bandwidth (GB/s)": inf'),
    ],
)
def test_what_the_profiler_itself_gets_wrong_is_mended_and_said(
    old: str, new: str, generation: str, tmp_path: Path
) -> None:
    text = rank_text(build(generation=generation, steps=2), 0)
    assert old in text
    good = load_file(write(tmp_path / "good.json", text))
    bad = load_file(write(tmp_path / "bad.json", text.replace(old, new, 1)))
    assert bad.events.ts_ns.tolist() == good.events.ts_ns.tolist()
    assert bad.events.dur_ns.tolist() == good.events.dur_ns.tolist()
    assert {n.kind for n in bad.notes} == {"repaired"}
    assert bad.notes[0].text.endswith("repaired")


def test_the_device_scan_gives_way_where_a_name_cannot_be_read(tmp_path: Path) -> None:
    text = rank_text(build(), 0)
    for new in ("mm\\x_kernel", "mm\x03_kernel", 'mm"_kernel'):
        path = write(tmp_path / "bad.json", text.replace("mm_kernel", new, 1))
        full, scanned = load_file(path), load_file(path, device_only=True)
        on_device = full.events.is_device
        assert scanned.events.ts_ns[scanned.events.is_device].tolist() == full.events.ts_ns[on_device].tolist()


def test_damage_that_cannot_be_mended_is_an_error_with_file_and_place(tmp_path: Path) -> None:
    text = rank_text(build(steps=2), 0)
    place = text.index('"dur"', len(text) // 2)
    path = write(tmp_path / "bad.json", text[:place] + "}{" + text[place:])
    with pytest.raises(DataError, match=r"bad\.json: not valid JSON") as error:
        load_file(path)
    said = int(error.value.what.split("byte ")[1].split(" ")[0].replace(",", ""))
    assert abs(said - place) < 5
    assert error.value.fix


def test_json_too_deep_to_read_is_an_error_not_a_crash(tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    for layout in ("kineto", "compact"):
        text = rank_text(build(steps=1), 0, layout=layout)
        text = text.replace('"Ev Idx"', f'"deep": {deep}, "Ev Idx"', 1)
        with pytest.raises(DataError, match="not valid JSON"):
            load_file(write(tmp_path / "deep.json", text))


def test_collective_arguments_are_kept_by_event(tmp_path: Path) -> None:
    job = build(shape="tensor", world=4, steps=1, layers=2)
    events = load_file(write(tmp_path / "t.json", rank_text(job, 3))).events
    found = [events.collectives[i] for i in sorted(events.collectives)]
    assert [c.sequence for c in found] == [1, 2, 3, 4]
    assert {(c.name, c.group_name, c.group_size, c.group_ranks, c.dtype) for c in found} == {
        ("allreduce", "tp2", 2, "[2, 3]", "Float")
    }
    assert all(events.name_of(i).startswith("ncclDevKernel_AllReduce") for i in events.collectives)


def test_the_header_is_kept(tmp_path: Path) -> None:
    job = build(steps=1)
    meta = load_file(write(tmp_path / "t.json", rank_text(job, 0))).meta
    assert meta.groups[0].ranks == (0, 1)
    assert (meta.world_size, meta.backend) == (2, "nccl")


def test_names_and_threads_are_coded_once(tmp_path: Path) -> None:
    events = load_file(write(tmp_path / "t.json", rank_text(build(steps=3), 0))).events
    assert len(set(events.names)) == len(events.names)
    assert len(set(events.threads)) == len(events.threads)
    assert sorted(set(events.name.tolist())) == list(range(len(events.names)))


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("musa_runtime", Category.RUNTIME), ("hip_driver", Category.DRIVER), ("cuda_runtime", Category.RUNTIME),
        ("runtime_of_a_game", Category.OTHER), ("ac2g", Category.OTHER),
    ],
)  # fmt: skip
def test_calls_of_any_makers_runtime_are_known_by_their_category(category: str, code: Category) -> None:
    events, _ = built(event(cat=category))
    assert events.category.tolist() == [code]
