"""From a matrix file to checked cells: the cross product, what drops out, and what is refused."""

from __future__ import annotations

import pytest
from tests.matrix_files import build, refused

from stepscope.core.errors import UsageError
from stepscope.matrix.checked import CellDraft

BASE = """
version: 1
base: {workload: net, dataset: noise, global_batch: 24, steps: 10}
"""
ONE = BASE.replace("steps: 10", "steps: 10, strategy: ddp, world_size: 2")


def key(draft: CellDraft) -> tuple[str, int]:
    return draft.settings.strategy, draft.settings.world_size


def test_axes_cross_in_file_order_and_the_last_turns_fastest() -> None:
    matrix = build(BASE + "axes: {strategy: [naive, ddp], world_size: [1, 2, 3]}")
    assert [key(d) for d in matrix.cells] == [(s, w) for s in ("naive", "ddp") for w in (1, 2, 3)]


def test_includes_build_on_the_base_and_may_have_axes_of_their_own() -> None:
    matrix = build(
        BASE
        + """
axes: {strategy: [ddp], world_size: [2]}
include:
  - {strategy: single, world_size: 1, axes: {precision: [fp32, bf16]}}
"""
    )
    assert [(*key(d), d.settings.precision, d.origin) for d in matrix.cells] == [
        ("ddp", 2, "fp32", "axes"),
        ("single", 1, "fp32", "include[0]"),
        ("single", 1, "bf16", "include[0]"),
    ]


def test_without_axes_the_base_is_one_cell_unless_it_is_only_what_includes_build_on() -> None:
    alone = build(BASE, "base.strategy=ddp", "base.world_size=2")
    assert [key(d) for d in alone.cells] == [("ddp", 2)]
    included = build(BASE + "include: [{strategy: single, world_size: 1}]")
    assert [key(d) for d in included.cells] == [("single", 1)]


def test_groups_may_be_written_nested_or_dotted() -> None:
    nested = build(BASE + "axes: {strategy: [ddp], world_size: [2], model: [{size: tiny}, {layers: [3, 4]}]}")
    dotted = build(BASE + "axes: {strategy: [ddp], world_size: [2], model.layers: [[3, 4]]}")
    assert [d.model.as_dict()["size"] for d in nested.cells] == ["tiny", "small"]
    assert nested.cells[1].model == dotted.cells[0].model


def test_an_axis_value_that_a_strategy_does_not_have_drops_out() -> None:
    matrix = build(BASE + "axes: {strategy: [naive, ddp], world_size: [2], strategy_options.bucket_cap_mb: [1, 25]}")
    naive, _, one, many = (d.strategy_options.as_dict() for d in matrix.cells)
    assert naive == {"flat": False}
    assert (one["bucket_cap_mb"], many["bucket_cap_mb"]) == (1, 25)


def test_a_base_option_stands_for_the_cells_that_have_it() -> None:
    text = BASE.replace("steps: 10", "steps: 10, strategy_options: {bucket_cap_mb: 5}")
    matrix = build(text + "axes: {strategy: [naive, ddp], world_size: [2]}")
    assert [d.strategy_options.as_dict().get("bucket_cap_mb") for d in matrix.cells] == [None, 5]


def test_momentum_concerns_sgd_alone() -> None:
    text = BASE.replace("steps: 10", "steps: 10, momentum: 0.9, strategy: ddp, world_size: 2")
    matrix = build(text + "axes: {optimizer: [sgd, adam]}")
    assert [d.settings.momentum for d in matrix.cells] == [0.9, 0.0]
    (line,) = refused(text, "base.optimizer=adam")
    assert "remove momentum" in line


def test_exclude_takes_away_exactly_what_matches_all_of_its_keys() -> None:
    matrix = build(
        BASE
        + """
axes: {strategy: [naive, ddp], world_size: [1, 2, 3]}
exclude:
  - {strategy: naive, world_size: [1, 3]}
  - {strategy: ddp, precision: bf16}
"""
    )
    assert [key(d) for d in matrix.cells] == [("naive", 2), ("ddp", 1), ("ddp", 2), ("ddp", 3)]
    assert matrix.notes == ("exclude[1] matches no cell",)


def test_exclude_sees_defaults_and_takes_from_includes_too() -> None:
    matrix = build(
        BASE
        + """
include:
  - {strategy: single, world_size: 1}
  - {strategy: ddp, world_size: 2, axes: {model.size: [small, tiny]}}
exclude: [{precision: fp32, model.size: small, strategy: ddp}]
"""
    )
    assert [(d.settings.strategy, d.model.as_dict()["size"]) for d in matrix.cells] == [
        ("single", "small"),
        ("ddp", "tiny"),
    ]


