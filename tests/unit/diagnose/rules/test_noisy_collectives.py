from __future__ import annotations

from dataclasses import replace

import pytest
from tests.comm_rows import SIZES, sweep

from stepscope.cli.commands.comm import Comm
from stepscope.core.units import parse_duration_ns
from stepscope.diagnose.commands import SWEEP_BUDGET_NS
from stepscope.diagnose.rules.noisy_collectives import RULE
from stepscope.records.cell import RunRecord
from stepscope.records.comm import CommRow
from stepscope.records.finding import Quiet
from stepscope.results.evidence import Evidence


def check(shown: list[CommRow]):
    return RULE.check(Evidence(sources=(), comm=tuple(shown)))


@pytest.mark.parametrize(("reach", "fires"), [(1.09, False), (1.4, True)])
def test_a_wide_interval_names_the_worst_size(reach: float, fires: bool) -> None:
    rows = sweep(sizes=SIZES[:4])
    rows[2] = replace(rows[2], time_ns_high=reach * (rows[2].time_ns_median or 0))
    outcome = check(rows)
    if not fires:
        assert isinstance(outcome, Quiet)
        assert "±9.0% (all_reduce of 16 KiB on 2 ranks), limit" in outcome.looked_at
        return
    (found,) = outcome
    assert found.title == "1 of 4 sizes: the median is uncertain by more than ±10%"
    assert found.evidence[0] == "worst: ±40%, all_reduce of 16 KiB on 2 ranks"


@pytest.mark.parametrize(("mean", "fires"), [(1.9, False), (4.0, True)])
def test_long_tails_are_told_from_the_mean(mean: float, fires: bool) -> None:
    rows = sweep(sizes=SIZES[:4])
    rows[0] = replace(rows[0], time_ns_mean=mean * (rows[0].time_ns_median or 0))
    outcome = check(rows)
    assert isinstance(outcome, tuple) is fires
    if fires:
        assert outcome[0].title == "1 of 4 sizes with long tails: the mean is up to 4.0x the median"
        assert outcome[0].evidence[0] == "worst: all_reduce of 1 KiB on 2 ranks"


def test_the_default_scheduler_policy_is_said_on_gloo_only() -> None:
    (found,) = check(sweep(scheduler_policy="SCHED_OTHER"))
    assert "SCHED_OTHER" in found.title
    assert found.severity == "info"
    for shape in ({"scheduler_policy": "SCHED_BATCH"}, {"scheduler_policy": None},
                  {"scheduler_policy": "SCHED_OTHER", "backend": "nccl", "device": "cuda"}):  # fmt: skip
        assert isinstance(check(sweep(**shape)), Quiet)


@pytest.mark.parametrize(
    ("own", "longer"), [((), "20s"), (("--budget", "60s"), "240s"), (("--budget=500ms", "--ranks", "2"), "2s")]
)
def test_the_budget_to_try_is_larger_than_the_one_that_was_used(own: tuple[str, ...], longer: str) -> None:
    rows = sweep(sizes=SIZES[:4])
    rows[2] = replace(rows[2], time_ns_high=1.4 * (rows[2].time_ns_median or 0))
    record = RunRecord(kind="comm", name="comm", matrix={}, cells=(), argv=("stepscope", "comm", *own))
    (found,) = RULE.check(Evidence(sources=(), comm=tuple(rows), records=(record,)))
    command = found.advice[0].command
    assert command is not None
    assert command.endswith(f"--budget {longer}")
    assert command.count("--budget") == 1


def test_the_default_budget_is_that_of_the_command() -> None:
    assert parse_duration_ns(vars(Comm)["budget"].default) == SWEEP_BUDGET_NS
