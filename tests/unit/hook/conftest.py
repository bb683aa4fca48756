"""The hook's package, imported as the hook loads it and gone again after each test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.launch.hooked_job import HOOK

PACKAGE = "stepscope_hook"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules by name."""
    monkeypatch.syspath_prepend(str(HOOK))
    before = set(sys.modules)
    names = sorted(path.stem for path in (HOOK / PACKAGE).glob("[a-z]*.py"))
    yield SimpleNamespace(**{name: importlib.import_module(f"{PACKAGE}.{name}") for name in names})
    for name in set(sys.modules) - before:
        if name.startswith(PACKAGE):
            del sys.modules[name]
