"""Knobs of the user's command and of the hook: read, turned, predicted, and put back into the user's own words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.cli.tune_command import hook_names
from stepscope.core.errors import UsageError
from stepscope.matrix.command_knobs import (
    HOOK_KNOBS,
    command_diff,
    command_of,
    parse_knob,
    present,
    with_option,
    work_of,
)
from stepscope.matrix.job_proposals import JobBasis, job_proposals
from stepscope.records.tuning import Proposal

COMMAND = ("torchrun", "train.py", "--batch-size", "16", "--lr=0.1", "--amp")


def test_a_range_doubles_and_leaves_out_the_present_value() -> None:
    assert parse_knob("batch=--batch-size:8..100", COMMAND).values == ("8", "32", "64", "100")
    assert parse_knob("workers=--workers:0..4", COMMAND).values == ("0", "1", "2", "4")
    assert parse_knob("precision=--dtype:fp32,bf16", COMMAND).values == ("fp32", "bf16")
    assert parse_knob("compile=--compile", COMMAND).values == ("",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch", "expected NAME=OPTION"),
        ("batch=16", "expected NAME=OPTION"),
        ("bach=--batch-size:8..16", "did you mean 'batch'"),
        ("batch=--batch-size:64..8", "is not a range"),
        ("batch=--batch:8..16", "does not say its present --batch"),
        ("workers=--workers:,", "names no value"),
        ("compile=--amp", "has --amp already"),
    ],
)
def test_a_knob_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_knob(text, COMMAND)


def test_an_option_is_turned_where_it_stands() -> None:
    assert present(COMMAND, "--batch-size") == "16"
    assert present(COMMAND, "--lr") == "0.1"
    assert present(COMMAND, "--amp") == ""
    assert present(COMMAND, "--workers") is None
    assert with_option(COMMAND, "--batch-size", "64")[2:4] == ("--batch-size", "64")
    assert "--lr=0.2" in with_option(COMMAND, "--lr", "0.2")
    assert with_option(COMMAND, "--workers", "2")[-2:] == ("--workers", "2")
    assert with_option(COMMAND, "--compile", "")[-1] == "--compile"


def test_samples_of_a_step_follow_batch_and_accumulation_alone() -> None:
    knobs = [parse_knob("batch=--batch-size:16..64", COMMAND), parse_knob("workers=--workers:1,2", COMMAND)]
    changed = command_of(COMMAND, {"--batch-size": "64", "--workers": "2"})
    assert work_of(COMMAND, changed, knobs) == 4
    assert work_of(COMMAND, command_of(COMMAND, {"--workers": "2"}), knobs) == 1


def test_the_change_names_options_and_the_code_that_the_hook_stood_in_for() -> None:
    diff = command_diff(COMMAND, {"--batch-size": "64", "bucket_cap_mb": 4})
    assert diff == (
        "- torchrun train.py --batch-size 16 --lr=0.1 --amp",
        "+ torchrun train.py --batch-size 64 --lr=0.1 --amp",
        "+ DistributedDataParallel(..., bucket_cap_mb=4)",
    )
    assert len(command_diff(COMMAND, {"num_workers": 2})) == 1


def basis(**changes: Any) -> JobBasis:
    return JobBasis(**{"step_ns": 100e6, "data_ns": 0.0, "comm_ns": 0.0, "ranks": 2, "ddp": {}, "cores": 8, **changes})


def found(of: JobBasis, *knobs: str, hook: frozenset[str] = frozenset(HOOK_KNOBS)) -> dict[str, Proposal]:
    made = job_proposals(of, [parse_knob(text, COMMAND) for text in knobs], hook=hook)
    return {each.key: each for each in made}


def test_a_loader_that_takes_half_the_step_gets_workers() -> None:
    made = found(basis(data_ns=60e6, workers=0))
    assert made["num_workers=2"].gain is not None
    assert made["num_workers=2"].gain.value == pytest.approx(100 / (40 + 1.2), rel=0.01)
    assert not [key for key in found(basis(data_ns=1e6, workers=0)) if key.startswith("num_workers")]
    assert not [key for key in found(basis(data_ns=60e6, workers=None)) if key.startswith("num_workers")]


def test_reductions_of_every_micro_step_are_saved_but_one() -> None:
    made = found(basis(comm_ns=40e6, micro_steps=4))
    assert made["no_sync=4"].gain is not None
    assert made["no_sync=4"].gain.value == pytest.approx(100 / 70)
    assert made["no_sync=4"].exact
    assert "static_graph=True" not in made
    assert "no_sync=4" not in found(basis(comm_ns=40e6))


def test_what_communicating_keeps_the_cores_from_goes_with_it() -> None:
    crowded = basis(comm_ns=40e6, crowding_ns=20e6, micro_steps=4)
    saved = found(crowded)["no_sync=4"].gain
    assert saved is not None
    assert saved.value == pytest.approx(100 / 55)
    saved = found(replace(crowded, waiting_ns=10e6, by_chance=True))["no_sync=4"].gain
    assert saved is not None
    assert saved.value == pytest.approx(100 / 50)
    batch = found(replace(crowded, share=0.5), "batch=--batch-size:16..64")["--batch-size=64"].gain
    assert batch is not None
    assert batch.value == pytest.approx(4 * 100 / (40 * (1 + 3 * 0.5) + 60))


def test_a_job_without_ddp_or_alone_gets_nothing_of_it() -> None:
    assert not found(basis(comm_ns=40e6, ddp=None))
    assert not found(basis(comm_ns=40e6, ranks=1))
    assert not found(basis(comm_ns=40e6), hook=frozenset())


def test_a_larger_batch_shares_what_does_not_grow_and_changes_the_mathematics() -> None:
    made = found(basis(comm_ns=50e6), "batch=--batch-size:16..64", hook=frozenset())
    batch = made["--batch-size=64"]
    assert batch.gain is not None
    assert batch.gain.value == pytest.approx(4 * 100 / (50 * (4 * 0.95 + 0.05) + 50))
    assert not batch.exact
    assert batch.gain.low is not None
    assert batch.gain.low < batch.gain.value < (batch.gain.high or 0)


def test_a_batch_that_was_looked_at_decides_what_follows_it() -> None:
    of = basis(comm_ns=20e6, waiting_ns=10e6, share=0.25)
    batch = found(of, "batch=--batch-size:16..64", hook=frozenset())["--batch-size=64"]
    assert batch.gain is not None
    assert batch.gain.value == pytest.approx(4 * 100 / (70 * (1 + 3 * 0.25) + 30))


def test_several_knobs_together_save_different_parts_of_the_step() -> None:
    made = found(
        basis(data_ns=30e6, comm_ns=40e6, workers=0, micro_steps=4), hook=frozenset({"num_workers", "no_sync"})
    )
    both = next(each for each in made.values() if len(each.knobs) == 2)
    assert both.gain is not None
    assert both.gain.value == pytest.approx(100 / (100 - 30 - 29.4), rel=0.02)
    assert both.exact


def test_knobs_of_communication_together_leave_a_share_of_it_each() -> None:
    made = found(basis(comm_ns=40e6, micro_steps=2), hook=frozenset({"no_sync", "comm_hook"}))
    both = next(each for each in made.values() if len(each.knobs) == 2)
    assert both.gain is not None
    assert both.gain.value == pytest.approx(100 / (100 - 40 * (1 - 1 / 4)))


def test_workers_hide_what_they_can_of_the_loading_of_a_larger_batch() -> None:
    """16 times the samples in the time of 1.75 steps' work: one worker loads for 4.8."""
    of = basis(data_ns=30e6, workers=0, share=0.1, cores=1)
    made = found(of, "batch=--batch-size:256", hook=frozenset({"num_workers"}))
    both = next(each for each in made.values() if "batch" in each.knobs and len(each.knobs) == 2)
    assert both.changes["num_workers"] == 1
    assert both.gain is not None
    assert both.gain.value == pytest.approx(16 * 100 / (16 * 30), rel=0.01)


def test_what_may_be_tried_is_put_together_without_what_may_not() -> None:
    of = basis(data_ns=20e6, comm_ns=40e6, workers=0, micro_steps=2)
    made = job_proposals(of, [], hook=frozenset({"no_sync", "comm_hook", "num_workers"}), allowed=frozenset())
    several = {frozenset(each.knobs) for each in made if len(each.knobs) > 1}
    assert several == {frozenset({"no-sync", "workers"}), frozenset({"no-sync", "workers", "hook"})}


def test_hook_knobs_are_named_or_all_or_none() -> None:
    assert hook_names("none") == frozenset()
    assert hook_names("auto") == frozenset(HOOK_KNOBS)
    assert hook_names("no_sync,num_workers") == {"no_sync", "num_workers"}
    with pytest.raises(UsageError, match="did you mean 'num_workers'"):
        hook_names("num_worker")
