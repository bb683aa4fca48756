"""Properties of expansion and resuming, with the installed plugins."""

from __future__ import annotations

import random
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from stepscope.matrix.expand import PlannedCell, expand
from stepscope.matrix.load import matrix_of
from stepscope.matrix.machine import Machine
from stepscope.matrix.resume import plan_resume
from stepscope.records.cell import CellStatus
from stepscope.store.yaml_loader import parse_yaml, plain_scalar

CPU = Machine(num_gpus=0, usable_cores=2, gloo=True, nccl=False)
STATUSES = ["ok", "oom", "host_oom", "timeout", "error", "killed", "unsupported", "skipped", "interrupted"]


def distinct(values: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=most, unique=True)


AXES = st.fixed_dictionaries(
    {
        "strategy": distinct(st.sampled_from(["naive", "interleaved", "bucketed", "ddp"]), 4),
        "world_size": distinct(st.integers(1, 9)),
    },
    optional={
        "seed": distinct(st.integers(0, 2**62)),
        "lr": distinct(st.floats(1e-9, 1e3)),
        "precision": distinct(st.sampled_from(["fp32", "bf16", "amp_bf16"])),
        "model.size": distinct(st.sampled_from(["tiny", "small"])),
        "accumulation": distinct(st.integers(1, 4)),
    },
)


def document(axes: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"workload": "mlp", "dataset": "synthetic", "micro_batch": 4, "steps": 5}
    return {"version": 1, "base": base, "axes": axes, **more}


def planned(source: dict[str, Any]) -> tuple[PlannedCell, ...]:
    # JSON-like flow text: every float as repr, every string quoted where needed
    text = yaml.safe_dump(source, sort_keys=False)
    return expand(matrix_of(parse_yaml(text, source="m"), name="m"), machine=CPU, digest_of=str_of)


def str_of(key: str, options: object) -> str:
    return f"{key} {options}"


def ids(cells: tuple[PlannedCell, ...]) -> list[str]:
    return [c.spec.cell_id for c in cells]


def size(axes: dict[str, list[Any]]) -> int:
    total = 1
    for values in axes.values():
        total *= len(values)
    return total


@examples(25)
@given(AXES)
def test_the_cross_product_has_as_many_cells_as_its_axes_multiply_to(axes: dict[str, Any]) -> None:
    cells = planned(document(axes))
    assert len(cells) == size(axes)
    assert len(set(ids(cells))) == len(cells)


@examples(25)
@given(AXES, st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_the_order_of_keys_or_values(axes: dict[str, Any], rng: random.Random) -> None:
    keys = list(axes)
    rng.shuffle(keys)
    shuffled = {key: rng.sample(axes[key], len(axes[key])) for key in keys}
    source, other = document(axes), document(shuffled)
    other["base"] = dict(reversed(source["base"].items()))
    other = dict(reversed(other.items()))
    assert set(ids(planned(source))) == set(ids(planned(other)))


@examples(25)
@given(AXES, st.data())
def test_exclude_removes_exactly_the_matching_cells(axes: dict[str, Any], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(axes)), min_size=1, unique=True))
    item = {key: data.draw(st.sampled_from(axes[key])) for key in keys}
    everything = planned(document(axes))
    matching = size({key: values for key, values in axes.items() if key not in item})
    if matching == len(everything):
        return  # nothing would be left, which is an error of its own
    left = planned(document(axes, exclude=[item]))
    assert len(left) == len(everything) - matching
    assert ids(left) == [i for i in ids(everything) if i in set(ids(left))]


@examples(25)
@given(AXES, st.data())
def test_resuming_decides_every_cell_once_and_the_same_again(axes: dict[str, Any], data: st.DataObject) -> None:
    cells = planned(document(axes))
    left = data.draw(st.dictionaries(st.sampled_from(ids(cells)), st.sampled_from(STATUSES)))
    statuses = {i: CellStatus(cell_id=i, status=s) for i, s in left.items()}
    first = plan_resume(cells, statuses)
    parts = [*first.run, *first.kept, *first.unsupported, *first.skipped]
    assert sorted(ids(tuple(parts))) == sorted(ids(cells))
    assert plan_resume(cells, statuses) == first
    # once everything that was to run has run, nothing is left to do
    finished = statuses | {c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="ok") for c in first.run}
    assert plan_resume(cells, finished).run == ()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_that_python_writes_is_read_back(number: float) -> None:
    value, complaint = plain_scalar(repr(number))
    assert complaint is None
    assert value == number


@given(st.integers())
def test_every_integer_is_read_back_as_an_integer(number: int) -> None:
    assert plain_scalar(str(number)) == (number, None)


@given(st.text(alphabet="0123456789_.:xobeE+-", min_size=1, max_size=8))
def test_a_number_is_never_read_differently_from_what_it_says(text: str) -> None:
    value, complaint = plain_scalar(text)
    if complaint is None and isinstance(value, (int, float)):
        assert float(text.replace("_", "?")) == value
