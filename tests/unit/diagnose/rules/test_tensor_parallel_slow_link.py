"""Tensor-parallel groups across hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.borders import ACROSS
from tests.sharded_jobs import on_hosts, tensor, traces_of
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.rules.tensor_parallel_slow_link import RULE
from stepscope.results.evidence import Evidence

"""Ranks 0 and 1 form a group, 2 and 3 another: none is on one host. Ranks 0 and 2, 1 and 3 share gradients inside one."""


def job(folder: Path, *hosts: str, device: str | None = None, **options: Any) -> Evidence:
    return on_hosts(traces_of(tensor(**options), folder), *(hosts or ACROSS), device=device)


def test_groups_across_hosts_are_named_with_the_mesh_that_places_them(tmp_path: Path) -> None:
    finding = found(RULE, job(tmp_path, transfer_ns=600_000))
    assert "tensor parallelism crosses hosts" in finding.title
    assert finding.evidence[0] == "2 groups of 2 ranks across hosts"
    assert "collectives inside a host: " in finding.evidence[1]
    assert finding.ranks == (0, 1)
    assert finding.stake_fraction == pytest.approx(0.76, abs=0.05)
    assert "make tp the last dimension of the mesh" in finding.advice[0].text


def test_groups_inside_a_host_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, job(tmp_path, "a", "a", "b", "b", transfer_ns=600_000))
    assert said == "tensor-parallel groups of 2 ranks stay within a host"


def test_little_communication_is_quiet(tmp_path: Path) -> None:
    assert quiet(RULE, job(tmp_path, transfer_ns=5_000, gradient_ns=1_000, forward_ns=400_000, backward_ns=800_000))


def test_a_host_of_one_rank_cannot_hold_a_group(tmp_path: Path) -> None:
    """Placing tp inside a host would be wrong advice; nor is there anything inside a host to compare with."""
    finding = found(RULE, job(tmp_path, "a", "b", "c", "d", transfer_ns=600_000))
    assert finding.advice[0].text.startswith("no group fits on a host of one rank")
    assert "nothing to compare the links with" in finding.confidence


def test_a_group_larger_than_a_host_shrinks_to_it(tmp_path: Path) -> None:
    finding = found(RULE, job(tmp_path, "a", "a", "b", "b", pairs=((0, 1, 2, 3),), transfer_ns=600_000))
    assert "make the group 2 ranks, which fit on a host" in finding.advice[0].text


@pytest.mark.parametrize(("transfer_ns", "fires"), [(600_000, True), (5_000, False)])
def test_without_a_reference_the_devices_own_links_decide(tmp_path: Path, transfer_ns: int, fires: bool) -> None:
    """1 MiB in 5 us are 210 GB/s, of an H100's 450."""
    options = {"transfer_ns": transfer_ns, "device": "NVIDIA H100 80GB HBM3", "forward_ns": 5_000, "backward_ns": 5_000}
    evidence = job(tmp_path, "a", "b", "c", "d", **options)
    if fires:
        assert "the links of H100" in found(RULE, evidence).evidence[1]
    else:
        assert "the links of H100" in quiet(RULE, evidence)


def test_without_tensor_parallelism_or_hosts_it_is_skipped(tmp_path: Path) -> None:
    assert "no tensor-parallel group" in skipped(RULE, generated(tmp_path / "ddp", world=2))
    assert "name their hosts" in skipped(RULE, traces_of(tensor(), tmp_path / "tp"))
