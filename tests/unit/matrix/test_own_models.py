"""``python:MODULE:FUNCTION`` in a matrix: what it implies, what it cannot have, and which changes make another cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.cli.bench_run import default_ranks, model_matrix
from stepscope.cli.commands.bench import Bench
from stepscope.core.errors import UsageError
from stepscope.matrix.checked import Matrix
from stepscope.matrix.expand import PlannedCell, expand, identity
from stepscope.matrix.load import matrix_of, matrix_yaml
from stepscope.matrix.machine import Machine
from stepscope.predict.specs import specs_of
from stepscope.records.cell import CellSpec
from stepscope.records.codec import decode, encode
from stepscope.records.plan import MeasuredModel, ModelFacts, ParameterFact
from stepscope.store.yaml_loader import parse_yaml

HEAD = 'version: 1\nbase: {workload: "python:nets.vision:build", micro_batch: 4, steps: 9, strategy: ddp, world_size: 2'
CPU = Machine(num_gpus=0, usable_cores=2, gloo=True, nccl=False)
FACTS = ModelFacts(
    parameters=tuple(ParameterFact(name=n, numel=100, dtype="float32", shape=(100,)) for n in "ab"),
    ready_order=(1, 0),
    forward_flops_per_sample=400,
)
MODEL = MeasuredModel(facts=FACTS, digest="source one", optimizer=True)


def read(more: str = "") -> Matrix:
    return matrix_of(parse_yaml(f"{HEAD}{more}}}\n", source="m.yaml"), name="m")


def plan(model: MeasuredModel = MODEL, more: str = "") -> PlannedCell:
    (cell,) = expand(read(more), machine=CPU, digest_of=lambda *_: "", model_of=lambda _: model)
    return cell


def test_it_implies_its_batches_and_its_optimizer() -> None:
    (draft,) = read(", model: {width: 3, deep: [1, 2]}").cells
    assert draft.settings.dataset == "batches"
    assert draft.settings.optimizer == draft.loss == "own"
    assert draft.model.as_dict() == {"width": 3, "deep": [1, 2]}


def test_the_plan_is_made_from_what_was_measured() -> None:
    cell = plan()
    assert cell.spec.cell_id.startswith("nets.vision.build-ddp-w2-")
    assert [(op.numel, op.members) for op in cell.comm_plan] == [(200, ("b", "a"))]
    back = decode(encode(cell.spec), CellSpec, source="spec")
    assert specs_of(back).comm_plan == cell.comm_plan


@pytest.mark.parametrize(
    "changed",
    [
        replace(MODEL, digest="source two"),
        replace(MODEL, facts=replace(FACTS, forward_flops_per_sample=401)),
        replace(MODEL, optimizer=False),
    ],
    ids=["source", "facts", "optimizer"],
)
def test_a_changed_model_is_another_cell(changed: MeasuredModel) -> None:
    assert plan(changed).spec.cell_id != plan().spec.cell_id
    assert plan().spec.cell_id == plan().spec.cell_id


def test_cells_of_our_own_models_keep_their_identity() -> None:
    assert "facts" not in identity(replace(plan().spec, facts=None))


def test_a_model_without_an_optimizer_is_trained_with_sgd() -> None:
    assert plan(replace(MODEL, optimizer=False)).spec.optimizer == "sgd"
    assert plan().spec.optimizer == "own"
    assert plan(more=", optimizer: adam").spec.optimizer == "adam"


def test_a_variant_that_does_not_work_is_unsupported_with_the_reason() -> None:
    cell = plan(MeasuredModel(error=("no half kernel", "ValueError: x", None)))
    assert cell.unsupported == "no half kernel: ValueError: x"
    assert not cell.runnable


def test_the_resolved_matrix_gives_the_same_cells() -> None:
    matrix = read()
    again = matrix_of(parse_yaml(matrix_yaml(matrix), source="again"), name="m")
    assert again.cells[0].settings == matrix.cells[0].settings


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (", dataset: mnist", "batches is the only dataset for a python: workload"),
        (", num_workers: 2", "in its own process: remove it"),
        (", loss: ce", "is trained with own, not ce"),
        (", dataset_options: {input: 3by4}", "3by4"),
        (', workload: "python:nets"', "'nets' does not name a function of a module"),
        (", workload: mlp, dataset: synthetic, optimizer: own", "own needs a python: workload, and mlp is not one"),
        (", workload: mlp, dataset: batches", "batches is for a python: workload"),
        (", steps: null, epochs: 2", "has no epochs: give steps"),
    ],
)  # fmt: skip
def test_what_it_cannot_have(more: str, said: str) -> None:
    lines = HEAD.replace('workload: "python:nets.vision:build", ', "") if "workload:" in more else HEAD
    lines = lines.replace("steps: 9, ", "") if "steps:" in more else lines
    with pytest.raises(UsageError) as caught:
        matrix_of(parse_yaml(f"{lines}{more}}}\n", source="m.yaml"), name="m")
    assert said in str(caught.value)


def of(**options: Any) -> Matrix:
    return matrix_of(model_matrix(Bench(model="models:cnn", **options)), name="m")


def test_a_model_alone_is_compared_on_one_rank_and_under_ddp() -> None:
    cells = {(c.settings.strategy, c.settings.world_size) for c in of().cells}
    assert cells == {("single", 1), *(("ddp", n) for n in default_ranks() if n > 1)}
    assert default_ranks()[:2] == [1, 2]


def test_its_batch_strategies_ranks_and_input_are_options() -> None:
    cells = of(batch=7, strategies="naive,ddp", ranks="1,3", input="3x8x8").cells
    assert {(c.settings.strategy, c.settings.world_size, c.micro_batch) for c in cells} == {
        (name, n, 7) for name in ("naive", "ddp") for n in (1, 3)
    }
    assert {c.dataset_options.as_dict()["input"] for c in cells} == {"3x8x8"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": "two"}, "expected whole numbers"),
        ({"strategies": "dpp"}, "did you mean 'ddp'"),
        ({"strategies": "single", "ranks": "2"}, "single cannot run on 2 ranks"),
    ],
)
def test_mistakes_in_these_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        of(**options)
