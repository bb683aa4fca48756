"""What fills buffers and finds wrong results: without ranks, what other ranks send is written by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from stepscope.rank.collectives import REDUCED, Exchange, Stretch, idle
from stepscope.rank.comm.values import BLOCK_ROWS, PERIOD, Values, fill, first_wrong

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8,
]  # fmt: skip
REDUCERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda t: t.sum(0),
    "avg": lambda t: t.mean(0),
    "max": lambda t: t.amax(0),
    "min": lambda t: t.amin(0),
    "product": lambda t: t.prod(0),
}


def values(dtype: torch.dtype, reduce_op: str | None, *, world: int = 4, salt: int = 1) -> Values:
    return Values(dtype=dtype, world_size=world, reduce_op=reduce_op, salt=salt)


def exchange(*, inputs: list[Stretch] | None = None, outputs: list[Stretch] | None = None) -> Exchange:
    return Exchange(inputs=tuple(inputs or ()), outputs=tuple(outputs or ()), issue=idle)


def sent(fresh: Values, rank: int, numel: int, *, offset: int = 0) -> Tensor:
    """What ``rank`` sends, as ``fill`` writes it."""
    tensor = torch.empty(numel, dtype=fresh.dtype)
    fill(exchange(inputs=[Stretch(tensor=tensor, source=rank, offset=offset)]), fresh)
    return tensor


def reduced_as_a_backend_does(fresh: Values, numel: int) -> Tensor:
    """One rank after the other, rounding to the type each time; the average divides at the end."""
    total = sent(fresh, 0, numel)
    for rank in range(1, fresh.world_size):
        other = sent(fresh, rank, numel)
        pair = torch.stack([total, other])
        op = "sum" if fresh.reduce_op == "avg" else fresh.reduce_op or ""
        total = REDUCERS[op](pair).to(fresh.dtype)
    return (total / fresh.world_size).to(fresh.dtype) if fresh.reduce_op == "avg" else total


CASES = [(dtype, op) for dtype in DTYPES for op in REDUCERS if not (op == "avg" and not dtype.is_floating_point)]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 100])
@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_a_right_reduction_passes_and_one_wrong_element_does_not(dtype: torch.dtype, op: str, world: int) -> None:
    fresh = values(dtype, op, world=world)
    numel = 3 * PERIOD + 17
    result = reduced_as_a_backend_does(fresh, numel)
    piece = Stretch(tensor=result, source=REDUCED)
    assert first_wrong(exchange(outputs=[piece]), fresh) is None
    result[2 * PERIOD + 5] = 99 if float(result[2 * PERIOD + 5]) < 50 else 0
    assert (first_wrong(exchange(outputs=[piece]), fresh) or "").startswith(f"element {2 * PERIOD + 5}: got ")


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int8])
def test_the_result_of_another_operation_is_wrong(dtype: torch.dtype, world: int) -> None:
    for op in REDUCERS:
        fresh = values(dtype, op, world=world)
        if op == "avg" and not dtype.is_floating_point:
            continue
        for other in REDUCERS:
            if other in (op, "avg"):
                continue
            everything = torch.stack([sent(fresh, rank, 256).double() for rank in range(world)])
            result = REDUCERS[other](everything).to(dtype)
            found = first_wrong(exchange(outputs=[Stretch(tensor=result, source=REDUCED)]), fresh)
            assert found is not None, f"{other} passes for {op}"


def test_a_sum_with_a_missing_or_doubled_rank_is_wrong() -> None:
    fresh = values(torch.float32, "sum")
    everything = torch.stack([sent(fresh, rank, 64) for rank in range(4)])
    for rows in ([0, 1, 2], [0, 1, 2, 2]):
        result = everything[rows].sum(0)
        assert first_wrong(exchange(outputs=[Stretch(tensor=result, source=REDUCED)]), fresh)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_data_passes_and_that_of_another_rank_call_or_place_does_not(dtype: torch.dtype) -> None:
    fresh, numel = values(dtype, None), 300

    def found(tensor: Tensor) -> str | None:
        return first_wrong(exchange(outputs=[Stretch(tensor=tensor, source=2, offset=1000)]), fresh)

    right = sent(fresh, 2, 1000 + numel)[1000:]
    assert found(right.clone()) is None
    assert found(sent(fresh, 2, numel, offset=1000)) is None
    assert found(sent(fresh, 1, 1000 + numel)[1000:]) is not None
    assert found(sent(fresh, 2, numel)) is not None
    assert found(sent(values(dtype, None, salt=2), 2, 1000 + numel)[1000:]) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_nobody_wrote_is_wrong(dtype: torch.dtype) -> None:
    for op, source in ((None, 0), ("sum", REDUCED), ("product", REDUCED)):
        untouched = exchange(outputs=[Stretch(tensor=torch.zeros(50, dtype=dtype), source=source)])  # type: ignore[arg-type]
        fresh = values(dtype, op)
        fill(untouched, fresh)
        assert first_wrong(untouched, fresh) is not None


def test_in_place_the_input_survives_the_poison() -> None:
    fresh = values(torch.float32, None)
    whole = torch.empty(40)
    mine = Stretch(tensor=whole[10:20], source=1)
    fill(exchange(inputs=[mine], outputs=[Stretch(tensor=whole, source=0)]), fresh)
    assert torch.equal(whole[10:20], sent(fresh, 1, 10))
    assert whole[:10].isnan().all()


def test_the_first_wrong_element_is_counted_over_all_pieces() -> None:
    fresh = values(torch.float32, None)
    pieces = [Stretch(tensor=sent(fresh, rank, 100), source=rank) for rank in range(3)]
    pieces[2].tensor[7] = -5
    expected = int(sent(fresh, 2, 100)[7])
    assert first_wrong(exchange(outputs=pieces), fresh) == f"element 207: got -5, expected {expected}"


def test_large_buffers_are_compared_block_by_block() -> None:
    fresh = values(torch.int8, None)
    numel = (2 * BLOCK_ROWS + 3) * PERIOD + 11
    tensor = sent(fresh, 0, numel)
    one = exchange(outputs=[Stretch(tensor=tensor, source=0)])
    assert first_wrong(one, fresh) is None
    for index in (numel - 1, 2 * BLOCK_ROWS * PERIOD, BLOCK_ROWS * PERIOD - 1):
        tensor[index] = -7  # earlier ones are found first
        assert (first_wrong(one, fresh) or "").startswith(f"element {index}:")


def test_integers_are_exact_and_floats_within_rounding() -> None:
    assert values(torch.int32, "sum").roundings() == 0
    assert values(torch.float32, "sum", world=1000).roundings() == 0  # all partial sums are integers below 2**24
    assert values(torch.bfloat16, "sum", world=100).roundings() == 0
    assert values(torch.bfloat16, "sum", world=1000).roundings() == 1000
    assert values(torch.float32, "avg", world=4).roundings() == 5
    assert values(torch.float16, "product", world=64).roundings() == 0


def test_sent_values_fit_every_type() -> None:
    for dtype in DTYPES:
        for op in (None, *REDUCERS):
            for rank in (0, 3, 63):
                table = values(dtype, op, world=64).sent(rank)
                assert table.shape == (PERIOD,)
                assert np.array_equal(torch.from_numpy(table).to(dtype).to(torch.int64).numpy(), table)
