"""One process that has imported torch, for all scripts of these tests."""

from __future__ import annotations

import pytest
from tests.dry_runs import started


@pytest.fixture(scope="session", autouse=True)
def process_with_torch() -> None:
    pytest.importorskip("torch")
    started()
