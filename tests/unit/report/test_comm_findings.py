"""Sentences about a comm run: what the rows show and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.comm_rows import MIB, SIZES, collective, pairs, row, sweep

from stepscope.report.comm_findings import comm_findings, winner_sentences


def test_a_clean_run_has_nothing_to_say() -> None:
    assert comm_findings([]) == ()
    assert comm_findings(sweep(scheduler_policy="SCHED_BATCH")) == ()
    assert comm_findings(pairs(8, noise=random.Random(0))) == ()


def test_wrong_results_come_first_with_size_and_element() -> None:
    rows = [
        *sweep(scheduler_policy="SCHED_OTHER"),
        collective(4096, 9.0, op="reduce", correct=False, error="element 3"),
    ]
    first = comm_findings(rows)[0]
    assert first.startswith("WRONG RESULTS")
    assert "reduce of 4 KiB on 2 ranks (element 3)" in first


def test_unfinished_sweeps_are_counted_and_skipped_sizes_are_not() -> None:
    rows = [
        *sweep(),
        row(cell_id="a", status="timeout"),
        row(cell_id="b", status="skipped"),
        row(cell_id="c", status="unsupported"),
    ]
    assert comm_findings(rows) == ("1 of 4 sweeps did not finish: timeout 1; the table has the reasons.",)


def test_a_slow_host_is_named_with_its_direction() -> None:
    hosts = tuple("abcdefgh")
    (said,) = comm_findings(pairs(8, slow_egress={3: 5.0}, noise=random.Random(1), rank_hosts=hosts))
    assert said.startswith("Host d (rank 3) sends slowly: 7 of its 7 pairs that way take 5.")
    (said,) = comm_findings(pairs(8, slow_ingress={3: 5.0}))
    assert said.startswith("Rank 3 receives slowly")


def test_a_slow_link_is_named_and_doubted_when_seen_once() -> None:
    (said,) = comm_findings(pairs(8, slow_links={(2, 5): 2.0}))
    assert said.startswith("Ranks 2 and 5 take 2.0x as long as other pairs at 2 MiB")
    assert "measure again" in said
    (said,) = comm_findings(pairs(8, slow_links={(2, 5): 2.0, (5, 2): 2.0}))
    assert "in more than one measurement" in said


def test_a_retreat_of_busbw_is_said_with_both_sizes() -> None:
    rows = [collective(size, us) for size, us in ((MIB, 500.0), (4 * MIB, 1500.0), (16 * MIB, 12_000.0))]
    (said,) = comm_findings(rows)
    assert "busbw is best at 4 MiB (2.80 GB/s) and 50 % lower at 16 MiB" in said


@pytest.mark.parametrize("last_us", [6500.0, 5900.0])
def test_a_small_or_unsure_retreat_is_not_said(last_us: float) -> None:
    rows = [collective(size, us) for size, us in ((MIB, 500.0), (4 * MIB, 1500.0), (16 * MIB, last_us))]
    if last_us > 6200:
        rows[-1] = replace(rows[-1], time_ns_low=0.9 * 6e6, time_ns_high=None)
    assert not any("busbw is best" in said for said in comm_findings(rows))


def test_noise_names_the_worst_size() -> None:
    rows = sweep(sizes=SIZES[:4])
    rows[2] = replace(rows[2], time_ns_high=1.4 * (rows[2].time_ns_median or 0))
    (said,) = comm_findings(rows)
    assert said.startswith("Noisy: the median is known to no better than ±10 % at 1 of 4 sizes (worst ±40 %")
    assert "all_reduce of 16 KiB on 2 ranks" in said


def test_long_tails_are_told_from_the_mean() -> None:
    rows = sweep(sizes=SIZES[:4])
    rows[0] = replace(rows[0], time_ns_mean=4.0 * (rows[0].time_ns_median or 0))
    (said,) = comm_findings(rows)
    assert "the mean is up to 4.0x the median (all_reduce of 1 KiB on 2 ranks)" in said


def test_the_default_scheduler_policy_is_said_on_gloo_only() -> None:
    assert any("SCHED_BATCH" in said for said in comm_findings(sweep(scheduler_policy="SCHED_OTHER")))
    for shape in ({"scheduler_policy": "SCHED_BATCH"}, {"scheduler_policy": None},
                  {"scheduler_policy": "SCHED_OTHER", "backend": "nccl", "device": "cuda"}):  # fmt: skip
        assert comm_findings(sweep(**shape)) == ()


def test_the_winner_of_settings_is_said_over_the_default() -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    rows = [collective(65536, 13.0), collective(65536, 10.0, env=env)]
    assert winner_sentences(rows) == (
        "all_reduce on 2 ranks: NCCL_ALGO=Ring NCCL_PROTO=LL is fastest at 64 KiB, 1.3x the default.",
    )


def test_neighbouring_sizes_with_one_winner_are_one_sentence() -> None:
    ring, tree = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
    rows = [
        *sweep(sizes=SIZES[:6], alpha_us=10, rate=1e9, env=ring),
        *sweep(sizes=SIZES[:6], alpha_us=40, rate=3e9, env=tree),
    ]
    assert winner_sentences(rows) == (
        "all_reduce on 2 ranks: NCCL_ALGO=Ring is fastest from 1 KiB to 16 KiB, 1.7x to 3.7x the next best.",
        "all_reduce on 2 ranks: NCCL_ALGO=Tree is fastest from 64 KiB to 1 MiB, 1.2x to 2.7x the next best.",
    )


def test_no_settings_are_called_fastest_where_intervals_overlap() -> None:
    rows = [collective(1024, 10.0), collective(1024, 10.1, env={"NCCL_ALGO": "Ring"})]
    assert winner_sentences(rows) == ("all_reduce on 2 ranks: no settings are clearly fastest at 1 KiB.",)
    assert winner_sentences(sweep()) == ()
