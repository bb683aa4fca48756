"""Memory by batch: which runs are of one group, how it grows, and that out of memory is a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.bench_evidence import Made, bench, made
from tests.fake_runs import timed_row

from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.report.views import memory
from stepscope.results.sweeps import memory_by_batch

MIB = 2**20


def ran(batch: int, peak_mib: int | None, **known: Any) -> TrainingRun:
    fields: dict[str, Any] = {"micro_batch": batch, "global_batch": 2 * batch} | known
    peak = None if peak_mib is None else peak_mib * MIB
    return timed_row(f"b{batch}-{known}", 1e7, peak_memory_bytes=peak, **fields)


def test_growth_is_against_the_next_smaller_batch_that_ran_whatever_the_order() -> None:
    (group,) = memory_by_batch([ran(256, 484), ran(64, 400), ran(128, 420)])
    assert [each.micro_batch for each in group] == [64, 128, 256]
    assert [each.per_sample_bytes for each in group] == [None, 20 * MIB / 64, 64 * MIB / 128]


def test_out_of_memory_and_what_is_skipped_for_it_have_rows_and_no_figures() -> None:
    (group,) = memory_by_batch(
        [
            ran(64, 400),
            ran(128, 420),
            ran(256, None, status="oom", error="rank 1: CUDA out of memory"),
            ran(512, None, status="skipped", error="oom_backstop of b256"),
        ]
    )
    assert [each.peak_bytes is None for each in group] == [False, False, True, True]
    table = memory.memory_batches_table([each.run for each in group])
    assert [row.failure is None for row in table.rows] == [True, True, False, False]
    assert "out of memory" in (table.rows[2].failure or "")


def test_runs_of_other_kinds_and_peaks_that_do_not_grow() -> None:
    assert memory_by_batch([ran(64, 400), ran(128, None, status="error", error="x")]) == ()
    assert memory_by_batch([ran(64, 400), ran(128, 420, precision="bf16"), ran(256, 500, world_size=4)]) == ()
    both = memory_by_batch(
        [ran(64, 400), ran(128, 420), ran(64, 300, precision="bf16"), ran(128, 310, precision="bf16")]
    )
    assert [[each.micro_batch for each in group] for group in both] == [[64, 128], [64, 128]]
    table = memory.memory_batches_table([ran(64, 400), ran(128, 399)])
    column = [c.key for c in table.columns].index("per_sample_bytes")
    assert table.rows[1].values[column].text == "none seen"
    assert table.rows[1].values[column].raw == -MIB / 64


def test_batches_that_count_different_things_have_their_unit_beside_each_rate() -> None:
    samples = [replace(ran(batch, 400 + batch), samples_per_s=Measured(value=50.0)) for batch in (64, 128)]
    tokens = [replace(run, run_id=f"{run.run_id}t", unit="tokens", precision="bf16") for run in samples]
    table = memory.memory_batches_table([*samples, *tokens])
    column = [c.key for c in table.columns].index("samples_per_s")
    assert {row.values[column].text.split(" ")[-1] for row in table.rows} == {"samples/s", "tokens/s"}


def test_what_a_batch_holds_by_kind_is_that_of_the_rank_with_most_and_unknown_where_a_rank_did_not_count() -> None:
    def cell(batch: int, **summary: Any) -> Made:
        peak = {"peak_memory_bytes": (300 + batch) * MIB}
        return made(f"b{batch}", world_size=2, micro_batch=batch, global_batch=2 * batch, summary=peak | summary)

    counted = {"parameters": 8, "gradients": 8, "optimizer": 16, "activations": 64}
    found = bench(cell(64, memory=counted), cell(128))
    (group,) = memory_by_batch(found.runs, found.cells)
    assert [each.held_bytes for each in group] == [counted, {}]
    table = memory.memory_batches_table(found.runs, found.cells)
    row = dict(zip((c.key for c in table.columns), table.rows[0].values, strict=True))
    assert {kind: row[kind].raw for kind in counted} == counted
