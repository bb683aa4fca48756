"""The bubble of a pipeline, from the configuration in a log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.evidence import evidence
from tests.pipelines import MS, pipeline_cell
from tests.sharded_jobs import pipeline, traces_of
from tests.trace_evidence import found, quiet

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.diagnose.rules.pipeline_bubble import RULE
from stepscope.diagnose.rules.pipeline_imbalance import RULE as IMBALANCE
from stepscope.predict.pipeline import StageTime
from stepscope.records.finding import Quiet
from stepscope.records.mesh import PipelineLayout
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

MEGATRON = """\
using world size: {world}, data-parallel-size: 1, tensor-model-parallel size: 1, pipeline-model-parallel size: {stages}
------------------------ arguments ------------------------
  micro_batch_size ................................ 2
  num_layers ...................................... 32
  seq_length ...................................... 128
{more}-------------------- end of arguments ---------------------
"""


def megatron(folder: Path, *, stages: int = 16, batch: int = 8, more: str = "") -> Any:
    lines = [
        f" iteration {at:8d}/     100 | consumed samples: 1 | elapsed time per iteration (ms): 100.0 | "
        f"learning rate: 1.5E-04 | global batch size: {batch:5d} | lm loss: 1.5E+00 | number of skipped iterations:   0 |"
        for at in (10, 20, 30)
    ]
    path = folder / "job.log"
    path.write_text(MEGATRON.format(world=stages, stages=stages, more=more) + "\n".join(lines) + "\n")
    return load_evidence([path])


def test_sixteen_stages_with_four_micro_batches_idle_79_percent(tmp_path: Path) -> None:
    (found,) = RULE.check(megatron(tmp_path))
    assert found.title.startswith("79% of the step is pipeline bubble: 16 stages, 4 micro-batches")
    assert found.severity == "problem"
    assert found.stake_fraction == pytest.approx(15 / 19)
    assert found.advice[0].text.startswith("use 135 micro-batches or more")  # 15 / (135 + 15) = 10%
    assert "the global batch is 270 (now 8)" in found.advice[1].text
    assert "give 8 of them" in found.advice[2].text


def test_interleaved_chunks_divide_the_bubble(tmp_path: Path) -> None:
    more = "  num_layers_per_virtual_pipeline_stage ........... 1\n"
    (found,) = RULE.check(megatron(tmp_path, more=more))
    assert found.stake_fraction == pytest.approx(15 / (2 * 4 + 15))
    assert not any("interleaved" in advice.text for advice in found.advice)


def test_a_log_of_torchtitan_names_schedule_and_micro_batches(tmp_path: Path) -> None:
    info = "[rank0]:[titan] 2025-03-12 11:10:00,000 - root - INFO - "
    lines = [
        info + "Building device mesh with parallelism: pp=4, dp_replicate=1, dp_shard=2, cp=1, tp=1, ep=1, etp=1",
        info + "Using pipeline schedule Interleaved1F1B with 8 microbatches and 8 stages.",
        info + "Training starts at step 1, with local batch size 8, global batch size 16, sequence length 8192, "
        "total steps 100 (warmup 20)",
        *(
            info + f"step: {at:2}  loss:  3.1  grad_norm:  0.8  memory: 40.20GiB(42.31%)  tps: 7,000  mfu: 30.20%"
            for at in (1, 10, 20)
        ),
    ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    (found,) = RULE.check(load_evidence([tmp_path / "job.log"]))
    assert found.stake_fraction == pytest.approx(3 / (2 * 8 + 3))


def measured(micro_batches: int, *, message_ms: float = 0.0) -> Any:
    layout = PipelineLayout(schedule="1f1b", ranks=2, micro_batches=micro_batches)
    time = StageTime(forward_ns=10 * MS, backward_ns=20 * MS, send_ns=message_ms * MS, send_back_ns=message_ms * MS)
    cell = pipeline_cell(layout, [time] * 2, (4, 4))
    return evidence(cell.run, cells=(cell,))


def test_a_measured_bubble_has_its_interval_and_the_micro_batches_that_make_it_small() -> None:
    (found,) = RULE.check(measured(4))
    assert found.title == "20% of the schedule is pipeline bubble: 2 ranks, 4 micro-batches"
    assert "measured 20% (95% interval 20% to 20%) with 1f1b" in found.evidence[0]
    assert found.advice[0].text.startswith("use 9 micro-batches or more")
    assert "the global batch is 36 (now 16)" in found.advice[1].text
    assert isinstance(RULE.check(measured(16)), Quiet)


def test_enough_micro_batches_and_still_a_bubble_points_at_the_messages() -> None:
    (found,) = RULE.check(measured(10, message_ms=30.0))
    assert "enough by the formula: look at messages" in found.advice[0].text
    assert "waiting for messages is" in found.evidence[1]


def traced_stages(
    folder: Path, micro_batches: int, *, world: int = 2, slow: dict[int, float] | None = None
) -> Evidence:
    """GPipe, of two stages on gloo, with messages of 1 us: forward 0.1 ms, backward 0.2 ms."""
    plan = {"forward_ns": 100_000, "backward_ns": 200_000, "transfer_ns": 1_000, "launch_ns": 500}
    return traces_of(
        pipeline(world=world, layers=micro_batches, device="gloo" if world == 2 else "cuda", slow=slow or {}, **plan),
        folder / str(micro_batches),
    )


@pytest.mark.parametrize(("micro_batches", "world"), [(2, 2), (4, 2), (4, 4)])
def test_the_bubble_of_traces_stands_beside_the_formula(micro_batches: int, world: int, tmp_path: Path) -> None:
    finding = found(RULE, traced_stages(tmp_path, micro_batches, world=world))
    ideal = (world - 1) / (micro_batches + world - 1)
    assert finding.title.endswith(f"{world} stages, {micro_batches} micro-batches")
    assert finding.stake_fraction == pytest.approx(ideal, rel=0.25)
    assert f"({world} - 1) / ({micro_batches} + {world} - 1)" in finding.evidence[0]
    assert finding.advice[-1].command is not None
    on_gpus = world > 2  # on CPUs, where messages take a core, interleaved stages and more micro-batches took longer
    for change in ("micro-batches or more", "interleaved"):
        assert any(change in a.text for a in finding.advice) is on_gpus


def test_many_micro_batches_fill_a_traced_pipeline(tmp_path: Path) -> None:
    assert quiet(RULE, traced_stages(tmp_path, 24))


def test_a_slow_stage_of_many_micro_batches_is_balanced_and_not_given_more(tmp_path: Path) -> None:
    evidence = traced_stages(tmp_path, 16, slow={1: 1.8})
    finding = found(RULE, evidence)
    assert not any("micro-batches or more" in a.text for a in finding.advice)
    assert any("balance the stages" in a.text for a in finding.advice)
    said = diagnose(evidence, rules=(RULE, IMBALANCE, EXPOSED))
    assert said.findings[0].rule == "pipeline-imbalance"
    assert "exposed-communication" not in {f.rule for f in said.findings}
