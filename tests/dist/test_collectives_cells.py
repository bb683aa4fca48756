"""Whole comm cells on real ranks: what is measured, skipped, refused, written, and told to the controller."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from stepscope.core.errors import UsageError
from stepscope.rank.comm import job as job_module
from stepscope.rank.comm import sweep
from stepscope.rank.comm.cell import run_comm
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.rank.startup import RankContext, RankPlace
from stepscope.records.cell import GroupSpec, MeasureSettings
from stepscope.records.comm import CommMeasure, CommSample, CommSpec, CommSummary
from stepscope.records.samples import Heartbeat
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_comm_samples, read_if_there, read_record

FIXED = CommMeasure(warmup=2, iterations=3)
numbers = itertools.count()

PLAIN = CommSpec(
    cell_id="cell", kind="collective", op="all_reduce", dtype="float32", reduce_op="sum", in_place=True, mode="blocking",
    in_flight=1, pattern=None, root=0, pacing="barrier", sizes_bytes=(1024, 65536), world_size=2, device="cpu",
    backend="gloo", threads_per_rank=1,
)  # fmt: skip
SENT = {"op": "send_recv", "reduce_op": None}


def context_of(mesh: Mesh, cell: CommSpec, measure: CommMeasure, folder: str, name: str) -> RankContext:
    """What the worker of this rank would hand over; ``name``: keeps this run's notes in the store apart."""
    layout = RunLayout(Path(folder))
    files = layout.cell(cell.cell_id)
    files.root.mkdir(parents=True, exist_ok=True)
    store = c10d.PrefixStore(name, c10d._get_default_store())
    pulse = Pulse(rank=mesh.rank, path=files.heartbeat(mesh.rank), on_low_memory=print)
    pulse.cell_id = cell.cell_id
    group = GroupSpec(
        group_id="group", run_dir=folder, world_size=mesh.world_size, device="cpu", backend="gloo", threads_per_rank=1,
        measure=MeasureSettings(), cells=(), cache_dir=folder, comm_cells=(cell,), comm_measure=measure,
    )  # fmt: skip
    return RankContext(
        group=group,
        place=RankPlace(mesh.rank, mesh.rank, mesh.world_size),
        mesh=mesh,
        control=Control(store, rank=mesh.rank, world_size=mesh.world_size, timeout_s=30),
        pulse=pulse,
        layout=layout,
        scheduler_policy="SCHED_BATCH",
    )


def measured(mesh: Mesh, cell: CommSpec, measure: CommMeasure, folder: str, name: str) -> None:
    run_comm(cell, context_of(mesh, cell, measure, folder, name))


def on_ranks(pools: Any, how: Any, folder: Path, cell: CommSpec, measure: CommMeasure = FIXED) -> list[Any]:
    """What each rank's ``how`` of this cell returns."""
    name = f"run-{next(numbers)}-{folder.name}"
    return pools(cell.world_size).run(how, cell, measure, str(folder), name)  # type: ignore[no-any-return]


def run(
    pools: Any, folder: Path, cell: CommSpec, measure: CommMeasure = FIXED, *, how: Any = measured
) -> tuple[list[tuple[CommSample, ...]], list[CommSummary]]:
    """Samples and summaries of all ranks."""
    on_ranks(pools, how, folder, cell, measure)
    files = RunLayout(folder).cell(cell.cell_id)
    ranks = [read_comm_samples(files.samples(rank)) for rank in range(cell.world_size)]
    assert all(one is not None for one in ranks)
    assert [one.header.rank for one in ranks if one] == list(range(cell.world_size))
    summaries = [read_record(files.summary(rank), CommSummary) for rank in range(cell.world_size)]
    return [one.samples for one in ranks if one], summaries


@pytest.mark.parametrize("pacing", ["barrier", "back_to_back"])
def test_fixed_numbers_are_obeyed_at_every_size_on_every_rank(pools: Any, tmp_path: Path, pacing: Any) -> None:
    ranks, summaries = run(pools, tmp_path, replace(PLAIN, pacing=pacing, world_size=3))
    for samples in ranks:
        assert [s.asked_bytes for s in samples] == [1024, 65536]
        assert [s.size_bytes for s in samples] == [1024, 65536]
        assert [s.numel for s in samples] == [256, 16384]
        assert [(len(s.warmup_ns), len(s.times_ns)) for s in samples] == [(2, 3)] * 2
        assert all(t > 0 for s in samples for t in s.times_ns)
        assert all(s.correct is True and s.wrong is None for s in samples)
        assert all(s.stop_reason == "fixed number of calls" for s in samples)
    assert [s.unsupported for s in summaries] == [None] * 3
    assert all(s.scheduler_policy == "SCHED_BATCH" and s.notes == () for s in summaries)


