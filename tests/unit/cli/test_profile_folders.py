"""predict, plan and calibrate on the folder that `stepscope profile -o` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Ran
from tests.diaries import profile_folder, write_diary

from stepscope.cli.hooked import job_folder
from stepscope.core.errors import ExitCode, UsageError
from stepscope.launch import hooked_job
from stepscope.records.profile import ProfileRecord
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import make_dir


@pytest.mark.parametrize("spelled", [["predict"], ["predict", "--from"]])
def test_a_prediction_starts_from_the_last_window(tmp_path: Path, ran: Ran, spelled: list[str]) -> None:
    job = profile_folder(tmp_path / "run", windows=2)
    code, text, _ = ran(*spelled, job, "--gpus", "4", "--json")
    assert code == ExitCode.OK
    found = json.loads(text)
    assert (found["name"], found["ranks"], [step["ranks"] for step in found["steps"]]) == (str(job), 2, [4])
    code, _, error = ran("predict", job, "--from", job)
    assert code == ExitCode.USAGE
    assert "name two" in error


def test_a_window_can_be_named(tmp_path: Path, ran: Ran) -> None:
    job = profile_folder(tmp_path / "run", windows=2)
    code, _, error = ran("predict", job, "--cell", "3", "--gpus", "4")
    assert code == ExitCode.USAGE
    assert "windows with traces: 1, 2" in error


@pytest.mark.parametrize("spelled", [["plan"], ["plan", "--from"]])
def test_a_plan_of_a_job_that_is_no_transformer_is_refused_with_the_reason(
    tmp_path: Path, ran: Ran, spelled: list[str]
) -> None:
    code, _, error = ran(*spelled, profile_folder(tmp_path / "run"))
    assert code == ExitCode.USAGE
    assert "the dimensions of its model are unknown" in error
    assert "scaled_dot_product_attention" in error


def test_two_models_are_one_too_many(tmp_path: Path, ran: Ran) -> None:
    code, _, error = ran("plan", tmp_path, "--model", "llama3-8b")
    assert code == ExitCode.USAGE
    assert "several are named" in error


def test_a_calibration_of_a_job_names_the_sizes_that_it_has(tmp_path: Path, ran: Ran) -> None:
    job = profile_folder(tmp_path / "run")
    code, _, error = ran("calibrate", job)
    assert code == ExitCode.USAGE
    assert "this job sends all_reduce of" in error
    assert not (job / "calib.json").exists()


def test_a_diff_of_two_profiled_jobs_is_decided_by_all_their_steps(tmp_path: Path, ran: Ran) -> None:
    for name, slow in (("a", 1.0), ("b", 1.2)):
        profile_folder(tmp_path / name)
        for rank in (0, 1):
            forward = [slow * (10 + at % 3 / 10) for at in range(200)]
            write_diary(tmp_path / name, {"forward": forward, "backward": [5.0] * 200}, rank=rank, world_size=2)
    code, text, _ = ran("trace", tmp_path / "b", "--diff", tmp_path / "a", "--json")
    assert code == ExitCode.OK
    for diff in json.loads(text)["diffs"]:
        assert (diff["verdict"], diff["ratio"]) == ("slower", pytest.approx(17.1 / 15.1, rel=0.01))
    code, text, _ = ran("compare", tmp_path / "a", tmp_path / "b", "--json")
    (step,) = (f for f in json.loads(text)["figures"] if f["metric"] == "diary_step_ns")
    assert (code, step["verdict"]) == (ExitCode.OK, "worse")


def test_jobs_that_start_in_one_second_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stepscope.matrix.run_folder.time.strftime", lambda _: "20261126-130000")
    command = ["python", "train.py"]
    made = [job_folder(None, "run", command).root for _ in range(3)]
    assert [root.name.partition("130000")[2] for root in made] == ["", "-2", "-3"]
    assert all(root.is_dir() for root in made)
    with pytest.raises(UsageError):
        job_folder(None, "run", ["no-such-program"])
    assert len(list(made[0].parent.iterdir())) == 3


def test_of_two_jobs_that_take_one_folder_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = ProfileLayout(tmp_path / "run")
    record = ProfileRecord(command=("python", "train.py"), folder=".", host="n0", first=None, argv=())

    def prepare() -> None:
        hooked_job.prepare(layout, record, nccl_debug=False, step_optimizer=1, memory=False)

    def both(path: Path) -> Path:  # the other job comes between the look at the folder and its use
        monkeypatch.setattr(hooked_job, "make_dir", make_dir)
        prepare()
        return make_dir(path)

    monkeypatch.setattr(hooked_job, "make_dir", both)
    with pytest.raises(UsageError):
        prepare()
    assert layout.record.is_file()