def test_an_excluded_cell_may_be_impossible() -> None:
    matrix = build(BASE + "axes: {strategy: [ddp], world_size: [2, 7]}\nexclude: [{world_size: 7}]")
    assert [key(d) for d in matrix.cells] == [("ddp", 2)]


def test_a_broken_exclude_takes_nothing_away() -> None:
    lines = refused(
        BASE + "axes: {strategy: [dpd], world_size: [2]}\nexclude: [{strateg: naive}, {strategy_options.flet: true}]"
    )
    assert any("did you mean 'strategy'" in line for line in lines)
    assert any("did you mean 'ddp'" in line for line in lines)


def test_all_mistakes_of_a_file_come_at_once_with_path_line_and_suggestion() -> None:
    lines = refused(
        """version: 1
bsae: {}
base:
  workload: nett
  dataset: noize
  precision: bf61
  optimizer: sdg
  lr: "0.1"
  global_batch: 24
  pin_memory: yes
axes:
  strategy: [dpp, ddp]
  world_size: [2, 0]
launch: {bakend: gloo}
measure: {budget_s: -1, warmup: atuo}
"""
    )
    expected = [
        (2, "bsae", "'base'"), (4, "base.workload", "'net'"), (5, "base.dataset", "'noise'"),
        (6, "base.precision", "'bf16'"), (7, "base.optimizer", "'sgd'"), (8, "base.lr", 'found "0.1"'),
        (10, "base.pin_memory", "expected true or false"), (11, "axes: steps", "either steps or epochs"),
        (12, "axes.strategy[0]", "'ddp'"), (13, "axes.world_size[1]", "at least 1"),
        (14, "launch.bakend", "'backend'"), (15, "measure.budget_s", "above 0"), (15, "measure.warmup", "'auto'"),
    ]  # fmt: skip
    assert len(lines) == len(expected)
    for line, (number, path, hint) in zip(lines, expected, strict=True):
        assert line.startswith(f"m.yaml:{number}:")
        assert f": {path}:" in line
        assert hint in line


BAD = [
    ("base.global_batch=25", "25 is not divisible by world_size 2: use 24 or 26"),
    ("base.global_batch=1", "smaller than world_size 2: use at least 2"),
    ("base.global_batch=null", "give either global_batch or micro_batch"),
    ("base.steps=null", "give either steps or epochs"), ("base.steps=0", "a whole number of at least 1, or auto"),
    ("base.steps=1.5", "a whole number of at least 1, or auto"), ("base.world_size=true", "a whole number of ranks"),
    ("base.lr=-1", "at least 0"), ("base.momentum=1", "below 1"), ("base.clip=0", "above 0"),
    ("base.loss=mae", "ce, mse"), ("base.persistent_workers=true", "set num_workers"),
    ("base.model.size=smal", "did you mean 'small'"), ("base.model.layers=[]", "must not be empty"),
    ("base.model.sise=small", "did you mean 'size'"), ("base.dataset_options.samples=0", "greater than or equal to 1"),
    ("base.world_size=[1, 2]", "put it under axes.world_size"), ("base.env.RANK=1", "set by the launcher"),
    ("base.env.OMP_NUM_THREADS=1", "launch.threads_per_rank"), ("base.env.DEBUG=true", "quote"),
    ("equal_buckets=twice", "once or each"), ("version=2", "newer stepscope"), ("version=one", "expected 1"),
    ("name=[1]", "expected text"), ("axes=[1]", "a mapping of cell keys to lists"),
    ("include={strategy: ddp}", "a list of mappings"), ("include=[{}]", "at least one key"),
    ("launch.env.X=1.5", "quote"), ("launch={device: cpu, backend: nccl}", "nccl needs GPUs"),
    ("measure.ci=1.5", "between 0 and 1"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "hint"), BAD)
def test_bad_values_are_refused_with_what_would_be_right(change: str, hint: str) -> None:
    build(ONE)
    lines = refused(ONE, change)
    assert any(hint in line for line in lines), lines


