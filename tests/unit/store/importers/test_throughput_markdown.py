"""Markdown tables of throughput."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated

KEY = "throughput_markdown"
HEAD = "# Results\n\n| Benchmark | Framework | Cluster | GPUs | Date | Img/sec |\n|---|---|:--|---|---|---|\n"


def table(*rows: str) -> str:
    return HEAD + "".join(f"| {row} |\n" for row in rows)


def ddp(gpus: int, figure: str, *, name: str = "DDP, synthetic") -> str:
    return f"{name} | PyTorch 2.0 | puhti | {gpus} | 2023-05-08 | {figure}"


def test_rows_become_runs_of_a_cluster_and_day(tmp_path: Path) -> None:
    text = table(ddp(1, "100.5"), ddp(4, "390.0"), ddp(4, "300", name="Horovod, synthetic"), ddp(8, "ERROR"))
    runs = by_id(read(write(tmp_path / "r.md", text), key=KEY))
    assert {name: (r.strategy, r.world_size, r.status, r.baseline_id) for name, r in runs.items()} == {
        "puhti-2023-05-08-ddp-synthetic-1": ("ddp", 1, "ok", "puhti-2023-05-08-ddp-synthetic-1"),
        "puhti-2023-05-08-ddp-synthetic-4": ("ddp", 4, "ok", "puhti-2023-05-08-ddp-synthetic-1"),
        "puhti-2023-05-08-horovod-synthetic-4": ("horovod", 4, "ok", "puhti-2023-05-08-ddp-synthetic-1"),
        "puhti-2023-05-08-ddp-synthetic-8": ("ddp", 8, "error", None),
    }
    assert runs["puhti-2023-05-08-ddp-synthetic-8"].samples_per_s is None
    assert runs["puhti-2023-05-08-ddp-synthetic-8"].error == "the table says 'ERROR'"
    assert any("no row of its own" in note for note in runs["puhti-2023-05-08-horovod-synthetic-4"].notes)
    assert {run.unit for run in runs.values()} == {"images"}
    assert runs["puhti-2023-05-08-ddp-synthetic-1"].source.endswith("r.md:5")


def test_other_precision_data_days_and_clusters_are_other_groups(tmp_path: Path) -> None:
    other_day = ddp(4, "1").replace("05-08", "05-09")
    other_place = ddp(4, "1").replace("puhti", "mahti")
    rows = [ddp(1, "1"), ddp(4, "1", name="DDP, synthetic, fp16"), ddp(4, "1", name="DDP, Imagenet data"), other_day,
            other_place]  # fmt: skip
    runs = read(write(tmp_path / "r.md", table(*rows)), key=KEY).runs
    assert len({run.group for run in runs}) == 5
    assert [run.baseline_id for run in runs[1:]] == [None] * 4
    assert [run.precision for run in runs] == [None, "fp16", None, None, None]


def test_a_language_model_is_not_counted_in_images(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path / "r.md", table(ddp(1, "17.5", name="run_clm, synthetic"))), key=KEY).runs
    assert (run.unit, run.model, run.strategy) == ("samples", "run_clm", None)


def test_scaling_is_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "r.md", table(ddp(1, "1"), ddp(4, "3")))
    assert {run.scaling for run in read(path, key=KEY).runs} == {None}
    assert {run.scaling for run in read(path, key=KEY, stated=Stated(scaling="weak")).runs} == {"weak"}


def test_tables_of_other_things_are_passed_over(tmp_path: Path) -> None:
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n" + table(ddp(1, "1")) + "\ntext\n\n| c |\n|---|\n| 3 |\n"
    assert len(read(write(tmp_path / "r.md", text), key=KEY).runs) == 1


def test_a_row_measured_twice_keeps_both(tmp_path: Path) -> None:
    runs = read(write(tmp_path / "r.md", table(ddp(1, "1"), ddp(4, "3"), ddp(4, "4"))), key=KEY).runs
    assert [run.run_id.rpartition("synthetic-")[2] for run in runs] == ["1", "4", "4-2"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ddp(1, "NaN"), "Img/sec is 'NaN'"),
        (ddp(1, "0.0"), "Img/sec is '0.0'"),
        (ddp(1, "12x"), "Img/sec is '12x'"),
        (ddp(0, "12"), "GPUs is '0'"),
        ("DDP, synthetic | PyTorch", "2 cells, and the header has 6"),
    ],
)
def test_a_damaged_row_is_refused_with_its_line(tmp_path: Path, row: str, says: str) -> None:
    path = write(tmp_path / "r.md", table(ddp(1, "1"), row))
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert f"{path}:6: {says}" in str(caught.value)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        read(write(tmp_path / "r.md", HEAD), key=KEY)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    row = r"DDP, synthetic | <script>alert(1)</script> | \input{x} | 2 | 2023 | 5"
    (run,) = read(write(tmp_path / "r.md", table(row)), key=KEY).runs
    assert run.settings["framework"] == "<script>alert(1)</script>"
    assert "<" not in run.run_id
