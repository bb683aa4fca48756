"""Every collective does what its spec says, on real ranks: all types, operations, places and modes.

Collectives are found through the registry, so a new one is tested by being there. A backend that refuses a combination
must do so on all ranks and leave the group usable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch

from stepscope.collectives import REDUCE_OPS
from stepscope.collectives import REGISTRY as SPECS
from stepscope.rank.collectives import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.collectives import Exchange, Setup
from stepscope.rank.comm.loop import BackendLacksError, combine
from stepscope.rank.comm.values import Values, fill, first_wrong
from stepscope.rank.mesh import Mesh
from stepscope.records.comm import Mode

DTYPES = ("float32", "bfloat16", "float16", "float64", "int32", "int64", "int8", "uint8")
PER_RANK = 1031  # elements of a part: more than the period of the values, and divided by nothing


LAST = -1


@dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    reduce_op: str | None
    in_place: bool
    mode: Mode = "blocking"
    in_flight: int = 1
    pattern: str | None = None
    root: int = 0


def plain_cases(op: str, dtype: str) -> Iterator[Case]:
    spec = SPECS.load(op)
    for reduce_op in REDUCE_OPS if spec.reduces else (None,):
        if reduce_op == "avg" and not getattr(torch, dtype).is_floating_point:
            continue
        for in_place in (False, True) if spec.in_place else (False,):
            for pattern in spec.patterns or (None,):
                yield Case(op, dtype, reduce_op, in_place, pattern=pattern)


def all_cases(op: str) -> list[Case]:
    spec = SPECS.load(op)
    cases = [case for dtype in DTYPES for case in plain_cases(op, dtype)]
    if spec.rooted:
        cases += [replace(case, root=LAST) for case in plain_cases(op, "float32")]
    for case in plain_cases(op, "float32"):
        cases.append(replace(case, mode="async", in_flight=3))
        if op in ("all_reduce", "all_gather", "reduce_scatter"):
            cases.append(replace(case, mode="coalesced", in_flight=3))
        if op == "send_recv":
            cases.append(replace(case, mode="grouped", in_flight=2))
    return cases


def setup_of(mesh: Mesh, case: Case) -> Setup:
    return Setup(
        mesh=mesh, dtype=getattr(torch, case.dtype), numel=PER_RANK * mesh.world_size, reduce_op=case.reduce_op,
        in_place=case.in_place, root=case.root % mesh.world_size, pattern=case.pattern,
    )  # fmt: skip


def values_of(mesh: Mesh, case: Case, salt: int) -> Values:
    dtype = getattr(torch, case.dtype)
    return Values(dtype=dtype, world_size=mesh.world_size, reduce_op=case.reduce_op, salt=salt)


def filled(mesh: Mesh, case: Case, salt: int) -> tuple[list[Exchange], list[Values]]:
    exchanges = [IMPLEMENTATIONS.load(case.op)(setup_of(mesh, case)) for _ in range(case.in_flight)]
    values = [values_of(mesh, case, salt + i) for i in range(case.in_flight)]
    for exchange, fresh in zip(exchanges, values, strict=True):
        fill(exchange, fresh)
    return exchanges, values


def wrong_results(mesh: Mesh, cases: list[dict[str, Any]]) -> list[str]:
    """What is wrong on this rank: each case is called twice, each time on fresh input, with the very same callable."""
    found = []
    for number, case in enumerate(Case(**fields) for fields in cases):
        exchanges, values = filled(mesh, case, 100 * number)
        call = combine(exchanges, op=case.op, mode=case.mode, mesh=mesh)
        for again in (0, 50):
            values = [replace(fresh, salt=fresh.salt + again) for fresh in values]
            for exchange, fresh in zip(exchanges, values, strict=True):
                fill(exchange, fresh)
            call()
            for exchange, fresh in zip(exchanges, values, strict=True):
                wrong = first_wrong(exchange, fresh)
                if wrong is not None:
                    found.append(f"{case}, call {again}: {wrong}")
    return found


def worlds() -> Iterator[Any]:
    """Pairs of ranks and unequal parts need a world of four; of the other collectives it repeats that of three."""
    for op in SPECS.names():
        for world_size in range(SPECS.load(op).min_world, 5):
            rare = world_size == 4 and op not in ("send_recv", "all_to_all_v")
            yield pytest.param(op, world_size, marks=pytest.mark.long if rare else ())


@pytest.mark.parametrize(("op", "world_size"), list(worlds()))
def test_results_are_right_in_every_type_operation_place_and_mode(pools: Any, op: str, world_size: int) -> None:
    cases = all_cases(op)
    assert pools(world_size).run(wrong_results, [asdict(case) for case in cases]) == [[]] * world_size


def outputs_seen(mesh: Mesh, fields: dict[str, Any]) -> tuple[int, int]:
    """(elements that this rank sends, that it checks)."""
    exchange = IMPLEMENTATIONS.load(fields["op"])(setup_of(mesh, Case(**fields)))
    return tuple(sum(p.tensor.numel() for p in pieces) for pieces in (exchange.inputs, exchange.outputs))  # type: ignore[return-value]


def test_every_rank_sends_and_checks_what_the_payload_says(pools: Any) -> None:
    whole, part = 3 * PER_RANK, PER_RANK
    expected = {
        "all_reduce": [(whole, whole)] * 3,
        "all_gather": [(part, whole)] * 3,
        "reduce_scatter": [(whole, part)] * 3,
        "all_to_all": [(whole, whole)] * 3,
        "all_to_all_v": [(whole, whole)] * 3,
        "broadcast": [(whole, whole), (0, whole), (0, whole)],
        "reduce": [(whole, whole), (whole, 0), (whole, 0)],
        "gather": [(part, whole), (part, 0), (part, 0)],
        "scatter": [(whole, part), (0, part), (0, part)],
        "send_recv": [(whole, whole)] * 3,
        "barrier": [(0, 0)] * 3,
    }
    assert set(expected) == set(SPECS.names())
    for op, seen in expected.items():
        case = Case(op, "float32", "sum", False, pattern="ring")
        assert pools(3).run(outputs_seen, asdict(case)) == seen, op


def with_another_operation(mesh: Mesh, op: str, others: str) -> str | None:
    """Rank 1 reduces by ``others`` where all the rest sum."""
    case = Case(op, "float32", "sum", op != "reduce_scatter")
    mine = replace(case, reduce_op=others) if mesh.rank == 1 else case
    exchange = IMPLEMENTATIONS.load(op)(setup_of(mesh, mine))
    fresh = values_of(mesh, case, 7)
    fill(exchange, fresh)
    combine([exchange], op=op, mode="blocking", mesh=mesh)()
    return first_wrong(exchange, fresh)


@pytest.mark.parametrize("others", ["max", "min", "product"])
@pytest.mark.parametrize("op", ["all_reduce", "reduce", "reduce_scatter"])
def test_a_rank_that_reduces_otherwise_is_found(pools: Any, op: str, others: str) -> None:
    found = pools(3).run(with_another_operation, op, others)
    assert any(text is not None for text in found)


def in_another_order(mesh: Mesh, op: str, dtype: str, pattern: str | None) -> list[str | None]:
    """Rank 0 makes the second call first."""
    reduces = SPECS.load(op).reduces
    case = Case(op, dtype, "sum" if reduces else None, False, mode="async", in_flight=2, pattern=pattern)
    exchanges, values = filled(mesh, case, 20)
    order = exchanges[::-1] if mesh.rank == 0 else exchanges
    combine(order, op=op, mode="async", mesh=mesh)()
    return [first_wrong(exchange, fresh) for exchange, fresh in zip(exchanges, values, strict=True)]


@pytest.mark.parametrize(
    ("op", "dtype", "pattern"),
    [
        ("all_reduce", "float32", None), ("all_reduce", "bfloat16", None), ("all_gather", "int8", None),
        ("reduce_scatter", "int32", None), ("broadcast", "float16", None), ("all_to_all", "uint8", None),
        ("gather", "float64", None), ("scatter", "float32", None), ("send_recv", "float32", "ring"),
    ],
)  # fmt: skip
def test_swapped_calls_are_found_where_gloo_says_nothing(pools: Any, op: str, dtype: str, pattern: str | None) -> None:
    found = pools(2).run(in_another_order, op, dtype, pattern)
    assert any(text is not None for rank in found for text in rank)


def with_another_type(mesh: Mesh) -> str | None:
    """Rank 1 sums the same bytes as integers."""
    case = Case("all_reduce", "float32", "sum", True)
    exchange = IMPLEMENTATIONS.load("all_reduce")(setup_of(mesh, case))
    fresh = values_of(mesh, case, 3)
    fill(exchange, fresh)
    tensor = exchange.inputs[0].tensor
    torch.distributed.all_reduce(tensor.view(torch.int32) if mesh.rank == 1 else tensor)
    return first_wrong(exchange, fresh)


def test_another_type_on_one_rank_is_found(pools: Any) -> None:
    pool = pools(2)
    assert any(text is not None for text in pool.run(with_another_type))
    pool.close()  # its ranks' recorders keep the two types, and a cell that runs there later would be blamed for them


def refused_and_usable(mesh: Mesh, fields: dict[str, Any]) -> tuple[str, bool]:
    """(what the backend says, whether an all-reduce is still right afterwards)."""
    case, words = Case(**fields), ""
    try:
        exchanges, _ = filled(mesh, case, 1)
        combine(exchanges, op=case.op, mode=case.mode, mesh=mesh)()
    except (RuntimeError, BackendLacksError) as error:
        words = str(error)
    after = Case("all_reduce", "float32", "sum", True, mode="async", in_flight=2)
    return words, wrong_results(mesh, [asdict(after)]) == []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("broadcast", "float32", None, True, mode="coalesced", in_flight=2), "gloo does not implement"),
        (Case("all_reduce", "int32", "avg", True), "can't be cast"),
        (Case("all_gather", "float32", None, True, mode="grouped"), "point-to-point calls only"),
    ],
)
def test_what_the_backend_refuses_leaves_the_group_usable(pools: Any, case: Case, words: str) -> None:
    for said, usable in pools(2).run(refused_and_usable, asdict(case)):
        assert words in said
        assert usable
