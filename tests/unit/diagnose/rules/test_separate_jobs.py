from __future__ import annotations

from tests.comm_rows import MIB, collective
from tests.evidence import evidence

from stepscope.diagnose.rules.separate_jobs import RULE
from stepscope.records.comm import CommRow
from stepscope.records.finding import Skipped


def row(us: float, *hosts: str, **fields: object) -> CommRow:
    return collective(MIB, us, world_size=2, job_hosts=hosts, **({"hosts": 1} | fields))


def test_jobs_in_one_table_are_said_with_their_number_and_hosts() -> None:
    (found,) = RULE.check(evidence(comm=(row(100, "a", "b", "c"), row(110, "a", "b", "c"))))
    assert found.title == (
        "all_reduce: 3 independent jobs of 2 ranks each, on a, b, c, and not one job of 6: nothing crossed the network"
    )
    assert found.severity == "problem"
    assert "MPI=1" in (found.advice[0].command or "")


def test_hosts_that_no_list_names_are_not_invented() -> None:
    (found,) = RULE.check(evidence(comm=(row(100, "unknown", "unknown", hosts=None),)))
    assert "unknown" not in found.title
    assert found.evidence[0].startswith("2 heads")


def test_one_job_is_silent_and_no_list_is_no_answer() -> None:
    assert not isinstance(RULE.check(evidence(comm=(row(100),))), (Skipped, list))
    assert isinstance(RULE.check(evidence(comm=(row(100, hosts=None),))), Skipped)
