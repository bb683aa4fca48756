"""Ranks wait for data: in the timed steps of cells, and in traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench_evidence import bench, environment, made
from tests.hand_events import Row, kernel, launch, mark, op
from tests.sharded_jobs import used_by
from tests.trace_evidence import by_hand, found, generated, quiet, skipped, with_ranks

from stepscope.diagnose.rules.data_loading import RULE
from stepscope.results.evidence import Evidence
from stepscope.traces.events import Category


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


def prepared(function: str, *, thread: str = "main") -> Evidence:
    """Ten inputs of 3 ms, each before a kernel of 1 ms."""
    rows: list[Row] = []
    for i in range(10):
        at = i * 4_000_000
        rows.append(Row(name=function, category=Category.PYTHON, start=at, end=at + 2_990_000, thread=thread))
        rows += [op("aten::mm", at + 2_992_000, at + 2_999_000), launch(at + 2_993_000, at + 2_998_000, i + 1)]
        rows.append(kernel("gemm", at + 3_000_000, at + 4_000_000, i + 1))
    return by_hand(*rows)


@pytest.mark.parametrize(
    "function",
    [
        "transformers/pipelines/video_classification.py(129): preprocess",
        "serve/inputs.py(7): collate_fn",
        "my/app.py(12): tokenize",
        "/opt/lib/transformers/tokenization_utils_base.py(2800): __call__",
        "transformers/image_utils.py(508): load_image",
    ],
)
def test_functions_that_prepare_inputs_are_loading(function: str) -> None:
    finding = found(RULE, prepared(function))
    assert finding.title.startswith("input-bound: 73% of the window")
    assert any(f"the host is in {function}" in text for text in finding.evidence)
    assert "batch_size" in finding.advice[0].text
    assert not any("workers" in a.text and "DataLoader" in a.text for a in finding.advice)


def test_the_loader_seen_as_a_function_has_the_loaders_advice() -> None:
    finding = found(RULE, prepared("torch/utils/data/dataloader.py(703): __next__"))
    assert any("DataLoader(num_workers" in a.text for a in finding.advice)


@pytest.mark.parametrize(
    ("function", "thread"),
    [
        ("vllm/v1/worker/gpu_model_runner.py(2814): _preprocess", "main"),
        ("sglang/srt/layers/sampler.py(64): _preprocess_logits", "main"),
        ("tokenize.py(406): tokenize", "main"),  # Python's own, of source code
        ("inference/text.py(9): detokenize", "main"),
        ("serve/inputs.py(7): collate_fn", "prefetch"),  # loads meanwhile
    ],
)
def test_functions_of_other_work_and_other_threads_are_not(function: str, thread: str) -> None:
    assert quiet(RULE, prepared(function, thread=thread))
