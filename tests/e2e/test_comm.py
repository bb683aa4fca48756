"""``stepscope comm`` as a user runs it: the table, files that a script reads, mistakes, Ctrl-C, a rank that dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, results, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

QUICK = ("--warmup", "2", "--iters", "8")
ALL = ("comm", "--ops", "all", "--sizes", "1K:256K:4", "--ranks", "2", *QUICK, "-o", "run")
LONG = ("comm", "--ops", "all_reduce", "--sizes", "1K:64M:4", "--ranks", "2", "--iters", "400", "-o", "run")


@pytest.fixture(scope="module")
def swept(shared_cli: Cli) -> tuple[Done, Path]:
    """Every collective at five sizes, on two ranks."""
    done = shared_cli(*ALL, "--json")
    return done, shared_cli.folder / "run"


def test_every_collective_is_measured_and_right_on_two_ranks(swept: tuple[Done, Path]) -> None:
    done, run = swept
    assert done.code == 0, done.err
    document = done.json()
    assert document["schema"] == "stepscope.comm/1"
    rows = document["rows"]
    assert {row["op"] for row in rows} == {
        "all_gather", "all_reduce", "all_to_all", "all_to_all_v", "barrier", "broadcast", "gather", "reduce",
        "reduce_scatter", "scatter", "send_recv",
    }  # fmt: skip
    assert all(row["status"] == "ok" for row in rows)
    assert all(row["correct"] for row in rows if row["op"] != "barrier")
    assert {row["scheduler_policy"] for row in rows} == {"SCHED_BATCH"}
    assert len(results(run)) == len(rows)


def test_numbers_of_calls_are_those_asked_for_and_rates_follow_from_time_and_size(swept: tuple[Done, Path]) -> None:
    done, run = swept
    rows = done.json()["rows"]
    assert {(row["warmup"], row["iterations"]) for row in rows} == {(2, 8)}
    for path in run.glob("cells/*/samples-*.jsonl"):
        _, *samples = (json.loads(line) for line in path.read_text().splitlines())
        assert {(len(s["warmup_ns"]), len(s["times_ns"])) for s in samples} == {(2, 8)}
    for row in (row for row in rows if row["op"] == "all_gather"):
        assert row["algbw_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_ns_median"] * 1e9)
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] / 2)


def test_the_same_command_measures_nothing_twice_and_prints_every_format(
    shared_cli: Cli, swept: tuple[Done, Path]
) -> None:
    assert swept[0].code == 0
    again = shared_cli(*ALL)
    assert again.code == 0
    assert "0 cells to run, 11 kept from before" in again.err
    assert "busbw (GB/s)" in again.out
    table = shared_cli(*ALL, "--format", "csv").out.splitlines()
    assert table[0].startswith("cell_id,status,")
    assert len(table) == 1 + len(swept[0].json()["rows"])
    document = shared_cli(*ALL, "--format", "document-001").json()
    assert document["world_size"] == 2
    assert "allreduce" in document["results"]["communication"]


@pytest.mark.usefixtures("swept")
def test_calibrate_and_predict_follow_from_it(shared_cli: Cli) -> None:
    fitted = shared_cli("calibrate", "run", "-o", "calib.json")
    assert fitted.code == 0, fitted.err
    assert "all_reduce" in fitted.out
    asked = ("--collective", "all_reduce", "--size", "256KiB", "--gpus", "2", "--calib", "calib.json", "--json")
    said = shared_cli("predict", *asked)
    assert said.code == 0, said.err


def test_sizes_that_cannot_be_sent_are_skipped_with_the_reason_and_an_error_where_none_can(cli: Cli) -> None:
    done = cli(
        "comm", "--ops", "all_gather", "--sizes", "0,3,1001,4096,64T", "--ranks", "3", *QUICK, "-o", "run", "--json"
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = {row["asked_bytes"]: row for row in done.json()["rows"]}
    assert {size for size, row in rows.items() if row["status"] == "ok"} == {1001, 4096}
    assert rows[1001]["size_bytes"] == 996
    assert all(rows[size]["error"] for size in (0, 3, 64 << 40))
    none = cli("comm", "--sizes", "3", "--ranks", "2", *QUICK, "-o", "none")
    assert none.code == 3
    assert "error: nothing was measured\n  why: 3 bytes: less than 4 bytes (one element)" in none.err
    assert "fix: ask for other sizes" in none.err


def test_one_rank_alone_is_measured_too(cli: Cli) -> None:
    done = cli("comm", "--ops", "all_reduce,all_gather", "--sizes", "4K", "--ranks", "1", *QUICK, "-o", "run", "--json")
    assert done.code == 0, done.err
    assert {row["busbw_bytes_per_s"] for row in done.json()["rows"]} == {0}


def test_ctrl_c_keeps_every_size_that_was_finished(cli: Cli) -> None:
    process = cli.start(*LONG)
    run = cli.folder / "run"

    def some_sizes() -> bool:
        return any(len(path.read_text().splitlines()) > 2 for path in run.glob("cells/*/samples-00000.jsonl"))

    wait_for(some_sizes, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    rows = results(run)
    assert (rows[0]["status"], rows[-1]["status"]) == ("ok", "interrupted")
    assert "interrupted" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("signum", "status", "words"),
    [(signal.SIGKILL, "killed", "rank 1 was killed by SIGKILL"), (signal.SIGSTOP, "timeout", "rank 1")],
)
def test_a_rank_that_is_killed_or_hangs_is_named_and_its_sizes_stand(
    cli: Cli, signum: int, status: str, words: str
) -> None:
    process = cli.start(*LONG, "--timeout", "3s")
    run = cli.folder / "run"

    def pid_of_rank_1() -> int | None:
        (path,) = run.glob("cells/*/heartbeat-00001")
        beat = json.loads(path.read_text())
        return beat["pid"] if (beat["size_bytes"] or 0) > 4096 else None

    os.kill(wait_for(pid_of_rank_1, process), signum)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    rows = results(run)
    assert (rows[0]["status"], rows[-1]["status"]) == ("ok", status)
    assert words in rows[-1]["error"]


def test_inside_a_torchrun_world_the_command_joins_it(cli: Cli) -> None:
    line = ("comm", "--ops", "all_reduce", "--sizes", "4K", *QUICK, "-o", "joined", "--json")
    done = cli.under_torchrun(*line)
    assert done.code == 0, done.err
    (row,) = done.json()["rows"]
    assert (row["status"], row["world_size"]) == ("ok", 2)
