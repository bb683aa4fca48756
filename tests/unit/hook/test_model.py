"""Which modules are the model: roots of the diary's forward passes, and what counts as a step without an optimizer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


class Module:
    """As much of torch's as the hook touches."""

    def __init__(self, *children: Module, parameters: int = 0) -> None:
        self._modules = {str(at): each for at, each in enumerate(children)}
        self.own = [object() for _ in range(parameters)]
        self.training = True
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls

    def parameters(self) -> Iterator[object]:
        yield from self.own
        for child in self._modules.values():
            yield from child.parameters()


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.depth = 0
        self.ever_forward = self.ever_backward = False
        self.told: list[tuple[bool | None, bool]] = []

    def in_training_thread(self) -> bool:
        return True

    def forward_begins(self, module: Module | None, grad: bool) -> None:
        self.told.append((None if module is None else module.training, grad))

    def forward_ends(self) -> None:
        return None

    def raises(self, error: BaseException, phase: str) -> None:  # noqa: ARG002
        self.told.append((False, False))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, hook: Any) -> SimpleNamespace:  # noqa: ARG001 - a module that tests import
    found = SimpleNamespace(grad=True)
    found.is_grad_enabled = lambda: found.grad
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def _roots(model: list[Module], trained: list[Module]) -> tuple[Any, Diary]:
    diary = Diary()
    roots = importlib.import_module("stepscope_hook.modules").Roots(diary)
    optimizer = SimpleNamespace(param_groups=[{"params": [each for module in trained for each in module.parameters()]}])
    roots.find(model, optimizer)
    return roots, diary


def _kind(name: str) -> type[Module]:
    """A class of its own: the hook changes classes."""
    return type(name, (Module,), {})


def test_roots_are_the_outermost_modules_that_train_and_their_only_children(torch: SimpleNamespace) -> None:  # noqa: ARG001
    inner, wrapper, teacher = _kind("Inner"), _kind("Wrapper"), _kind("Inner")
    layers = [Module(parameters=2), Module(parameters=1)]
    model = inner(*layers)
    whole, frozen, loss = wrapper(model), teacher(parameters=3), _kind("Loss")()
    roots, diary = _roots([*layers, model, whole, frozen, loss], [model])
    assert set(roots.models) == {id(whole), id(model)}
    assert whole() == 1
    assert frozen() == 1
    assert loss() == 1
    assert diary.told == [(True, True)]


def test_an_instance_of_the_same_class_is_not_the_model(torch: SimpleNamespace) -> None:
    kind = _kind("Net")
    model, average = kind(parameters=1), kind(parameters=1)
    roots, diary = _roots([model, average, _kind("Loss")()], [model])
    assert set(roots.others) == {id(average)}
    average()
    assert diary.told == [], "with gradients it is a part of the pass that it is in"
    torch.grad = False
    average()
    model()
    assert diary.told == [(None, False), (True, False)]


def test_nothing_below_what_is_compiled_is_looked_at(torch: SimpleNamespace) -> None:  # noqa: ARG001
    model = _kind("Net")(parameters=1)
    compiled = _kind("OptimizedModule")(model)
    roots, _ = _roots([model, compiled], [model])
    assert set(roots.models) == {id(compiled)}
    in_place = _kind("Net")(parameters=1)
    in_place._compiled_call_impl = print  # type: ignore[attr-defined]
    assert not _roots([in_place], [in_place])[0].models


def test_children_stand_for_a_root_that_nobody_calls(torch: SimpleNamespace) -> None:  # noqa: ARG001
    encoder, decoder, metric = _kind("Encoder")(parameters=1), _kind("Decoder")(parameters=1), _kind("Metric")()
    model = _kind("LightningModule")(encoder, decoder, metric)
    roots, diary = _roots([model, encoder, decoder, metric], [model])
    roots.look_deeper()
    assert set(roots.models) == {id(model)}, "no pass was seen at all"
    diary.ever_backward = True
    roots.look_deeper()
    assert set(roots.models) == {id(model), id(encoder), id(decoder)}
    assert roots.deepened


def test_an_exception_of_a_pass_leaves_the_model_ready(torch: SimpleNamespace) -> None:  # noqa: ARG001
    class Fails(Module):
        def __call__(self) -> int:
            raise ValueError("shapes")

    model = Fails(parameters=1)
    _, diary = _roots([model], [model])
    with pytest.raises(ValueError, match="shapes"):
        model()
    assert diary.depth == 0
    assert diary.told == [(True, True), (False, False)]


def test_steps_without_an_optimizer_are_passes_of_models_that_train(torch: SimpleNamespace) -> None:
    """Two steps, each with a loss that has no parameters, and an evaluation after them."""
    counted: list[object] = []
    plans = SimpleNamespace(window=None, number=1)
    steps = SimpleNamespace(optimizer=-1, plans=plans, boundary=counted.append)
    forwards = importlib.import_module("stepscope_hook.modules").Forwards(steps)
    layer = Module(parameters=1)
    model, loss = Module(layer), Module()

    def call(*modules: Module) -> None:
        for each in modules:
            forwards.before(each, ())
        for each in reversed(modules):
            forwards.after(each, (), None)

    for _ in range(2):
        call(model, layer)
        call(loss)
    assert len(counted) == 2
    model.training = False
    call(model, layer)
    model.training, torch.grad = True, False
    call(model, layer)
    assert len(counted) == 2
    torch.grad = True
    call(model, layer)
    assert len(counted) == 3


def test_passes_in_eval_mode_are_the_steps_of_a_job_that_trains_nothing(torch: SimpleNamespace) -> None:
    torch.grad = False
    counted: list[object] = []
    steps = SimpleNamespace(optimizer=-1, plans=SimpleNamespace(window=None, number=1), boundary=counted.append)
    forwards = importlib.import_module("stepscope_hook.modules").Forwards(steps)
    model = Module(parameters=1)
    model.training = False
    for _ in range(3):
        forwards.before(model, ())
        forwards.after(model, (), None)
    assert len(counted) == 3
