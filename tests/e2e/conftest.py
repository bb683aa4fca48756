"""A command line to test with: one a test, or one shared by a file where a run costs many seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.profiled import Profiled
from tests.e2e.runs import Cli, Here


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    line = Cli(tmp_path)
    yield line
    line.close()


@pytest.fixture
def fresh_cli(tmp_path: Path) -> Iterator[Cli]:
    """Every process starts and imports torch as a user's does: for a test of each way in which ranks are started."""
    line = Cli(tmp_path, fresh=True)
    yield line
    line.close()


@pytest.fixture
def profile(cli: Cli, tmp_path: Path) -> Profiled:
    """``stepscope profile`` with its folder."""
    return Profiled(cli, tmp_path / "p")


@pytest.fixture(scope="module")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    line = Cli(tmp_path_factory.mktemp("shared"))
    yield line
    line.close()


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """For commands that start no ranks."""
    return Here(tmp_path)
