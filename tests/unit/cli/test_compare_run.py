"""``compare --run``: both matrices in turns, a round is a replicate; the measuring itself is `bench`'s."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import fake_runs

import stepscope.cli.bench_run  # noqa: F401 - imported while make_plan is replaced, it would keep the replacement
from stepscope.cli.commands.bench import Bench
from stepscope.cli.commands.compare import Compare
from stepscope.cli.compare_run import run
from stepscope.core.errors import CheckFailed, DataError, UsageError
from stepscope.machine.collect import collect
from stepscope.machine.verdicts import doctor_document
from stepscope.records.cell import RunRecord
from stepscope.records.environment import GpuFact, NicFact
from stepscope.results.run_figures import write_results
from stepscope.results.runs import build_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_record

STEP_NS = {"a": 10_000_000, "b": 8_000_000}


def request(folder: Path, **changes: Any) -> Compare:
    fields: dict[str, Any] = {
        "paths": (folder / "a.yaml", folder / "b.yaml"), "run": True, "rounds": 4, "output": folder / "ab",
        "set_": (), "metric": "step_ns", "world_size": None, "drop_epochs": 1, "fail_if": (), "json": True,
    }  # fmt: skip
    return Compare(**(fields | changes))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the run folders in the order in which they were measured; each holds one cell with 30 steps."""
    order: list[str] = []

    def make_plan(path: Path, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(side=path.stem)

    def run_plan(plan: SimpleNamespace, options: Bench, **_: Any) -> int:
        output = options.output
        assert output is not None
        order.append(output.name)
        layout, cell = RunLayout(output), fake_runs.single("cell")
        number = int(output.name[-2:])
        steps = fake_runs.series([STEP_NS[plan.side] + 1000 * (n % 7) + 10_000 * number for n in range(30)])
        fake_runs.write_cell(layout, cell, ranks=[steps])
        write_record(layout.run, RunRecord(kind="bench", name=plan.side, matrix={}, cells=("cell",), argv=()))
        write_results(layout, build_runs(layout, [cell]))
        return 0

    monkeypatch.setattr("stepscope.matrix.session.make_plan", make_plan)
    monkeypatch.setattr("stepscope.cli.bench_run.run_plan", run_plan)
    return order


def test_rounds_take_turns_and_are_the_replicates(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(request(tmp_path)) == 0
    assert measured == ["a-01", "b-01", "b-02", "a-02", "a-03", "b-03", "b-04", "a-04"]
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    assert figure["replicate"] == "round"
    assert figure["verdict"] == "better"
    assert figure["ratio"] == pytest.approx(0.8, abs=0.01)
    assert figure["p_value"] == pytest.approx(2 / 70, abs=1e-3)


def test_three_rounds_are_refused_before_anything_is_measured(tmp_path: Path, measured: list[str]) -> None:
    with pytest.raises(UsageError, match="at least 4") as refused:
        run(request(tmp_path, rounds=3))
    assert "0.10" in (refused.value.why or "")
    assert measured == []


def test_a_round_without_a_result_ends_it_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.matrix.session.make_plan", lambda path, **_: path)
    monkeypatch.setattr("stepscope.cli.bench_run.run_plan", lambda *_, **__: 5)
    with pytest.raises(DataError, match="round 1") as failed:
        run(request(tmp_path))
    assert "-o" in (failed.value.fix or "")


@pytest.mark.usefixtures("measured")
def test_a_condition_on_the_change_ends_with_the_change(tmp_path: Path) -> None:
    assert run(request(tmp_path, fail_if=("step_ns > 5%",))) == 0
    with pytest.raises(CheckFailed, match="step_ns < -10%") as failed:
        run(request(tmp_path, fail_if=("step_ns < -10%",)))
    assert "-2" in (failed.value.why or "") or "-19" in (failed.value.why or "")


def imported(folder: Path, *names: str) -> tuple[Path, ...]:
    """A metrics.csv of 12 epochs in a folder each."""
    for name in names:
        (folder / name).mkdir()
        lines = [f"{n},{1 / n},{10 + n % 3 / 10},{1 / n},0.5" for n in range(1, 13)]
        text = "\n".join(["epoch,train_loss,train_time,val_loss,val_acc", *lines])
        (folder / name / "metrics.csv").write_text(text + "\n", encoding="utf-8")
    return tuple(folder / name for name in names)


def reading(folder: Path, **changes: Any) -> Compare:
    paths = imported(folder, "exp001_alone", "exp002_four")
    return request(folder, paths=paths, run=False, rounds=None, output=None, metric=None, **changes)


def test_ranks_are_stated_of_the_runs_of_all_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reading(tmp_path, world_size="exp001=1,exp002=4")) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    (ranks,) = [each for each in differences if each["key"] == "world_size"]
    assert ranks["values"] == ["1", "4"]


def test_ranks_of_a_run_on_no_side_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run has 'exp003'"):
        run(reading(tmp_path, world_size="exp001=1,exp003=4"))


def test_a_condition_that_nothing_here_can_meet_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reading(tmp_path, fail_if=("samples_per_s < -3%", "epoch_ns > 50%"))) == 0
    said = capsys.readouterr().err
    assert "--fail-if 'samples_per_s < -3%' was not checked: nothing compared here has samples_per_s" in said
    assert "epoch_ns > 50%" not in said


