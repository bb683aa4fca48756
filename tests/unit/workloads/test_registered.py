"""A workload of another package, as docs/howto/my-own-model.md writes one: every strategy plans it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepscope.records.plan import InputNeeds, Setting
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "my-own-model.md"
NEEDS = InputNeeds(kind="features", num_features=16, num_classes=4)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["stack.py", "stack_rank.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    info = tmp_path / "stack-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stack\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[stepscope.workloads]\nstack = stack:WORKLOAD\n[stepscope.rank.workloads]\nstack = stack_rank:build\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("strategy", "mesh", "options"),
    [("tensor_parallel", {"tp": 2}, {}), ("pipeline", {"pp": 2}, {"micro_batches": 4}), ("ddp", {}, {})],
)
def test_every_strategy_takes_it(strategy: str, mesh: dict[str, int], options: dict[str, Any]) -> None:
    assert "stack" in REGISTRY.names()
    spec, family = STRATEGIES.load(strategy), REGISTRY.load("stack")
    model = family.options(width=8)
    facts = family.facts(model, NEEDS, "float32")
    where = Setting(
        device="cpu", backend="gloo", world_size=2, mesh=mesh, precision="fp32", optimizer="sgd", micro_batch=8
    )
    assert spec.requires(facts, where, spec.options(**options)) is None
    assert spec.comm_plan(facts, where, spec.options(**options))
    assert family.label(model) == "stack 8"


@pytest.mark.usefixtures("package")
def test_the_module_is_what_the_spec_says() -> None:
    from stepscope.rank.workloads import REGISTRY as MODULES

    family = REGISTRY.load("stack")
    task = MODULES.load("stack")(family.options(width=8), NEEDS, "ce")
    facts = family.facts(family.options(width=8), NEEDS, "float32")
    found = [(name, tuple(p.shape)) for name, p in task.module.named_parameters()]
    assert found == [(p.name, p.shape) for p in facts.parameters]
    assert len(task.module.pieces()) == len(facts.pieces)  # type: ignore[operator]