DDP = "axes: {strategy: [ddp], world_size: [2]"
SEEDS = ", ".join(str(i) for i in range(101))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{BASE}axes: {{strategy: [naive, ddp], world_size: [2], strategy_options.bucket_cap_md: [1]}}",
         ("m.yaml:4:", "did you mean 'bucket_cap_mb'")),
        (f"{BASE}include: [{{strategy: single, world_size: 1, strategy_options.flat: true}}]",
         ("strategy 'single' has no option 'flat'",)),
        (f"{BASE}{DDP}}}\nexclude: [{{strategy: ddp}}]", ("no cell is left",)),
        (BASE.replace("net", "reader").replace("noise", "digits") + DDP + "}",
         ("m.yaml:3:26: base.dataset: digits are not text",)),
        *((ONE.replace("steps: 10", f"steps: 10, clip: {word}"),
           ("expected a gradient norm above 0 such as 1.0, or null for no clipping",)) for word in ("on", "true")),
        (ONE.replace("steps: 10", "steps: 10, model: {size: tiny}, model.size: small"), ("once nested and once dotted",)),
        (f"{BASE}{DDP}, seed: [{SEEDS}], lr_warmup: [{SEEDS}]}}", ("10201 cells",)),
    ],
)  # fmt: skip
def test_one_mistake_is_one_line(text: str, said: tuple[str, ...]) -> None:
    (line,) = refused(text)
    assert [words for words in said if words not in line] == []
    assert "write true" not in line


def test_both_of_two_rivals_are_refused_and_the_other_line_is_named() -> None:
    lines = refused(
        "version: 1\nbase:\n  {workload: net, dataset: noise, strategy: ddp, world_size: 2,\n"
        "  global_batch: 4,\n  micro_batch: 2, steps: 1,\n  epochs: 1}"
    )
    assert any("both global_batch (m.yaml:4:3) and micro_batch" in line for line in lines)
    assert any("both steps" in line for line in lines)


def test_accumulation_counts_in_the_batch() -> None:
    text = BASE + "axes: {strategy: [ddp], world_size: [2], accumulation: [3]}"
    (cell,) = build(text).cells
    assert (cell.micro_batch, cell.global_batch) == (4, 24)
    (cell,) = build(text, "base.micro_batch=5").cells
    assert (cell.micro_batch, cell.global_batch) == (5, 30)
    (line,) = refused(text, "base.global_batch=25")
    assert "world_size 2 x accumulation 3 = 6: use 24 or 30" in line


def test_a_loss_that_the_workload_is_not_trained_with_is_refused() -> None:
    assert build(ONE, "base.loss=mse").cells[0].loss == "mse"
    assert build(ONE).cells[0].loss == "ce"
    (line,) = refused(ONE, "base.workload=reader", "base.loss=mse")
    assert "trained with ce, not mse" in line


def test_swept_environment_variables_are_text() -> None:
    matrix = build(ONE + "axes: {env.GLOO_THREADS: [1, 2], env: [{A: x, B: 3}]}")
    assert [dict(d.env) for d in matrix.cells] == [
        {"A": "x", "B": "3", "GLOO_THREADS": "1"},
        {"A": "x", "B": "3", "GLOO_THREADS": "2"},
    ]


@pytest.mark.parametrize(
    ("text", "found", "overrides"),
    [
        ("", "nothing", ()),
        ("# a remark", "nothing", ("base.lr=0.1",)),
        ("{}", "nothing", ()),
        ("- 1", "a list", ()),
        ("- 1", "a list", ("base.lr=0.1",)),
        ("3", "a number", ()),
        ("text", "a text", ()),
    ],
)
def test_a_file_that_holds_no_matrix_is_one_error(text: str, found: str, overrides: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        build(text, *overrides)
    assert caught.value.what.startswith("m.yaml")
    assert caught.value.what.endswith(f"expected a matrix: a mapping with version, base, axes, ...; found {found}")
    assert "--preset quick --show" in str(caught.value.fix)


def test_a_missing_version_is_asked_for() -> None:
    assert any("version is missing" in line for line in refused("base: {workload: net}"))


def test_other_tools_words_for_keys_are_recognised() -> None:
    lines = refused(BASE + "axes: {batch_size: [1], learning_rate: [1], strategy: [ddp], num_gpus: [2]}")
    text = "\n".join(lines)
    assert "stepscope calls it global_batch" in text
    assert "stepscope calls it lr" in text
    assert "stepscope calls it world_size" in text


def test_measure_settings_come_in_base_units() -> None:
    measure = build(ONE + "measure: {warmup: 3, budget_s: 1.5, ci: 0.1, timeout_s: 20, rounds: 2}").measure
    assert (measure.warmup_steps, measure.budget_ns, measure.ci_fraction) == (3, 1_500_000_000, 0.1)
    assert (measure.timeout_ns, measure.rounds) == (20_000_000_000, 2)
    assert build(ONE).measure.warmup_steps is None


def test_a_misspelt_key_is_not_also_reported_as_missing() -> None:
    lines = refused(
        "version: 1\nbase: {workload: net, dataset: noise, stratgy: ddp, world_size: 2, batch: 4, steps: 1}"
    )
    assert len(lines) == 2
    assert "did you mean 'strategy'" in lines[0]
    assert "global_batch" in lines[1]
