"""1 rank against n from traces, metrics files and logs: speed-up, efficiency, and which part of the step took the rest."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import epochs, evidence, run
from tests.trace_builder import build, write_job

from stepscope.core.errors import UsageError
from stepscope.diagnose.engine import diagnose
from stepscope.examples.machine import Operator
from stepscope.records.comparison import ScalingBudget, ScalingReading
from stepscope.records.imported import Stated
from stepscope.records.nouns import Estimate, Measured
from stepscope.report.views import scaling as scaling_budget_view
from stepscope.results.comparing import Side, compare
from stepscope.results.epochs import PER_EPOCH
from stepscope.results.evidence import Evidence
from stepscope.results.joining import require_stated
from stepscope.results.open import load_evidence
from stepscope.results.scaling_budget import _scaling_reading, loss, verdict

STEPS = 8


def matmul(rows: int, *, known: bool = True) -> tuple[Operator, ...]:
    """A matrix product of so many rows; unless it is ``known``, under a name whose FLOP nobody knows."""
    name = "aten::mm" if known else "aten::mine"
    return (Operator(name=name, kernel="sgemm_128x64_tn", dims=((rows, 512), (512, 512))),)


def job(folder: Path, *, rows: int, known: bool = True, **plan: Any) -> Path:
    work = {"forward": matmul(rows, known=known), "backward": matmul(rows, known=known)}
    times = {
        "forward_ns": 400 * rows,
        "backward_ns": 800 * rows,
        "transfer_ns": 20_000,
        "copy_ns": 0,
        "optimizer_ns": 4000,
    }
    return write_job(build(**{"steps": STEPS, "layers": 4} | work | times | plan), folder)


def parts_of(reading: ScalingReading) -> dict[str, float]:
    return {part.key: part.lost_ns for part in reading.parts}


def only(*paths: Path, **more: Any) -> ScalingBudget:
    (budget,) = load_evidence(paths, **more).scaling_budgets
    (reading,) = budget.readings
    assert sum(part.lost_ns for part in reading.parts) == pytest.approx(reading.lost_ns, abs=1) or not reading.parts
    return budget


def test_exposed_communication_is_the_loss_where_it_was_planted(tmp_path: Path) -> None:
    one = job(tmp_path / "one", rows=1024, world=1)
    four = job(tmp_path / "four", rows=256, world=4, transfer_ns=900_000)
    budget = only(one, four)
    (reading,) = budget.readings
    assert (reading.scaling, budget.base_world_size, budget.world_size) == ("strong", 1, 4)
    assert "0.25 of the FLOP" in (budget.decided_by or "")
    assert reading.speedup == pytest.approx(budget.base_time.value / budget.time.value)
    assert reading.efficiency == pytest.approx(reading.speedup / 4)
    assert reading.low is not None
    lost = parts_of(reading)
    assert max(lost, key=lambda key: lost[key]) == "exposed_comm"
    assert lost["exposed_comm"] > 0.8 * reading.lost_ns
    findings = [f for f in diagnose(load_evidence([one, four])).findings if f.rule == "scaling-loss"]
    assert "of the loss is exposed communication" in findings[0].title


def test_kernels_of_unknown_kind_are_a_part_of_the_loss_and_no_computation(tmp_path: Path) -> None:
    one = job(tmp_path / "one", rows=1024, world=1)
    four = job(tmp_path / "four", rows=256, world=4, transfer_ns=900_000, nccl_args=False)
    for file in four.glob("*.json"):
        text = file.read_text().replace("record_param_comms", "MyOperator").replace("c10d::", "Mine")
        file.write_text(re.sub(r"ncclDevKernel\w+", "someKernel", text))
    lost = parts_of(only(one, four).readings[0])
    assert max(lost, key=lambda key: lost[key]) == "unknown"


@pytest.mark.parametrize(("kind", "part"), [("compute", "waiting"), ("data", "input")])
def test_a_straggler_and_a_slow_loader_are_told_apart(tmp_path: Path, kind: str, part: str) -> None:
    one = job(tmp_path / "one", rows=1024, world=1)
    slow = {2: 3_000_000} if kind == "compute" else dict.fromkeys(range(4), 3_000_000)
    four = job(tmp_path / "four", rows=256, world=4, late=slow, late_kind=kind)
    (reading,) = only(one, four).readings
    lost = parts_of(reading)
    assert max(lost, key=lambda key: lost[key]) == part
    if kind == "compute":  # 3 of 4 ranks wait for 3 ms
        assert lost["waiting"] == pytest.approx(0.75 * 3_000_000, rel=0.1)
        assert lost["compute"] == pytest.approx(0.25 * 3_000_000, rel=0.1)


def test_the_same_work_on_every_rank_is_weak_scaling_and_one_step_each_has_no_interval(tmp_path: Path) -> None:
    budget = only(job(tmp_path / "one", rows=1024, world=1), job(tmp_path / "two", rows=1024, world=2))
    (reading,) = budget.readings
    assert reading.scaling == "weak"
    assert reading.efficiency == pytest.approx(1, abs=0.02)
    assert reading.speedup == pytest.approx(2, abs=0.04)
    paths = [job(tmp_path / "b" / name, rows=1024, world=world, steps=1) for name, world in (("one", 1), ("two", 2))]
    assert only(*paths).no_interval == "one sample each: no interval"


def test_without_shapes_both_readings_are_given_until_the_user_states_one(tmp_path: Path) -> None:
    paths = [job(tmp_path / name, rows=1024, known=False, world=world) for name, world in (("one", 1), ("two", 2))]
    (budget,) = load_evidence(paths).scaling_budgets
    assert [each.scaling for each in budget.readings] == ["strong", "weak"]
    assert [each.efficiency for each in budget.readings] == pytest.approx([0.5, 1.0], abs=0.02)
    assert budget.decided_by is None
    assert any("--scaling" in line for line in verdict(budget))
    found = load_evidence(paths, stated=Stated(scaling="weak"))
    require_stated(found, Stated(scaling="weak"))
    assert [each.scaling for each in found.scaling_budgets[0].readings] == ["weak"]


def test_other_devices_and_two_baselines_give_no_verdict_and_say_so(tmp_path: Path) -> None:
    one = job(tmp_path / "one", rows=1024, world=1, gpu="NVIDIA A100-SXM4-80GB")
    two = job(tmp_path / "two", rows=1024, world=2, gpu="Tesla V100-SXM2-16GB")
    found = load_evidence([one, two])
    assert not found.scaling_budgets
    assert any("V100" in note and "A100" in note for note in found.remarks)
    again = job(tmp_path / "again", rows=1024, world=1)
    assert any("2 traced jobs ran on 1 rank" in note for note in load_evidence([one, again, two]).remarks)


def test_compare_and_a_folder_of_both_say_the_same(tmp_path: Path) -> None:
    one = job(tmp_path / "one" / "traces", rows=1024, world=1)
    two = job(tmp_path / "two" / "traces", rows=512, world=2)
    sides = [Side(name=path.parent.name, rounds=(load_evidence([path]),)) for path in (one, two)]
    (compared,) = compare(sides).scaling
    (together,) = load_evidence([tmp_path]).scaling_budgets
    assert (together.base, together.run) == ("one", "two")
    assert compared.readings == together.readings
    assert "one" in compared.base


def metrics(folder: Path, seconds: float, *, epochs: int = 10) -> Path:
    folder.mkdir(parents=True)
    draw = random.Random(seconds)
    rows = [f"{n},{1 / (n + 1):.3f},{seconds * draw.uniform(0.99, 1.01):.3f}" for n in range(1, epochs + 1)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,train_loss,train_time", *rows]) + "\n")
    return folder / "metrics.csv"


def test_two_metrics_files_give_a_verdict_once_their_ranks_are_stated(tmp_path: Path) -> None:
    paths = (metrics(tmp_path / "small", 40.0), metrics(tmp_path / "large", 16.0))
    (note,) = [note for note in load_evidence(paths).remarks if "no scaling verdict" in note]
    assert note.endswith("--world-size small=RANKS,large=RANKS")
    budget = only(*paths, stated=Stated(world_size={"small": 1, "large": 4}))
    (reading,) = budget.readings
    assert budget.unit == "epoch"
    assert reading.speedup == pytest.approx(2.5, rel=0.02)
    assert reading.efficiency == pytest.approx(0.625, rel=0.02)
    assert reading.low < reading.speedup < (reading.high or 0)
    assert budget.no_parts is not None


def titan(folder: Path, *, world: int, local: int, tokens: int, lines: int = 8) -> Path:
    """A log of torchtitan: tokens a second of one device."""
    info = "[rank0]:[titan] 2025-03-12 11:10:00,000 - root - INFO - "
    folder.mkdir(parents=True)
    text = [
        info + f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={world}, cp=1, tp=1",
        info + f"Training starts at step 1, with local batch size {local}, global batch size {local * world}, "
        f"sequence length 2048, total steps {10 * lines} (warmup 2)",
        *(
            info + f"step: {10 * n}  loss:  7.1  memory: 40.20GiB(42.31%)  tps: {tokens}  mfu: 30.20%"
            for n in range(1, lines)
        ),
    ]
    (folder / "train.log").write_text("\n".join(text) + "\n")
    return folder / "train.log"


@pytest.mark.parametrize(("local", "scaling"), [(8, "weak"), (2, "strong")])
def test_two_logs_tell_their_scaling_by_their_batches(tmp_path: Path, local: int, scaling: str) -> None:
    paths = (
        titan(tmp_path / "a", world=1, local=8, tokens=1000),
        titan(tmp_path / "b", world=4, local=local, tokens=600),
    )
    budget = only(*paths)
    (reading,) = budget.readings
    assert reading.scaling == scaling
    assert (reading.speedup, reading.efficiency) == (pytest.approx(2.4), pytest.approx(0.6))
    assert "batch of 8" in (budget.decided_by or "")


def test_two_runs_of_different_models_are_not_a_run_and_its_baseline(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    paths = []
    for name, ddp, model in (("one", "false", "gpt"), ("two", "true", "mlp")):
        paths.append(metrics(tmp_path / "experiments" / name, 10.0).parent)
        (tmp_path / "configs" / f"{name}.yaml").write_text(
            f"model: {{name: {model}}}\ntrain: {{use_ddp: {ddp}, world_size: {1 if ddp == 'false' else 2}}}\n"
            f"output_dir: experiments/{name}\n"
        )
    found: Evidence = load_evidence(paths, stated=Stated(world_size={"two": 2}))
    assert not found.scaling_budgets
    assert any("model is gpt and mlp" in note for note in found.remarks)


def test_scaling_stated_where_nothing_takes_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        require_stated(load_evidence([job(tmp_path / "one", rows=64, world=1)]), Stated(scaling="weak"))


def test_a_part_that_lost_more_than_the_whole_is_no_share_of_it() -> None:
    """24 ms on 1 rank, 15 ms on 2: 3 ms lost, of which communication takes 4 and input gains 1."""
    base = {"compute": 20e6, "exposed_comm": 0.0, "input": 4e6}
    parts = {"compute": 10e6, "exposed_comm": 4e6, "input": 1e6}
    reading = _scaling_reading("strong", Estimate(value=1.6), 2.0, 15e6, 24e6, base, parts)
    assert reading.lost_ns == pytest.approx(3e6)
    assert parts_of(reading) == pytest.approx({"compute": 0.0, "exposed_comm": 4e6, "input": -1e6})
    assert {part.key: part.share for part in reading.parts} == {"compute": 0.0, "exposed_comm": None, "input": None}
    budget = ScalingBudget(
        base="one", run="two", base_world_size=1, world_size=2, unit="step", basis="", base_time=Measured(value=24e6),
        time=Measured(value=15e6), decided_by="", readings=(reading,),
    )  # fmt: skip
    said = loss(budget, reading).partition("lost")[2]
    assert "%" not in said
    assert re.findall(r"([+-]\d+\.\d+) ms", said) == ["+4.00", "-1.00"]
    table = scaling_budget_view.scaling_budget_table([budget])
    at = [column.key for column in table.columns].index("share")
    assert [row.values[at].raw for row in table.rows] == [None, 0.0, None, 1.0]
    gained = _scaling_reading(
        "strong", Estimate(value=1.6), 2.0, 15e6, 24e6, base, {"compute": 10e6, "exposed_comm": 3e6, "input": 2e6}
    )
    assert [part.share for part in gained.parts] == pytest.approx([0.0, 1.0, 0.0])


def test_communication_by_the_epoch_is_a_part_of_it() -> None:
    """40 s on 1 rank, 16 s on 4: 6 of the 6 s lost are communication."""
    base = run("one", epochs=epochs(seconds=[50.0, 40.0, 40.0]), dataset="d")
    four = run(
        "four", ranks=4, epochs=epochs(seconds=[20.0, 16.0, 16.0]), dataset="d", baseline_id="one",
        settings={PER_EPOCH: 6e9},
    )  # fmt: skip
    (budget,) = evidence(base, four).scaling_budgets
    assert budget.no_parts is None
    assert parts_of(budget.readings[0]) == {"exposed_comm": pytest.approx(6e9), "rest": 0.0}
