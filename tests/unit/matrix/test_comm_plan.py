"""What ``stepscope comm`` was asked, as sweeps: names, ranges of sizes, what a machine cannot do."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.units import parse_sizes
from stepscope.matrix.comm_plan import CommRequest, PlannedComm, op_names, parse_env, parse_mode, plan_comm
from stepscope.matrix.machine import Machine

HERE = Machine(num_gpus=0, usable_cores=2, gloo=True)


def _plan(machine: Machine = HERE, *, device="cpu", backend="gloo", **fields) -> tuple[PlannedComm, ...]:
    request = CommRequest(**{"ops": ("all_reduce",), "sizes_bytes": (1024,), **fields})
    return plan_comm(request, machine=machine, device=device, backend=backend)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K:64K:4", (1024, 4096, 16384, 65536)),
        ("1K:5K:2", (1024, 2048, 4096)),
        ("1K:3K:+1K", (1024, 2048, 3072)),
        ("8:8:2", (8,)),
        ("1K:4K", (1024, 2048, 4096)),
        ("4K, 1M,4K", (4096, 1 << 20)),
        ("25MiB", (25 << 20,)),
        ("0", (0,)),
        ("1:3:1.5", (1, 2)),
    ],
)
def test_sizes_are_written_as_in_nccl_tests(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64K:1K:2", "goes from 64 KiB down to 1 KiB"),
        ("1K:1M:1", "is not above 1"),
        ("1K:1M:x", "'x' .* is not a factor"),
        ("1K:1M:2:3", "not a range"),
        ("0:1K:2", "starts at 0"),
        ("1K:2K:+0", "step of .* is 0"),
        ("1:1G:+1", "more than 200"),
        ("1:1G:1.001", "more than 200"),
        ("12 bananas", "is not a size"),
    ],
)
def test_a_range_that_makes_no_sense_says_so(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sizes(text)


def test_all_names_every_collective_of_the_registry() -> None:
    assert {"all_reduce", "barrier", "send_recv", "all_to_all_v"} <= set(op_names("all"))


def test_an_unknown_collective_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'all_reduce'"):
        op_names("barrier,all_reduc")


@pytest.mark.parametrize(
    ("text", "mode"), [("blocking", ("blocking", 1)), ("async:8", ("async", 8)), ("coalesced", ("coalesced", 4))]
)
def test_a_mode_says_how_many_calls_are_in_flight(text: str, mode: tuple[str, int]) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["asynk", "async:0", "async:x", "blocking:4"])
def test_a_mode_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mode(text)


def test_a_sweep_of_variables_is_a_cell_for_each_combination() -> None:
    env = parse_env(["NCCL_ALGO=Ring,Tree", "NCCL_PROTO=LL"])
    plan = _plan(env=env)
    assert [cell.spec.env for cell in plan] == [
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
    ]
    assert len({cell.spec.cell_id for cell in plan}) == 2


def test_what_a_collective_does_not_have_makes_no_cell() -> None:
    plan = _plan(
        ops=("barrier", "all_gather", "all_reduce"),
        reduce_ops=("sum", "avg"),
        dtypes=("fp32", "int32"),
        modes=(("blocking", 1), ("async", 4)),
    )
    barriers = [cell for cell in plan if cell.spec.op == "barrier"]
    assert len(barriers) == 1  # no type, no reduction, no mode
    assert barriers[0].spec.sizes_bytes == (0,)
    gathers = [cell for cell in plan if cell.spec.op == "all_gather"]
    assert len(gathers) == 4
    assert {cell.spec.reduce_op for cell in gathers} == {None}
    reductions = {(cell.spec.dtype, cell.spec.reduce_op) for cell in plan if cell.spec.op == "all_reduce"}
    assert reductions == {("float32", "sum"), ("float32", "avg"), ("int32", "sum"), ("int32", "avg")}


def test_combinations_that_exist_nowhere_are_listed_with_their_reason() -> None:
    plan = _plan(
        ops=("all_reduce", "all_to_all"),
        reduce_ops=("sum", "avg"),
        dtypes=("fp32", "int32"),
        modes=(("blocking", 1), ("async", 4)),
        places=(False, True),
        extra=("matmul", "overlap"),
    )
    reasons = {
        (c.spec.kind, c.spec.op, c.spec.dtype, c.spec.reduce_op, c.spec.in_place, c.spec.mode): c.unsupported
        for c in plan
    }
    assert len(reasons) == len(plan)
    assert "avg of int32" in (reasons["collective", "all_reduce", "int32", "avg", True, "blocking"] or "")
    assert reasons["collective", "all_reduce", "float32", "avg", True, "blocking"] is None
    assert "no in-place form" in (reasons["collective", "all_to_all", "float32", None, True, "blocking"] or "")
    assert reasons["collective", "all_to_all", "float32", None, False, "blocking"] is None
    assert "blocking calls" in (reasons["overlap", "all_reduce", "float32", "sum", False, "async"] or "")
    assert "floating-point" in (reasons["matmul", "matmul", "int32", None, False, "blocking"] or "")


def test_gloo_waits_at_a_barrier_before_each_call_and_nccl_does_not() -> None:
    assert _plan()[0].spec.pacing == "barrier"
    gpus = Machine(num_gpus=2, usable_cores=8, nccl=True)
    assert _plan(gpus, device="cuda", backend="nccl")[0].spec.pacing == "back_to_back"


def test_more_ranks_than_gpus_is_unsupported_with_the_numbers() -> None:
    gpus = Machine(num_gpus=2, usable_cores=8, nccl=True)
    plan = _plan(gpus, device="cuda", backend="nccl", worlds=(2, 4))
    assert plan[0].unsupported is None
    assert "4 ranks need 4 GPUs, this machine has 2" in (plan[1].unsupported or "")


def test_a_root_that_is_not_there_is_unsupported() -> None:
    plan = _plan(ops=("broadcast",), root=3, worlds=(2, 4))
    assert plan[0].unsupported == "root 3: there are 2 ranks"
    assert plan[1].unsupported is None


def test_pairs_and_matrix_products_are_cells_of_their_own() -> None:
    plan = _plan(extra=("pairs", "matmul", "overlap"), dtypes=("fp32", "int32"))
    kinds = [(cell.spec.kind, cell.spec.dtype) for cell in plan]
    assert kinds.count(("pairs", "float32")) == 1
    assert kinds.count(("matmul", "float32")) == 1
    assert [cell.unsupported is None for cell in plan if cell.spec.kind == "matmul"] == [True, False]
    assert kinds.count(("overlap", "float32")) == 1


def test_inside_a_started_world_only_its_size_runs() -> None:
    plan = _plan(Machine(num_gpus=0, usable_cores=2, joined_world_size=4), worlds=(2, 4))
    assert [cell.unsupported is None for cell in plan] == [False, True]


@pytest.mark.parametrize("fields", [{"dtypes": ("fp33",)}, {"reduce_ops": ("summ",)}, {"patterns": ("rign",)}])
def test_misspelt_settings_are_refused_with_a_suggestion(fields: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(UsageError, match="did you mean"):
        _plan(ops=("send_recv", "all_reduce"), **fields)
