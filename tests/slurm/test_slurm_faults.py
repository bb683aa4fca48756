"""A job that is ended in the middle comes back, and no finished cell is lost or measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.faults import FAULTS, ended_in_the_middle, matrix

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Not looked at here: a node that comes back is a new slurmd, which the cluster of all tests ends."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_that_is_ended_resumes_exactly(fault: str, slurm: Cluster, tmp_path: Path) -> None:
    slow = fault == "time limit"
    matrix(tmp_path, rates=9 if slow else 3, steps=6000 if slow else 300)
    found = ended_in_the_middle(slurm, tmp_path, FAULTS[fault], time_="2" if slow else "9", after=2)
    assert found.exact, found
    assert found.before >= 2
