"""Every spec against its own module: parameters, order of gradients, FLOP, empty batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stepscope.rank.workloads import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.workloads import Task
from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads import REGISTRY as SPECS


@dataclass(frozen=True)
class Case:
    """One model and the needs that its data resolved."""

    key: str
    options: dict[str, Any]
    data: InputNeeds


FEATURES = InputNeeds(kind="features", num_features=12, num_classes=5)
CASES = [
    Case("mlp", {"size": "tiny"}, FEATURES),
    Case("mlp", {"layers": [7, 9, 8]}, FEATURES),
    Case("mlp", {"layers": []}, FEATURES),
    Case("deep_mlp", {"depth": 4, "width": 12}, InputNeeds(kind="features", num_features=12, num_classes=12)),
    Case(
        "deep_mlp",
        {"depth": 3, "width": 12, "bias": True},
        InputNeeds(kind="features", num_features=12, num_classes=12),
    ),
    Case(
        "text_classifier",
        {"d_model": 16, "n_heads": 2, "num_layers": 3, "dim_feedforward": 24, "max_seq_len": 10, "vocab_size": 30},
        InputNeeds(kind="tokens", num_classes=3, seq_len=10, vocab_size=30),
    ),
    Case(
        "gpt",
        {"d_model": 16, "n_heads": 4, "num_layers": 2, "max_seq_len": 8, "vocab_size": 30},
        InputNeeds(kind="lm", seq_len=8, vocab_size=30),
    ),
]
IDS = [f"{case.key}-{i}" for i, case in enumerate(CASES)]
MODES = ["fp32", "float64", "bf16", "autocast"]


def built(case: Case, loss: str) -> tuple[Task, ModelFacts]:
    spec = SPECS.load(case.key)
    options = spec.options.model_validate(case.options)
    torch.manual_seed(7)
    return IMPLEMENTATIONS.load(case.key)(options, case.data, loss), spec.facts(options, case.data, "float32")


def batch(case: Case, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    data = case.data
    if data.kind == "features":
        x = torch.randn(n, data.num_features or 0, generator=generator)
        return x, torch.randint(0, data.num_classes or 0, (n,), generator=generator)
    x = torch.randint(1, data.vocab_size or 0, (n, data.seq_len or 0), generator=generator, dtype=torch.int32)
    if data.kind == "lm":
        return x, x.roll(-1, 1)
    if n:
        x[0, 4:] = 0
    return x, torch.randint(0, data.num_classes or 0, (n,), generator=generator)


def backward(task: Task, case: Case, mode: str, n: int) -> list[str]:
    """Runs one backward pass and returns the parameters' names as their gradients became ready."""
    if mode == "float64":
        task.module.double()
    elif mode == "bf16":
        task.module.bfloat16()
    names = {id(p): name for name, p in task.module.named_parameters()}
    order: list[str] = []
    for p in task.module.parameters():
        p.register_post_accumulate_grad_hook(lambda p: order.append(names[id(p)]))
    x, y = batch(case, n)
    with torch.autocast("cpu", dtype=torch.bfloat16) if mode == "autocast" else nullcontext():
        output = task.module(x)
        loss = task.loss_sum(output, y)
        task.correct(output, y)
    loss.backward()
    return order


def with_losses() -> Iterator[Any]:
    for name, case in zip(IDS, CASES, strict=True):
        for loss in SPECS.load(case.key).losses:
            yield pytest.param(case, loss, id=f"{name}-{loss}")


EVERY_LOSS = list(with_losses())


def test_every_spec_has_a_case_and_an_implementation() -> None:
    assert {case.key for case in CASES} == set(SPECS.names()) == set(IMPLEMENTATIONS.names())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_parameters_are_the_modules_own_in_order(case: Case) -> None:
    task, facts = built(case, SPECS.load(case.key).losses[0])
    real = [(name, p.numel(), tuple(p.shape)) for name, p in task.module.named_parameters()]
    assert [(p.name, p.numel, p.shape) for p in facts.parameters] == real
    assert facts.num_parameters == sum(numel for _, numel, _ in real)


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "loss"), EVERY_LOSS)
def test_gradients_become_ready_in_the_specified_order(case: Case, loss: str, mode: str, n: int) -> None:
    task, facts = built(case, loss)
    planned = facts.ready_order_autocast if mode == "autocast" else facts.ready_order
    assert planned is not None
    assert backward(task, case, mode, n) == [facts.parameters[i].name for i in planned]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "loss"), EVERY_LOSS)
def test_an_empty_batch_gives_every_parameter_a_gradient_of_zeros(case: Case, loss: str, mode: str) -> None:
    task, _ = built(case, loss)
    backward(task, case, mode, 0)
    for name, p in task.module.named_parameters():
        assert p.grad is not None, name
        assert torch.count_nonzero(p.grad) == 0, name
        assert p.grad.isfinite().all(), name


