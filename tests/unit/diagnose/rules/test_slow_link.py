from __future__ import annotations

import random

from tests.bench_evidence import environment
from tests.borders import NVLINK, link
from tests.comm_rows import KIB, MIB, collective, pairs
from tests.evidence import evidence

from stepscope.diagnose.rules.slow_link import RULE
from stepscope.machine.topology import parse_topology
from stepscope.records.finding import Quiet, Skipped

SHAPED = {"world_size": 4, "hosts": 4, "network": "1gbit:4", "link_peak_bytes_per_s": 125e6}
BRIDGED = """\
        GPU0    GPU1    GPU2    CPU Affinity
GPU0     X      NV12    NODE    0-7
GPU1    NV12     X      NODE    0-7
GPU2    NODE    NODE     X      0-7
"""


def test_a_slow_host_is_named_with_its_direction() -> None:
    rows = pairs(4, slow_egress={2: 3.0}, rank_hosts=("a", "b", "c", "d"))
    (found,) = RULE.check(evidence(comm=tuple(rows)))
    assert found.title == "host c (rank 2) sends 3.0x as slowly as the others"
    assert (found.severity, found.subject) == ("problem", "c")
    assert found.advice[-1].command is None, "no scheduler is known"
    (found,) = RULE.check(evidence(comm=tuple(rows), environment=environment(scheduler="slurm")))
    assert found.advice[-1].command == "sbatch --exclude=c JOB"


def test_tools_of_nvidia_are_named_for_nccl_only() -> None:
    (nccl,) = RULE.check(evidence(comm=link(20e9, **NVLINK)))
    assert any("nvidia-smi" in str(advice.command) for advice in nccl.advice)
    (gloo,) = RULE.check(evidence(comm=link(20e6, **SHAPED)))
    assert not any(word in str(advice) for advice in gloo.advice for word in ("nvidia-smi", "NCCL"))


def test_a_slow_pair_is_named() -> None:
    rows = pairs(4, slow_links={(1, 3): 2.5, (3, 1): 2.5}, rank_hosts=("a", "b", "c", "d"))
    (found,) = RULE.check(evidence(comm=tuple(rows)))
    assert found.title == "messages between ranks 1 and 3 (between hosts) take 2.5x as long as between other pairs"


def test_noise_of_pairs_is_quiet() -> None:
    outcome = RULE.check(evidence(comm=tuple(pairs(4, noise=random.Random(3), sigma=0.03))))
    assert outcome == Quiet(rule="slow-link", looked_at="12 pairs: none 1.4x slower than similar pairs")


def test_a_sweep_far_below_the_links_peak_fires_with_the_share() -> None:
    (found,) = RULE.check(evidence(comm=link(20e9, **NVLINK)))
    assert found.title == "all_reduce on 8 ranks reaches 4.4% of the link's peak"
    assert found.severity == "problem"
    assert found.evidence[0] == "20.0 GB/s over the busiest link at 1 GiB; its peak is 450 GB/s per direction"


def test_bridged_pairs_are_told_as_the_reason() -> None:
    """NVIDIA nccl-tests issue 178: 20 GB/s on 3 GPUs of which two share a bridge."""
    topology = parse_topology(BRIDGED)
    shape = NVLINK | {"world_size": 3, "link_peak_bytes_per_s": 300e9}
    (found,) = RULE.check(evidence(comm=link(20e9, **shape), topology=topology))
    assert found.evidence[1] == "NVLink joins 1 of 3 GPU pairs; the others use PCIe"


def test_gloo_is_judged_by_what_crosses_its_busiest_link() -> None:
    """A broadcast to 4 ranks sends 3 S over the root's link: a third of the link as busbw is all of it."""
    full = 64 * MIB * 3 / 125e6 * 1e6
    shape = {**SHAPED, "op": "broadcast", "reduce_op": None}
    rows = (collective(KIB, 1000, **shape), collective(64 * MIB, full, **shape))
    assert isinstance(RULE.check(evidence(comm=rows)), Quiet)
    half = (rows[0], collective(64 * MIB, 2 * full, **shape))
    assert isinstance(RULE.check(evidence(comm=half)), tuple)


def test_start_up_that_hides_the_rate_is_not_judged() -> None:
    rows = (collective(KIB, 100, **NVLINK), collective(MIB, 300, **NVLINK))
    outcome = RULE.check(evidence(comm=rows))
    assert isinstance(outcome, Skipped)
    assert "too small" in outcome.reason


def test_without_a_peak_or_pairs_it_says_what_to_measure() -> None:
    outcome = RULE.check(evidence(comm=(collective(KIB, 10), collective(64 * MIB, 9000))))
    assert isinstance(outcome, Skipped)
    assert outcome.command == "stepscope comm --ops none --pairs"
