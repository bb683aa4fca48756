"""A user's own model: what its function may return, what is measured of it, what is said of one that does not work."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepscope.core.errors import UsageError
from stepscope.rank.loading import MadeBatches
from stepscope.rank.own_model import measure
from stepscope.rank.precision import mapped, samples_in
from stepscope.rank.sampling import Sampling
from stepscope.rank.workloads import REGISTRY, default_loss
from stepscope.records.plan import OWN_INPUT, InputNeeds, MeasuredModel, ModelQuestion
from stepscope.workloads import Arguments

Measure = Callable[..., MeasuredModel]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write ``mine.py`` (or another module) of the current folder; forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(body: str, name: str = "mine") -> None:
        head = "import torch\nfrom torch import nn\n"
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(body))
        for module in set(sys.modules) - before:
            if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[module]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


def ask(key: str = "python:mine:build", **changes: Any) -> MeasuredModel:
    question: dict[str, Any] = {"model": {}, "dataset_options": {}, "precision": "fp32", "optimizer": "own"}
    return measure(key, ModelQuestion(**question | changes), torch.device("cpu"))


LINEAR = """
def build(width=4):
    return {"module": nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)), "batch": batch}

def batch(size, generator):
    return torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)
"""


def test_parameters_order_of_gradients_and_flop_are_measured(write: Callable[..., None]) -> None:
    write(LINEAR)
    facts = ask(model={"width": 5}).facts
    assert [(p.name, p.numel, p.dtype, p.shape) for p in facts.parameters] == [
        ("0.weight", 30, "float32", (5, 6)), ("0.bias", 5, "float32", (5,)),
        ("2.weight", 15, "float32", (3, 5)), ("2.bias", 3, "float32", (3,)),
    ]  # fmt: skip
    assert facts.ready_order == (3, 2, 1, 0)  # bias before weight, last layer first
    assert facts.forward_flops_per_sample == 2 * (6 * 5 + 5 * 3)


def test_the_dtype_is_that_of_the_precision(write: Callable[..., None]) -> None:
    write(LINEAR)
    facts = ask(precision="bf16").facts
    assert {p.dtype for p in facts.parameters} == {"bfloat16"}


def test_causal_attention_counts_half_on_the_cpu_too(write: Callable[..., None]) -> None:
    write("""
    class Attend(nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.causal, self.out = causal, nn.Linear(8, 5)
        def forward(self, ids):
            x = self.out.weight[ids].view(ids.shape[0], 2, -1, 4)
            y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=self.causal)
            return self.out(y.reshape(ids.shape[0], -1, 8))
    def build(causal):
        return Attend(causal)
    """)
    full, half = (ask(model={"causal": c}, dataset_options={"input": "16:5"}).facts for c in (False, True))
    attention = 4 * 16 * 16 * 8
    assert full.forward_flops_per_sample == attention + 2 * 8 * 5 * 16
    assert half.forward_flops_per_sample == attention // 2 + 2 * 8 * 5 * 16


def test_the_state_of_its_own_optimizer_is_measured(write: Callable[..., None]) -> None:
    write("""
    def build():
        net = nn.Linear(6, 3)
        return net, lambda n, g: (torch.randn(n, 6), torch.zeros(n, dtype=torch.long)), None, torch.optim.Adam
    """)
    mine, theirs = ask(), ask(optimizer="sgd")
    assert mine.optimizer
    assert mine.facts.optimizer_bytes == 2 * 4 * 21
    assert not theirs.optimizer
    assert theirs.facts.optimizer_bytes is None


def test_the_digest_follows_the_source_and_what_it_imports(write: Callable[..., None]) -> None:
    write("SCALE = 1\n", "helper")
    write("import helper\n" + LINEAR)
    first = ask().digest
    assert ask().digest == first
    write("SCALE = 2\n", "helper")
    second = ask().digest
    write("import helper\n" + LINEAR + "\n# changed\n")
    assert len({first, second, ask().digest}) == 3


def test_batches_of_mappings_and_outputs_of_hugging_face(write: Callable[..., None]) -> None:
    write("""
    from types import SimpleNamespace
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 7)
        def forward(self, input_ids, labels):
            logits = self.table(input_ids)
            return SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)
    def build():
        def batch(size, generator):
            ids = torch.randint(7, (size, 5), generator=generator)
            return {"input_ids": ids, "labels": ids}, ids
        return {"module": Net(), "batch": batch}
    """)
    assert ask().facts is not None


@pytest.mark.parametrize("scores", [(4, 7), (4, 5, 7), (4, 7, 2, 3)])
def test_the_default_loss_is_cross_entropy_over_classes(scores: tuple[int, ...]) -> None:
    target = torch.zeros(scores[:-1] if len(scores) < 4 else (4, 2, 3), dtype=torch.long)
    assert default_loss(torch.zeros(scores), target).item() == pytest.approx(torch.tensor(7.0).log().item())


BROKEN = {
    "raises": (
        "def build():\n    return nn.Linear(wide, 3)\n",
        ["cannot be built", "NameError: name 'wide'", "mine.py:4, in build: return nn.Linear(wide, 3)"],
    ),
    "syntax": ("def build(:\n", ["cannot be built", "SyntaxError", "mine.py:3"]),
    "exits": ("raise SystemExit('no GPU here')\n", ["cannot be built", "SystemExit: no GPU here", "mine.py:3"]),
    "imports": ("import not_there\n", ["cannot be built", "No module named 'not_there'", "mine.py:3"]),
    "no function": ("def biuld():\n    pass\n", ["mine has no function 'build'", "did you mean 'biuld'"]),
    "no module": ("def build():\n    return 3\n", ["returned int, not a torch module"]),
    "unknown part": ("def build():\n    return {'module': nn.Linear(6, 3), 'batches': 3}\n", ["returned 'batches'"]),
    "no batch": ("def build():\n    return nn.Linear(6, 3)\n", ["the input of the model is unknown", "--input 3x224x224"]),
    "fixed batch": (
        "def build():\n    return nn.Linear(6, 3), lambda n, g: (torch.randn(9, 6), torch.zeros(9).long())\n",
        ["batch(2, generator) returned inputs of 9 samples"],
    ),
    "misfit": (
        "def build():\n    return nn.Linear(6, 3), lambda n, g: (torch.randn(n, 5), torch.zeros(n).long())\n",
        ["cannot be trained on its batches", "shapes cannot be multiplied"],
    ),
    "batch raises": (
        "def build():\n    return nn.Linear(6, 3), batch\ndef batch(size, generator):\n    return 1 / 0\n",
        ["no batch for python:mine:build", "ZeroDivisionError", "mine.py:6, in batch: return 1 / 0"],
    ),
    "idle": (
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(6, 3)\n"
        "        self.rest = nn.Linear(2, 2)\n"
        "def build():\n    return Net(), lambda n, g: (torch.randn(n, 6), torch.zeros(n).long())\n",
        ["2 parameters got no gradient: rest.weight, rest.bias"],
    ),
    "frozen": (
        "def build():\n    return nn.Linear(6, 3).requires_grad_(False), lambda n, g: (torch.randn(n, 6), torch.zeros(n))\n",
        ["has no parameters to train"],
    ),
    "vector loss": (
        "def build():\n    return nn.Linear(6, 3), lambda n, g: (torch.randn(n, 6), torch.zeros(n)), lambda o, t: o\n",
        ["loss(outputs, targets) returned a tensor of shape [2, 3]"],
    ),
    "optimizer": (
        "def build():\n    return nn.Linear(6, 3), lambda n, g: (torch.randn(n, 6), torch.zeros(n).long()), None, list\n",
        ["optimizer(parameters) returned a list"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_model_that_does_not_work_is_told_before_any_rank_starts(fault: str, write: Callable[..., None]) -> None:
    body, said = BROKEN[fault]
    write(body)
    with pytest.raises(UsageError) as caught:
        ask()
    for part in said:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.usefixtures("write")
def test_a_module_that_is_not_there_names_the_folder_searched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"the current folder, {tmp_path}"):
        ask("python:package.gone:build")


def test_a_mean_loss_becomes_the_sum_over_samples(write: Callable[..., None]) -> None:
    write(LINEAR)
    task = REGISTRY.load("python:mine:build")(Arguments(), InputNeeds(kind=OWN_INPUT), "own")
    scores, target = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    assert task.loss_sum(scores, target).item() == pytest.approx(nn.functional.cross_entropy(scores, target).item() * 8)


def _batches(rank: int, distinct: int, count: int) -> list[torch.Tensor]:
    sampling = Sampling(num_samples=8, world_size=2, micro_batch=2, accumulation=2, seed=3)
    make = lambda n, g: (torch.randn(n, generator=g), torch.zeros(n))  # noqa: E731
    made = MadeBatches(make, sampling, rank=rank, device=torch.device("cpu"), distinct=distinct)
    found: list[torch.Tensor] = []
    for window, batches in made.endless():
        assert window.full
        assert window.global_samples == 8
        assert window.micro_steps == 2
        found += [x for x, _ in batches]
        if len(found) >= count:
            break
    return found


def test_each_rank_draws_its_own_batches_and_the_same_ones_again() -> None:
    kept = _batches(0, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(kept[:3], kept[3:], strict=True))
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], _batches(0, 3, 2)[0])
    assert not torch.equal(kept[0], _batches(1, 3, 2)[0])
    fresh = _batches(0, 0, 6)
    assert len({float(x[0]) for x in fresh}) == 6


def test_nests_of_tensors() -> None:
    nest = {"a": torch.zeros(3), "b": (torch.ones(3), 5)}
    changed = mapped(lambda t: t + 1, nest)
    assert changed["b"][1] == 5
    assert float(changed["b"][0][0]) == 2
    assert samples_in(nest) == 3
    with pytest.raises(UsageError, match="first dimension"):
        samples_in({"n": 3})