def test_without_numbers_all_ranks_stop_at_the_same_call(pools: Any, tmp_path: Path) -> None:
    ranks, _ = run(pools, tmp_path, PLAIN, CommMeasure(budget_ns=100_000_000))
    counts = {tuple((len(s.warmup_ns), len(s.times_ns)) for s in samples) for samples in ranks}
    assert len(counts) == 1
    assert all(s.stop_reason in ("budget used up", "interval tight enough") for s in ranks[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "async", "in_flight": 3},
        {"mode": "coalesced", "in_flight": 3},
        {**SENT, "pattern": "bi", "mode": "grouped", "in_flight": 2},
        {**SENT, "pattern": "ring"},
        {"op": "all_to_all_v", "reduce_op": None, "in_place": False},
        {"op": "reduce_scatter", "reduce_op": "avg", "dtype": "bfloat16", "in_place": False},
        {"op": "gather", "reduce_op": None, "root": 1},
    ],
)
def test_cells_of_every_kind_of_call_are_measured_and_right(
    pools: Any, tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    ranks, _ = run(pools, tmp_path, replace(PLAIN, **changes))
    for samples in ranks:
        assert [len(s.times_ns) for s in samples] == [3, 3]
        assert all(s.correct is not False and s.skipped is None for s in samples)
    assert any(s.correct is True for samples in ranks for s in samples)


def test_a_barrier_is_measured_once_without_a_size(pools: Any, tmp_path: Path) -> None:
    ranks, _ = run(pools, tmp_path, replace(PLAIN, op="barrier", reduce_op=None))
    for samples in ranks:
        assert [(s.size_bytes, s.numel, len(s.times_ns), s.correct) for s in samples] == [(0, 0, 3, None)]


def test_one_rank_alone_works(pools: Any, tmp_path: Path) -> None:
    ranks, summaries = run(pools, tmp_path, replace(PLAIN, world_size=1))
    assert [s.correct for s in ranks[0]] == [True, True]
    cell = replace(PLAIN, world_size=1, **SENT, pattern="uni", cell_id="other")
    ranks, summaries = run(pools, tmp_path, cell)
    assert ranks == [()]
    assert summaries[0].unsupported == "send_recv needs 2 ranks or more"


def test_sizes_that_cannot_be_sent_are_skipped_with_the_reason_and_the_rest_runs(pools: Any, tmp_path: Path) -> None:
    cell = replace(PLAIN, op="all_gather", reduce_op=None, world_size=3, sizes_bytes=(0, 8, 1000, 1001, 40, 2**50))
    ranks, _ = run(pools, tmp_path, cell)
    for samples in ranks:
        assert [s.size_bytes for s in samples] == [None, None, 996, 996, None, None]
        assert [bool(s.skipped) for s in samples] == [True, True, False, False, True, True]
        assert "host memory is free" in (samples[-1].skipped or "")
        assert "nothing to send" in (samples[0].skipped or "")
    assert len({tuple(s.skipped for s in samples) for samples in ranks}) == 1


def short_of_memory_on_rank_1(mesh: Mesh, *cell: Any) -> None:
    left = (2**20, 2**30) if mesh.rank == 1 else job_module.host_memory_left()
    with patch.object(job_module, "host_memory_left", lambda: left):
        measured(mesh, *cell)


def fails_to_allocate_on_rank_1(mesh: Mesh, *cell: Any) -> None:
    original = sweep.exchanges_and_call

    def failing(job: Any, numel: int) -> Any:
        if mesh.rank == 1 and numel > 2**20:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")
        return original(job, numel)

    with patch.object(sweep, "exchanges_and_call", failing):
        measured(mesh, *cell)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (short_of_memory_on_rank_1, "0 B of host memory is free"),
        (fails_to_allocate_on_rank_1, "rank 1: [enforce fail] DefaultCPUAllocator"),
    ],
)
def test_a_size_that_one_rank_has_no_memory_for_is_skipped_by_all(
    pools: Any, tmp_path: Path, how: Any, said: str
) -> None:
    ranks, _ = run(pools, tmp_path, replace(PLAIN, sizes_bytes=(32 * 2**20, 2048)), how=how)
    for skipped, sent in ranks:
        assert skipped.size_bytes is None or how is fails_to_allocate_on_rank_1
        assert said in (skipped.skipped or "")
        assert sent.correct is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "int32", "reduce_op": "avg"}, "can't be cast"),
        (
            {"op": "broadcast", "reduce_op": None, "mode": "coalesced"},
            "gloo does not implement startCoalescing",
        ),
        ({"mode": "grouped"}, "point-to-point calls only, not all_reduce"),
    ],
)
def test_what_the_backend_lacks_is_said_in_its_words_and_the_group_goes_on(
    pools: Any, tmp_path: Path, changes: Mapping[str, Any], words: str
) -> None:
    ranks, summaries = run(pools, tmp_path, replace(PLAIN, **changes))
    assert ranks == [(), ()]
    assert all(words in (s.unsupported or "") for s in summaries)
    ranks, summaries = run(pools, tmp_path, replace(PLAIN, cell_id="next"))
    assert all(s.correct for samples in ranks for s in samples)