@pytest.mark.parametrize(("case", "loss"), EVERY_LOSS)
def test_losses_of_parts_add_up_to_the_loss_of_the_whole(case: Case, loss: str) -> None:
    task, _ = built(case, loss)
    task.module.double()
    x, y = batch(case, 5)
    whole, right = task.loss_sum(task.module(x), y), task.correct(task.module(x), y)
    parts = [(x[a:b], y[a:b]) for a, b in ((0, 2), (2, 2), (2, 5))]
    assert sum(task.loss_sum(task.module(p), q) for p, q in parts).item() == pytest.approx(whole.item(), rel=1e-12)
    assert sum(task.correct(task.module(p), q) for p, q in parts).item() == pytest.approx(right.item(), rel=1e-6)
    assert 0 <= right <= 5


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_same_seed_gives_the_same_weights(case: Case) -> None:
    loss = SPECS.load(case.key).losses[0]
    for a, b in zip(built(case, loss)[0].module.parameters(), built(case, loss)[0].module.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_forward_flop_agree_with_torchs_counter(case: Case) -> None:
    """torch counts 4 S^2 H per layer of attention, causal or not; for gpt we count half of that, as said in the docs.

    The plain attention kernel is forced: the counter has no formula for the one that runs on CPU by default.
    """
    task, facts = built(case, SPECS.load(case.key).losses[0])
    x, _ = batch(case, 4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        task.module(x)
    masked_half = 0
    if case.key == "gpt":
        s, o = case.options["max_seq_len"], case.options
        masked_half = 2 * s * s * o["d_model"] * o["num_layers"]
    assert counter.get_total_flops() == 4 * (facts.forward_flops_per_sample + masked_half)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_training_is_counted_as_three_forwards(case: Case) -> None:
    """torch's own count of forward and backward differs by what backward can leave out and by masked attention."""
    task, facts = built(case, SPECS.load(case.key).losses[0])
    x, y = batch(case, 4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.loss_sum(task.module(x), y).backward()
    left_out = 0  # the gradient of the inputs: data needs none
    if case.data.kind == "features":
        first = facts.parameters[0]
        left_out = 2 * first.numel
    masked_half = 0
    if case.key == "gpt":
        s, o = case.options["max_seq_len"], case.options
        masked_half = 2 * s * s * o["d_model"] * o["num_layers"]
    assert counter.get_total_flops() == 4 * (facts.train_flops_per_sample - left_out + 3 * masked_half)


def test_a_text_of_nothing_but_padding_gives_numbers_and_leaves_the_others_alone() -> None:
    case = next(c for c in CASES if c.key == "text_classifier")
    task, _ = built(case, "ce")
    task.module.double()
    x, y = batch(case, 3)
    alone = task.module(x)
    x_more, y_more = torch.cat([x, torch.zeros_like(x[:1])]), torch.cat([y, y[:1]])
    output = task.module(x_more)
    assert torch.allclose(output[:3], alone, rtol=1e-12)
    task.loss_sum(output, y_more).backward()
    assert output.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.module.parameters())


def test_padding_does_not_change_what_a_text_says() -> None:
    case = next(c for c in CASES if c.key == "text_classifier")
    task, _ = built(case, "ce")
    task.module.double()
    x, _ = batch(case, 3)
    assert torch.allclose(task.module(x[:1, :4]), task.module(x[:1]), rtol=1e-12)


def test_a_gpt_does_not_see_the_future() -> None:
    case = next(c for c in CASES if c.key == "gpt")
    task, _ = built(case, "ce")
    task.module.double()
    x, _ = batch(case, 2)
    changed = x.clone()
    changed[:, 5:] = 1
    assert torch.allclose(task.module(x)[:, :5], task.module(changed)[:, :5], rtol=1e-12)
    assert not torch.allclose(task.module(x)[:, 5:], task.module(changed)[:, 5:])


def test_the_loss_of_a_sequence_is_its_mean_over_positions() -> None:
    case = next(c for c in CASES if c.key == "gpt")
    task, _ = built(case, "ce")
    x, y = batch(case, 3)
    output = task.module(x)
    expected = torch.stack([torch.nn.functional.cross_entropy(output[i], y[i].long()) for i in range(3)]).sum()
    assert task.loss_sum(output, y).item() == pytest.approx(expected.item(), rel=1e-6)
    best = torch.nn.functional.one_hot(y.long(), 30).float()
    assert task.correct(best, y).item() == 3


def test_squared_error_takes_vectors_and_classes_alike() -> None:
    task, _ = built(CASES[0], "mse")
    output = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    classes, vectors = torch.tensor([1, 0]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert task.loss_sum(output, classes).item() == task.loss_sum(output, vectors).item() == 1.0
    assert task.correct(output, vectors).item() == task.correct(output, classes).item() == 2.0


@pytest.mark.parametrize("key", ["mlp", "gpt"])
def test_an_unknown_loss_is_refused(key: str) -> None:
    case = next(c for c in CASES if c.key == key)
    with pytest.raises(ValueError, match="unknown loss 'l1'"):
        built(case, "l1")
