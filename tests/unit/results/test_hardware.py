"""Clocks that explain a slow rank and clocks that do not; errors that were counted; memory of the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diaries import START_UNIX_NS, job, simulate, write_gpu, write_hardware, write_record

from stepscope.diagnose.jobs import judge_job
from stepscope.records.finding import ClockDrop
from stepscope.results.hardware import clocks_of_change, clocks_of_late, counted_errors
from stepscope.results.job_figures import job_figures, rank_figures
from stepscope.results.watched import watched

GIB = 2.0**30
STEPS, SLOW_FROM = 400, 200


def with_gpus(
    folder: Path, slow: Mapping[str, Any], *, every: Mapping[str, Any] | None = None, name: str = "H100"
) -> Path:
    """Four ranks, of which rank 2 is late; its GPU differs by ``slow``, that of all by ``every``."""
    simulate(write_record(folder), ranks=4, steps=STEPS, seed=1, slow={2: 1.3})
    for rank in range(4):
        columns = {**(every or {}), **(slow if rank == 2 else {})}
        write_gpu(folder, columns, rank=rank, steps=STEPS, name=name if rank == 2 else "H100")
    return folder


def late(folder: Path) -> tuple[ClockDrop, ...]:
    steps = job(folder).steps
    assert steps is not None
    return clocks_of_late(steps, {2})


def halves(before: float, after: float) -> Any:
    return np.where(np.arange(40) < 20, before, after)


@pytest.mark.parametrize(
    ("slow", "reasons"),
    [
        ({"throttle_reasons": 0x40 | 0x8, "temperature_c": 88.0}, ("thermal slowdown by hardware",)),
        ({"throttle_reasons": 0x20}, ("thermal slowdown",)),
        ({"throttle_reasons": 0x80 | 0x8}, ("power brake",)),
        ({"throttle_reasons": 0x4, "power_w": 395.0, "power_limit_w": 400.0}, ("power cap",)),
        ({"throttle_reasons": np.nan}, ()),
        ({"throttle_reasons": halves(0, 0x20) * (np.arange(40) < 25)}, ()),
    ],
)
def test_a_low_clock_of_a_late_rank_is_named_with_the_reasons_it_alone_has(
    tmp_path: Path, slow: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    (drop,) = late(with_gpus(tmp_path / "job", {"sm_clock_hz": 1.2e9, **slow}))
    assert (drop.ranks, drop.before, drop.reasons) == ((2,), False, reasons)
    assert (drop.sm_clock_hz, drop.against_hz) == (pytest.approx(1.2e9), pytest.approx(1.7e9))
    assert (drop.power_limit_w, drop.power_limit_against_w) == (
        (400.0, 700.0) if "power_limit_w" in slow else (None, None)
    )


@pytest.mark.parametrize(
    ("slow", "every"),
    [
        pytest.param({"throttle_reasons": 0x1}, {}, id="its GPU idles"),
        pytest.param({"busy_fraction": 0.2}, {}, id="it waits for its host"),
        pytest.param({"throttle_reasons": np.nan, "busy_fraction": np.nan}, {}, id="whether it computes is not known"),
        pytest.param({}, {"sm_clock_hz": 1.2e9, "throttle_reasons": 0x4}, id="all are capped alike"),
        pytest.param({"sm_clock_hz": 1.6e9}, {}, id="as GPUs of one kind differ"),
        pytest.param({"throttle_reasons": 0x4, "power_w": 698.0}, {"power_w": 400.0}, id="it has more to do"),
        pytest.param({"sm_clock_hz": np.where(np.arange(40) % 2, 1.1e9, 1.75e9)}, {}, id="it goes up and down"),
        pytest.param({"sm_clock_hz": np.nan}, {}, id="its clock is not known"),
    ],
)
def test_a_clock_that_explains_nothing_is_not_named(
    tmp_path: Path, slow: dict[str, Any], every: dict[str, Any]
) -> None:
    assert late(with_gpus(tmp_path / "job", {"sm_clock_hz": 1.2e9, **slow} if slow else {}, every=every)) == ()


def test_clocks_of_gpus_of_two_kinds_are_not_compared(tmp_path: Path) -> None:
    assert late(with_gpus(tmp_path / "job", {"sm_clock_hz": 1.2e9}, name="A100")) == ()


def test_few_samples_say_nothing_of_a_clock(tmp_path: Path) -> None:
    few = np.where(np.arange(40) < 7, 1.2e9, np.nan)
    assert late(with_gpus(tmp_path / "job", {"sm_clock_hz": few})) == ()


@pytest.mark.parametrize(
    ("clock", "more", "named"),
    [
        (halves(1.7e9, 1.2e9), {"throttle_reasons": halves(0, 0x20)}, ("thermal slowdown",)),
        (halves(1.7e9, 1.65e9), {}, None),
        (1.2e9, {"throttle_reasons": 0x20}, None),
        (halves(1.7e9, 1.2e9), {"throttle_reasons": halves(0, 0x4), "power_w": halves(500.0, 698.0)}, None),
        (halves(1.7e9, 1.2e9), {"throttle_reasons": halves(0, 0x1)}, None),
    ],
)
def test_a_clock_is_compared_with_its_own_before_a_change(
    tmp_path: Path, clock: Any, more: dict[str, Any], named: tuple[str, ...] | None
) -> None:
    steps = job(with_gpus(tmp_path / "job", {"sm_clock_hz": clock, **more})).steps
    assert steps is not None
    found = clocks_of_change(steps, SLOW_FROM, {2})
    assert [(each.ranks, each.before, each.reasons) for each in found] == (
        [] if named is None else [((2,), True, named)]
    )


def test_the_verdict_on_a_straggler_has_the_clock_and_the_memory_of_the_device(tmp_path: Path) -> None:
    folder = with_gpus(
        tmp_path / "job", {"sm_clock_hz": 1.2e9, "throttle_reasons": 0x40, "memory_used_bytes": 61 * GIB}
    )
    judged = judge_job(folder)
    assert judged is not None
    verdict = judged.verdict
    assert (verdict.kind, verdict.ranks) == ("straggler", (2,))
    (drop,) = verdict.clocks
    assert drop.ranks == (2,)
    assert drop.line in verdict.evidence
    assert verdict.memory is not None
    assert (verdict.memory.device_used_bytes, verdict.memory.device_total_bytes) == (61 * GIB, 80 * GIB)
    assert not verdict.memory.steady, "nothing is known of the ranks' own memory"


def test_errors_that_were_counted_are_events_and_figures(tmp_path: Path) -> None:
    folder = with_gpus(tmp_path / "job", {"ecc_uncorrected": halves(0, 2), "nvlink_errors": halves(0, 3)})
    ports = {"symbol_errors": halves(0, 7), "receive_drops": 9.0, "downs": np.nan}
    write_hardware(folder, "ports-node0-0", ports, rank=1, steps=STEPS, name="mlx5_0/1", kind="infiniband")
    seen = job(folder)
    assert seen.steps is not None
    found = {each.column: each for each in counted_errors(seen.steps)}
    assert {name: (each.count, each.rank, each.step) for name, each in found.items()} == {
        "ecc_uncorrected": (2, 2, SLOW_FROM + 1), "nvlink_errors": (3, 2, SLOW_FROM + 1),
        "symbol_errors": (7, None, SLOW_FROM + 1),
    }  # fmt: skip
    happened = watched(seen, written_unix_ns=None, now_unix_ns=START_UNIX_NS).happened
    assert sorted(each.ranks for each in happened) == [(0, 1, 2, 3), (2,), (2,)]
    figures, of_ranks = job_figures(seen.steps), rank_figures(seen.steps)
    assert figures["ecc_uncorrected_errors"] == 2
    assert (figures["link_errors"], of_ranks[2]["link_errors"], of_ranks[0]["link_errors"]) == (10, 3, 0)
    assert (figures["dropped_packets"], of_ranks[2]["dropped_packets"]) == (9, None)
    assert figures["sm_clock_fraction"] == pytest.approx(1.7 / 1.98)


def test_a_job_without_gpus_has_none_of_the_figures(tmp_path: Path) -> None:
    simulate(write_record(tmp_path), ranks=2, steps=60, seed=1)
    steps = job(tmp_path).steps
    assert steps is not None
    figures = job_figures(steps)
    assert all(figures[key] is None for key in ("device_used_bytes", "sm_clock_fraction", "link_errors"))
    assert counted_errors(steps) == ()