def test_one_matrix_twice_is_measured_as_the_noise_of_the_machine(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    twice = request(tmp_path, paths=(tmp_path / "a.yaml", tmp_path / "a.yaml"))
    assert run(twice) == 0
    assert len(measured) == 8
    said = capsys.readouterr()
    assert "same matrix: any difference is the noise of this machine" in said.err
    document = json.loads(said.out)
    assert document["sides"] == ["a (A)", "a (B)"]
    assert document["figures"][0]["verdict"] == "no significant difference"


def test_the_folder_of_the_data_sets_reaches_both_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("stepscope.matrix.session.make_plan", lambda path, **known: asked.append((path.stem, known)))
    monkeypatch.setattr("stepscope.cli.bench_run.run_plan", lambda *_, **__: 5)
    with pytest.raises(DataError):
        run(request(tmp_path, data_dir=tmp_path))
    assert [(stem, known["data_dir"]) for stem, known in asked] == [("a", tmp_path), ("b", tmp_path)]


def notebook(folder: Path, gpu: str, comm: float) -> Path:
    """The notebook's results of one machine: 3 models x 2 precisions x (1 + 3 modes x 3 numbers of GPUs) = 60 runs."""
    rows = []
    for model, seconds in (("base", 2.0), ("large", 6.0), ("xlarge", 16.0)):
        for amp in (False, True):
            modes = [("single_gpu", 1), *((mode, n) for n in (2, 4, 8) for mode in MODES)]
            for mode, n in modes:
                epoch = seconds * (0.6 if amp else 1.0) / n + (comm * seconds * MODES[mode] if n > 1 else 0.0)
                times = [epoch * (1 + at % 3 / 500) for at in range(6)]
                rows.append(
                    {"mode": mode, "n_gpus": n, "n_params": 64_000_000, "model_size": model, "use_amp": amp,
                     "grad_accum_steps": 1, "epoch_times": times, "losses": [2.3] * 6, "final_accuracy": 0.1,
                     "avg_epoch_time": epoch, "total_time": sum(times), "gpu_name": gpu}
                )  # fmt: skip
    path = folder / f"benchmark_results_{gpu.replace(' ', '_')}.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


MODES = {"dp_naive": 1.0, "dp_interleaved": 0.5, "ddp_builtin": 0.4}


def test_two_machines_are_one_screen_and_all_of_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 runs of two machines: 1,100 lines before; a line for each strategy and number of GPUs."""
    paths = (notebook(tmp_path, "NVIDIA A100 PCIe", 0.3), notebook(tmp_path, "NVIDIA A100 SXM", 0.03))
    fields = {"run": False, "rounds": None, "output": None, "metric": None, "json": False}
    assert run(request(tmp_path, paths=paths, **fields)) == 0
    screen = capsys.readouterr().out.splitlines()
    assert run(request(tmp_path, paths=paths, everything=True, **fields)) == 0
    every = capsys.readouterr().out.splitlines()
    assert len(screen) <= 40
    assert sum("on 8 ranks" in line for line in screen) == 3
    assert sum("on 8 ranks" in line for line in every) >= 18, "each model and precision by itself"


def test_ranks_are_stated_under_the_names_that_the_remark_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders of one name: `x/run/run=RANKS` is asked for, and taken."""
    paths = []
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        paths += imported(tmp_path / place, "run")
    monkeypatch.chdir(tmp_path)
    here = tuple(path.relative_to(tmp_path) for path in paths)
    fields = {"paths": here, "run": False, "rounds": None, "output": None, "metric": None}
    assert run(request(tmp_path, **fields)) == 0
    asked = json.loads(capsys.readouterr().out)["notes"][-1].rpartition("--world-size ")[2]
    assert asked == "x/run/run=RANKS,y/run/run=RANKS"
    assert run(request(tmp_path, world_size="x/run/run=1,y/run/run=4", **fields)) == 0
    (budget,) = json.loads(capsys.readouterr().out)["scaling"]
    assert (budget["base_world_size"], budget["world_size"]) == (1, 4)


def test_two_machines_by_what_doctor_wrote_of_them_are_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = collect(with_torch=False)
    gpus = tuple(
        GpuFact(
            index=n, name="NVIDIA H100", uuid=None, memory_bytes=None, compute_capability=None, driver_version="570"
        )
        for n in range(2)
    )
    two = replace(
        one, host="other", gpus=gpus, topology="\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n",
        variables={f"NCCL_X{n}": "1" for n in range(60)},
        nics=(NicFact(name="ib0", kind="infiniband", speed_bits_per_s=4 * 10**11, up=True),),
    )  # fmt: skip
    paths = []
    for name, record in (("a", one), ("b", two)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(doctor_document(record, ())), encoding="utf-8")
    fields = {"paths": tuple(paths), "run": False, "rounds": None, "output": None, "metric": None}
    assert run(request(tmp_path, **fields)) == 0
    found = {each["key"]: each["values"] for each in json.loads(capsys.readouterr().out)["differences"]}
    assert found["gpus"] == ["none", "2 x NVIDIA H100"]
    unknown = {"links": "1 x NV18", "network": "1 x infiniband 400 Gbit/s"}
    for key, value in unknown.items():
        assert found.get(key, [None, value])[1] == value
    assert run(request(tmp_path, **{**fields, "json": False})) == 0
    screen = capsys.readouterr().out.splitlines()
    assert run(request(tmp_path, everything=True, **{**fields, "json": False})) == 0
    assert len(screen) <= 40 < len(capsys.readouterr().out.splitlines())
    paths[0].write_text('{"schema": "stepscope.doctor/1"}', encoding="utf-8")
    with pytest.raises(DataError, match="not a whole document of stepscope doctor"):
        run(request(tmp_path, **fields))
