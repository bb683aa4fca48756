from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """tests/fake_runs.py: hand-built specs, samples, rows and run folders."""
    path = Path(__file__).parents[1] / "fake_runs.py"
    spec = importlib.util.spec_from_file_location("fake_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
