"""Figures of step diaries made by hand: what is planted is found, and nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.diaries import START_UNIX_NS, simulate, write_diary

from stepscope.core.errors import DataError
from stepscope.records.parts import LEAVES
from stepscope.records.profile import COLUMNS, FIRST, PROFILED, WINDOW
from stepscope.results.diary import (
    JobSteps,
    between_steps,
    beyond_chance,
    job_steps,
    late_ranks,
    longest_step,
    parts_of,
    pauses,
    saved_share,
    share,
    window_slowdown,
)
from stepscope.results.job_change import job_change
from stepscope.store.diary import read_diaries
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import latest_step_ns, steps_in


def steps_of(folder: Path) -> JobSteps:
    found = job_steps(read_diaries(ProfileLayout(folder)))
    assert found is not None
    return found


OLD = (
    b'{"schema": "stepscope.diary/1", "tool_version": "0.9.0", "created": "2026-11-20T08:00:00Z", "rank": 0, '
    b'"world_size": 1, "host": "n1", "pid": 7, "restart": 0, "start_unix_ns": 1763000000000000000, "set_up_ns": null, '
    b'"threads": 1, "cores": 2}\n'
)
"""The first line of a diary as it was before its columns were named there."""


def _old(steps: int) -> bytes:
    """Steps of 10 ms: 2 of data, 1 before, 3 forward, 4 backward, on an idle machine."""
    row = [10e6, 2e6, 1e6, 3e6, 4e6, 0.0, 0.0, 0.0, 8e6]
    return b"".join(struct.pack("<9fHBB", *row, 0, 1, FIRST * (not at)) for at in range(steps))


def _steps(folder: Path, head: bytes, body: bytes) -> JobSteps:
    path = folder / ".stepscope" / "diary-00000-0.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(head + body)
    steps = steps_of(folder)
    assert steps_in(path) == steps.all_steps
    assert latest_step_ns(path) == 10e6
    return steps


def test_a_diary_from_before_its_columns_were_named_is_read(tmp_path: Path) -> None:
    steps = _steps(tmp_path, OLD, _old(30) + b"cut short")
    assert (steps.all_steps, steps.diaries[0].micro_steps[-1]) == (30, 1)
    parts = {key: round(float(values.mean()) / 1e6, 3) for key, values in parts_of(steps).items()}
    assert parts == dict.fromkeys(LEAVES, 0) | {"data": 2, "before": 1, "forward": 3, "backward": 4}
    assert np.isnan(steps.idle_before_ns).all()


def test_columns_that_a_later_version_adds_are_passed_over(tmp_path: Path) -> None:
    columns = ["new_ns", *reversed(COLUMNS)]
    head = json.loads(OLD) | {"columns": columns, "record": f"<{len(columns)}fHBB"}
    known = dict.fromkeys(columns, 0.0) | {"whole_ns": 10e6, "forward_ns": 7e6, "inference_ns": 3e6, "new_ns": 5e6}
    row = struct.pack(head["record"], *known.values(), 0, 1, 0)
    steps = _steps(tmp_path, json.dumps(head).encode() + b"\n", row * 20)
    assert {name: float(steps.parts_ns[name][0, 0]) for name in ("forward", "inference")} == {
        "forward": 7e6, "inference": 3e6,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"record": "<9dHBB"},
        {"columns": ["whole_ns"], "record": "<1fHBB"},
        {"columns": [*COLUMNS, "whole_ns"], "record": f"<{len(COLUMNS) + 1}fHBB"},
    ],
)
def test_records_of_another_kind_are_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    head = json.dumps(json.loads(OLD) | changed).encode() + b"\n"
    with pytest.raises(DataError, match="another format"):
        _steps(tmp_path, head, _old(3))


def test_share_of_data_is_that_of_the_timed_steps(tmp_path: Path) -> None:
    marks = [FIRST] + [0] * 49 + [PROFILED] * 10
    waits = [90.0] + [4.0] * 49 + [50.0] * 10
    write_diary(tmp_path, {"data": waits, "forward": [6.0] * 60}, flags=marks)
    steps = steps_of(tmp_path)
    part = share(steps.parts_ns["data"], steps.whole_ns)
    assert part.value == pytest.approx(0.4)
    assert part.low == pytest.approx(0.4)
    assert not set(steps.numbers.tolist()) & {1, *range(51, 61)}


def test_interval_of_a_share_holds_the_planted_one(tmp_path: Path) -> None:
    held = 0
    for seed in range(40):
        folder = tmp_path / str(seed)
        simulate(folder, ranks=1, steps=300, seed=seed, data_ms=6.0, forward_ms=4.0, backward_ms=8.0, noise=0.1)
        steps = steps_of(folder)
        part = share(steps.parts_ns["data"], steps.whole_ns)
        held += part.low <= 6.0 / (6.0 + 4.0 + 8.0 + 1.0) <= part.high
    assert held >= 34


def test_a_profiled_window_on_one_rank_leaves_its_steps_out_on_all(tmp_path: Path) -> None:
    for rank in range(2):
        marks = [PROFILED if rank == 1 and at >= 30 else 0 for at in range(40)]
        write_diary(tmp_path, {"forward": [5.0] * 40, "comm": [1.0] * 40}, rank=rank, world_size=2, flags=marks)
    assert int(steps_of(tmp_path).numbers.max()) == 30


@pytest.mark.parametrize(("ranks", "late"), [(2, 1.25), (4, 1.4)])
def test_slow_rank_is_named_and_no_other(tmp_path: Path, ranks: int, late: float) -> None:
    for seed in range(10):
        folder = tmp_path / str(seed)
        simulate(folder, ranks=ranks, steps=200, seed=seed, slow={ranks - 1: late}, noise=0.03)
        steps = steps_of(folder)
        slow = [each for each in late_ranks(steps) if each.kind == "chronic"]
        assert [each.rank for each in slow] == [ranks - 1]
        excess = (late - 1) * 12.0
        assert slow[0].excess_ns == pytest.approx(excess * 1e6, rel=0.1)
        truth = excess / float(np.median(steps.step_ns) / 1e6)
        assert saved_share(steps, slow) == pytest.approx(truth, rel=0.2)


def test_slow_rank_is_named_by_cpu_time_where_waits_are_not_seen(tmp_path: Path) -> None:
    for rank in range(2):
        own = 16.0 + 6.6 * rank
        n = 100
        columns = {"forward": [12.0] * n, "backward": [20.0] * n, "cpu": [own] * n}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.0)
    steps = steps_of(tmp_path)
    assert [each.rank for each in late_ranks(steps)] == [1]
    assert float(steps.transfer_ns.mean()) == pytest.approx(32e6 - 22.6e6, rel=0.01)


def test_clean_ranks_have_no_straggler(tmp_path: Path) -> None:
    found = 0
    for seed in range(100):
        folder = tmp_path / str(seed)
        simulate(folder, ranks=2 + 2 * (seed % 2), steps=60, seed=seed, noise=0.05)
        found += any(each.kind == "chronic" for each in late_ranks(steps_of(folder)))
    assert found <= 1


def test_evaluation_has_its_share_of_the_wall_time_and_its_period(tmp_path: Path) -> None:
    every = [{"kind": "evaluation", "step": s, "at_ns": 0, "ns": 100_000_000} for s in range(20, 201, 20)]
    outside = [100.0 if s % 20 == 0 else 0.0 for s in range(1, 201)]
    write_diary(tmp_path, {"forward": [10.0] * 200, "outside": outside}, events=every)
    (found,) = between_steps(steps_of(tmp_path))
    assert (found.kind, found.period) == ("evaluation", 20)
    assert found.mean_ns == 1e8
    assert found.share.value == pytest.approx(100 / 300, rel=1e-3)


@pytest.mark.parametrize(("longer", "noise", "mean_ms"), [(4.0, 0.1, 108.0), (40.0, 0.1, 125.0), (0.5, 3.0, 100.0)])
def test_what_passes_after_an_event_take_longer_is_its_cost(
    longer: float, noise: float, mean_ms: float, tmp_path: Path
) -> None:
    """In its step and the next, up to a quarter of the event, and beyond chance."""
    rng = np.random.default_rng(5)
    every = [{"kind": "evaluation", "step": s, "at_ns": 0, "ns": 100_000_000} for s in range(20, 401, 20)]
    outside = [100.0 if s % 20 == 0 else 0.0 for s in range(1, 401)]
    after = np.array([longer if s % 20 in (0, 1) and s > 1 else 0.0 for s in range(1, 401)])
    columns = {"forward": rng.normal(10.0, noise, 400) + after, "outside": outside}
    write_diary(tmp_path, columns, events=every)
    (event,) = between_steps(steps_of(tmp_path))
    assert event.mean_ns == pytest.approx(mean_ms * 1e6, rel=0.01)


def test_the_share_of_events_is_that_of_steps_that_nothing_recorded(tmp_path: Path) -> None:
    """Profiled steps are longer, and their evaluation comes as often."""
    every = [{"kind": "evaluation", "step": s, "at_ns": 0, "ns": 100_000_000} for s in range(20, 201, 20)]
    outside = [100.0 if s % 20 == 0 else 0.0 for s in range(1, 201)]
    inside = [60 < s <= 100 for s in range(1, 201)]
    columns = {"forward": [30.0 if each else 10.0 for each in inside], "outside": outside}
    write_diary(tmp_path, columns, events=every, flags=[PROFILED if each else 0 for each in inside])
    (event,) = between_steps(steps_of(tmp_path))
    assert event.share.value == pytest.approx(100 / 300, rel=1e-3)


def test_who_waits_for_a_checkpoint_waits_for_no_step(tmp_path: Path) -> None:
    saves = [{"kind": "checkpoint", "step": s, "at_ns": 0, "ns": 400_000_000} for s in range(20, 201, 20)]
    for rank in range(2):
        at = [s % 20 == 0 for s in range(1, 201)]
        columns = {
            "forward": [10.0] * 200,
            "comm": [401.0 if each and rank else 1.0 for each in at],
            "outside": [400.0 if each and not rank else 0.0 for each in at],
        }
        write_diary(tmp_path, columns, rank=rank, world_size=2, events=saves if rank == 0 else ())
    steps = steps_of(tmp_path)
    assert float(steps.comm_ns.max()) == 1e6
    (found,) = between_steps(steps)
    assert (found.kind, found.ranks, found.period) == ("checkpoint", (0,), 20)
    assert found.share.value == pytest.approx(400 / 620, rel=1e-3)


def test_pauses_without_a_known_event_and_drift_are_found_where_they_begin(tmp_path: Path) -> None:
    times = [10.0 if s % 15 else 500.0 for s in range(1, 151)]
    write_diary(tmp_path, {"forward": times})
    found = pauses(steps_of(tmp_path))
    assert found.period == 15
    assert found.mean_ns == pytest.approx(490e6)
    rng = np.random.default_rng(3)
    write_diary(tmp_path / "b", {"forward": np.r_[rng.normal(10, 0.2, 300), rng.normal(10.9, 0.2, 300)].tolist()})
    steps = steps_of(tmp_path / "b")
    assert job_change(steps).step == pytest.approx(301, abs=5)


@pytest.mark.parametrize(("steps", "count"), [(60, 5), (60, 12), (100, 3), (200, 4), (200, 8), (1000, 20)])
@pytest.mark.parametrize("lasting", [1, 3])
def test_pauses_at_random_steps_have_no_period(steps: int, count: int, lasting: int) -> None:
    """As of two trainings that share a machine: single steps, and stretches of three."""
    rng = np.random.default_rng(7)
    drawn = [rng.choice(steps - lasting, max(count // lasting, 1), replace=False) for _ in range(200)]
    placed = [np.unique(np.concatenate([each + i for i in range(lasting)])) for each in drawn]
    assert sum(beyond_chance(numbers, steps) is not None for numbers in placed) <= 2


@pytest.mark.parametrize(("count", "every"), [(4, None), (5, 20), (10, 20)])
def test_a_period_needs_five_pauses_one_step_more_or_less_apart(count: int, every: int | None) -> None:
    begins = np.arange(1, count + 1) * 20
    begins[2] += 1
    assert beyond_chance(begins, 20 * (count + 1)) == every
    assert beyond_chance(np.sort(np.r_[begins, begins + 1]), 20 * (count + 1)) == every, "each lasts two steps"


@pytest.mark.parametrize(
    ("lengths", "share_of_delay", "regular"),
    [((400.0,), 0.0, True), ((400.0,), 0.9, False), ((100.0, 300.0, 900.0, 2700.0), 0.0, False)],
)
def test_pauses_of_one_kind_are_the_jobs_and_what_lacked_a_processor_is_not(
    lengths: tuple[float, ...], share_of_delay: float, regular: bool, tmp_path: Path
) -> None:
    times = [10.0 if s % 15 else 10.0 + lengths[s // 15 % len(lengths)] for s in range(1, 201)]
    delay = [share_of_delay * (each - 10.0) / each for each in times]
    write_diary(tmp_path, {"forward": times}, delay=delay)
    found = pauses(steps_of(tmp_path))
    assert (found.period == 15) is regular


def test_processes_of_one_rank_are_independent_or_one_restarted(tmp_path: Path) -> None:
    for attempt in range(2):
        write_diary(tmp_path, {"forward": [10.0] * 40}, attempt=attempt, pid=100 + attempt)
    assert steps_of(tmp_path).independent
    write_diary(tmp_path / "b", {"forward": [10.0] * 40}, restart=0)
    write_diary(
        tmp_path / "b", {"forward": [20.0] * 30}, attempt=1, restart=1, start_unix_ns=START_UNIX_NS + 10_000_000_000
    )
    steps = steps_of(tmp_path / "b")
    assert not steps.independent
    assert steps.all_steps == 30


def test_three_steps_are_enough_for_shares(tmp_path: Path) -> None:
    write_diary(tmp_path, {"data": [5.0, 4.0, 4.0], "forward": [5.0, 6.0, 6.0]}, flags=[FIRST, 0, 0])
    steps = steps_of(tmp_path)
    part = share(steps.parts_ns["data"], steps.whole_ns)
    assert (part.value, part.low) == (pytest.approx(0.4), None)


def test_garbage_collections_are_events_and_their_steps_no_usual_ones(tmp_path: Path) -> None:
    events = [
        {"kind": "garbage_collection", "step": s, "at_ns": 0, "ns": 500_000_000, "inside": True}
        for s in range(15, 151, 15)
    ]
    times = [10.0 if s % 15 else 510.0 for s in range(1, 151)]
    write_diary(tmp_path, {"forward": times}, events=events)
    steps = steps_of(tmp_path)
    assert float(steps.whole_ns.max()) == pytest.approx(10e6)
    (found,) = between_steps(steps)
    assert (found.kind, found.period, found.inside) == ("garbage_collection", 15, True)
    assert found.share.value == pytest.approx(500 / 650, rel=1e-3)
    assert pauses(steps) is None


def test_the_last_steps_alone_are_those_of_the_whole_diary(tmp_path: Path) -> None:
    """Ranks of a running job are not equally far; one has begun anew, one diary is cut in a record."""
    rng = np.random.default_rng(0)
    for rank, steps in enumerate((300, 306, 311)):
        drawn = {"forward": rng.normal(5.0, 0.2, steps), "comm": rng.normal(1.0, 0.1, steps)}
        events = [
            {"kind": "garbage_collection", "step": n, "at_ns": 0, "ns": 3_000_000, "inside": True}
            for n in range(20, steps, 40)
        ]
        write_diary(tmp_path, drawn, rank=rank, world_size=3, events=events)
    (old,) = (path for path in ProfileLayout(tmp_path).diaries() if "00002" in path.name)
    write_diary(
        tmp_path, {"forward": [9.0] * 20}, rank=2, world_size=3, attempt=1, start_unix_ns=START_UNIX_NS - 10**12
    )
    with old.open("ab") as file:
        file.write(b"torn")
    layout = ProfileLayout(tmp_path)
    whole, tail = job_steps(read_diaries(layout)), job_steps(read_diaries(layout, last=100))
    assert whole is not None
    assert tail is not None
    assert [(each.first, each.made) for each in tail.diaries] == [(200, 300), (200, 306), (200, 311)]
    assert (tail.first, tail.all_steps, tail.independent) == (200, 300, False)
    kept = whole.numbers > 200
    assert tail.numbers.tolist() == whole.numbers[kept].tolist()
    np.testing.assert_array_equal(tail.own_ns, whole.own_ns[:, kept])
    np.testing.assert_array_equal(tail.inside_ns, whole.inside_ns[:, kept])
    (collected,) = between_steps(tail)
    assert (collected.count, collected.period) == (3, 40)


@pytest.mark.parametrize(
    ("other_ms", "together"),
    [
        (23.0, False),  # it steps twice while the other, which leaves out every second call, steps once
        (38.0, False),  # nobody waits for it
        (45.6, True),  # one step of 115 apart at the end, as skew may be
    ],
)
def test_ranks_that_come_apart_are_not_compared(tmp_path: Path, other_ms: float, together: bool) -> None:
    n = 120
    write_diary(tmp_path, {"before": [44.0] * n, "comm": [2.0] * n}, rank=1, world_size=2)
    write_diary(tmp_path, {"before": [other_ms - 2.0] * n, "comm": [2.0] * n}, rank=0, world_size=2)
    steps = steps_of(tmp_path)
    assert steps.together is together
    assert bool(late_ranks(steps)) is False


def test_ranks_whose_host_runs_ahead_of_the_device_are_together(tmp_path: Path) -> None:
    ahead = [60.0] * 12 + [100.0] * 188
    write_diary(tmp_path, {"forward": [100.0] * 200}, rank=0, world_size=2)
    write_diary(tmp_path, {"forward": ahead}, rank=1, world_size=2)
    assert steps_of(tmp_path).together


def test_the_longest_step_is_of_the_rank_that_the_other_waited_for(tmp_path: Path) -> None:
    for rank in range(2):
        own, comm = [10.0] * 60, [1.0] * 60
        own[40], comm[40] = (10.0, 92.0) if rank == 0 else (100.0, 1.0)  # rank 0 ends it a little later
        write_diary(tmp_path, {"before": own, "comm": comm}, rank=rank, world_size=2)
    found = longest_step(steps_of(tmp_path))
    assert found is not None
    assert (found.number, found.rank, found.ns) == (41, 1, pytest.approx(101e6))


def _with_window(folder: Path, *, own_ms: tuple[float, float], profiled_ms: tuple[float, float], at: range) -> JobSteps:
    """Two ranks that end each step together: own time, then waiting for the other."""
    for rank in range(2):
        forward = [profiled_ms[rank] if s in at else own_ms[rank] for s in range(60)]
        longest = [max(profiled_ms if s in at else own_ms) for s in range(60)]
        columns = {
            "forward": forward,
            "comm": [1.0 + whole - mine for whole, mine in zip(longest, forward, strict=True)],
        }
        flags = [FIRST, *(PROFILED if s in at else WINDOW if s == at.start - 1 else 0 for s in range(1, 60))]
        write_diary(folder, columns, rank=rank, world_size=2, flags=flags, delay=0.0)
    return steps_of(folder)


def test_the_window_slows_one_rank_more_than_the_other(tmp_path: Path) -> None:
    found = window_slowdown(_with_window(tmp_path, own_ms=(9.0, 9.0), profiled_ms=(19.0, 10.0), at=range(30, 38)))
    assert found is not None
    assert found[0] == pytest.approx(2.0)
    assert found[1] == pytest.approx({0: 19 / 9, 1: 10 / 9})


def test_slowdown_is_that_of_the_latest_window_on_the_ranks_that_it_profiled(tmp_path: Path) -> None:
    for rank in range(2):
        forward = [30.0 if 10 <= s < 18 else 15.0 if 40 <= s < 48 and rank else 9.0 for s in range(60)]
        flags = [PROFILED if 10 <= s < 18 or (40 <= s < 48 and rank) else 0 for s in range(60)]
        write_diary(tmp_path, {"forward": forward, "comm": [1.0] * 60}, rank=rank, world_size=2, flags=flags)
    found = window_slowdown(steps_of(tmp_path))
    assert found is not None
    assert found[0] == pytest.approx(1.6)
    assert found[1] == pytest.approx({1: 15 / 9})


def test_a_rank_that_only_waits_in_the_window_has_no_slowdown(tmp_path: Path) -> None:
    found = window_slowdown(_with_window(tmp_path, own_ms=(9.0, 9.0), profiled_ms=(18.0, 0.0), at=range(30, 38)))
    assert found is not None
    assert found[1] == pytest.approx({0: 2.0})


def test_slowdown_is_unknown_where_no_step_was_profiled_or_all_were(tmp_path: Path) -> None:
    write_diary(tmp_path / "timed", {"forward": [5.0] * 20})
    write_diary(tmp_path / "profiled", {"forward": [5.0] * 20}, flags=PROFILED)
    assert window_slowdown(steps_of(tmp_path / "timed")) is None
    assert window_slowdown(steps_of(tmp_path / "profiled")) is None
