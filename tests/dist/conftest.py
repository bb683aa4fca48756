"""Gloo ranks for the tests of this folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.dist._pool import Pools

HERE = Path(__file__).parent
PLACE = f"{HERE}{os.sep}"


def _pool_module():  # type: ignore[no-untyped-def]  # pytest's importlib mode finds no neighbour of a conftest
    name = "stepscope_test_pool"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / "_pool.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(PLACE):
            item.add_marker(pytest.mark.dist)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """``pools(n)`` is a pool of n gloo ranks, started once for the whole session."""
    pools = _pool_module().Pools()
    yield pools
    pools.close()


@pytest.fixture(scope="session")
def rank_failed() -> type[AssertionError]:
    """What ``pool.run`` raises."""
    return _pool_module().RankFailed  # type: ignore[no-any-return]
