"""One Slurm for all tests of this folder: each waits until both nodes are idle again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.slurm.cluster import Cluster, obstacle, started, wait_until


@pytest.fixture(scope="session")
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (why := obstacle()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("slurm")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)  # munged serves no socket in a folder that others cannot reach
    with started(folder) as cluster:
        yield cluster


@pytest.fixture
def slurm(_slurm: Cluster) -> Iterator[Cluster]:
    yield _slurm
    _slurm.clear()
    wait_until(_slurm.idle, "two idle nodes", 60)