def with_other_arguments(mesh: Mesh, cell: CommSpec, *rest: Any) -> tuple[str, int]:
    """(what this rank raises, collectives it called)."""
    mine = replace(cell, sizes_bytes=(2048,)) if mesh.rank == 1 else cell
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as called:
        try:
            measured(mesh, mine, *rest)
        except UsageError as error:
            return str(error), called.call_count
    return "", called.call_count


def test_ranks_that_disagree_are_told_so_before_the_first_collective(pools: Any, tmp_path: Path) -> None:
    for said, called in on_ranks(pools, with_other_arguments, tmp_path, PLAIN):
        assert "rank 1 has other arguments than rank 0" in said
        assert "sizes_bytes is [2048], on rank 0 it is [1024, 65536]" in said
        assert called == 0


def with_a_wrong_element(mesh: Mesh, *cell: Any) -> None:
    """Rank 1's backend gets one element wrong in the second size."""
    original = job_module.CommJob.check

    def spoiled(job: Any, call: Any, exchanges: Any) -> Any:
        def wrong() -> None:
            call()
            if mesh.rank == 1 and exchanges[0].outputs[0].tensor.numel() > 1000:
                exchanges[0].outputs[0].tensor[5] += 1

        return original(job, wrong, exchanges)

    with patch.object(job_module.CommJob, "check", spoiled):
        measured(mesh, *cell)


def test_a_wrong_element_is_named_and_the_sweep_goes_on(pools: Any, tmp_path: Path) -> None:
    cell = replace(PLAIN, sizes_bytes=(1024, 65536, 2048))
    ranks, _ = run(pools, tmp_path, cell, how=with_a_wrong_element)
    assert [s.correct for s in ranks[0]] == [True, True, True]
    assert [s.correct for s in ranks[1]] == [True, False, True]
    assert (ranks[1][1].wrong or "").startswith("element 5: got ")


def test_no_check_claims_nothing(pools: Any, tmp_path: Path) -> None:
    ranks, _ = run(pools, tmp_path, PLAIN, replace(FIXED, check=False))
    assert all(s.correct is None for samples in ranks for s in samples)


def breaks_at_the_second_size(
    mesh: Mesh, cell: CommSpec, measure: CommMeasure, folder: str, name: str
) -> list[int | None]:
    """Sizes on disk when the second one breaks."""
    original = job_module.measure

    def sizes_done() -> list[int | None]:
        found = read_comm_samples(RunLayout(Path(folder)).cell(cell.cell_id).samples(mesh.rank))
        return [] if found is None else [s.asked_bytes for s in found.samples]

    def breaking(run: Any, *arguments: Any, **options: Any) -> Any:
        if sizes_done():
            raise ValueError("planted")
        return original(run, *arguments, **options)

    with patch.object(job_module, "measure", breaking), suppress(ValueError):
        measured(mesh, cell, measure, folder, name)
    return sizes_done()


def test_sizes_measured_before_an_end_are_on_disk_and_no_summary_is(pools: Any, tmp_path: Path) -> None:
    assert on_ranks(pools, breaks_at_the_second_size, tmp_path, PLAIN) == [[1024], [1024]]
    assert not RunLayout(tmp_path).cell("cell").summary(0).exists()


WAITING = (
    ("all_reduce", 65536, "measure", 3),  # rank 0 has entered the third call
    ("all_reduce", 65536, "measure", 2),  # rank 1 has not
)


class LatePulse(Pulse):
    """Comes to the third timed call of the second size when rank 0 was seen to wait in it, at the latest after a minute."""

    noticed = Path()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step" and value == 3 and self.phase == "measure" and self.size_bytes == 65536:
            limit = time.monotonic() + 60
            while not self.noticed.exists() and time.monotonic() < limit:
                time.sleep(0.05)
        super().__setattr__(name, value)


