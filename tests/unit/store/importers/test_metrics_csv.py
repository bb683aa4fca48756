"""Folders of metrics.csv with their configurations: who is who, what is compared with what, what is left open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.evidence import evidence

from stepscope.core.errors import DataError, UsageError
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import best_accuracy, epoch_time
from stepscope.results.joining import require_stated
from stepscope.results.open import load_evidence
from stepscope.store.importers import read_foreign

HEADER = "epoch,train_loss,train_time,val_loss,val_acc"


def experiment(root: Path, name: str, seconds: Sequence[float] = (12.0, 10.0, 10.0), text: str | None = None) -> Path:
    folder = root / "experiments" / name
    folder.mkdir(parents=True)
    rows = [f"{at},{1 / at},{time},{1.2 / at},{1 - 0.5 / at}" for at, time in enumerate(seconds, start=1)]
    (folder / "metrics.csv").write_text("\n".join([HEADER, *rows, ""]) if text is None else text)
    return folder


def config(
    root: Path, name: str, *, ddp: str = "false", dataset: str = "imdb_hash", width: int = 128, more: str = ""
) -> Path:
    folder = root / "configs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(
        f'experiment_name: "of {name}"\noutput_dir: "experiments/{name}"\nseed: 42\n'
        f'model:\n  type: "transformer"\n  d_model: {width}\n  num_layers: 2\n'
        f'data:\n  dataset: "{dataset}"\n  num_workers: 4\n'
        "training:\n  epochs: 3\n  batch_size: 32\n  learning_rate: 5e-4\n"
        f'distributed:\n  use_ddp: {ddp}\n  backend: "nccl"\n{more}'
    )
    return path


def pair(root: Path) -> Path:
    experiment(root, "exp020_imdb_1gpu")
    experiment(root, "exp021_imdb_ddp", (5.0, 4.0, 4.0))
    config(root, "exp020_imdb_1gpu")
    config(root, "exp021_imdb_ddp", ddp="true")
    return root


def by_id(imported: Imported) -> dict[str, TrainingRun]:
    return {run.run_id: run for run in imported.runs}


def test_a_pair_with_configurations(tmp_path: Path) -> None:
    runs = by_id(read_foreign(pair(tmp_path), Stated(world_size={"exp021": 4})))
    one, four = runs["exp020"], runs["exp021"]
    assert one.group == four.group == "transformer 2x128 on IMDB"
    assert (one.world_size, four.world_size) == (1, 4)
    assert (one.strategy, four.strategy) == ("single", "ddp")
    assert (one.label, four.label) == ("1 rank", "ddp on 4 ranks")
    assert (one.backend, four.backend) == (None, "nccl")
    assert one.dataset == four.dataset == "IMDB"
    assert one.scaling == four.scaling == "strong"
    assert one.missing == four.missing == {}
    assert [e.duration_ns for e in four.epochs] == [5e9, 4e9, 4e9]
    assert [e.duration_ns for e in four.epochs][-2:] == [4e9, 4e9]
    wanted = {
        "lr": 5e-4,
        "epochs": 3,
        "seed": 42,
        "batch_size": 32,
        "num_workers": 4,
        "experiment": "exp021_imdb_ddp",
    }
    assert wanted.items() <= four.settings.items()
    assert four.settings["dataset"] == "imdb_hash"


def test_a_bare_batch_size_is_a_batch_on_one_rank_only(tmp_path: Path) -> None:
    runs = by_id(read_foreign(pair(tmp_path), Stated(world_size={"exp021": 4})))
    assert (runs["exp020"].micro_batch, runs["exp020"].global_batch) == (32, 32)
    assert (runs["exp021"].micro_batch, runs["exp021"].global_batch) == (None, None)
    assert any("per rank or over all ranks" in note for note in runs["exp021"].notes)


def test_ranks_that_no_file_tells_are_asked_for_together(tmp_path: Path) -> None:
    pair(tmp_path)
    experiment(tmp_path, "exp030_imdb_ddp_8gpu")
    config(tmp_path, "exp030_imdb_ddp_8gpu", ddp="true")
    imported = read_foreign(tmp_path)
    runs = by_id(imported)
    assert runs["exp021"].world_size is None
    assert "use_ddp: true" in runs["exp021"].missing["world_size"]
    assert "its name says 8gpu" in runs["exp030"].missing["world_size"]
    with pytest.raises(UsageError) as caught:
        require_stated(evidence(*imported.runs))
    assert "--world-size exp021=RANKS,exp030=RANKS" in str(caught.value)
    assert "exp020=" not in str(caught.value)


def test_lonely_runs_and_runs_without_epochs_need_nothing(tmp_path: Path) -> None:
    experiment(tmp_path, "exp020_imdb_1gpu")
    config(tmp_path, "exp020_imdb_1gpu")
    experiment(tmp_path, "exp021_imdb_ddp", text=HEADER + "\n")
    config(tmp_path, "exp021_imdb_ddp", ddp="true")
    experiment(tmp_path, "exp050_agnews_ddp")
    config(tmp_path, "exp050_agnews_ddp", ddp="true", dataset="ag_news")
    imported = read_foreign(tmp_path)
    assert {run.run_id for run in imported.runs if run.missing} == {"exp021", "exp050"}
    require_stated(evidence(*imported.runs), Stated(world_size={}))


@pytest.mark.parametrize(
    "of", ["", "experiments", "experiments/exp021_imdb_ddp", "experiments/exp021_imdb_ddp/metrics.csv"]
)
def test_any_part_of_the_project_finds_the_configuration(tmp_path: Path, of: str) -> None:
    pair(tmp_path)
    run = by_id(read_foreign(tmp_path / of))["exp021"]
    assert run.settings["experiment"] == "exp021_imdb_ddp"
    assert run.group == "transformer 2x128 on IMDB"
    assert run.strategy == "ddp"


def test_a_configuration_of_another_place_with_the_same_last_name_counts(tmp_path: Path) -> None:
    experiment(tmp_path, "exp1_x")
    path = config(tmp_path, "exp1_x")
    path.write_text(path.read_text().replace("experiments/exp1_x", "/scratch/me/out/exp1_x/"))
    assert read_foreign(tmp_path).runs[0].model == "transformer 2x128"


def test_a_configuration_inside_the_experiment_is_its_own(tmp_path: Path) -> None:
    for name, width in (("a_1", 64), ("b_1", 256)):
        folder = experiment(tmp_path, name)
        (folder / "config.yaml").write_text(f"model: {{d_model: {width}, num_layers: 3, type: t}}\n")
    assert [run.model for run in read_foreign(tmp_path).runs] == ["t 3x64", "t 3x256"]


def test_two_configurations_that_differ_leave_it_open(tmp_path: Path) -> None:
    experiment(tmp_path, "exp1_x")
    first = config(tmp_path, "exp1_x")
    other = first.with_name("zweite.yaml")
    other.write_text(first.read_text().replace("seed: 42", "seed: 7"))
    (run,) = read_foreign(tmp_path).runs
    assert "seed" not in run.settings
    assert run.settings["lr"] == 5e-4
    assert any("differ in" in note and "seed" in note for note in run.notes)


def test_a_damaged_configuration_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    pair(tmp_path)
    (tmp_path / "configs" / "broken.yaml").write_text("a: [1,\nb: }")
    (tmp_path / "configs" / "binary.yaml").write_bytes(b"\xff\xfe\0")
    imported = read_foreign(tmp_path)
    assert len(imported.runs) == 2
    assert any("broken.yaml" in note and "not read" in note for note in imported.notes)
    assert any("binary.yaml" in note and "not UTF-8" in note for note in imported.notes)


def test_other_models_and_data_are_other_groups(tmp_path: Path) -> None:
    for name, dataset, width in (
        ("e1_a", "ag_news", 128),
        ("e2_b", "ag_news", 256),
        ("e3_c", "imdb_hash", 128),
    ):
        experiment(tmp_path, name)
        config(tmp_path, name, dataset=dataset, width=width)
    groups = [run.group for run in read_foreign(tmp_path).runs]
    assert groups == [
        "transformer 2x128 on AG News",
        "transformer 2x256 on AG News",
        "transformer 2x128 on IMDB",
    ]


def test_what_words_do_not_tell_apart_gets_what_differs(tmp_path: Path) -> None:
    for name, more in (("e1_a", "4"), ("e2_b", "8")):
        experiment(tmp_path, name)
        path = config(tmp_path, name)
        path.write_text(path.read_text().replace("  d_model", f"  n_heads: {more}\n  d_model"))
    experiment(tmp_path, "e3_c")
    config(tmp_path, "e3_c", dataset="imdb_hf").write_text(
        (tmp_path / "configs" / "e1_a.yaml").read_text().replace("e1_a", "e3_c").replace("imdb_hash", "imdb_hf")
    )
    groups = [run.group for run in read_foreign(tmp_path).runs]
    assert len(set(groups)) == 3
    assert groups[1] == "transformer 2x128 on IMDB, n_heads 8, data imdb_hash"


def test_short_and_long_trainings_are_not_compared(tmp_path: Path) -> None:
    for name, epochs in (("e1_a", 3), ("e2_b", 20)):
        experiment(tmp_path, name)
        path = config(tmp_path, name)
        path.write_text(path.read_text().replace("epochs: 3", f"epochs: {epochs}"))
    runs = read_foreign(tmp_path).runs
    assert [run.group for run in runs] == [f"transformer 2x128 on IMDB, {n} epochs" for n in (3, 20)]
    assert any("3 of 20 epochs finished" in note for note in runs[1].notes)


def test_without_configuration_the_name_groups_and_never_counts_ranks(tmp_path: Path) -> None:
    for name in (
        "exp020_imdb_single_gpu_20ep",
        "exp021_imdb_ddp_single_node_20ep",
        "exp044_agnews_ddp_4gpu_optimized",
    ):
        experiment(tmp_path, name)
    runs = by_id(read_foreign(tmp_path))
    assert runs["exp020"].group == runs["exp021"].group == "IMDB"
    assert runs["exp044"].group == "AG News optimized"
    assert (runs["exp044"].dataset, runs["exp044"].world_size, runs["exp044"].strategy) == (
        "AG News",
        None,
        "ddp",
    )
    assert {run.world_size for run in runs.values()} == {None}
    assert "(its name says 4gpu)" in runs["exp044"].missing["world_size"]
    assert runs["exp020"].settings["epochs"] == 20


def test_ids_are_short_where_that_is_unique(tmp_path: Path) -> None:
    for name in ("exp1_a", "exp1_b", "exp2_c", "plain"):
        experiment(tmp_path, name)
    experiment(tmp_path / "old", "plain")
    ids = [run.run_id for run in read_foreign(tmp_path).runs]
    assert ids == ["exp1_a", "exp1_b", "exp2", "experiments/plain", "old/experiments/plain"]


def test_two_jobs_in_one_file_are_kept_and_marked(tmp_path: Path) -> None:
    rows = [f"{n},0.5,10,0.5,0.8" for n in (6, 1, 7, 2, 8, 3, 4, 5, 6, 7, 8)]
    experiment(tmp_path, "exp042_agnews_ddp", text="\n".join([HEADER, *rows, ""]))
    (run,) = read_foreign(tmp_path).runs
    assert [e.number for e in run.epochs] == [6, 1, 7, 2, 8, 3, 4, 5, 6, 7, 8]
    assert run.settings["duplicate_epochs"] == (6, 7, 8)
    assert run.settings["epoch_series_alternate"] is True
    assert run.settings["epochs_backwards"] == 3
    assert any("2 jobs wrote this file at the same time" in note for note in run.notes)


def test_a_clean_file_has_no_such_marks(tmp_path: Path) -> None:
    (run,) = read_foreign(experiment(tmp_path, "exp1_x")).runs
    assert not {"duplicate_epochs", "epochs_backwards", "repeated_headers"} & set(run.settings)


def test_a_damaged_experiment_stands_beside_the_good_ones(tmp_path: Path) -> None:
    pair(tmp_path)
    experiment(tmp_path, "exp099_broken", text="\x00\x01binary\n")
    runs = by_id(read_foreign(tmp_path))
    assert runs["exp099"].status == "error"
    assert "metrics.csv:1: not text" in (runs["exp099"].error or "")
    assert runs["exp020"].status == "ok"


@pytest.mark.parametrize("text", ["", "\0" * 100, "\x00\x01binary\n", "a,b\n1,2\n"])
def test_one_file_alone_that_holds_nothing_is_refused(tmp_path: Path, text: str) -> None:
    folder = experiment(tmp_path, "exp1_x", text=text)
    with pytest.raises(DataError) as caught:
        read_foreign(folder / "metrics.csv")
    assert "metrics.csv" in str(caught.value)


def test_only_damaged_experiments_are_an_error(tmp_path: Path) -> None:
    experiment(tmp_path, "exp1_x", text="a,b\n")
    experiment(tmp_path, "exp2_x", text="\x01\n")
    with pytest.raises(DataError, match="no other metrics"):
        read_foreign(tmp_path)


def test_a_header_alone_is_an_interrupted_run(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "exp3_x", text=HEADER + "\n")
    (run,) = read_foreign(folder).runs
    assert (run.status, run.epochs, run.epoch_ns) == ("interrupted", (), None)
    assert "no finished epoch" in (run.error or "")


def test_weak_scaling_can_be_stated(tmp_path: Path) -> None:
    runs = read_foreign(pair(tmp_path), Stated(scaling="weak")).runs
    assert {run.scaling for run in runs} == {"weak"}


def test_ranks_that_contradict_the_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exp020=4 contradicts"):
        read_foreign(pair(tmp_path), Stated(world_size={"exp020": 4}))


def test_runs_of_one_group_on_as_many_ranks_have_their_ids_in_the_label(tmp_path: Path) -> None:
    for name in ("e1_a", "e2_b"):
        experiment(tmp_path, name)
        config(tmp_path, name)
    assert [run.label for run in read_foreign(tmp_path).runs] == ["1 rank, e1", "1 rank, e2"]


def test_a_column_that_names_runs_separates_two_writers(tmp_path: Path) -> None:
    rows = "".join(f"{1 + 3 * (e % 2)},{e // 2 + 1},{2 - e / 20},{20 + e % 2}\n" for e in range(12))
    path = tmp_path / "metrics.csv"
    path.write_text("world_size,epoch,train_loss,epoch_time_s\n" + rows)
    runs = load_evidence([path], stated=Stated(scaling="strong")).runs
    assert [(run.world_size, [e.number for e in run.epochs]) for run in runs] == [
        (n, [1, 2, 3, 4, 5, 6]) for n in (1, 4)
    ]


def test_rows_of_two_jobs_that_nothing_names_have_no_time_of_an_epoch(tmp_path: Path) -> None:
    """A median of 20 and 40 s is of neither job; a restart is the same job, and keeps it."""
    at_once, restarted = (1, 2, 1, 3, 2, 4, 3, 4), (1, 2, 3, 4, 3, 4, 5, 6)
    for numbers, known in ((at_once, False), (restarted, True)):
        path = tmp_path / "metrics.csv"
        rows = "".join(f"{n},0.5,0.{70 + n},{20 + 20 * (i % 2)}\n" for i, n in enumerate(numbers))
        path.write_text("epoch,train_loss,val_accuracy,epoch_time_s\n" + rows)
        (run,) = load_evidence([path]).runs
        assert (epoch_time(run) is not None) is known
        assert (best_accuracy(run) is not None) is known


@pytest.mark.parametrize(("first", "of_first"), [(1, 300e9), (0, 300e9), (40, None)])
def test_a_time_that_counts_from_the_start_gives_the_differences(
    tmp_path: Path, first: int, of_first: float | None
) -> None:
    """The first has all that starts up in it; of a file that begins later it is no epoch's."""
    rows = "".join(f"{first + n},{300 + 12.5 * n},{2 - n / 10}\n" for n in range(6))
    path = tmp_path / "metrics.csv"
    path.write_text(f"epoch,time,train_loss\n{rows}")
    imported = read_foreign(path)
    (run,) = imported.runs
    assert [e.duration_ns for e in run.epochs] == [of_first, *[12.5e9] * 5]
    assert any("12.5 s" in remark for remark in imported.remarks)


def test_a_time_that_does_not_only_grow_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,time,train_loss\n1,84.2,2\n2,84.0,1.9\n3,84.4,1.8\n4,84.1,1.7\n")
    assert {e.duration_ns for e in read_foreign(path).runs[0].epochs} == {None}
