"""Links of one host through host memory, and communicators that never completed, from made-up logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nccl_log import Talk

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.nccl_connections import RULE
from stepscope.machine.topology import parse_topology
from stepscope.records.finding import Finding, Quiet
from stepscope.report.contents import machine_tables
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

NVLINK = "        GPU0    GPU1\nGPU0     X      NV12\nGPU1    NV12     X\n"
ACROSS = NVLINK.replace("NV12", "SYS")


@dataclass(frozen=True, kw_only=True)
class SharedMemory(Talk):
    def link(self, channel: int, source: int, destination: int) -> list[str]:
        return [
            line.replace("P2P/CUMEM/read", "SHM/direct/direct") for line in super().link(channel, source, destination)
        ]


def logged(folder: Path, talk: Talk, *more: str, skip: tuple[int, str] | None = None) -> Evidence:
    left_out = None if skip is None else talk.init(*skip)
    lines = [line for rank in range(talk.nranks) for line in talk.rank_lines(rank) if line != left_out]
    path = folder / "nccl.log"
    path.write_text("\n".join([*more, *lines]) + "\n")
    return load_evidence([path])


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    outcome = check(RULE, evidence)
    assert isinstance(outcome, tuple), outcome
    return outcome


def test_shared_memory_within_a_host_is_named_and_shown(tmp_path: Path) -> None:
    evidence = logged(tmp_path, SharedMemory(nranks=2, per_host=2))
    (found,) = findings(evidence)
    assert found.title == "NCCL uses shared memory instead of P2P on 2 links between GPUs of one host"
    assert found.severity == "warning"
    tables = {table.key: table for table in machine_tables(evidence)}
    assert any("SHM" in str(value.raw) for row in tables["nccl_links"].rows for value in row.values)


def with_matrix(evidence: Evidence, text: str) -> Any:
    from dataclasses import replace

    return replace(evidence, topology=parse_topology(text))


def test_the_link_matrix_decides_how_bad_it_is(tmp_path: Path) -> None:
    evidence = logged(tmp_path, SharedMemory(nranks=2, per_host=2))
    (joined,) = findings(with_matrix(evidence, NVLINK))
    assert joined.severity == "problem"
    (across,) = findings(with_matrix(evidence, ACROSS))
    assert across.severity == "warning"
    assert not any("IOMMU" in advice.text for advice in across.advice), "NCCL avoids P2P across sockets by itself"
    keys = [table.key for table in machine_tables(with_matrix(evidence, NVLINK))]
    assert "topology" in keys


def test_a_variable_that_switches_p2p_off_is_named(tmp_path: Path) -> None:
    talk = SharedMemory(nranks=2, per_host=2)
    (found,) = findings(logged(tmp_path, talk, talk.say(0, "NCCL_P2P_DISABLE set by environment to 1.")))
    assert found.severity == "problem"
    assert found.advice[0].command == "unset NCCL_P2P_DISABLE"


def test_p2p_within_and_a_network_between_hosts_are_quiet(tmp_path: Path) -> None:
    outcome = check(RULE, logged(tmp_path, Talk()))
    assert isinstance(outcome, Quiet)
    assert "every rank completed" in outcome.looked_at


def test_a_rank_that_never_completed_is_a_failure(tmp_path: Path) -> None:
    (found,) = findings(logged(tmp_path, Talk(), skip=(3, "COMPLETE")))
    assert found.title == "rank 3 never completed the initialisation of a communicator"
    assert found.priority == "failure"
    assert found.confidence.startswith("likely")
