"""Ranges by module: in torch's profiler, in NVTX's calls, gone when removed, and a model that stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

import stepscope
from stepscope.core.errors import UsageError
from stepscope.rank.annotate import Annotated


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.b(self.act(self.a(x)))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), Block())


X = torch.ones(3, 4)


def step(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    model(X).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def ranges(model: nn.Module) -> list[str]:
    with profile() as profiler:
        step(model)
    return sorted(e.name for e in profiler.events() if e.name.startswith(("module: ", "backward: ")))


EVERY = ["module: 0", "module: 1", "module: 1.a", "module: 1.act", "module: 1.b", "module: Sequential"]


def test_every_module_is_a_range_of_the_profiler_until_removed(model: nn.Module) -> None:
    handle = stepscope.annotate(model)
    assert ranges(model) == EVERY
    handle.remove()
    handle.remove()
    assert ranges(model) == []
    with stepscope.annotate(model):
        assert ranges(model) == EVERY
    assert ranges(model) == []


def test_the_model_stays_what_it_is(model: nn.Sequential) -> None:
    names, before = list(model.state_dict()), step(model)
    with stepscope.annotate(model):
        assert list(model.state_dict()) == names
        assert model[1].scale == 2.0, "no module is wrapped: attributes are where they were"
        assert all(torch.equal(a, b) for a, b in zip(step(model), before, strict=True))


def test_trace_shows_time_by_module_with_the_backward_pass(model: nn.Module, tmp_path: Path) -> None:
    with stepscope.annotate(model), profile(record_shapes=True) as profiler:
        step(model)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    rows = {row.module: row for row in stepscope.analyse_job(tmp_path / "t.json").ranks[0].modules}
    assert rows.keys() == {name.removeprefix("module: ") for name in EVERY}
    assert all(rows[name].forward_ns > 0 and rows[name].backward_ns > 0 for name in ("0", "1.a", "1.b"))


def test_an_error_in_a_module_leaves_no_range_open(model: nn.Sequential) -> None:
    with stepscope.annotate(model) as handle:
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        assert handle._forward == []
        assert ranges(model) == EVERY


class Marks:
    """What NVTX was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.seen: list[str] = []
        monkeypatch.setattr(torch.cuda.nvtx, "range_start", self.start)
        monkeypatch.setattr(torch.cuda.nvtx, "range_end", self.end)

    def start(self, name: str) -> int:
        self.names.append(name)
        self.seen.append(f"+{name}")
        return len(self.names) - 1

    def end(self, mark: int) -> None:
        self.seen.append(f"-{self.names[mark]}")

    def between(self, name: str) -> Iterator[str]:
        return iter(self.seen[self.seen.index(f"+{name}") + 1 : self.seen.index(f"-{name}")])


def test_nvtx_has_the_backward_pass_too_in_its_order(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch)
    with Annotated(model, nvtx=True):
        step(model)
    backward = [each for each in marks.seen if "backward" in each]
    assert sorted(each[1:] for each in backward if each[0] == "+") == sorted(
        each.replace("module", "backward") for each in EVERY
    )
    assert sorted(each[1:] for each in backward if each[0] == "-") == sorted(
        each[1:] for each in backward if each[0] == "+"
    ), "each is closed once"
    inside = set(marks.between("backward: 1"))
    assert {f"{sign}backward: 1.{name}" for sign in "+-" for name in ("act", "b")} <= inside
    assert backward.index("-backward: 1.act") < backward.index("-backward: 1.a"), "though it works in place"


def test_a_compiled_model_is_refused_and_one_compiled_later_runs(model: nn.Module) -> None:
    with stepscope.annotate(model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(X), model(X))
    with pytest.raises(UsageError, match="is compiled"):
        stepscope.annotate(nn.Sequential(compiled))
    model.compile(backend="eager")
    with pytest.raises(UsageError, match="is compiled"):
        stepscope.annotate(model)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nvtx_without_a_gpu_is_refused(model: nn.Module) -> None:
    with pytest.raises(UsageError, match="needs a GPU"):
        stepscope.annotate(model, nvtx=True)
