"""A rank that raises, exits, hangs, is killed or runs out of memory: the other cells run, the record names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, by_cell, results, samples_of, status_of

from stepscope.store.importers.flight_recorder import read_folder

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]

EXPECTED = {
    "raise": ("error", "ValueError: planted failure"),
    "exit": ("error", "exited with code 3"),
    "quiet_exit": ("killed", "exited without an error message"),
    "kill": ("killed", "SIGKILL"),
    "cuda_oom": ("oom", "rank 1"),
    "watchdog": ("host_oom", "host memory left"),
    "diverge": ("error", "replicas diverged"),
    "hang": ("timeout", "never called collective"),
}
OTHER_CALLS = {
    "other_op": ("timeout", "rank 1 called broadcast [", "rank 0 all_reduce ["),
    "other_size": ("killed", "rank 1 called all_reduce [", "rank 0 all_reduce ["),
}


@pytest.fixture(scope="module")
def all_faults(shared_cli: Cli) -> tuple[Done, Path]:
    """One run with every fault, a good cell before and one after them."""
    kinds = json.dumps(list(EXPECTED))
    name = shared_cli.matrix(
        f"include:\n"
        f"  - workload: faulty\n"
        f"    strategy: ddp\n"
        f"    axes: {{model.kind: {kinds}}}\n"
        f"  - workload: faulty\n"
        f"    strategy: naive\n"
        f"    model: {{at: 4}}\n"
        f"    axes: {{model.kind: {json.dumps(list(OTHER_CALLS))}}}\n"
        f"  - {{strategy: bucketed}}",
        timeout_s=6,
    )
    return shared_cli("bench", name, "-o", "run"), shared_cli.folder / "run"


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_failing_rank_is_named_with_the_reason(kind: str, all_faults: tuple[Done, Path]) -> None:
    done, run = all_faults
    assert done.code == 4, done.err
    status, words = EXPECTED[kind]
    row = by_cell(run)[kind]
    record = status_of(run, row)
    assert row["status"] == record["status"] == status, record
    assert record["failing_rank"] == 1
    assert words in record["reason"]
    assert row["error"]
    assert row["step_ns_median"] is None


@pytest.mark.parametrize("kind", OTHER_CALLS)
def test_what_each_rank_called_is_told_and_kept(kind: str, all_faults: tuple[Done, Path]) -> None:
    _, run = all_faults
    status, ours, theirs = OTHER_CALLS[kind]
    row = by_cell(run)[kind]
    record = status_of(run, row)
    assert record["status"] == status, record
    assert all(words in record["reason"] for words in (ours, theirs, "of the default group", "float32"))
    assert kind != "other_op" or record["failing_rank"] == 1
    folder = read_folder(run / "cells" / row["cell_id"] / "flight")
    assert [d.rank for d in folder.dumps] == [0, 1]
    assert all(d.entries and d.groups[0].ranks == (0, 1) for d in folder.dumps)
    assert not folder.refused


@pytest.mark.parametrize("cell", ["mlp-naive-w2", "mlp-bucketed-w2"])
def test_the_other_cells_still_run(cell: str, all_faults: tuple[Done, Path]) -> None:
    _, run = all_faults
    row = by_cell(run)[cell]
    assert row["status"] == "ok"
    assert row["step_ns_median"] > 0


@pytest.mark.parametrize("kind", ["raise", "exit", "kill", "hang"])
def test_samples_measured_before_the_failure_are_kept(kind: str, all_faults: tuple[Done, Path]) -> None:
    _, run = all_faults
    assert samples_of(run, by_cell(run)[kind], 0)


def test_the_table_and_the_report_name_every_failed_cell(all_faults: tuple[Done, Path]) -> None:
    done, run = all_faults
    report = (run / "report" / "summary.md").read_text()
    for status in ("timeout", "killed", "out of host memory"):
        assert status in done.out
        assert status in report
    assert "Traceback" not in done.out
    assert "Traceback" not in done.err


def test_a_cell_that_is_merely_slow_at_its_deadline_blames_nobody(cli: Cli) -> None:
    model = json.dumps({"kind": "slow", "at": 0})
    name = cli.matrix(f"include: [{{workload: faulty, model: {model}, strategy: ddp}}]", timeout_s=6)
    path = cli.folder / name
    path.write_text(path.read_text().replace("steps: 20", "steps: 200"))
    assert cli("bench", name, "-o", "run").code == 4
    status = status_of(cli.folder / "run", by_cell(cli.folder / "run")["slow"])
    assert status["status"] == "timeout"
    assert status["failing_rank"] is None
    assert "still progressing" in status["reason"]
    assert "of 202" in status["reason"]
    assert "measure.timeout_s" in status["reason"]


def test_unreadable_data_fails_its_cells_at_once_with_the_reason_and_starts_no_rank(cli: Cli) -> None:
    (cli.folder / "data").mkdir()
    for split in ("train", "t10k"):
        for part in ("images-idx3", "labels-idx1"):
            (cli.folder / "data" / f"{split}-{part}-ubyte.gz").write_bytes(b"\x1f\x8b damaged")
    name = cli.matrix("include: [{dataset: mnist, dataset_options: null, axes: {strategy: [naive, ddp]}}]")
    done = cli("bench", name, "-o", "run", "--data-dir", "data")
    assert done.code == 4, done.err
    broken = [row for row in results(cli.folder / "run") if row["dataset"] == "mnist"]
    assert [row["status"] for row in broken] == ["error", "error"]
    (reason,) = {row["error"] for row in broken}
    for words in ("train-images-idx3-ubyte.gz", "expected a complete gzip file; found"):
        assert words in reason
    assert by_cell(cli.folder / "run")["mlp-naive-w2"] is not None
    (group,) = (cli.folder / "run" / "groups").iterdir()
    assert len(json.loads((group / "spec.json").read_text())["cells"]) == 1


def test_after_an_oom_cells_that_only_ask_for_more_are_skipped(cli: Cli) -> None:
    (cli.folder / "m.yaml").write_text(
        "version: 1\n"
        "base: {workload: faulty, model: {kind: host_oom}, dataset: synthetic, strategy: naive,\n"
        "       dataset_options: {samples: 512}, lr: 0.05, global_batch: 32, steps: 20, world_size: 2}\n"
        "axes: {model.width: [64, 128]}\n"
        "include: [{model: {kind: none, width: 256}}]\n"
        "measure: {warmup: 2}\n"
    )
    done = cli("bench", "m.yaml", "-o", "run")
    assert done.code == 4, done.err
    by_width = {row["model"]["width"]: row for row in results(cli.folder / "run")}
    assert by_width[64]["status"] == "host_oom"
    record = status_of(cli.folder / "run", by_width[64])
    assert (record["failing_rank"], "rank 1" in record["reason"]) == (1, True)
    assert by_width[128]["status"] == "skipped"
    assert by_width[64]["cell_id"] in status_of(cli.folder / "run", by_width[128])["reason"]
    assert by_width[256]["status"] == "ok", "another kind of cell is tried"
