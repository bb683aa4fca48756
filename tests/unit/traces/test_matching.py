"""The same collective on all ranks, and its split into transfer and waiting."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.communications import Met, collective, group, job, rank
from tests.trace_builder import Clock, Job, build, write_job

from stepscope.records.trace_collectives import JobCollectives, RankCommunication
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankView
from stepscope.traces.load import load_traces
from stepscope.traces.matching import match_collectives
from stepscope.traces.waiting import job_collectives


def _ranks(folder: Path) -> list[RankCommunication]:
    return [communication(RankView(t)) for t in load_traces(folder).ranks]


def _agrees_with_planted(planted: Job, found: JobCollectives, *, within_ns: int = 0) -> None:
    """Every planted collective is found, with all its ranks, its transfer, its skew and its waits."""
    assert len(found.instances) == len(planted.collectives)
    truth = sorted(planted.collectives, key=lambda c: (min(c.starts_ns.values()), c.end_ns))
    for m, c in zip(found.instances, truth, strict=True):
        assert {r.rank for r in m.ranks} == set(c.starts_ns)
        if m.unsplit is not None:
            continue
        assert m.transfer_ns == pytest.approx(c.transfer_ns, abs=within_ns)
        assert m.skew_ns == pytest.approx(c.skew_ns, abs=within_ns)
        for r in m.ranks:
            assert r.waiting_ns == pytest.approx(c.waiting_ns(r.rank), abs=within_ns)
        if c.skew_ns > within_ns:
            assert m.last_rank == c.last_rank


@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("shape", ["ddp", "fsdp", "tensor"])
def test_planted_collectives_are_split_exactly(tmp_path: Path, shape: str, sequence: bool) -> None:
    planted = build(shape=shape, world=4, steps=3, late={2: 200_000}, sequence=sequence)
    found = job_collectives(_ranks(write_job(planted, tmp_path)))
    _agrees_with_planted(planted, found)
    assert {m.match_method for m in found.instances} == {"sequence" if sequence else "order"}
    assert all(m.complete for m in found.instances)


@pytest.mark.parametrize("nccl_args", [True, False])
def test_gloo_jobs_are_matched_by_order(tmp_path: Path, nccl_args: bool) -> None:
    planted = build(world=3, steps=3, device="gloo", late={1: 200_000}, nccl_args=nccl_args)
    _agrees_with_planted(planted, job_collectives(_ranks(write_job(planted, tmp_path))))


@pytest.mark.parametrize("clock", [Clock(), Clock(offset_ns=3_000_000), Clock(offset_ns=-40_000_000)])
def test_shifted_capture_windows_are_found(tmp_path: Path, clock: Clock) -> None:
    planted = build(
        world=3, steps=8, late={1: 100_000}, sequence=False, capture={0: (0, 5), 1: (3, 8)}, clocks={1: clock}
    )
    found = job_collectives(_ranks(write_job(planted, tmp_path)))
    by_time = sorted(planted.collectives, key=lambda c: c.end_ns)
    assert len(found.instances) == len(by_time)
    assert any(m.match_method == "order_shifted" for m in found.instances)
    per_step = len(by_time) // 8
    seen = [{r.rank for r in m.ranks} for m in found.instances]
    assert seen[: 3 * per_step] == [{0, 2}] * 3 * per_step
    assert seen[3 * per_step : 5 * per_step] == [{0, 1, 2}] * 2 * per_step
    assert seen[5 * per_step :] == [{1, 2}] * 3 * per_step
    for m in found.instances:
        assert m.complete == (len(m.ranks) == 3)


def test_pipelines_send_to_neighbours_are_paired_and_never_split(tmp_path: Path) -> None:
    planted = build(shape="pipeline", world=3, steps=2)
    found = job_collectives(_ranks(write_job(planted, tmp_path)))
    assert len(found.instances) == len(planted.collectives)
    assert all(m.transfer_ns is None and m.unsplit for m in found.instances)


def test_repeated_steps_on_unknown_clocks_are_matched_with_little_confidence() -> None:
    met = [Met(starts={0: t, 1: t}, end=t + 1_000) for t in range(0, 100_000_000, 1_000_000)]
    ranks = job(met, clocks={1: (25_400_000, 0.0)})
    assert max(i.confidence for i in match_collectives(ranks) if i.confidence is not None) < 0.5


def test_unequal_spacing_settles_which_step_is_which_on_any_clock() -> None:
    spaced = random.Random(3)
    times = [0]
    for _ in range(100):
        times.append(times[-1] + spaced.randrange(800_000, 1_200_000))
    ranks = job([Met(starts={0: t, 1: t}, end=t + 1_000) for t in times], clocks={1: (25_000_000, 2e-5)})
    found = match_collectives(ranks)
    assert [[m.position for m in i.members] for i in found] == [[n, n] for n in range(101)]
    assert min(i.confidence or 0 for i in found) > 0.9


def test_numbers_win_over_order() -> None:
    ranks = [
        rank(0, [collective("all_reduce", 0, 10, comms_id=5), collective("all_reduce", 20, 30, comms_id=6)]),
        rank(1, [collective("all_reduce", 20, 30, comms_id=6), collective("all_reduce", 40, 50, comms_id=7)]),
    ]
    found = match_collectives(ranks)
    assert [[(m.rank, m.position) for m in i.members] for i in found] == [[(0, 0)], [(0, 1), (1, 0)], [(1, 1)]]
    assert [i.confidence for i in found] == [None, 1.0, None]


def test_coalesced_collectives_share_a_number_and_stay_apart() -> None:
    both = [collective("all_reduce", t, t + 5, comms_id=9) for t in (0, 10)]
    found = match_collectives([rank(0, both), rank(1, both)])
    assert [[m.position for m in i.members] for i in found] == [[0, 0], [1, 1]]


def test_messages_are_matched_by_source_and_destination() -> None:
    met = [
        Met(op="send_recv", starts={0: 0, 1: 5}, end=10, peers=(0, 1)),
        Met(op="send_recv", starts={1: 20, 2: 25}, end=30, peers=(1, 2)),
        Met(op="send_recv", starts={0: 40, 1: 45}, end=50, peers=(0, 1)),
    ]
    assert [{m.rank for m in i.members} for i in match_collectives(job(met))] == [{0, 1}, {1, 2}, {0, 1}]


def test_ranks_missing_from_the_set_make_bounds_not_facts() -> None:
    everyone = group("0", range(8))
    met = [Met(starts={0: 0, 1: 300}, end=1_000, group=everyone, sequence=n) for n in range(4)]
    found = job_collectives(job(met))
    assert all(not m.complete and m.group_size == 8 for m in found.instances)
    assert any("lack ranks" in note for note in found.notes)


def test_bandwidth_is_bytes_over_the_transfer_alone() -> None:
    (m,) = job_collectives(job([Met(starts={0: 0, 1: 500_000}, end=1_000_000, size_bytes=8_000_000)])).instances
    assert m.transfer_ns == 500_000
    assert m.algbw_bytes_per_s == pytest.approx(16e9)
    assert m.busbw_bytes_per_s == pytest.approx(16e9)  # 2 (n-1)/n = 1
    assert m.bandwidth_basis == "transfer"


def test_unknown_bytes_have_no_bandwidth() -> None:
    (m,) = job_collectives(job([Met(starts={0: 0, 1: 5}, end=10, size_bytes=None)])).instances
    assert (m.algbw_bytes_per_s, m.busbw_bytes_per_s, m.bandwidth_basis) == (None, None, None)


def test_a_match_that_cannot_have_happened_loses_its_confidence() -> None:
    ranks = [rank(r, [collective("all_reduce", t, t + 10_000)]) for r, t in ((0, 0), (1, 90_000_000))]
    (m,) = job_collectives(ranks).instances
    assert m.match_confidence < 0.3


def test_the_order_in_which_ranks_are_given_does_not_matter(tmp_path: Path) -> None:
    planted = build(world=4, steps=3, late={2: 200_000}, sequence=False, clocks={1: Clock(offset_ns=2_000_000)})
    ranks = _ranks(write_job(planted, tmp_path))
    assert job_collectives(ranks[::-1]) == job_collectives(ranks)
