from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence import evidence

from stepscope.core.errors import Unavailable
from stepscope.diagnose.rules.socket_crossing import RULE
from stepscope.machine.topology import parse_topology
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

TOPO = Path(__file__).parents[4].parent / "shared" / "data" / "topo"
TWO_SOCKETS = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      PIX     SYS     SYS     0-7
GPU1    PIX      X      SYS     SYS     0-7
GPU2    SYS     SYS      X      PIX     8-15
GPU3    SYS     SYS     PIX      X      8-15
"""
ONE_NIC = """\
        GPU0    GPU1    NIC0    CPU Affinity
GPU0     X      NV4     PIX     0-7
GPU1    NV4      X      SYS     8-15
NIC0    PIX     SYS      X
NIC Legend:

  NIC0: mlx5_0
"""


def on(text: str) -> Evidence:
    topology = parse_topology(text)
    assert not isinstance(topology, Unavailable)
    return evidence(topology=topology)


def fired(found: object) -> tuple[Finding, ...]:
    assert isinstance(found, tuple)
    return found


def test_pairs_across_sockets_are_named_with_the_sides_that_do_not_cross() -> None:
    (found,) = fired(RULE.check(on(TWO_SOCKETS)))
    assert found.title == "4 of 6 GPU pairs reach each other only across the socket interconnect"
    assert found.evidence[1] == "without a crossing: GPU0+GPU1; GPU2+GPU3"
    assert found.advice[0].command == "export CUDA_VISIBLE_DEVICES=0,1"


def test_a_gpu_far_from_every_network_card_is_named() -> None:
    (found,) = fired(RULE.check(on(ONE_NIC)))
    assert found.title == "1 of 2 GPUs have every network card on the other socket"
    assert found.evidence == ("GPU1: nearest cards are SYS", "cards: mlx5_0")


def test_without_a_matrix_it_says_how_to_get_one() -> None:
    outcome = RULE.check(evidence())
    assert isinstance(outcome, Skipped)
    assert outcome.command == "nvidia-smi topo -m"


@pytest.mark.shared_data
@pytest.mark.skipif(not TOPO.is_dir(), reason=f"no real matrices at {TOPO}")
@pytest.mark.parametrize(
    ("name", "across"),
    [
        ("a100x8_nv12_pairs_two_numa.txt", 16),
        ("4gpu_pxb_pix_two_sockets.txt", 4),
        ("h100x8_nv18.txt", 0),
        ("v100x4_nv2_full_mesh.txt", 0),
        ("rtx5090x2_phb_with_p2p_matrix.txt", 0),
        ("2gpu_nv2_numa_na.txt", 0),
        ("2gpu_phb_numa_na.txt", 0),
    ],
)
def test_real_machines(name: str, across: int) -> None:
    outcome = RULE.check(load_evidence([TOPO / name]))
    if across:
        assert fired(outcome)[0].title.startswith(f"{across} of ")
    else:
        assert isinstance(outcome, Quiet)
