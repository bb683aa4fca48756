"""Scaling over worker processes: csv of epochs, and the table of T_par."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError
from stepscope.results.scaling import scaling_rows

KEY = "workers_scaling"
HEAD = "experiment,workers,input_size,epoch,wall_sec,speedup,amdahl_parallel_fraction\n"
CSV = (
    HEAD
    + "weak,1,100,1,10.0,1.0,NaN\nweak,1,100,2,12.0,0.9,NaN\nweak,2,200,1,11.0,1.0,0.1\nweak,2,200,2,11.0,1.0,0.1\n"
)
TABLE = """Input size: 50000
Sequential baseline T_seq: 100.000 sec

workers  T_par(sec)   S(p)         E(p)         f(par)
1        100.000      1.000        1.000        N/A
4        30.000       3.333        0.833        0.933
"""


def test_weak_scaling_is_throughput_and_not_time(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "weak_scaling.csv", CSV), key=KEY)
    runs = by_id(imported)
    two = runs["weak-scaling-2"]
    assert (two.world_size, two.dataset_size, two.scaling, two.baseline_id) == (
        2,
        200,
        "weak",
        "weak-scaling-1",
    )
    assert [(e.number, e.duration_ns) for e in two.epochs] == [(1, 11e9), (2, 11e9)]
    (_, row) = scaling_rows(imported.runs)
    assert row.speedup == pytest.approx(2.0)  # the file's own column says 1.0
    assert any("own speedup" in note for note in two.notes)


def test_the_table_is_strong_scaling_and_checked(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "t.txt", TABLE), key=KEY)
    (_, row) = scaling_rows(imported.runs)
    assert (row.world_size, row.scaling, row.speedup) == (4, "strong", pytest.approx(100 / 30))
    assert [run.dataset_size for run in imported.runs] == [50000, 50000]


def test_both_of_a_folder_are_read(tmp_path: Path) -> None:
    write(tmp_path / "w.csv", CSV)
    write(tmp_path / "t.txt", TABLE)
    assert len(read(tmp_path, key=KEY).runs) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "no rows under the header"),
        (CSV.replace("11.0,1.0,0.1", "NaN,1.0,0.1", 1), ":4: wall_sec is 'NaN'"),
        (CSV.replace("weak,1,100,2,12.0", "weak,1,100,1,12.0"), ":3: epoch 1 a second time"),
        (CSV.replace("weak,2,200,2", "weak,2,300,2"), "several input sizes"),
        (CSV + "weak,4\n", ":6: 2 cells, and the header has 7"),
        (CSV.replace("weak,2,", "weak,0,"), ":4: workers is '0'"),
        (CSV.replace("11.0", "-11.0"), "wall_sec is '-11.0'"),
        (CSV.replace("weak,2", 'weak,"2'), "not readable as CSV"),
        (CSV + "\0\0\0\n", ":6: damaged"),
    ],
)
def test_a_damaged_csv_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "w.csv", text)
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TABLE.replace("3.333", "3.433"), ":6: S(p) contradicts"),
        (TABLE.replace("30.000", "nan"), "T_par is 'nan'"),
        (TABLE.replace("Sequential", "Parallel"), "a line is missing"),
        (TABLE.rsplit("1  ", 1)[0], "no rows under the header"),
        (TABLE + "8  12\n", ":7: 2 cells"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "t.txt", text)
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
