"""Ranks wait for data: in the timed steps of cells, and in traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench_evidence import bench, environment, made
from tests.hand_events import mark, op
from tests.sharded_jobs import used_by
from tests.trace_evidence import by_hand, found, generated, skipped, with_ranks

from stepscope.diagnose.rules.data_loading import RULE


def test_a_cpu_job_waits_for_data_too(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=2, steps=4, device="gloo", data_ns=2_000_000))
    assert finding.title.startswith("input-bound: 59%")


def test_a_trace_without_any_event_is_skipped(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=1)
    assert "no device work, operators" in skipped(RULE, with_ranks(evidence, budget=None))


def test_the_option_has_the_name_of_the_jobs_own_framework(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, steps=4, device="gloo", data_ns=2_000_000)
    assert not any("dataloader_num_workers" in a.text for a in found(RULE, evidence).advice)
    trainer = used_by(evidence, frameworks=("transformers",))
    assert any("HF Trainer: TrainingArguments(dataloader_num_workers" in a.text for a in found(RULE, trainer).advice)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DALIGenericIterator.__next__", "DALI: Pipeline(num_threads=..., prefetch_queue_depth=...)"),
        ("ffcv.loader.EpochIterator.__next__", "FFCV: Loader(num_workers=..., batches_ahead=...)"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "DataLoader(num_workers=...)"),
    ],
)
def test_a_loader_of_another_library_has_its_own_options(name: str, options: str) -> None:
    rows = [row for at in (0, 100) for row in (mark(name, at, at + 60), op("aten::mm", at + 60, at + 100))]
    texts = [advice.text for advice in found(RULE, by_hand(*rows)).advice]
    assert options in texts[0]
    assert ("worker processes" in texts[0]) == ("DataLoader" in name)


def test_waiting_for_data_fires_with_its_share_and_settings() -> None:
    (found,) = RULE.check(
        bench(made("c", phases={"data_wait": 60.0}, known={"threads_per_rank": 1}), environment=environment())
    )
    assert found.severity == "problem"
    assert found.stake_fraction == pytest.approx(60 / 160, abs=0.02)
    assert "num_workers 0, persistent_workers off, pin_memory off" in found.evidence
    assert found.advice[0].command == "stepscope bench MATRIX.yaml --set 'axes.num_workers=[0,1,2]'"
    assert "need cores" not in found.advice[0].text


def test_the_advice_follows_from_the_settings() -> None:
    cell = made("c", phases={"data_wait": 30.0}, num_workers=2, device="cuda", backend="nccl", epochs=2, steps=40)
    (found,) = RULE.check(bench(cell))
    texts = " | ".join(a.text for a in found.advice)
    assert "use 4 workers instead of 2" in texts
    assert "keep workers alive" in texts
    assert "pinned memory" in texts


def test_workers_that_have_no_core_are_not_praised() -> None:
    cell = made("c", phases={"data_wait": 30.0}, known={"threads_per_rank": 1})
    (found,) = RULE.check(bench(cell, environment=environment(usable_cores=2)))
    assert "workers need cores: 2 compute threads on 2 cores already" in found.advice[0].text


def test_a_profiled_cell_is_told_once_and_other_traces_beside_it(tmp_path: Path) -> None:
    waits = generated(tmp_path, world=2, steps=4, device="gloo", data_ns=2_000_000).traces[0]
    mine, other = replace(waits, name="mine", cell_id="c"), replace(waits, name="other")
    evidence = bench(made("c", phases={"data_wait": 60.0}), traces=(mine, other))
    timed, traced = RULE.check(evidence)
    assert (timed.job, traced.job) == ("mine", "other")
    assert timed.title.endswith("of the step waits for data")
    assert RULE.check(bench(made("c"), traces=(mine,)))[0].job == "mine", "quiet in its steps, told of its traces"


@pytest.mark.parametrize(("faults", "said"), [({"loader": 45_000_000}, True), ({"slow_rank": 45_000_000}, False)])
def test_waiting_that_was_planted_is_said_to_be(faults: dict[str, int], said: bool) -> None:
    """50 ms of waiting for data, of which the loader's fault is 45."""
    cell = made("c", phases={"data_wait": 50.0}, summary={"planted_ns": faults}, inject="loader=45ms")
    (found,) = RULE.check(bench(cell))
    assert any("planted" in line and "45.0 ms" in line and "loader=45ms" in line for line in found.evidence) is said
