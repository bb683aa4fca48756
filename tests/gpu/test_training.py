"""Every strategy, precision and loader setting on the device: planned collectives, equal losses, traces that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import Done, results, samples_of, status_of
from tests.gpu.conftest import Target

from stepscope.traces.events import RankView
from stepscope.traces.load import load_traces
from stepscope.traces.rule_facts import check_plan

pytestmark = pytest.mark.timeout(900)

CELLS = """
  - {strategy: single, world_size: 1}
  - {strategy: naive, strategy_options: {flat: true}}
  - {strategy: interleaved}
  - {strategy: bucketed, strategy_options: {bucket_cap_mb: 0.002}}
  - {strategy: ddp}
  - {strategy: ddp, strategy_options: {bucket_cap_mb: 0.002, gradient_as_bucket_view: true}}
  - {strategy: ddp, strategy_options: {static_graph: true}}
  - {strategy: ddp, accumulation: 2}
  - {strategy: ddp, strategy_options: {hook: fp16}}
  - {strategy: ddp, strategy_options: {hook: bf16}}
  - {strategy: ddp, strategy_options: {hook: powersgd}}
  - {strategy: ddp, precision: amp_fp16}
  - {strategy: ddp, precision: amp_bf16}
  - {strategy: ddp, precision: tf32}
  - {strategy: ddp, precision: bf16}
  - {strategy: ddp, pin_memory: true, num_workers: 1}
"""
LOSSLESS = ("naive", "interleaved", "bucketed", "ddp")


@pytest.fixture(scope="module")
def trained(target: Target) -> tuple[Done, Path]:
    name = target.matrix("matrix.yaml", CELLS)
    return target.cli("bench", name, "-o", "run", "--json", "--profile"), target.cli.folder / "run"


def cell_spec(run: Path, row: dict[str, Any]) -> dict[str, Any]:
    return json.loads((run / "cells" / row["cell_id"] / "spec.json").read_text())


def cells(run: Path) -> list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """(row, spec, summaries of all ranks) of every cell that has a result."""
    found = []
    for row in results(run):
        if row["status"] == "ok":
            spec = cell_spec(run, row)
            folder = run / "cells" / row["cell_id"]
            ranks = [json.loads((folder / f"rank-{r:05d}.json").read_text()) for r in range(spec["world_size"])]
            found.append((row, spec, ranks))
    return found


def test_every_cell_that_can_run_here_has_a_result(trained: tuple[Done, Path], target: Target) -> None:
    done, run = trained
    assert done.code == 0, done.err
    for row in results(run):
        assert row["status"] in ("ok", "unsupported"), status_of(run, row)
    precisions = {spec["precision"] for _, spec, _ in cells(run)}
    assert {"fp32", "amp_fp16"} <= precisions
    assert ("tf32" in precisions) is (target.device == "cuda"), "an Ampere GPU or newer has TF32"
    assert {(spec["device"], spec["backend"]) for _, spec, _ in cells(run)} == {(target.device, target.backend)}


def test_every_strategy_communicates_as_planned_and_keeps_its_replicas_equal(trained: tuple[Done, Path]) -> None:
    for _, spec, ranks in cells(trained[1]):
        assert len({rank["parameter_checksum"] for rank in ranks}) == 1, spec
        for rank in ranks:
            assert rank["plan_check"]["matches"], (spec["strategy"], spec["strategy_options"], rank["plan_check"])


def test_lossless_strategies_lose_as_much_as_one_process_does(trained: tuple[Done, Path]) -> None:
    """The same windows in float32: the global loss of every step is that of the single process, up to rounding."""
    run, losses = trained[1], {}
    for row, spec, ranks in cells(run):
        if spec["precision"] == "fp32" and spec["strategy_options"].get("hook", "none") == "none":
            each = [[s["loss_sum"] for s in samples_of(run, row, r)] for r in range(len(ranks))]
            losses[row["cell_id"]] = [sum(step) for step in zip(*each, strict=True)]
    (alone,) = (losses.pop(row["cell_id"]) for row, spec, _ in cells(run) if spec["strategy"] == "single")
    assert losses
    for cell_id, found in losses.items():
        assert found == pytest.approx(alone, rel=1e-3), cell_id


def test_phases_sum_to_steps_on_the_devices_clock(trained: tuple[Done, Path], target: Target) -> None:
    phases = ("data_wait_ns", "forward_ns", "backward_compute_ns", "exposed_comm_ns", "optimizer_ns", "other_ns")
    for row, spec, _ in cells(trained[1]):
        lines = (trained[1] / "cells" / row["cell_id"] / "samples-00000.jsonl").read_text().splitlines()
        assert json.loads(lines[0])["clock"] == ("cuda_event" if target.device == "cuda" else "perf_counter")
        for sample in map(json.loads, lines[1:]):
            assert sum(sample[phase] for phase in phases) == sample["step_ns"]
            assert min(sample[phase] for phase in phases) >= 0, spec


def test_traces_show_the_planned_collectives_and_trace_and_report_read_them(
    trained: tuple[Done, Path], target: Target
) -> None:
    """``bench --profile`` -> ``trace`` -> ``report``."""
    run = trained[1]
    for row, spec, _ in cells(run):
        if target.device == "cpu" and spec["strategy_options"].get("hook") == "powersgd":
            continue  # its second and third reduction start in a thread of gloo's, which torch's profiler does not record
        folder = run / "cells" / row["cell_id"] / "trace"
        for trace in load_traces(folder).ranks:
            view = RankView(trace)
            verdict = check_plan(view)
            if verdict is not None:
                assert verdict.holds is not False, (spec["strategy"], verdict.differences)
        document = target.cli("trace", str(folder), "--json").json()
        assert {r["source"] for r in document["ranks"]} == {"device" if target.device == "cuda" else "cpu_spans"}
        assert not [f for f in document["findings"] if f["rule"] in ("plan-broken", "impossible-figures")]
    done = target.cli("report", "run", "--html", "--csv")
    assert done.code == 0, done.err
    assert (run / "report" / "report.html").stat().st_size > 10_000


def test_a_cell_that_runs_out_of_device_memory_is_oom_and_the_next_one_runs(target: Target) -> None:
    rank = target.ranks - 1
    name = target.matrix("oom.yaml", f"  - {{workload: faulty, model: {{kind: cuda_oom, rank: {rank}}}, strategy: ddp}}\n"
                                     "  - {strategy: ddp}")  # fmt: skip
    done = target.cli("bench", name, "-o", "oom")
    assert done.code == 4, done.err
    folder = target.cli.folder / "oom"
    found = {(row["workload"], row["strategy"]): row for row in results(folder)}
    record = status_of(folder, found["faulty", "ddp"])
    assert record["status"] == "oom", record
    assert record["failing_rank"] == rank
    assert found["mlp", "ddp"]["status"] == found["mlp", "naive"]["status"] == "ok"


def test_a_rank_that_calls_another_collective_is_named_from_the_flight_recorder(target: Target) -> None:
    if target.ranks == 1:
        pytest.skip("one rank has nobody to differ from")
    name = target.matrix("hang.yaml", "  - {workload: faulty, model: {kind: other_op, at: 4, rank: 1}, strategy: naive}",
                         timeout_s=25)  # fmt: skip
    done = target.cli("bench", name, "-o", "hang")
    assert done.code == 4, done.err
    folder = target.cli.folder / "hang"
    (row,) = (row for row in results(folder) if row["workload"] == "faulty")
    record = status_of(folder, row)
    assert record["failing_rank"] == 1, record
    assert "rank 1 called broadcast" in record["reason"]
