"""The presets, with the installed plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.matrix.estimate import PlanEstimate, estimate_plan, group_cells
from stepscope.matrix.expand import PlannedCell, expand
from stepscope.matrix.load import (
    digest_lookup,
    list_presets,
    load_matrix,
    matrix_of,
    matrix_yaml,
    preset_names,
    preset_text,
    resolved_matrix,
)  # fmt: skip
from stepscope.matrix.machine import Machine
from stepscope.records import codec
from stepscope.records.plan import ModelFacts
from stepscope.results.runs import labelled, planned_run
from stepscope.results.scaling import find_baseline
from stepscope.store.yaml_loader import parse_yaml

LAPTOP = Machine(num_gpus=0, usable_cores=2, gloo=True, nccl=False)
NODE = Machine(num_gpus=8, usable_cores=96, gloo=True, nccl=True, compute_capability="9.0")
NAMES = (
    "accumulation", "ag-news", "ag-news-optimized", "alpha-beta", "bucket-size", "checkpointing", "demo",
    "fsdp-unit-size", "imdb", "memory-breakdown", "mfu", "mnist", "naive-vs-overlapped", "overlap-efficiency",
    "pipeline-microbatches", "precision", "quick", "shallowspeed", "straggler", "strong-scaling",
    "suite", "tp-vs-dp", "weak-scaling", "zero-stages",
)  # fmt: skip


def cells_of(name: str, machine: Machine, *overrides: str) -> tuple[PlannedCell, ...]:
    return expand(load_matrix(name, overrides=overrides), machine=machine, digest_of=lambda key, _: key)


def estimate(name: str) -> PlanEstimate:
    matrix = load_matrix(name)
    cells = cells_of(name, LAPTOP)
    groups = group_cells((c.spec for c in cells if c.runnable), usable_cores=lambda _: 2)
    return estimate_plan(groups, {c.spec.cell_id: c for c in cells}, measure=matrix.measure, usable_cores=2)


def facts(cell: PlannedCell) -> ModelFacts:
    assert cell.facts is not None
    return cell.facts


def test_all_presets_are_listed_with_what_they_do() -> None:
    assert preset_names() == NAMES
    assert all(list_presets().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_starts_with_the_question_it_answers(name: str) -> None:
    first, second, *_ = preset_text(name).splitlines()
    assert first.startswith("# ")
    assert "?" in first + second


@pytest.mark.usefixtures("allow_emulation")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", [LAPTOP, NODE], ids=["cpu", "8 gpus"])
def test_a_preset_expands_and_every_running_cell_has_its_baseline(name: str, machine: Machine) -> None:
    cells = cells_of(name, machine)
    specs = [c.spec for c in cells if c.runnable]
    assert min(c.world_size for c in specs) == 1
    assert max(c.world_size for c in specs) > 1
    assert len({c.cell_id for c in specs}) == len(specs)
    runs = labelled([planned_run(spec) for spec in specs])
    for run in runs:
        if run.world_size != 1:
            assert find_baseline(run, runs) is not None, run.run_id


@pytest.mark.parametrize("name", NAMES)
def test_a_resolved_preset_reads_back_to_the_same_cells(name: str) -> None:
    matrix = load_matrix(name)
    again = matrix_of(parse_yaml(matrix_yaml(matrix), source="resolved"), name="x")
    assert (again.name, again.measure, again.launch) == (name, matrix.measure, matrix.launch)

    def ids(read: object) -> list[str]:
        planned = expand(read, machine=LAPTOP, digest_of=lambda key, _: key)  # type: ignore[arg-type]
        return [c.spec.cell_id for c in planned]

    assert ids(again) == ids(matrix)
    assert resolved_matrix(again) == resolved_matrix(matrix)
    codec.to_builtins(resolved_matrix(matrix))  # can stand in run.json


def test_quick_is_planned_for_less_than_two_minutes_on_two_cores() -> None:
    assert estimate("quick").total_ns < 120e9


def test_demo_is_one_group_per_world_size_and_says_what_was_learnt() -> None:
    cells = cells_of("demo", LAPTOP)
    assert {c.spec.strategy for c in cells} == {"single", "naive", "interleaved", "bucketed", "ddp"}
    assert {c.spec.epochs for c in cells} == {3}


def test_shallowspeed_is_the_whole_matrix_of_eighty_cells() -> None:
    cells = cells_of("shallowspeed", NODE)
    assert len(cells) == 80
    assert all(c.runnable for c in cells)
    accumulated = [c.spec for c in cells if c.spec.accumulation == 4]
    assert {(c.model["size"], c.micro_batch * c.world_size) for c in accumulated} == {("large", 4096)}
    # hand count of (inputs + 1) x outputs over 784, hidden widths, 10
    assert sorted({facts(c).num_parameters for c in cells}) == [64_058_378, 249_751_562, 725_960_714]
    assert {c.spec.dataset_options["samples"] for c in cells} == {65536}


@pytest.mark.parametrize(
    ("overrides", "layer_bytes", "layers"),
    [((), 4 * 2**20, 8), (("base.model={depth: 40, width: 4096}",), 64 * 2**20, 40)],
    ids=["here", "on GPUs"],
)
def test_naive_vs_overlapped_traces_both_and_makes_every_layer_a_bucket(
    overrides: tuple[str, ...], layer_bytes: int, layers: int
) -> None:
    cells = {c.spec.strategy: c for c in cells_of("naive-vs-overlapped", NODE, *overrides)}
    assert load_matrix("naive-vs-overlapped").measure.profile
    assert [op.size_bytes for op in cells["ddp"].comm_plan] == [layer_bytes] * layers
    assert {op.phase for op in cells["naive"].comm_plan} == {"after_backward"}
    assert {op.phase for op in cells["ddp"].comm_plan} == {"backward"}


def test_bucket_size_has_parameters_below_its_smallest_cap_and_gradients_above_its_largest() -> None:
    cells = [c for c in cells_of("bucket-size", LAPTOP) if c.spec.strategy == "ddp"]
    caps = [c.spec.strategy_options["bucket_cap_mb"] for c in cells]
    assert caps == [1, 5, 10, 25, 50, 100, 250]
    assert max(p.size_bytes for p in facts(cells[0]).parameters) < 2**20
    assert sum(p.size_bytes for p in facts(cells[0]).parameters) > 250 * 2**20
    assert len({tuple(op.members for op in c.comm_plan) for c in cells}) == 7
    assert all(c.runnable for c in cells)


def test_caps_below_the_largest_parameter_would_be_counted_once() -> None:
    cells = cells_of("bucket-size", LAPTOP, "base.model.width=4096", "base.model.depth=2", "axes.strategy=[ddp]")
    assert [i for i, c in enumerate(cells) if c.spec.strategy == "ddp" and c.skipped is None] == [1, 6]
    assert len(cells) == 8


def test_precision_halves_the_bytes_only_where_gradients_really_shrink() -> None:
    cells = [c for c in cells_of("precision", NODE) if c.spec.strategy == "ddp"]
    sent = {(c.spec.precision, c.spec.strategy_options["hook"]): sum(o.size_bytes for o in c.comm_plan) for c in cells}
    full = sent[("fp32", "none")]
    halved = {key for key, size in sent.items() if size * 2 == full}
    assert halved == {("bf16", "none"), ("fp32", "fp16"), ("fp32", "bf16")}
    assert sent[("amp_fp16", "none")] == sent[("amp_bf16", "none")] == sent[("tf32", "none")] == full


def test_what_a_cpu_lacks_is_unsupported_in_precision() -> None:
    refused = {c.spec.precision for c in cells_of("precision", LAPTOP) if c.unsupported}
    assert refused == {"tf32", "amp_fp16"}


def test_real_training_presets_pin_their_optimizer_settings() -> None:
    news, digits = cells_of("ag-news", LAPTOP), cells_of("mnist", LAPTOP)
    assert {(c.spec.optimizer, c.spec.lr, c.spec.epochs) for c in news} == {("adamw", 1e-3, 3)}
    assert {(c.spec.optimizer, c.spec.lr, c.spec.momentum, c.spec.epochs) for c in digits} == {("sgd", 0.1, 0.9, 10)}
    assert {(c.spec.world_size, c.spec.micro_batch) for c in news} == {(1, 32), (2, 16)}
    on_four = cells_of("ag-news", NODE, "axes.world_size=[4]")
    assert (4, 8) in {(c.spec.world_size, c.spec.micro_batch) for c in on_four}


def test_an_unknown_preset_and_a_file_that_is_named_like_one_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'ag-news'"):
        load_matrix("ag_news")
    with pytest.raises(UsageError, match="--preset quick"):
        load_matrix(tmp_path / "quick.yaml")


def test_a_matrix_is_named_after_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(preset_text("quick"))
    assert load_matrix(file).name == "mine"


def test_the_digest_is_looked_up_once_for_the_same_options() -> None:
    digest_of = digest_lookup(None)
    cells = load_matrix("quick").cells
    assert len({digest_of(c.settings.dataset, c.dataset_options) for c in cells}) == 1
    other = load_matrix("demo").cells[0]
    assert digest_of("synthetic", other.dataset_options) != digest_of("synthetic", cells[0].dataset_options)
