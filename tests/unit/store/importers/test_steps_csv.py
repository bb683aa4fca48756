"""Tables whose rows are the steps of one run."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import read, write

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.store.importers import detect, read_foreign

TIMES_MS = [100.0 + step % 3 + (50.0 if step >= 60 else 0.0) for step in range(100)]


def table(path: Path, header: str, values: list[float], *, every: int = 1) -> Path:
    rows = (f"{every * step},{value:.4f}" for step, value in enumerate(values))
    return write(path, "\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize(
    ("header", "scale", "clock"),
    [
        ("step,step_time_ms", 1.0, False),
        ("step,time_ms", 1.0, False),
        ("global_step,iter_time_s", 1e-3, False),
        ("iteration,time", 1e-3, False),
        ("iteration,elapsed_ms", 1.0, True),
        ("iter,time", 1e-3, True),
    ],
)
def test_median_and_change_of_level(tmp_path: Path, header: str, scale: float, clock: bool) -> None:
    values = [scale * each for each in (accumulate(TIMES_MS) if clock else TIMES_MS)]
    (run,) = read(table(tmp_path / "steps.csv", header, values), key="steps_csv").runs
    assert run.step_ns.value == pytest.approx(102e6, rel=1e-3)
    assert run.step_change.step == 60
    assert run.step_change.before_ns == pytest.approx(101e6, rel=1e-3)
    assert run.step_change.after_ns == pytest.approx(151e6, rel=1e-3)
    assert any("difference" in note for note in run.notes) is clock


def test_a_clock_of_logged_steps_is_divided_by_the_steps_between(tmp_path: Path) -> None:
    values = [float(1000 * row) for row in range(20)]
    (run,) = read(table(tmp_path / "s.csv", "step,elapsed_ms", values, every=10), key="steps_csv").runs
    assert run.step_ns.value == pytest.approx(100e6)


def test_seconds_are_assumed_in_words(tmp_path: Path) -> None:
    path = table(tmp_path / "s.csv", "step,time", [0.1, 0.2, 0.1, 0.1])
    imported = read(path, key="steps_csv")
    assert imported.notes == ("'time' has no unit: taken as seconds; --columns time=step_time_ms states another",)
    (stated,) = read_foreign(path, Stated(columns={"time": "step_time_ms"})).runs
    assert stated.step_ns.value == pytest.approx(0.1e6)


def test_losses_rates_and_empty_cells(tmp_path: Path) -> None:
    text = "step,step_time_ms,loss,tokens_per_s\n1,900,3.0,10\n2,100,,80\n3,,2.0,81\n4,102,1.5,82\n"
    (run,) = read(write(tmp_path / "metrics.csv", text), key="steps_csv").runs
    assert (run.step_ns.value, run.samples_per_s.value, run.unit) == (101e6, 81.0, "tokens")
    assert run.train_loss == 1.5
    assert run.missing.keys() == {"world_size"}


def test_a_stated_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", "step,step_time_ms,tok\n1,100,9\n2,100,80\n3,100,80\n")
    (run,) = read_foreign(path, Stated(columns={"tok": "tokens_per_s"})).runs
    assert (run.samples_per_s.value, run.unit) == (80.0, "tokens")


RECORDS = [{"step": step, "step_time_ms": 100, "loss": 1.5} for step in range(12)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.jsonl", "".join(f"{json.dumps(record)}\n" for record in RECORDS)),
        ("log.json", json.dumps(RECORDS, indent=1)),
        ("log.md", "| step | step_time_ms |\n|---|---|\n" + "".join(f"| {step} | 100 |\n" for step in range(12))),
        ("log.txt", "| step | step_time_ms |\n|---|---|\n" + "".join(f"| {step} | 100 |\n" for step in range(12))),
        ("log.txt", "step,step_time_ms\n" + "".join(f"{step},100\n" for step in range(12))),
        (
            "log.txt",
            "of node7\n\n step  time (ms)\n-----  ----\n" + "".join(f"{n}  100\n" for n in range(12)) + "done\n",
        ),
        ("log.txt", "step step_time_ms loss\n" + "".join(f"{step} 100 1.5\n" for step in range(12)) + "12 1"),
    ],
)
def test_one_reader_has_all_forms(tmp_path: Path, name: str, text: str) -> None:
    (run,) = read(write(tmp_path / name, text), key="steps_csv").runs
    assert (run.step_ns.value, run.step_ns.n) == (100e6, 11)


def test_a_folder_has_a_run_a_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        table(tmp_path / f"{name}.csv", "step,step_time_ms", TIMES_MS)
    assert [run.run_id for run in read(tmp_path, key="steps_csv").runs] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank,step,step_time_ms\n0,1,100\n1,1,101\n", "step 1 after 1"),
        ("step,step_time_ms\n1,100\n2,-3\n", "a time above 0"),
        ("step,step_time_ms\n1,100\n2,fast\n", "'fast'"),
        ("step,step_time_ms\n1.5,100\n2,100\n", "'1.5'"),
        ("step,time\n1,0.1\n2,0.2\n3,0.3\n", "may be the time of a step, or since the start"),
        ("step,step_time_ms\n", "no figure"),
    ],
)
def test_what_it_cannot_tell_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "s.csv", text)
    with pytest.raises(DataError) as refused:
        read_foreign(path)
    assert says in f"{refused.value.what} {refused.value.why}"


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("t.csv", "gpus,step_time_ms\n1,100\n2,110\n", "table"),
        ("t.csv", "run,step,step_time_ms\na,1,100\nb,1,100\n", "table"),
        ("metrics.csv", "epoch,step,train_loss\n0,10,2.0\n1,20,1.0\n", "metrics_csv"),
        ("w.csv", "_step,_runtime,loss\n1,1,2\n2,2,1\n", "wandb_csv"),
    ],
)
def test_tables_of_another_kind_stay_what_they_are(tmp_path: Path, name: str, text: str, key: str) -> None:
    assert detect(write(tmp_path / name, text))[0] == key


def test_a_loss_that_is_not_finite_is_counted(tmp_path: Path) -> None:
    rows = [f"{step},10,{'nan' if step > 7 else 2.0}" for step in range(10)]
    (run,) = read(
        write(tmp_path / "steps.csv", "\n".join(["step,step_time_ms,loss", *rows]) + "\n"), key="steps_csv"
    ).runs
    assert run.train_loss == 2.0
    assert run.notes == ("the training loss is not finite at 2 logged steps",)


def test_a_step_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "steps.csv", "step,step_time_ms\n1,10\nnan,10\n")
    with pytest.raises(DataError, match="step is 'nan'"):
        read_foreign(path)


def test_steps_with_the_part_of_the_epoch_and_a_clock(tmp_path: Path) -> None:
    """As LLaMA-Factory writes them, under another name of the step."""
    rows = [
        {
            "global_step": 10 * n,
            "total_steps": 200,
            "loss": 2.0,
            "epoch": n / 20,
            "elapsed_time": f"0:{n // 3:02}:{20 * n % 60:02}",
        }
        for n in range(1, 13)
    ]
    path = write(tmp_path / "steps.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (run,) = read(path, key="steps_csv").runs
    assert run.step_ns.value == pytest.approx(2e9)
    assert not any("seconds" in note for note in run.notes)
