"""Rows of a comm run: maximum over ranks first, then over calls; rates last; partial runs keep what they have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.matrix.kinds import COMM
from stepscope.records import codec
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.comm import CommHeader, CommRow, CommSample, CommSpec, CommSummary
from stepscope.results.comm_rows import build_comm_rows, read_comm_rows, write_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record

SPEC = CommSpec(
    cell_id="all_reduce-float32-w4-x", kind="collective", op="all_reduce", dtype="float32", reduce_op="sum",
    in_place=False, mode="blocking", in_flight=1, pattern=None, root=0, pacing="barrier", sizes_bytes=(1000, 2000),
    world_size=4, device="cpu", backend="gloo", threads_per_rank=1,
)  # fmt: skip


def _sample(size: int, times: tuple[int, ...], **more) -> CommSample:
    return CommSample(
        **{"asked_bytes": size, "size_bytes": size, "numel": size // 4, "times_ns": times, "warmup_ns": (9, 9),
           "correct": True, "stop_reason": "fixed number of calls", **more}
    )  # fmt: skip


def _leave(layout: RunLayout, spec: CommSpec, samples: dict[int, list[CommSample]], status: str = "ok") -> None:
    files = layout.cell(spec.cell_id)
    write_record(files.spec, spec)
    write_record(
        files.status,
        CellStatus(cell_id=spec.cell_id, status=status, reason=None if status == "ok" else "why"),
    )
    for rank, found in samples.items():
        header = CommHeader(cell_id=spec.cell_id, rank=rank, world_size=spec.world_size, host="n", clock="perf_counter")
        lines = [codec.encode_line(header, header=True), *(codec.encode_line(sample) for sample in found)]
        write_bytes(files.samples(rank), b"".join(lines))
        summary = CommSummary(
            cell_id=spec.cell_id, rank=rank, local_rank=rank, world_size=spec.world_size, host="n", pid=1,
            device_name="cpu", torch_version="2", backend_version=None, scheduler_policy="SCHED_BATCH", num_threads=1,
        )  # fmt: skip
        write_record(files.summary(rank), summary)


def _row(folder: Path, samples: dict[int, list[CommSample]], spec: CommSpec = SPEC, **more) -> CommRow:
    layout = RunLayout(folder)
    _leave(layout, spec, samples)
    (row,) = build_comm_rows(layout, (spec,), **more)
    return row


def test_a_call_takes_as_long_as_its_slowest_rank_and_the_median_comes_after(tmp_path: Path) -> None:
    # Each rank is slow once: every rank's own median is 10, every call takes 90.
    times = {rank: tuple(90 if call == rank else 10 for call in range(4)) for rank in range(4)}
    row = _row(tmp_path, {rank: [_sample(1000, times[rank])] for rank in range(4)})
    assert row.time_ns_median == 90
    assert row.iterations == 4
    assert row.warmup == 2
    assert row.rank_spread == 0
    assert row.correct is True
    assert row.scheduler_policy == "SCHED_BATCH"


def test_rates_come_from_the_median_the_bus_factor_and_all_calls_in_flight(tmp_path: Path) -> None:
    samples = {rank: [_sample(1000, (1000,) * 7)] for rank in range(4)}
    row = _row(tmp_path, samples, peak_of=lambda *_: 3e9)
    assert row.algbw_bytes_per_s == pytest.approx(1e9)
    assert row.busbw_bytes_per_s == pytest.approx(1.5e9)  # 2 (4 - 1) / 4
    assert row.link_fraction == pytest.approx(0.5)
    row = _row(tmp_path / "b", samples, replace(SPEC, mode="async", in_flight=3))
    assert row.algbw_bytes_per_s == pytest.approx(3e9)


def test_what_was_measured_before_the_end_of_a_cell_stands_and_one_that_never_ran_has_a_row(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    samples = {rank: [_sample(1000, (10,) * 7)] for rank in range(4)}
    samples[0].append(_sample(2000, (10,) * 7))  # the others never came so far
    _leave(layout, SPEC, samples, status="timeout")
    first, end = build_comm_rows(layout, (SPEC,))
    assert (first.status, first.size_bytes) == ("ok", 1000)
    assert (end.status, end.error, end.size_bytes) == ("timeout", "why", None)
    (row,) = build_comm_rows(RunLayout(tmp_path / "b"), (SPEC,))
    assert row.status == "interrupted"
    assert row.time_ns_median is None


def test_a_skipped_size_keeps_its_reason_and_a_rounded_one_says_so(tmp_path: Path) -> None:
    skipped = _sample(3, (), size_bytes=None, numel=None, correct=None, skipped="3 bytes hold no float32")
    row = _row(tmp_path, {rank: [skipped] for rank in range(4)})
    assert (row.status, row.error) == ("skipped", "3 bytes hold no float32")
    row = _row(tmp_path / "b", {rank: [_sample(1001, (5,) * 7, size_bytes=1000)] for rank in range(4)})
    assert row.size_bytes == 1000
    assert "1,001 bytes asked for, rounded down to 1,000" in row.notes[0]


def test_one_wrong_result_voids_the_size_and_the_cell(tmp_path: Path) -> None:
    samples = {rank: [_sample(1000, (5,) * 7)] for rank in range(4)}
    samples[2] = [_sample(1000, (5,) * 7, correct=False, wrong="element 3 is 7, expected 6")]
    row = _row(tmp_path, samples)
    assert row.status == "error"
    assert row.correct is False
    assert "rank 2: element 3 is 7, expected 6" in (row.error or "")
    ended = COMM.conclude(RunLayout(tmp_path), SPEC)
    assert (ended.status, ended.failing_rank) == ("error", 2)


def test_what_the_backend_lacks_is_unsupported_in_its_own_words(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    _leave(layout, SPEC, {rank: [] for rank in range(4)})
    for rank in range(4):
        path = layout.cell(SPEC.cell_id).summary(rank)
        summary = codec.decode(path.read_bytes(), CommSummary, source="x")
        write_record(path, replace(summary, unsupported="gloo: no such op"))
    assert COMM.conclude(layout, SPEC).status == "unsupported"


def test_rows_come_back_from_the_run_folder_and_a_training_run_is_refused(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    _leave(layout, SPEC, {rank: [_sample(1000, (5,) * 7)] for rank in range(4)})
    write_record(layout.run, RunRecord(kind="comm", name="comm", matrix={}, cells=(SPEC.cell_id,), argv=()))
    rows = build_comm_rows(layout, (SPEC,))
    write_comm_rows(layout, rows)
    assert read_comm_rows(tmp_path) == rows
    write_record(layout.run, RunRecord(kind="bench", name="x", matrix={}, cells=(), argv=()))
    with pytest.raises(DataError, match="holds a bench run"):
        read_comm_rows(tmp_path)
