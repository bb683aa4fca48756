from __future__ import annotations

import csv as csv_module
import io
from dataclasses import replace
from typing import Any

import pytest
from tests.tables import at

from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch
from stepscope.report.render import files, terminal
from stepscope.report.shared.runs import measured
from stepscope.report.table import UNKNOWN, Table, duration
from stepscope.report.views import epochs, runs
from stepscope.report.views.runs import CELLS, PAGE, PAPER
from stepscope.report.views.runs import of_cells as build

EPOCHS = (
    Epoch(number=1, duration_ns=4e8, train_loss=0.5, validation_accuracy=0.8, samples_per_s=40_000.0),
    Epoch(number=2, duration_ns=4e8, train_loss=0.4, validation_accuracy=0.7),
)


def _text(table: Table, key: str, row: int = 0) -> str:
    return at(table, key, row).text


@pytest.fixture
def rows(fakes: Any) -> list[Any]:
    ddp = {"speedup": 1.6, "efficiency": 0.8, "rating": "fair", "scaling": "strong", "baseline_cell_id": "a"}
    one = {"speedup": 1.0, "efficiency": 1.0, "baseline_cell_id": "a"}
    common = {"epoch_ns": 4e8, "epoch_ns_low": 3.9e8, "epoch_ns_high": 4.2e8, "epoch_estimated": True}
    return [
        fakes.timed_row("a", 20e6, strategy="single", world_size=1, exposed_comm_ns_median=0.0,
                        comm_bytes_per_step=0, peak_memory_bytes=300 * 2**20, **one, **common),
        fakes.timed_row("b", 12.5e6, exposed_comm_ns_median=2.5e6, exposed_comm_ns_low=2.4e6,
                        exposed_comm_ns_high=2.6e6, comm_bytes_per_step=5_380_000,
                        peak_memory_bytes=312 * 2**20, **ddp, **common),
        fakes.row("c", status="oom", error="rank 1 on node-b: CUDA out of memory, 2.0 GiB asked for",
                  strategy_options={"hook": "bf16"}),
    ]  # fmt: skip


def test_an_estimated_epoch_is_marked_in_the_title_or_where_both_kinds_stand_at_the_value(
    fakes: Any, rows: list[Any]
) -> None:
    assert "epoch est." in [column.title for column in build(rows).columns]
    real = fakes.timed_row("d", 1e7, epoch_ns=5e8, epoch_estimated=False)
    mixed = build([*rows, real])
    assert "epoch" in [column.title for column in mixed.columns]
    assert _text(mixed, "epoch_ns") == "400 ms ±5% est."
    assert _text(mixed, "epoch_ns", 3) == "500 ms"
    assert (
        measured(Measured(value=4e8, low=3.9e8, high=4.2e8, n=9), duration, estimated=True, tight=True).compact
        == "~400 ms±5%"
    )


def test_the_unknown_is_a_dash_and_never_zero(fakes: Any) -> None:
    table = build([fakes.row("a")])
    for column, value in zip(table.columns, table.rows[0].values, strict=True):
        if column.role == "measured":
            assert value.text == UNKNOWN
            assert value.raw is None


def test_rows_of_a_model_stay_together_in_the_order_of_first_appearance(fakes: Any) -> None:
    rows = [
        fakes.row("a", model={"size": "small"}),
        fakes.row("b", model={"size": "base"}),
        fakes.row("c", model={"size": "small"}, num_parameters=None),
    ]
    table = build(rows)
    assert [_text(table, "model", i) for i in range(3)] == ["mlp small", "mlp small", "mlp base"]
    assert _text(table, "num_parameters", 1) == "1.34M parameters"  # known from the other row of that model


def test_a_rating_is_coloured_and_the_colour_is_not_the_only_sign(rows: list[Any]) -> None:
    text = terminal.render(build(rows), width=250)
    assert "80.0% fair" in text.plain
    assert any(span.style == "yellow" for span in text.spans)


def test_markdown_keeps_one_column_count_and_escapes_what_would_end_a_cell(fakes: Any) -> None:
    rows = [fakes.timed_row("a", 1e7), fakes.row("b", status="error", error="ValueError: a|b <c>\nnext")]
    lines = files.as_markdown(build(rows)).splitlines()
    counts = {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")}
    assert len(counts) == 1
    assert any("**error: ValueError: a\\|b &lt;c> next**" in line for line in lines)


def test_csv_has_raw_values_in_base_units(rows: list[Any]) -> None:
    first, second, third = csv_module.DictReader(io.StringIO(files.as_csv(build(rows))))
    assert float(second["step_ns"]) == 12.5e6
    assert int(second["comm_bytes"]) == 5_380_000
    assert float(first["speedup"]) == 1.0
    assert third["step_ns"] == ""
    assert third["failure"].startswith("out of GPU memory")


def test_an_empty_table_renders() -> None:
    table = build([])
    assert "strategy" in terminal.render(table, width=80).plain
    assert files.as_csv(table).count("\n") == 1
    assert files.as_markdown(table) == "\n"


def test_throughput_stands_under_the_unit_that_is_counted(fakes: Any) -> None:
    words = replace(fakes.timed_row("a", 1e7), unit="tokens", samples_per_s=Measured(value=42_783.0), epochs=EPOCHS)
    titles = {column.key: column.title for column in build([words]).columns}
    assert titles["samples_per_s"] == "tokens/s"
    assert _text(build([words]), "samples_per_s") == "42,783"
    assert "tokens/s" in [column.title for column in epochs.epochs_table([words]).columns]

    both = build([words, fakes.timed_row("b", 1e7)])
    assert "per s" in [column.title for column in both.columns]
    assert [_text(both, "samples_per_s", row) for row in (0, 1)] == ["42,783 tokens/s", "6,400 samples/s ±2%"]


def test_one_accuracy_is_shown_the_best_of_any_epoch(fakes: Any) -> None:
    run = replace(fakes.timed_row("a", 1e7, test_accuracy=0.7), epochs=EPOCHS)
    for show in (CELLS, PAPER, PAGE):
        assert _text(runs.build([run], show=show), "best_accuracy") == "0.8000"
