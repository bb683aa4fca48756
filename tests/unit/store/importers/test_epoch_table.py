"""One row an epoch: usual spellings, and every way in which such a file comes damaged."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.store import epoch_table
from stepscope.store.epoch_table import (
    MAX_LINE,
    EpochTable,
    epoch_order,
    is_epoch_table,
    read_epoch_table,
)

HEADER = "epoch,train_loss,train_time,val_loss,val_acc"


def read(folder: Path, *rows: str, header: str = HEADER, end: str = "\n", before: str = "") -> EpochTable:
    return read_bytes(folder, (before + "\n".join([header, *rows]) + end).encode())


def read_bytes(folder: Path, data: bytes) -> EpochTable:
    path = folder / "metrics.csv"
    path.write_bytes(data)
    return read_epoch_table(path)


def one_row(epoch: int) -> str:
    return f"{epoch},0.5,10.0,0.6,0.7"


def test_a_row_in_base_units(tmp_path: Path) -> None:
    table = read(tmp_path, "1,0.61,11.5,0.56,0.697")
    (epoch,) = table.epochs
    assert (epoch.number, epoch.duration_ns, epoch.train_loss) == (1, 11.5e9, 0.61)
    assert (epoch.validation_loss, epoch.validation_accuracy) == (0.56, 0.697)
    assert (epoch.samples_seen, epoch.samples_per_s, epoch.train_accuracy) == (None, None, None)
    assert table.notes == ()
    assert table.order.sentence is None


@pytest.mark.parametrize(
    ("header", "row", "ns"),
    [
        ("Epoch;Epoch Time;Training Loss;Validation Accuracy", "1;2.5;0.3;0.9", 2.5e9),
        ("epoch\tepoch_time_ms\tloss\ttest_acc", "1\t2500\t0.3\t0.9", 2.5e9),
        ("lr,epoch,train_time,epoch_time,training_loss,val_accuracy,test_acc", "1e-3,1,2.5,9,0.3,0.9,0.1", 2.5e9),
    ],
)  # fmt: skip
def test_other_names_and_delimiters(tmp_path: Path, header: str, row: str, ns: float) -> None:
    (epoch,) = read(tmp_path, row, header=header).epochs
    assert (epoch.number, epoch.duration_ns, epoch.train_loss, epoch.validation_accuracy) == (1, ns, 0.3, 0.9)


def test_byte_order_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    data = ("\ufeff" + "\r\n".join([HEADER, one_row(1), one_row(2), ""])).encode()
    for packed in (data, gzip.compress(data), data.decode().encode("utf-16")):
        table = read_bytes(tmp_path, packed)
        assert [e.number for e in table.epochs] == [1, 2]
        assert table.notes == ()


@pytest.mark.parametrize(("data", "why"), [(b"", "exited before"), (b"\0" * 5000, "zero bytes")])
def test_nothing_at_all_is_blank(tmp_path: Path, data: bytes, why: str) -> None:
    table = read_bytes(tmp_path, data)
    assert table.blank
    assert table.empty is not None
    assert why in table.empty


@pytest.mark.parametrize("last", ["3,0.4", "3"])
def test_a_cut_off_last_row_is_left_out(tmp_path: Path, last: str) -> None:
    table = read(tmp_path, one_row(1), one_row(2), last, end="")
    assert [e.number for e in table.epochs] == [1, 2]
    (note,) = table.notes
    assert "metrics.csv:4:" in note
    assert "cut off" in note


@pytest.mark.parametrize(("last", "whole"), [("0.71", True), ("0.7", False), ("0", False)])
def test_the_last_cell_without_line_end_counts_where_it_is_whole(tmp_path: Path, last: str, whole: bool) -> None:
    table = read(tmp_path, "1,0.5,10.0,0.6,0.70", f"2,0.4,10.0,0.6,{last}", end="")
    assert table.epochs[1].validation_loss == 0.6
    assert table.epochs[1].validation_accuracy == (float(last) if whole else None)
    assert any("metrics.csv:3" in note for note in table.notes) != whole


@pytest.mark.parametrize(
    ("row", "field", "note"),
    [
        *(
            (f"2,{cell},10.0,0.6,0.7", "train_loss", f"train_loss is {cell!r}")
            for cell in ("nan", "-Infinity", "abc", "1_000")
        ),
        *(
            (f"2,0.5,{t},0.6,0.0", "duration_ns", f"train_time is '{t}'")
            for t in ("0", "-3.5", "1e308", "1e-300", "4e9")
        ),
        ("2,1e308,10.0,0.6,0.7", "train_loss", "not a training figure"),
        *((f"2,0.5,1,0.6,{share}", "validation_accuracy", "not an accuracy") for share in ("-0.2", "300")),
    ],
)
def test_what_is_no_figure_is_unknown_and_said(tmp_path: Path, row: str, field: str, note: str) -> None:
    table = read(tmp_path, one_row(1), row)
    assert getattr(table.epochs[1], field) is None
    assert table.epochs[1].validation_loss == 0.6
    assert note in table.notes[0]


@pytest.mark.parametrize(
    ("row", "note"),
    [
        (b"2,0,0,0,0.0", "3: epoch 2 is filled with zeros; the row is left out"),
        (b"2,\xff\xfe,1,1,1", "3: not text"),
        *(
            (f"{n},0.5,10.0,0.6,0.7".encode(), "is not an epoch number")
            for n in ("1e9", "18446744073709551616", "-1", "1.5")
        ),
    ],
)
def test_a_row_of_no_epoch_is_left_out_and_said(tmp_path: Path, row: bytes, note: str) -> None:
    table = read_bytes(tmp_path, f"{HEADER}\n{one_row(1)}\n".encode() + row + f"\n{one_row(3)}\n".encode())
    assert [epoch.number for epoch in table.epochs] == [1, 3]
    assert note in table.notes[0]


def test_an_empty_cell_is_unknown_without_a_word(tmp_path: Path) -> None:
    table = read(tmp_path, "1,0.5,10.0,,")
    assert (table.epochs[0].validation_loss, table.epochs[0].validation_accuracy) == (None, None)
    assert table.notes == ()


def test_a_tail_of_zero_bytes_ends_the_file(tmp_path: Path) -> None:
    data = f"{HEADER}\n{one_row(1)}\n".encode() + b"\0" * 300_000
    table = read_bytes(tmp_path, data)
    assert [e.number for e in table.epochs] == [1]
    assert "metrics.csv:3: zero bytes up to the end" in table.notes[0]
    torn = f"{HEADER}\n{one_row(1)}\n2,0.5,1".encode() + b"\0" * 300_000
    assert [e.number for e in read_bytes(tmp_path, torn).epochs] == [1]


def test_rows_that_do_not_fit_are_named_and_counted(tmp_path: Path) -> None:
    rows = [one_row(n) for n in range(1, 21)] + [f"{n},1" for n in range(8)]
    table = read(tmp_path, *rows)
    assert len(table.epochs) == 20
    assert table.notes[0].startswith(f"{tmp_path}/metrics.csv:22: 2 cells where the header has 5 columns")
    assert table.notes[-1].endswith("3 more rows left out")


def test_more_misfits_than_rows_is_another_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 of 3 rows do not fit") as caught:
        read(tmp_path, one_row(1), "a,b", "x,0,1,2,3")
    assert ":3:" in str(caught.value)
    assert ":4: 'x' is not an epoch number" in str(caught.value)


def test_a_second_header_with_other_columns_counts_from_there(tmp_path: Path) -> None:
    table = read(tmp_path, one_row(1), "epoch,val_acc,train_time", "1,0.9,3")
    assert [(e.duration_ns, e.validation_accuracy) for e in table.epochs] == [(10e9, 0.7), (3e9, 0.9)]
    assert table.repeated_headers == 1
    assert "metrics.csv:3: a second header, with other columns" in table.notes[0]


def test_accuracies_in_per_cent_become_fractions(tmp_path: Path) -> None:
    table = read(tmp_path, "1,0.5,1,0.6,0.8", "2,0.5,1,0.6,76.5")
    assert [e.validation_accuracy for e in table.epochs] == pytest.approx([0.008, 0.765])
    assert "per cent" in table.notes[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", ":1: not text"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, "cannot read"),
        (b"time,value\n1,2\n", "'epoch' and a loss"),
        (b"epoch,wall_sec\n1,2\n", "'epoch' and a loss"),
        (b"x" * (MAX_LINE + 1), f"more than {MAX_LINE}"),
        (b"hello world\n", "'hello world'"),
    ],
)
def test_what_is_no_table_of_epochs_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_bytes(tmp_path, data)
    assert message in str(caught.value)
    assert "metrics.csv" in str(caught.value)


def test_a_huge_file_is_given_up_early_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_table, "MAX_ROWS", 2000)
    path = tmp_path / "metrics.csv"
    with path.open("w") as file:
        file.write(HEADER + "\n")
        file.writelines(f"x{n}\n" for n in range(2010))
    with path.open("rb+") as file:
        file.truncate(10 << 30)  # sparse: the rest is never read
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than 2000 rows"):
            read_epoch_table(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_ten_gigabytes_of_zero_bytes_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.touch()
    with path.open("rb+") as file:
        file.truncate(10 << 30)
    assert read_epoch_table(path).blank


def test_recognition_asks_for_results_beside_the_epoch() -> None:
    assert is_epoch_table("\ufeff\n" + HEADER + "\n1,2")
    assert not is_epoch_table("experiment,workers,epoch,wall_sec\nweak,1,1,45")
    assert not is_epoch_table("train_loss,val_loss\n1,2")
    assert not is_epoch_table("")


@pytest.mark.parametrize(
    ("numbers", "duplicates", "series", "alternating"),
    [
        ([1, 2, 3], (), 1, False),
        ([0, 1, 5], (), 1, False),
        ([1, 2, 3, 1, 2, 3], (1, 2, 3), 2, False),
        ([1, 2, 3, 4, 3, 4, 5, 6], (3, 4), 2, False),
        ([1, 1, 2, 2, 3, 3], (1, 2, 3), 2, True),
        ([6, 1, 7, 2, 8, 3, 4, 5, 6, 7], (6, 7), 2, True),
        ([1, 2, 1, 3], (1,), 2, True),
        ([], (), 0, False),
    ],
)
def test_order_tells_a_restart_from_two_writers(
    numbers: list[int], duplicates: tuple[int, ...], series: int, alternating: bool
) -> None:
    order = epoch_order(numbers)
    assert (order.duplicates, order.series, order.alternating) == (duplicates, series, alternating)
    told = order.sentence or ""
    assert ("at the same time" in told) == alternating
    assert (order.sentence is None) == (series <= 1)


def test_numbers_in_no_order_stay_few_series() -> None:
    assert epoch_order(list(range(20_000, 0, -1))).series == 16


@pytest.mark.parametrize("header", [f"{HEADER},train_time", f"{HEADER},Train_Time"])
def test_a_column_that_stands_twice_is_refused_whichever_holds_the_figures(tmp_path: Path, header: str) -> None:
    with pytest.raises(DataError, match="appears twice in the header"):
        read(tmp_path, f"{one_row(1)},0.119", header=header)


def test_a_time_that_counts_from_the_start_of_the_training_is_no_epochs_time(tmp_path: Path) -> None:
    rows = "".join(f"{n},2.0,{10.0 * n + n % 2}\n" for n in range(1, 7))
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,train_loss,train_time\n" + rows)
    found = read_epoch_table(path)
    assert {epoch.duration_ns for epoch in found.epochs} == {None}
    assert any("may count from the start" in note for note in found.notes)
    path.write_text("epoch,train_loss,train_time\n" + rows.replace(",60.0\n", ",9.0\n"))
    assert read_epoch_table(path).epochs[0].duration_ns == 11e9
