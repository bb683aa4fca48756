"""Throughput by machine and model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError

KEY = "machine_throughput_csv"
HEAD = ",ssd,gnmt,resnet50\n"
BATCHES = "name_gpu,num_gpu,watt,ssd,gnmt\nA100,1,400,448,1520\n2x A100,2,800,896,3040\n"


def test_the_count_before_the_gpu_is_the_number_of_ranks(tmp_path: Path) -> None:
    text = HEAD + "Cloud_8x_Texas_1xH100_host,10.0,5.0,7.5\nCloud_8x_Texas_4xH100_host,38.0,0.0,30.0\n"
    runs = by_id(read(write(tmp_path / "throughput-fp16.csv", text), key=KEY))
    one, four = runs["cloud-8x-texas-1xh100-host-ssd"], runs["cloud-8x-texas-4xh100-host-ssd"]
    assert (one.world_size, four.world_size, four.baseline_id) == (1, 4, one.run_id)
    assert four.samples_per_s is not None
    assert (four.samples_per_s.value, four.precision, four.unit) == (38.0, "fp16", "images")
    assert runs["cloud-8x-texas-1xh100-host-gnmt"].unit == "items"
    assert four.hardware == one.hardware == "Cloud_8x_Texas_H100_host"
    failed = runs["cloud-8x-texas-4xh100-host-gnmt"]
    assert (failed.status, failed.samples_per_s) == ("error", None)
    assert failed.error is not None
    assert "0.0" in failed.error


def test_other_machines_are_no_baselines(tmp_path: Path) -> None:
    runs = read(write(tmp_path / "t.csv", HEAD + "a_1xH100,1,1,1\nb_8xH100,8,8,8\n"), key=KEY).runs
    assert [run.baseline_id for run in runs] == [None] * 6
    assert {run.precision for run in runs} == {None}
    assert {run.scaling for run in runs} == {None}


def test_batch_sizes_alone_are_refused_and_in_a_folder_noted(tmp_path: Path) -> None:
    batches = write(tmp_path / "bs.csv", BATCHES)
    with pytest.raises(DataError, match="without any throughput"):
        read(batches, key=KEY)
    write(tmp_path / "t.csv", HEAD + "a_1xH100,1,1,1\n")
    imported = read(tmp_path, key=KEY)
    assert len(imported.runs) == 3
    assert any(note.startswith("bs.csv: batch sizes of 2 machines") for note in imported.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "no rows"),
        (HEAD + "a_1xH100,1,NaN,1\n", ":2: gnmt is 'NaN'"),
        (HEAD + "a_1xH100,1,-1,1\n", ":2: gnmt is '-1'"),
        (HEAD + "a_1xH100,1,,1\n", ":2: gnmt is ''"),
        (HEAD + "a_1xH100,1,1\n", ":2: 3 cells, and the header has 4"),
        (HEAD + "H100,1,1,1\n", ":2: number of GPUs of 'H100' cannot be told"),
        (HEAD + "2xA_4xB,1,1,1\n", "cannot be told"),
        (HEAD + "a_1xH100,1,1,1\na_1xH100,2,2,2\n", ":3: machine 'a_1xH100' a second time"),
        (",ssd,gnmt,ssd\na_1xH100,1,1,1\n", "stands twice in the header"),
        (BATCHES.replace("1520", "many"), "gnmt is 'many'"),
    ],
)
def test_damage_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
