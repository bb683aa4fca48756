"""``stepscope bench`` from a file to a table: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, by_cell, results, samples_of, status_of

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


def test_fixed_numbers_of_steps_are_obeyed_exactly_on_every_rank(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    row = by_cell(run)["mlp-naive-w2"]
    for rank in (0, 1):
        samples = samples_of(run, row, rank)
        assert sum(s["warmup"] for s in samples) == 4
        assert sum(not s["warmup"] and s["full"] for s in samples) == 20


def test_the_phases_of_every_sample_sum_to_its_step(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    for row in results(run):
        if row["status"] != "ok":
            continue
        for sample in samples_of(run, row, 0):
            assert sum(sample[phase] for phase in PHASES) == sample["step_ns"]


def test_every_sample_is_trained_on_once_per_epoch_over_all_ranks(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    row = by_cell(run)["mlp-bucketed-w2"]
    assert row["dataset_size"] == 500
    assert sum(row["samples_seen_per_rank"]) == 500
    summaries = [json.loads((run / "cells" / row["cell_id"] / f"rank-0000{r}.json").read_text()) for r in (0, 1)]
    assert len({s["parameter_checksum"] for s in summaries}) == 1
    assert sum(s["epochs"][-1]["distinct_samples_seen"] for s in summaries) == 500


def test_the_observed_collectives_are_those_that_the_strategy_planned(profiled: tuple[Done, Path]) -> None:
    _, run = profiled
    for row in results(run):
        if row["status"] == "ok":
            summary = json.loads((run / "cells" / row["cell_id"] / "rank-00000.json").read_text())
            assert summary["plan_check"]["matches"], summary["plan_check"]


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


def test_the_same_cells_in_another_order_give_bitwise_the_same_losses(shared_cli: Cli, profiled) -> None:
    _, run = profiled
    name = shared_cli.matrix("include:\n  - {strategy: bucketed, steps: null, epochs: 2, dataset_options: {samples: 500}}\n"
                             "  - {strategy: single, world_size: 1}", name="other.yaml", warmup=4)  # fmt: skip
    path = shared_cli.folder / name
    path.write_text(path.read_text().replace("[naive]", "[ddp, naive]"))
    done = shared_cli("bench", name, "-o", "again")
    assert done.code == 0, done.err
    first, second = by_cell(run), by_cell(shared_cli.folder / "again")
    for key in ("mlp-naive-w2", "mlp-bucketed-w2", "mlp-single-w1"):
        losses = [
            [s["loss_sum"] for s in samples_of(folder, found[key], 0)]
            for folder, found in ((run, first), (shared_cli.folder / "again", second))
        ]
        assert losses[0] == losses[1]
        assert first[key]["cell_id"] == second[key]["cell_id"]


def test_rounds_repeat_the_cells_in_turn_and_give_the_same_losses(cli: Cli) -> None:
    name = cli.matrix("include: [{strategy: bucketed, steps: null, epochs: 2}]", rounds=2)
    done = cli("bench", name, "-o", "run")
    assert done.code == 0, done.err
    run = cli.folder / "run"
    for row in results(run):
        samples = samples_of(run, row, 0)
        first = [s["loss_sum"] for s in samples if s["round"] == 0]
        second = [s["loss_sum"] for s in samples if s["round"] == 1]
        assert first == second
        assert len(first) >= 22


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


def test_mistakes_of_a_file_are_listed_together_with_line_and_suggestion(cli: Cli) -> None:
    (cli.folder / "bad.yaml").write_text(
        "version: 1\n"
        "base: {workload: mpl, dataset: synthetic, global_batch: 33, steps: 10, lr: fast, world_size: 2}\n"
        "axes: {strategy: [naiv, ddp]}\n"
        "mesure: {warmup: 3}\n"
    )
    done = cli("bench", "bad.yaml")
    assert done.code == 2
    for words in ("bad.yaml:2", "did you mean 'mlp'", "did you mean 'naive'", "did you mean 'measure'", "lr"):
        assert words in done.err, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["bench"], 2, "--preset NAME"),
        (["bench", "--preset", "quick", "--set", "launch.device=cuda"], 3, "GPU"),
        (["bench", "--preset", "mnist", "--data-dir", "nowhere"], 2, "nowhere"),
        (["bench", "--preset", "quick", "-o", "/dev/null"], 3, "/dev/null is not a folder"),
    ],
)
def test_a_users_mistake_is_one_message_with_its_exit_code(
    arguments: list[str], code: int, words: str, cli: Cli
) -> None:
    done = cli(*arguments, CUDA_VISIBLE_DEVICES="")
    assert done.code == code, done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_batch_smaller_than_the_world_is_refused_before_anything_starts(cli: Cli) -> None:
    done = cli("bench", "--preset", "quick", "--set", "base.global_batch=1")
    assert done.code == 2
    assert "global_batch" in done.err


def test_an_unwritable_run_folder_is_refused_with_a_fix(cli: Cli) -> None:
    (cli.folder / "taken").write_text("a file")
    done = cli("bench", cli.matrix(""), "-o", "taken/run")
    assert done.code == 3
    assert "write to another folder" in done.err
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "thesis.txt").write_text("x")
    done = cli("bench", cli.matrix(""), "-o", "mine")
    assert done.code == 2
    assert "not a run folder" in done.err


def test_plan_prints_cells_and_time_and_runs_nothing(cli: Cli) -> None:
    done = cli("bench", cli.matrix(MATRIX), "--plan")
    assert done.code == 0
    assert "cells to run" in done.out
    assert "unsupported" in done.out
    assert not (cli.folder / "stepscope-runs").exists()


@pytest.mark.usefixtures("profiled")
def test_plan_in_a_finished_run_counts_only_what_is_missing(shared_cli: Cli) -> None:
    done = shared_cli("bench", "matrix.yaml", "-o", "run", "--plan", "--set", "axes.seed=[1,2]", "--profile")
    assert done.code == 0, done.err
    assert "1 of 6 cells to run, 5 kept from before, at most" in done.out, done.out
    naive = [line for line in done.out.splitlines() if "naive" in line]
    assert ["seed=1" in line and line.endswith("kept") for line in naive] == [True, False]
    assert "seed=2" in naive[1]


@pytest.mark.parametrize("columns", [60, 90])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says(cli: Cli, columns: int) -> None:
    lines = cli("bench", "--preset", "quick", "--plan", COLUMNS=str(columns)).out.splitlines()
    assert max(len(line) for line in lines[:-1]) <= columns
    text = " ".join(" ".join(lines).split())
    assert "bucketed," in text
    assert "…" not in text


def test_a_table_in_a_pipe_is_never_cut_where_columns_is_not_set(cli: Cli) -> None:
    name = cli.matrix("include: [{strategy: ddp, strategy_options: {hook: powersgd, bucket_cap_mb: 0.001}}]")
    out = cli("bench", name, "--plan", COLUMNS="").out
    assert max(len(line) for line in out.splitlines()) > 120


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


def test_list_and_show_need_no_torch(cli: Cli) -> None:
    (cli.folder / "stub").mkdir()
    (cli.folder / "stub" / "torch.py").write_text("raise ImportError('no torch here')")
    path = f"{cli.folder / 'stub'}:{cli.environ['PYTHONPATH']}"
    assert "ag-news" in cli("bench", "--list", PYTHONPATH=path).out
    assert "version: 1" in cli("bench", "--preset", "quick", "--show", PYTHONPATH=path).out


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


def test_inside_a_world_the_run_folder_must_be_named(cli: Cli) -> None:
    done = cli(
        "bench",
        cli.matrix(""),
        RANK="0",
        WORLD_SIZE="2",
        LOCAL_RANK="0",
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
    )
    assert done.code == 2
    assert "-o DIR" in done.err


def test_variables_left_over_from_a_world_are_named_before_anything_starts(cli: Cli) -> None:
    done = cli("bench", cli.matrix(""), "-o", "run", RANK="0", WORLD_SIZE="1")
    assert done.code == 2
    assert "LOCAL_RANK, MASTER_ADDR and MASTER_PORT are not" in done.err
    assert "unset RANK WORLD_SIZE" in done.err
    assert not (cli.folder / "run").exists()


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
    summaries = [json.loads((run / "cells" / row["cell_id"] / f"rank-0000{r}.json").read_text()) for r in (0, 1)]
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