def _of_calls(moment: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(one[:4] for one in moment["rank"])


def late_on_rank_1(mesh: Mesh, cell: CommSpec, measure: CommMeasure, folder: str, name: str) -> list[dict[str, Any]]:
    """Both ranks' heartbeats, as the controller sees them while rank 0 waits."""
    context = context_of(mesh, cell, replace(measure, iterations=5), folder, name)
    files = context.layout.cell(cell.cell_id)
    pulse = (LatePulse if mesh.rank == 1 else Pulse)(
        rank=mesh.rank, path=files.heartbeat(mesh.rank), on_low_memory=print
    )
    pulse.cell_id = cell.cell_id
    noticed = Path(folder) / f"{name}.noticed"
    if isinstance(pulse, LatePulse):
        pulse.noticed = noticed
    seen: list[dict[str, Any]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            beats = [read_if_there(files.heartbeat(rank), Heartbeat) for rank in range(2)]
            if all(beats):
                seen.append({"rank": [(b.op, b.size_bytes, b.phase, b.step, b.entered_ns) for b in beats if b]})
                if _of_calls(seen[-1]) == WAITING:
                    noticed.touch()

    watcher = threading.Thread(target=watch)
    pulse.start()
    if mesh.rank == 0:
        watcher.start()
    run_comm(cell, replace(context, pulse=pulse))
    stop.set()
    if mesh.rank == 0:
        watcher.join()
    pulse.stop()
    return seen


def test_heartbeats_tell_who_entered_which_call_of_which_size(pools: Any, tmp_path: Path) -> None:
    seen = on_ranks(pools, late_on_rank_1, tmp_path, PLAIN)[0]
    assert WAITING in {_of_calls(moment) for moment in seen}
    starts = {one[4] for moment in seen for one in moment["rank"] if one[1] == 65536}
    assert all(start > 0 for start in starts)
    assert len(starts) <= 2  # once per rank and size: the deadline of a size counts from here


def test_pairs_are_all_measured_each_by_its_two_ranks(pools: Any, tmp_path: Path) -> None:
    cell = replace(PLAIN, kind="pairs", **SENT, pattern="uni", world_size=3,
                   in_place=False, sizes_bytes=(4, 65536))  # fmt: skip
    ranks, _ = run(pools, tmp_path, cell, CommMeasure(budget_ns=50_000_000))
    by_pair: dict[tuple[Any, ...], list[tuple[int, CommSample]]] = {}
    for rank, samples in enumerate(ranks):
        for sample in samples:
            by_pair.setdefault((sample.asked_bytes, sample.peer, sample.bidirectional), []).append((rank, sample))
    assert len(by_pair) == 2 * (6 + 3)
    for (_, peer, both), found in by_pair.items():
        assert sorted(rank for rank, _ in found) == sorted(peer)
        assert len({len(sample.times_ns) for _, sample in found}) == 1
        assert len(found[0][1].times_ns) >= 2
        for rank, sample in found:
            receives = both or rank == peer[1]
            assert sample.correct is (True if receives else None)


def test_pairs_obey_fixed_numbers(pools: Any, tmp_path: Path) -> None:
    cell = replace(PLAIN, kind="pairs", **SENT, pattern="uni", in_place=False)
    ranks, _ = run(pools, tmp_path, cell, CommMeasure(warmup=3, iterations=4))
    assert {(len(s.warmup_ns), len(s.times_ns)) for samples in ranks for s in samples} == {(3, 4)}


def test_matrix_products_are_timed_per_size(pools: Any, tmp_path: Path) -> None:
    cell = replace(PLAIN, kind="matmul", op="matmul", reduce_op=None, sizes_bytes=(4 * 32 * 32, 4 * 256 * 256, 3))
    ranks, _ = run(pools, tmp_path, cell)
    for samples in ranks:
        assert [s.numel for s in samples] == [32 * 32, 256 * 256, None]
        assert [len(s.times_ns) for s in samples] == [3, 3, 0]
        assert samples[2].skipped
        assert min(samples[1].times_ns) > min(samples[0].times_ns)


@pytest.mark.parametrize("changes", [{}, {**SENT, "pattern": "bi", "in_place": False}])
def test_overlap_has_both_alone_and_both_together(pools: Any, tmp_path: Path, changes: Mapping[str, Any]) -> None:
    ranks, _ = run(pools, tmp_path, replace(PLAIN, kind="overlap", sizes_bytes=(2**20,), **changes))
    for samples in ranks:
        assert [s.label for s in samples] == ["alone", "together"]
        for sample in samples:
            assert len(sample.times_ns) == len(sample.beside_ns) == 3
            assert all(t > 0 for t in (*sample.times_ns, *sample.beside_ns))
        assert [s.correct for s in samples] == [None, True]


def test_the_summary_names_its_process_and_says_that_out_of_place_copies(pools: Any, tmp_path: Path) -> None:
    ranks, summaries = run(pools, tmp_path, replace(PLAIN, in_place=False))
    assert all(s.correct for samples in ranks for s in samples)
    assert all("copy of the input" in s.notes[0] for s in summaries)
    assert [s.rank for s in summaries] == [0, 1]
    assert len({s.pid for s in summaries}) == 2
    assert summaries[0].backend_version is None
    text = json.loads(RunLayout(tmp_path).cell("cell").summary(0).read_text())
    assert text["schema"] == "stepscope.comm_summary/1"
