"""Expansion: devices, ids, reasons, equal buckets."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from tests.matrices import CPU, GPUS, PLUGINS, expanded, plan, read

from stepscope.core.errors import DataError, MissingError, Unavailable, UsageError
from stepscope.matrix import machine
from stepscope.matrix.catalog import FAMILIES
from stepscope.matrix.expand import cell_id, expand, identity, named
from stepscope.matrix.machine import Machine
from stepscope.records import codec
from stepscope.records.cell import CellSpec

PAIR = "axes: {strategy: [ddp], world_size: [2]}\n"


def test_one_rank_cells_come_first_and_the_rest_in_file_order() -> None:
    cells = plan("axes: {strategy: [naive, ddp], world_size: [2, 1]}\ninclude: [{strategy: single, world_size: 1}]")
    assert [(c.spec.strategy, c.spec.world_size) for c in cells] == [
        ("naive", 1), ("ddp", 1), ("single", 1), ("naive", 2), ("ddp", 2),
    ]  # fmt: skip


def test_equal_cells_are_counted_once() -> None:
    cells = plan(
        "axes: {strategy: [naive, ddp], world_size: [2], strategy_options.static_graph: [false, true]}\n"
        "include: [{strategy: naive, world_size: 2}]"
    )
    found = [(c.spec.strategy, c.spec.strategy_options.get("static_graph")) for c in cells]
    assert found == [("naive", None), ("ddp", False), ("ddp", True)]


def test_a_spec_is_complete_and_survives_the_codec() -> None:
    (cell,) = plan(PAIR, "base.env.GLOO_X=1")
    spec = cell.spec
    assert (spec.micro_batch, spec.global_batch, spec.batch_rule) == (24, 48, "global_batch")
    assert (spec.device, spec.backend, spec.threads_per_rank) == ("cpu", "gloo", "auto")
    assert spec.model == {"width": 8, "depth": 4, "size": "plain"}
    assert spec.env == {"GLOO_X": "1"}
    assert codec.decode(codec.encode(spec), CellSpec, source="x") == spec
    assert cell.facts is not None
    assert cell.facts.num_parameters == 256
    assert [op.members for op in cell.comm_plan] == [("w3", "w2", "w1", "w0")]


def test_the_id_says_what_it_is_and_hashes_the_identity() -> None:
    (cell,) = plan(PAIR)
    assert cell.spec.cell_id == cell_id(cell.spec)
    assert cell.spec.cell_id.startswith("net-ddp-w2-")
    assert len(cell.spec.cell_id.removeprefix("net-ddp-w2-")) == 10


@pytest.mark.parametrize(
    "change",
    [
        "base.lr=0.5", "base.seed=2", "base.steps=11", "base.epochs=1", "base.micro_batch=24", "base.model.width=9",
        "base.dataset_options.samples=65", "base.precision=bf16", "base.env.A=1", "base.clip=1",
        "launch.threads_per_rank=1", "base.strategy_options.static_graph=true", "base.num_workers=1",
    ],
)  # fmt: skip
def test_what_decides_a_result_changes_the_id(change: str) -> None:
    assert plan(PAIR, change)[0].spec.cell_id != plan(PAIR)[0].spec.cell_id


@pytest.mark.parametrize(
    "change",
    [
        "measure.budget_s=1",
        "measure.timeout_s=5",
        "launch.isolate=true",
        "name=other",
        "launch.env.A=1",
        "base.lr=0.01",
    ],
)
def test_what_does_not_decide_a_result_keeps_the_id(change: str) -> None:
    assert plan(PAIR, change)[0].spec.cell_id == plan(PAIR)[0].spec.cell_id


def test_the_id_does_not_change_between_versions_by_accident() -> None:
    """Frozen: a new value here means that every existing run folder is measured again."""
    (cell,) = plan(PAIR)
    assert named(replace(cell.spec, data_digest="d")).cell_id == "net-ddp-w2-2e0b12c999"


def test_gpus_and_nccl_are_taken_where_there_are_any() -> None:
    cells = [plan(PAIR, *change, machine=GPUS)[0] for change in ((), ("launch.device=cpu",), ("launch.backend=gloo",))]
    assert [(c.spec.device, c.spec.backend) for c in cells] == [("cuda", "nccl"), ("cpu", "gloo"), ("cuda", "gloo")]


@pytest.mark.parametrize("change", ["launch.device=cuda", "launch.backend=nccl"])
def test_a_device_asked_for_and_not_there_is_missing_with_the_reason(change: str) -> None:
    with pytest.raises(MissingError) as caught:
        plan(PAIR, change)
    assert change.replace("=", ": ") in caught.value.what
    assert caught.value.why == "no driver"
    assert caught.value.exit_code == 3


def test_a_torch_without_the_backend_is_missing_it() -> None:
    with pytest.raises(MissingError, match="no nccl"):
        plan(PAIR, "launch.backend=nccl", machine=replace(GPUS, nccl=False))


def worlds(*sizes: int, strategy: str = "ddp") -> str:
    return f"axes: {{strategy: [{strategy}], world_size: {list(sizes)}}}"


REFUSED: list[tuple[str, tuple[str, ...], Machine, dict[int, str | None]]] = [
    (worlds(2, 4, 8), (), GPUS, {2: None, 4: None, 8: "8 ranks need 8 GPUs, this machine has 4"}),
    (worlds(1, 2, strategy="single"), (), CPU, {1: None, 2: "single runs on one rank, not 2"}),
    (worlds(2, 4), (), CPU, {2: None, 4: None}),
    (worlds(2, 4), ("launch.oversubscribe=false",), CPU, {2: None, 4: "4 ranks on 2 usable cores"}),
    (worlds(2), ("launch.oversubscribe=false",), replace(CPU, usable_cores=1), {2: None}),  # two can always be looked at
    (worlds(2, 8), (), replace(GPUS, joined_world_size=8), {2: "2 ranks: the launcher started 8", 8: None}),
    (worlds(2), ("base.accumulation=2", "base.strategy_options.static_graph=true"), CPU,
     {2: "static_graph with accumulation"}),  # the strategy's own requirement
    (worlds(2), ("base.network='1gbit,slow=7:10mbit'",), CPU, {2: "host 7"}),
]  # fmt: skip


@pytest.mark.usefixtures("allow_emulation")
@pytest.mark.parametrize(("text", "changes", "machine", "expected"), REFUSED)
def test_what_cannot_run_here_is_unsupported_with_the_reason(
    text: str, changes: tuple[str, ...], machine: Machine, expected: dict[int, str | None]
) -> None:
    cells = plan(text, *changes, machine=machine)
    assert {cell.spec.world_size: cell.runnable for cell in cells} == {n: said is None for n, said in expected.items()}
    for cell in cells:
        assert (expected[cell.spec.world_size] or "") in (cell.unsupported or "")
        assert cell.runnable or cell.comm_plan == ()


def test_precisions_that_the_device_lacks_are_unsupported() -> None:
    text = PAIR + "include: [{strategy: ddp, world_size: 2, axes: {precision: [tf32, amp_fp16, bf16]}}]"
    big = plan(text, "base.model.width=512", "base.global_batch=4096")
    assert {c.spec.precision for c in big if not c.runnable} == {"tf32", "amp_fp16"}
    assert len(big) == 4
    small = plan(text)
    assert {c.spec.precision: c.runnable for c in small}["amp_fp16"]  # tiny shapes may test the arithmetic
    old = plan(text, machine=replace(GPUS, compute_capability="7.5"))
    assert {c.spec.precision for c in old if not c.runnable} == {"tf32", "bf16"}


@pytest.mark.parametrize(
    ("here", "runs"), [("2.9.1+cpu", False), ("2.13.0+cu130", True), ("3.0.0", True), (None, True)]
)
def test_a_strategy_that_torch_lacks_is_refused_with_the_release_that_has_it(here: str | None, runs: bool) -> None:
    strategies = PLUGINS["strategy_options"]
    table = {key: replace(strategy, torch="2.13") for key, strategy in (strategies.table or {}).items()}
    matrix = read(PAIR, "base.precision=tf32")
    with patch.dict(FAMILIES, PLUGINS | {"strategy_options": replace(strategies, table=table)}):
        (cell,) = expand(matrix, machine=replace(CPU, torch_version=here), digest_of=lambda *_: "d")
    lacks = f"ddp needs torch 2.13 or later, and torch {here} is installed"
    tf32 = "tf32 is an arithmetic mode of CUDA tensor cores; the cpu has none"
    assert cell.unsupported == (tf32 if runs else f"{tf32}; {lacks}")


def test_a_network_that_is_none_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(UsageError, match="'slow' is not an emulated network"):
        plan(PAIR, "base.network=slow")


@pytest.mark.usefixtures("allow_emulation")
def test_one_network_has_one_text_however_it_was_written() -> None:
    (one,) = plan(PAIR, "base.network='1000mbit:2'")
    (two,) = plan(PAIR, "base.network='1gbit:2'")
    assert one.spec.network == "1gbit:2"
    assert one.spec.cell_id == two.spec.cell_id
    assert one.runnable


def test_a_network_that_cannot_be_made_here_is_unsupported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_why_no_emulation", lambda _: Unavailable("no ip command"))
    (cell,) = plan(PAIR, "base.network='1gbit:2'")
    assert cell.unsupported == "network 1gbit:2: no ip command"


def test_bucket_sizes_that_realise_the_same_buckets_are_measured_once() -> None:
    text = "axes: {strategy: [naive, ddp], world_size: [2], strategy_options.bucket_cap_mb: [1, 2, 4, 8, 25]}"
    cells = [c for c in plan(text) if c.spec.strategy == "ddp"]
    kept = [c.spec.strategy_options["bucket_cap_mb"] for c in cells if c.runnable]
    assert kept == [1, 2, 4]
    first = next(c for c in cells if c.spec.strategy_options["bucket_cap_mb"] == 4)
    assert [c.skipped for c in cells if not c.runnable] == [f"same buckets as {first.spec.cell_id}"] * 2
    assert all(c.runnable for c in plan(text, "equal_buckets=each"))


def test_equal_buckets_of_different_cells_are_both_measured() -> None:
    text = "axes: {strategy: [ddp], world_size: [2, 3], lr: [0.1, 0.2], strategy_options.bucket_cap_mb: [8, 25]}"
    assert sum(c.runnable for c in plan(text)) == 4


def test_the_digest_of_the_data_is_part_of_the_identity() -> None:
    ids = {expanded(read(PAIR), machine=CPU, digest_of=lambda *_, d=d: d)[0].spec.cell_id for d in ("a", "b")}
    assert len(ids) == 2


def test_unreadable_data_stops_the_expansion() -> None:
    def missing(key: str, options: object) -> str:
        del options
        raise DataError(f"{key}: no file")

    with pytest.raises(DataError, match="noise: no file"):
        expanded(read(PAIR), machine=CPU, digest_of=missing)


def test_data_that_does_not_fit_is_found_when_the_file_is_read() -> None:
    with pytest.raises(UsageError, match=r"base.dataset: thirteen does not fit; use another number"):
        read(PAIR, "base.dataset_options.samples=13")


def test_a_mesh_gives_the_ranks_and_a_batch_is_of_its_data_shards() -> None:
    (cell,) = plan("axes: {strategy: [ddp], mesh: [{tp: 2, dp: 2}]}\n")
    assert (cell.spec.world_size, cell.spec.mesh, cell.spec.micro_batch) == (4, {"dp": 2, "tp": 2}, 24)
    assert cell.unsupported == "ddp has no mesh dimension tp: it takes dp"


def test_a_mesh_of_data_parallel_ranks_is_the_cell_without_one() -> None:
    same = plan("axes: {strategy: [ddp], world_size: [2], mesh: [{dp: 2}, null, {}, {dp: 2, tp: 1}]}\n")
    assert [cell.spec.mesh for cell in same] == [{}]
    assert "mesh" not in identity(same[0].spec)


def test_a_mesh_of_other_ranks_is_refused_where_it_is_written() -> None:
    with pytest.raises(
        UsageError, match=r"axes.mesh\[1\]: dp 2 x tp 2 = 4 ranks, and world_size is 2: use dp 1 or world"
    ):
        read("axes: {strategy: [ddp], world_size: [2], mesh: [{dp: 2}, {dp: 2, tp: 2}]}\n")


TWO_WORLDS = "axes: {strategy: [ddp], world_size: [2, 4]}\n"


def test_faults_are_part_of_what_a_cell_is_and_a_cell_without_keeps_its_id() -> None:
    (plain,) = plan(PAIR)
    (slow,) = plan(PAIR, "base.inject='slow_rank=1:30.0%'")
    assert slow.spec.inject == "slow_rank=1:30%"
    assert slow.spec.cell_id != plain.spec.cell_id
    assert "inject" not in identity(plain.spec)


def test_a_slow_rank_concerns_the_cells_that_have_it() -> None:
    cells = plan(TWO_WORLDS, "base.inject='slow_rank=3:5ms'")
    assert {c.spec.world_size: c.spec.inject for c in cells} == {2: None, 4: "slow_rank=3:5ms"}
    cells = plan(TWO_WORLDS, "base.inject='slow_rank=3:5ms,loader=2ms'")
    faults = {c.spec.world_size: c.spec.inject for c in cells}
    assert faults == {2: "loader=2ms", 4: "slow_rank=3:5ms,loader=2ms"}, "what every rank has stays"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("slow_rank=4:30%", "base.inject: slow_rank=4:30% slows a rank that no cell has"),
        ("'slow_rank=4:30%,jitter'", "slows a rank that no cell has"),
        ("'slow_rank=0:30%,slow_rank=3:30%'", "slows rank 3, and the cell has ranks 0 to 1"),
        ("slow", "is not a planted fault"),
    ],
)
def test_a_fault_that_cannot_be_planted_is_refused_where_it_is_written(fault: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(TWO_WORLDS, f"base.inject={fault}")
    assert words in str(error.value)


def test_a_share_is_refused_where_computing_and_waiting_are_timed_together() -> None:
    from tests.unit.cells import cell_spec

    from stepscope.matrix.expand import _refused_faults
    from stepscope.strategies import REGISTRY

    sharded, ddp = REGISTRY.load("fsdp2"), REGISTRY.load("ddp")
    share, time = cell_spec(strategy="fsdp2", inject="jitter=30%"), cell_spec(strategy="fsdp2", inject="jitter=3ms")
    assert "write a time" in (_refused_faults(share, sharded) or "")
    assert _refused_faults(time, sharded) is None
    assert _refused_faults(cell_spec(strategy="ddp", inject="jitter=30%"), ddp) is None
