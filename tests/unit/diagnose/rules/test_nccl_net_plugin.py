from __future__ import annotations

from pathlib import Path

import pytest
from tests.comm_rows import MIB, collective
from tests.evidence import evidence
from tests.nccl_tests_log import log

from stepscope.diagnose.rules.nccl_net_plugin import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.results.open import load_evidence

DATA = Path(__file__).parents[4].parent / "shared" / "data"
real = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real logs at {DATA}"),
]

HEAD = """\
a:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
a:10:10 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
a:10:10 [0] NCCL INFO NET/IB : No device found.
a:10:10 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
a:10:10 [0] NCCL INFO Using network {network}
b:20:20 [0] NCCL INFO Using network {network}
a:10:10 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init START
b:20:20 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1000 - Init START
a:10:10 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{network}/0
b:20:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/{network}/0
a:10:10 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
b:20:20 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
"""


def from_log(folder: Path, network: str, *more: str):
    path = folder / "nccl.log"
    path.write_text("".join(f"{line}\n" for line in more) + HEAD.format(network=network))
    return load_evidence([path])


def test_sockets_between_hosts_fire_with_what_nccl_said(tmp_path: Path) -> None:
    (found,) = RULE.check(from_log(tmp_path, "Socket"))
    assert found.title == "NCCL goes over TCP sockets between 2 hosts"
    assert found.severity == "warning"
    assert found.evidence[0] == "2 links via NET/Socket"
    assert any("No plugin found" in said for said in found.evidence)
    assert any("no RDMA device is recorded" in said for said in found.evidence)


def test_switched_off_by_a_variable_is_a_problem_with_that_name(tmp_path: Path) -> None:
    line = "a:10:10 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1."
    (found,) = RULE.check(from_log(tmp_path, "Socket", line))
    assert found.severity == "problem"
    assert "set in the environment: NCCL_IB_DISABLE=1" in found.evidence
    assert found.advice[0].command == "unset NCCL_IB_DISABLE"


def test_verbs_without_any_plugin_are_quiet(tmp_path: Path) -> None:
    """The borderline: "No plugin found" alone is nothing bad."""
    outcome = RULE.check(from_log(tmp_path, "IB"))
    assert outcome == Quiet(rule="nccl-net-plugin", looked_at="2 hosts over IB")


@pytest.mark.parametrize(("us", "rate"), [(43293, "5.4"), (21253 * 2, "5.5")])
def test_a_sweep_as_slow_as_sockets_fires_as_likely(tmp_path: Path, us: float, rate: str) -> None:
    """2 x 4 GH200 without the Slingshot plugin, as the CSCS documentation prints it: 43293 us for 128 MiB."""
    path = tmp_path / "all_reduce.log"
    path.write_text(log([(8, 50.5), (1 << 20, 1502.2), (128 << 20, us)], ranks=8, hosts=2, name="NVIDIA GH200 120GB"))
    (found,) = RULE.check(load_evidence([path]))
    assert found.title.startswith(f"all_reduce on 8 ranks on 2 hosts, out of place has {rate}")
    assert found.title.endswith("GB/s across hosts: as slow as TCP sockets")
    assert found.confidence.startswith("likely")


def test_small_messages_one_host_and_gloo_are_not_judged() -> None:
    shape = {"device": "cuda", "backend": "nccl", "world_size": 4}
    rows = (
        collective(MIB, 9000, **shape, hosts=2),
        collective(64 * MIB, 900_000, **shape, hosts=1),
        collective(64 * MIB, 900_000, world_size=4, hosts=2),
    )
    outcome = RULE.check(evidence(comm=rows))
    assert isinstance(outcome, Skipped)
    assert "NCCL_DEBUG" in (outcome.command or "")


def test_the_network_to_force_follows_from_the_devices_that_are_there(tmp_path: Path) -> None:
    def forced(name: str, *more: str) -> tuple[str | None, str]:
        folder = tmp_path / name
        folder.mkdir()
        (found,) = RULE.check(from_log(folder, "Socket", *more))
        return next(a.command for a in found.advice if "so that it fails" in a.text), str(found.advice)

    command, said = forced("plain")
    assert command is None
    assert "if the hosts have EFA" in said
    command, said = forced("verbs", "a:10:10 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>")
    assert command == "export NCCL_NET=IB"
    assert "EFA" not in said
