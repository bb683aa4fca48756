"""A dry run's folder: which worlds have a step, what is priced, what would change it, and what commands say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dry_ranks import GB, LOGITS, VIEW, a_rank, product

import stepscope
from stepscope.cli.predict_script import error_of
from stepscope.core.errors import ExitCode, UsageError
from stepscope.diagnose.screen import of_dry
from stepscope.records.dry_run import (
    DryFailure,
    DryRank,
    DryRun,
)
from stepscope.records.finding import Finding
from stepscope.report.views import views
from stepscope.results.dry_changes import dry_changes, worth_trying
from stepscope.results.dry_job import DryJob, is_logits, read_dry_job, weightiest
from stepscope.store.layout import DryLayout
from stepscope.store.writer import make_dir, write_record


def folder_of(
    root: Path,
    ranks: Sequence[DryRank],
    *,
    failures: tuple[DryFailure, ...] = (),
    changes: dict[str, str] | None = None,
) -> Path:
    layout = DryLayout(root)
    make_dir(layout.control)
    gpus = tuple(sorted({rank.world_size for rank in ranks} | {failure.world_size for failure in failures}))
    run = DryRun(
        command=("torchrun", "train.py"), folder="/job", argv=(), gpus=gpus, ranks_per_node=8, gpu="h100-sxm",
        network="infiniband-ndr", failures=failures, changes=changes or {},
    )  # fmt: skip
    write_record(layout.record, run)
    for rank in ranks:
        write_record(layout.rank(rank.world_size, rank.rank), rank)
    return root


def test_each_world_is_priced_and_one_that_failed_is_not(tmp_path: Path) -> None:
    failure = DryFailure(world_size=32, rank=4, reason="raised", text="no", place="train.py:3")
    job = read_dry_job(folder_of(tmp_path / "dry", [a_rank(8), a_rank(64), a_rank(32)], failures=(failure,)))
    assert list(job.worlds) == [8, 64]
    assert job.name == "train.py"
    for step in job.steps.values():
        assert sum(step.parts.values()) == pytest.approx(step.step_ns)
    assert job.steps[64].exposed_ns > job.steps[8].exposed_ns  # over the network
    assert job.largest.memory.needs_bytes > 23 * GB


def test_what_a_storage_is_of_is_told_by_its_width() -> None:
    rank = a_rank(8)
    assert weightiest(rank) == LOGITS
    assert is_logits(LOGITS, rank)
    assert not is_logits(replace(LOGITS, shape=(65536, 4096)), rank)


def test_a_change_is_named_with_what_it_gains(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "dry", [a_rank(64)])
    faster = replace(a_rank(64), calls=())
    folder_of(root / "other-1", [faster], changes={"bucket": str(100 << 20)})
    changes = dry_changes(read_dry_job(root))
    assert {change.how for change in changes} == {"run again", "priced"}
    job = read_dry_job(root)
    for change in changes:
        assert change.gain == pytest.approx(job.largest.step_ns / change.step.step_ns - 1)
        assert change.gain > 0.01
    (fused,) = (change for change in changes if "fused=True" in change.text)
    assert fused.step.parts["optimizer"] < job.largest.parts["optimizer"]


def test_what_is_sent_again_and_computed_again_is_tried_without(tmp_path: Path) -> None:
    rank = a_rank(8)
    gradients = replace(rank.calls[0], carries="gradients", size_bytes=4 * rank.trained)
    sent = {calls: replace(rank, calls=(gradients,) * calls, micro_steps=4, wrappers=("ddp",)) for calls in (1, 4)}
    sent[5] = replace(rank, operators=(replace(rank.operators[0], recomputed=True), *rank.operators[1:]))
    tries = {key: worth_trying(read_dry_job(folder_of(tmp_path / str(key), [one]))) for key, one in sent.items()}
    assert {"sync": "last"} not in tries[1]
    assert {"sync": "last"} in tries[4]
    assert {"recompute": "no"} in tries[5]
    assert {"recompute": "no"} not in tries[1]


def test_what_does_not_fit_says_what_would_make_it_fit(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "dry", [a_rank(8, activations=90 * GB)])
    job = read_dry_job(root)
    assert job.largest.memory.verdict == "too large"
    assert worth_trying(job) == ({"recompute": "full"},)
    folder_of(root / "other-1", [a_rank(8, activations=10 * GB)], changes={"recompute": "full"})
    job = read_dry_job(root)
    assert dry_changes(job)[0].makes_fit
    assert all(change.step.memory.verdict == "fits" for change in dry_changes(job))
    screen = of_dry(job)
    assert screen.tone == "problem"
    assert "logits at train.py:88" in screen.headline


@pytest.mark.parametrize(
    ("reason", "code"), [("world", ExitCode.USAGE), ("raised", ExitCode.ENVIRONMENT), ("no-step", ExitCode.ENVIRONMENT)]
)
def test_the_exit_code_says_whose_fault_it_is(reason: str, code: int) -> None:
    failure = DryFailure(world_size=8, rank=0, reason=reason, text="no", place="train.py:3")
    assert error_of(failure).exit_code == code
    assert "train.py:3" in str(error_of(failure))


@pytest.fixture(scope="module")
def dry_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("dry") / "dry", [a_rank(8), a_rank(64)])


def test_every_table_and_chart_of_a_dry_run_is_filled(dry_folder: Path) -> None:
    job = stepscope.open(dry_folder)
    of_views = {key for key, view in views().items() if key.startswith("dry_") and view.table}
    assert of_views <= set(job.names)
    assert {name.partition("-")[0] for name in job.charts} == {"dry_lanes", "dry_memory", "predicted_scaling"}
    dry: DryJob = read_dry_job(dry_folder)
    totals = [row.values[1].raw for row in views()["dry_memory"].table([dry]).rows]  # type: ignore[misc]
    assert totals[-1] == pytest.approx(sum(totals[:-1]))  # type: ignore[arg-type]


def test_a_dry_run_is_asked_again_on_other_gpus(dry_folder: Path) -> None:
    job = stepscope.open(dry_folder)
    same, other = job.predict(64), job.predict(64, gpu="a100-sxm4-80gb")
    assert other.record[64].parts["forward"] > 2 * same.record[64].parts["forward"]
    with pytest.raises(UsageError, match="no step of 16 GPUs"):
        job.predict(16)
    with pytest.raises(UsageError, match="the script's"):
        job.predict(64, batch=2.0)


def test_two_dry_runs_are_compared_on_the_gpus_that_both_have(dry_folder: Path, tmp_path: Path) -> None:
    heavier = folder_of(tmp_path / "heavier", [a_rank(64, activations=40 * GB, size_bytes=1 << 31)])
    figures = {figure.metric: figure for figure in stepscope.open(dry_folder).compare(heavier).record.figures}
    assert figures["dry_memory_bytes"].second.value - figures["dry_memory_bytes"].first.value >= 20 * GB
    assert figures["dry_step_ns"].ratio > 1
    assert all("64 GPUs" in figure.what for figure in figures.values())


def findings_of(root: Path) -> dict[str, Finding]:
    return {finding.rule: finding for finding in stepscope.open(root).diagnosis.findings}


def test_a_dry_run_is_diagnosed(tmp_path: Path) -> None:
    sound = folder_of(tmp_path / "sound", [a_rank(8)])
    assert findings_of(sound) == {}
    full = findings_of(folder_of(tmp_path / "full", [a_rank(8, activations=90 * GB)]))["near-oom"]
    assert full.severity == "problem"
    assert "chunk the loss" in full.advice[0].text
    tight = findings_of(folder_of(tmp_path / "tight", [a_rank(8, activations=75 * GB)]))["near-oom"]
    assert tight.severity == "warning"
    sends = folder_of(tmp_path / "sends", [a_rank(64, size_bytes=1 << 34)])
    job = read_dry_job(sends)
    exposed = findings_of(sends)["exposed-communication"]
    assert exposed.stake_fraction == pytest.approx(job.largest.exposed_ns / job.largest.step_ns)
    small = replace(a_rank(64), operators=(product(64, 64, 64), VIEW), order=(0, 1) * 5000, calls=())
    waits = folder_of(tmp_path / "waits", [small])
    host = findings_of(waits)["launch-bound"]
    assert host.stake_fraction == pytest.approx(read_dry_job(waits).largest.host_share)
