"""``stepscope bench`` from a file to a table: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, Here, by_cell, results, samples_of, status_of, summaries_of

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]

PHASES = ("data_wait_ns", "forward_ns", "backward_compute_ns", "exposed_comm_ns", "optimizer_ns", "other_ns")
MATRIX = """
include:
  - {strategy: single, world_size: 1}
  - {strategy: ddp, accumulation: 2, precision: amp_bf16}
  - {strategy: bucketed, steps: null, epochs: 2, dataset_options: {samples: 500}}
  - {strategy: ddp, strategy_options: {hook: powersgd, bucket_cap_mb: 0.001}}
"""


@pytest.fixture(scope="module")
def profiled(shared_cli: Cli) -> tuple[Done, Path]:
    """One run with fixed numbers of steps, epochs, an unsupported cell, traces."""
    name = shared_cli.matrix(MATRIX, warmup=4)
    done = shared_cli("bench", name, "-o", "run", "--json", "--profile", "--tensorboard", "board")
    return done, shared_cli.folder / "run"


def test_json_is_one_document_with_the_rows_of_results_jsonl(profiled: tuple[Done, Path]) -> None:
    done, run = profiled
    assert done.code == 0, done.err
    document = done.json()
    assert document["schema"] == "stepscope.bench/1"
    kept = results(run)
    assert document["cells"] == kept
    with (run / "results.csv").open() as file:
        assert [row["cell_id"] for row in csv.DictReader(file)] == [row["cell_id"] for row in kept]


def test_steps_are_as_many_as_asked_for_their_phases_sum_and_collectives_are_as_planned(
    profiled: tuple[Done, Path],
) -> None:
    _, run = profiled
    for rank in (0, 1):
        samples = samples_of(run, by_cell(run)["mlp-naive-w2"], rank)
        assert sum(s["warmup"] for s in samples) == 4
        assert sum(not s["warmup"] and s["full"] for s in samples) == 20
    for row in results(run):
        if row["status"] == "ok":
            for sample in samples_of(run, row, 0):
                assert sum(sample[phase] for phase in PHASES) == sample["step_ns"]
            (summary, *_) = summaries_of(run, row)
            assert summary["plan_check"]["matches"], summary["plan_check"]


def test_every_sample_is_trained_on_once_per_epoch_over_all_ranks(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    row = by_cell(run)["mlp-bucketed-w2"]
    assert row["dataset_size"] == 500
    assert sum(row["samples_seen_per_rank"]) == 500
    summaries = summaries_of(run, row)
    assert len({s["parameter_checksum"] for s in summaries}) == 1
    assert sum(s["epochs"][-1]["distinct_samples_seen"] for s in summaries) == 500


def test_what_cannot_run_here_is_unsupported_with_the_reason(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    row = next(r for r in results(run) if r["strategy_options"].get("hook") == "powersgd")
    assert row["status"] == "unsupported"
    assert "bucket" in status_of(run, row)["reason"]


def test_every_rank_leaves_a_trace_with_regions_steps_and_metadata(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    row = by_cell(run)["mlp-naive-w2"]
    steps = []
    for rank in (0, 1):
        path = run / "cells" / row["cell_id"] / "trace" / f"rank-0000{rank}.json.gz"
        trace = json.loads(gzip.decompress(path.read_bytes()))
        names = {event.get("name") for event in trace["traceEvents"]}
        for region in ("step", "data", "forward", "loss", "backward", "communication", "optimizer"):
            assert f"stepscope.{region}" in names
        steps.append(sorted(n for n in names if str(n).startswith("ProfilerStep#")))
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["stepscope.strategy"] == "naive"
        assert trace["stepscope.cell_id"] == row["cell_id"]
        assert len(trace["stepscope.communication_plan"]) == 4
        assert "gloo:all_reduce" in names
    assert steps[0] == steps[1]
    assert len(steps[0]) == 3
    board = list((run.parent / "board" / row["cell_id"]).glob("*.pt.trace.json.gz"))
    assert len(board) == 2


def test_speedup_is_against_the_one_rank_cell_of_the_same_settings(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    found = by_cell(run)
    naive, single = found["mlp-naive-w2"], found["mlp-single-w1"]
    assert naive["baseline_cell_id"] == single["cell_id"]
    assert naive["scaling"] == "strong"
    assert naive["speedup"] == pytest.approx(naive["samples_per_s"] / single["samples_per_s"])
    mixed = next(r for r in results(run) if r["precision"] == "amp_bf16")
    assert mixed["speedup"] is None, "no baseline of its precision and accumulation: unknown, not 1"


def test_the_same_cells_in_another_order_and_in_rounds_give_bitwise_the_same_losses(
    shared_cli: Cli, profiled: tuple[Done, Path]
) -> None:
    _, run = profiled
    name = shared_cli.matrix("include:\n  - {strategy: bucketed, steps: null, epochs: 2, dataset_options: {samples: 500}}\n"
                             "  - {strategy: single, world_size: 1}", name="other.yaml", warmup=4, rounds=2)  # fmt: skip
    path = shared_cli.folder / name
    path.write_text(path.read_text().replace("[naive]", "[ddp, naive]"))
    done = shared_cli("bench", name, "-o", "again")
    assert done.code == 0, done.err
    first, second = by_cell(run), by_cell(shared_cli.folder / "again")
    for key in ("mlp-naive-w2", "mlp-bucketed-w2", "mlp-single-w1"):
        once = [s["loss_sum"] for s in samples_of(run, first[key], 0)]
        again = samples_of(shared_cli.folder / "again", second[key], 0)
        assert first[key]["cell_id"] == second[key]["cell_id"]
        assert len(once) >= 22
        for number in (0, 1):
            assert [s["loss_sum"] for s in again if s["round"] == number] == once


def test_one_and_two_ranks_train_on_the_same_windows(profiled: tuple[Done, Path]) -> None:
    """Same global batch, same seed: the global loss of each step is the same up to rounding."""
    _, run = profiled
    found = by_cell(run)
    alone = [s["loss_sum"] for s in samples_of(run, found["mlp-single-w1"], 0)]
    both = [
        a["loss_sum"] + b["loss_sum"]
        for a, b in zip(*(samples_of(run, found["mlp-naive-w2"], rank) for rank in (0, 1)), strict=True)
    ]
    assert both == pytest.approx(alone, rel=1e-4)


def test_mistakes_of_a_file_are_listed_together_with_line_and_suggestion(here: Here) -> None:
    (here.folder / "bad.yaml").write_text(
        "version: 1\n"
        "base: {workload: mpl, dataset: synthetic, global_batch: 33, steps: 10, lr: fast, world_size: 2}\n"
        "axes: {strategy: [naiv, ddp]}\n"
        "mesure: {warmup: 3}\n"
    )
    done = here("bench", "bad.yaml")
    assert done.code == 2
    for words in ("bad.yaml:2", "did you mean 'mlp'", "did you mean 'naive'", "did you mean 'measure'", "lr"):
        assert words in done.err, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 2, "--preset NAME"),
        ("--preset quick --set launch.device=cuda", 3, "GPU"),
        ("--preset mnist --data-dir nowhere", 2, "nowhere"),
        ("--preset quick --set base.global_batch=1", 2, "global_batch"),
        ("--preset quick -o /dev/null", 3, "/dev/null is not a folder"),
        ("matrix.yaml -o taken/run", 3, "write to another folder"),
        ("matrix.yaml -o mine", 2, "not a run folder"),
    ],
)
def test_a_users_mistake_is_one_message_with_its_exit_code(line: str, code: int, words: str, cli: Cli) -> None:
    cli.matrix("")
    (cli.folder / "taken").write_text("a file")
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "thesis.txt").write_text("x")
    done = cli("bench", *line.split(), CUDA_VISIBLE_DEVICES="")
    assert (done.code, done.out) == (code, ""), done.err
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}, ("-o DIR",)),
        ({"WORLD_SIZE": "1"}, ("LOCAL_RANK, MASTER_ADDR and MASTER_PORT are not", "unset RANK WORLD_SIZE")),
    ],
)
def test_inside_a_world_the_folder_must_be_named_and_a_left_over_one_is_refused(
    cli: Cli, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    folder = ("-o", "run") if len(words) == 2 else ()
    done = cli("bench", cli.matrix(""), *folder, RANK="0", **variables)
    assert done.code == 2
    assert all(each in done.err for each in words), done.err
    assert not (cli.folder / "run").exists()


def test_plan_prints_cells_and_time_and_runs_nothing(cli: Cli) -> None:
    done = cli("bench", cli.matrix(MATRIX), "--plan", COLUMNS="")
    assert done.code == 0
    assert "cells to run" in done.out
    assert "unsupported" in done.out
    assert not (cli.folder / "stepscope-runs").exists()
    assert max(len(line) for line in done.out.splitlines()) > 120, "never cut where COLUMNS is not set"


@pytest.mark.usefixtures("profiled")
def test_plan_in_a_finished_run_counts_only_what_is_missing(shared_cli: Cli) -> None:
    done = shared_cli("bench", "matrix.yaml", "-o", "run", "--plan", "--set", "axes.seed=[1,2]", "--profile")
    assert done.code == 0, done.err
    assert "1 of 6 cells to run, 5 kept from before, at most" in done.out, done.out
    naive = [line for line in done.out.splitlines() if "naive" in line]
    assert ["seed=1" in line and line.endswith("kept") for line in naive] == [True, False]
    assert "seed=2" in naive[1]


@pytest.mark.parametrize("columns", [60, 90])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says(here: Here, columns: int) -> None:
    lines = here("bench", "--preset", "quick", "--plan", COLUMNS=str(columns)).out.splitlines()
    assert max(len(line) for line in lines[:-1]) <= columns
    text = " ".join(" ".join(lines).split())
    assert "bucketed," in text
    assert "…" not in text


def test_profiling_a_finished_run_measures_again_and_says_so(cli: Cli) -> None:
    name = cli.matrix("include: [{strategy: single, world_size: 1}]\nexclude: [{strategy: naive}]")
    assert cli("bench", name, "-o", "run").code == 0
    plan = cli("bench", name, "-o", "run", "--plan", "--profile")
    assert "measured again: no trace" in plan.out
    done = cli("bench", name, "-o", "run", "--profile")
    assert done.code == 0, done.err
    assert "1 cell to run; 1 cell measured again: it has no trace" in done.err
    assert len(list((cli.folder / "run").glob("cells/*/trace/*.json.gz"))) == 1
    summary = (cli.folder / "run" / "report" / "summary.md").read_text()
    made_by = summary.partition("Made by:")[2].split("```")[1].strip().splitlines()
    assert made_by == ["stepscope bench matrix.yaml -o run", "stepscope bench matrix.yaml -o run --profile"]
    assert "0 cells to run, 1 kept" in cli("bench", name, "-o", "run", "--profile").err
    assert "measured again: --rerun" in cli("bench", name, "-o", "run", "--plan", "--rerun", "mlp-single").out
    rerun = cli("bench", name, "-o", "run", "--rerun", "mlp-single")
    assert rerun.code == 0
    assert "1 cell to run; 1 cell measured again, as --rerun asks" in rerun.err
    for word in ("nosuch", "baseline"):  # no other cell refers to the only one
        assert cli("bench", name, "-o", "run", "--rerun", word).code == 2
    other = cli("bench", cli.matrix("", name="thesis.yaml"), "-o", "run")
    assert other.code == 2
    assert "belongs to the matrix 'matrix', not to 'thesis'" in other.err
    assert "--force" in other.err


def test_inside_a_torchrun_world_the_command_joins_it(cli: Cli) -> None:
    """No second launcher: the ranks that exist run the cells, rank 0 keeps the folder and prints."""
    name = cli.matrix("include: [{strategy: single, world_size: 1}]")
    done = cli.under_torchrun("bench", name, "-o", "joined", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["schema"] == "stepscope.bench/1"
    found = by_cell(cli.folder / "joined")
    assert found["mlp-naive-w2"]["status"] == "ok"
    assert found["mlp-single-w1"]["status"] == "unsupported"
    again = cli.under_torchrun("bench", name, "-o", "joined", "--json")
    assert again.code == 0, again.err
    assert "0 cells to run, 2 kept" in again.err, "and with nothing left to do no rank is kept waiting"


def test_a_rank_that_fails_in_a_joined_world_is_named(cli: Cli) -> None:
    name = cli.matrix("include: [{workload: faulty, model: {kind: raise}, strategy: naive}, {strategy: ddp}]")
    done = cli.under_torchrun("bench", name, "-o", "joined", "--json")
    assert done.code != 0
    found = by_cell(cli.folder / "joined")
    assert found["mlp-naive-w2"]["status"] == "ok"
    assert found["raise"]["status"] == "error"
    assert "planted failure" in found["raise"]["error"]
    assert found["mlp-ddp-w2"]["status"] == "interrupted"


def test_a_planted_fault_costs_its_rank_real_time_and_is_part_of_the_cell(cli: Cli) -> None:
    name = cli.matrix("", warmup=3)
    arguments = ("bench", name, "-o", "run", "--inject", "slow_rank=1:25ms", "--inject", "loader=5ms")
    done = cli(*arguments, "--json")
    assert done.code == 0, done.err
    run = cli.folder / "run"
    row = by_cell(run)["mlp-naive-w2"]
    timed = [[s for s in samples_of(run, row, rank) if not s["warmup"]] for rank in (0, 1)]
    assert min(s["forward_ns"] for s in timed[1]) >= 25e6, "rank 1 computes that much longer in every step"
    assert min(s["data_wait_ns"] for rank in timed for s in rank) >= 5e6, "and every rank waits for its batches"
    assert min(s["step_ns"] for s in timed[0]) >= 25e6, "rank 0 waits for it"
    summaries = summaries_of(run, row)
    assert [sorted(s["planted_ns"]) for s in summaries] == [["loader"], ["loader", "slow_rank"]]
    assert any("slow_rank=1:25ms,loader=5ms" in note for note in row["notes"]), "the table says what was planted"
    assert "0 cells to run, 1 kept" in cli(*arguments).err
    plain = cli("bench", name, "-o", "run")
    assert plain.code == 2
    assert "none of its 1 measured cell" in plain.err, "the cell without the fault is another one"


def test_a_matrix_of_an_experiments_name_ends_with_expected_and_measured(cli: Cli) -> None:
    name = cli.matrix("include: [{strategy: single, world_size: 1}]", name="memory-breakdown.yaml")
    done = cli("bench", name, "-o", "run")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert "Expected and measured" in text
    assert "8 of 8 figures agree with what is expected" in text, done.out
    rows = cli("bench", name, "-o", "run", "--json").json()["experiment"]
    assert {row["quantity"] for row in rows} == {"parameters", "gradients", "optimizer", "activations"}
    assert {row["verdict"] for row in rows} == {"agrees"}
    assert cli("report", "run", "-o", "page", "--html", "--csv").code == 0
    assert "Expected and measured" in (cli.folder / "page" / "report.html").read_text()
    assert (cli.folder / "page" / "experiment.csv").read_text().count("agrees") == 8


@pytest.mark.long
def test_an_experiment_measures_what_its_expectation_rests_on(cli: Cli) -> None:
    name = cli.matrix("", name="alpha-beta.yaml")
    done = cli("bench", name, "-o", "run", "--json")
    assert done.code == 0, done.err
    sizes = [row for row in done.json()["experiment"] if row["run"].startswith("all_reduce, 2 ranks")]
    assert len(sizes) == 7
    assert all(row["expected"] and row["measured"] for row in sizes)
    assert (cli.folder / "run" / "comm" / "results.jsonl").is_file()
