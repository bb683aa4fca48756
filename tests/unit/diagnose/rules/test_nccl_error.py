"""What NCCL names as an error: the cause, whose it is, and that healthy or harmless lines are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence

HEAD = "node-7:31:45 [2] "


def first(tmp_path: Path, *lines: str, name: str = "job.log") -> Finding | None:
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    findings = diagnose(load_evidence([path])).findings
    return findings[0] if findings else None


@pytest.mark.parametrize(
    ("line", "words", "ranks"),
    [
        ("socket.h:9 NCCL WARN Net : Connect to 10.1.2.3<4> failed : No route to host", ("10.1.2.3", "firewall"), ()),
        ("misc/socket.cc:9 NCCL WARN socketStartConnect: Connect to 10.1.2.3<4> failed : Connection refused",
         ("10.1.2.3 refuses", "its log has the cause"), ()),
        ("socket.h:1 NCCL WARN Net : No interface found in the same subnet as remote address 10.1.2.3<4>",
         ("no network interface", "--network=host"), ()),
        ("shm.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes, error: No space left on device (28)",
         ("/dev/shm of node-7 is full", "--shm-size"), ()),
        ("net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with status=12 opcode=0 len=0 vendor err 129",
         ("no answer from the network card of 10.1.2.3", "NCCL_IB_GID_INDEX"), ()),
        ("net_ib.cc:1 NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 244",
         ("flushed (status 5)", "ibstat"), ()),
        ("init.cc:1 NCCL WARN Duplicate GPU detected : rank 5 and rank 4 both on CUDA device 3b000",
         ("ranks 4 and 5 use the same GPU", "set_device"), (4, 5)),
        ("misc/socket.cc:8 NCCL WARN socketStartConnect: Connect to 10.1.2.3<4> failed : Software caused connection abort",
         ("cannot connect to 10.1.2.3", "NCCL_SOCKET_IFNAME"), ()),
        ("misc/socket.cc:5 NCCL WARN Net : Call to recv from 10.1.2.3<4> failed : Broken pipe", ("10.1.2.3",
         "ended first"), ()),
        ("misc/socket.cc:4 NCCL WARN socketFinalizeAccept: wrong type 4 != 3", ("wrong type", "NCCL_SOCKET_IFNAME"), ()),
        ("misc/shmutils.cc:7 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes",
         ("/dev/shm of node-7 is full", "--shm-size"), ()),
        ("misc/shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9)",
         ("cannot create NCCL's shared memory", "--shm-size"), ()),
        ("misc/shmutils.cc:9 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a (size 9), error: No "
         "such file or directory (2)", ("is not shared, or was removed", "--ipc=host"), ()),
        ("ib_plugin.c:1 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with error 4, opcode 0, len 0, vendor "
         "err 81",
         ("status 4", "NCCL_NET_GDR_LEVEL=LOC"), ()),
        ("net_ib.cc:1 NCCL WARN NET/IB : mlx5_2:1 async fatal event on QP (0x7f): local access violation work queue error",
         ("mlx5_2 of node-7", "access violation"), ()),
        ("misc/ibvwrap.cc:2 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
         ("locked memory",), ()),
        ("init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 21805 rank 8 version 22005",
         ("ranks 0 and 8", "22005"), (0, 8)),
        ("net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.1.2.3<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode="
         "IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send", ("10.1.2.3", "ibstat"), ()),
        ("a.cc:1 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address", ("node-7", "nvidia-peermem"), ()),
        ("a.cc:1 NCCL WARN Bootstrap Root : mismatch in rank count from procs 4 : 6", ("4 and 6", "WORLD_SIZE"), ()),
        ("a.cc:1 NCCL WARN Bootstrap Root : rank 5 of 6 ranks has already checked in", ("rank 5 of 6", "--node-rank"), ()),
        ("a.cc:1 NCCL WARN NET/IB : req 0/1 tag 7 peer 10.1.2.3<4> collective mismatch error, local size 64 remote size 128",
         ("64 and 128 bytes", "10.1.2.3", "same order"), ()),
        ("a.cc:1 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch", ("driver of node-7", "restart"), ()),
        ("a.cc:1 NCCL WARN Failed to CUDA calloc async 24 bytes", ("24 bytes of GPU memory", "nvidia-smi"), ()),
        ("a.cc:1 NCCL WARN The agent of the fabric did not come", ("did not come", "NCCL_DEBUG=INFO"), ()),
        ("transport/nvls.cc:2 NCCL WARN Cuda failure 1 'invalid argument'", ("NVLS", "Fabric Manager"), ()),
        ("init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 21803 rank 3 22105", ("21803", "one image"), (0, 3)),
    ],
)  # fmt: skip
def test_the_cause_is_named_with_what_to_set(
    tmp_path: Path, line: str, words: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    finding = first(tmp_path, f"{HEAD}NCCL INFO Using network Socket", HEAD + line, f"{HEAD}NCCL INFO proxy.cc:9 -> 2")
    assert finding is not None
    assert (finding.rule, finding.severity, finding.ranks) == ("nccl-error", "problem", ranks)
    text = " ".join([finding.title, *(f"{a.text} {a.command or ''}" for a in finding.advice)])
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        ((), (), "warning"),
        ((), ("NCCL INFO a/b.cc:12 -> 3",), "problem"),
        (
            ("misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.2.3<4> failed : No route to host",),
            (),
            None,
        ),
        (("a.cc:1 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",), (), None),
    ],
)
def test_words_that_no_form_knows_are_shown_where_no_other_names_the_error(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...], severity: str | None
) -> None:
    lines = [*before, "c.cc:7 NCCL WARN The agent of the fabric did not come", *after]
    path = tmp_path / "job.log"
    path.write_text("\n".join(HEAD + line for line in lines) + "\n")
    of = [f for f in diagnose(load_evidence([path])).findings if "agent of the fabric" in f.title]
    assert [f.severity for f in of] == ([severity] if severity else [])


@pytest.mark.parametrize("text", ['Missing "iommu=pt" from kernel command line', "Failed to open libibverbs.so[.1]"])
def test_warnings_after_which_nccl_goes_on_are_no_error(tmp_path: Path, text: str) -> None:
    finding = first(tmp_path, f"{HEAD}init.cc:1 NCCL WARN {text}")
    assert finding is None or text.split()[0] not in finding.title


def test_what_is_set_already_is_not_advised(tmp_path: Path) -> None:
    lines = ("NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC", "net_ib.cc:1 NCCL WARN NET/IB : Got completion from "
             "peer 10.1.2.3<4> with error 4, opcode 0, len 0, vendor err 81")  # fmt: skip
    finding = first(tmp_path, *(HEAD + line for line in lines))
    assert finding is not None
    assert "set already: NCCL_NET_GDR_LEVEL=LOC" in finding.evidence
    assert not any("GDR_LEVEL" in (advice.command or "") for advice in finding.advice)


@pytest.mark.parametrize(
    ("lines", "rule", "words"),
    [
        (("NCCL INFO NCCL_IB_DISABLE set by environment to 1.", "NCCL INFO NET/Socket : Using [0]eno1:10.5.0.1<0>",
          "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"), "nccl-net-plugin", "unset NCCL_IB_DISABLE"),
        (("NCCL INFO NCCL_SHM_DISABLE set by environment to 1.", "NCCL INFO NCCL_P2P_DISABLE set by environment to 1",
          "node-7:31:45 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
          "node-7:31:45 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 "
          "nvmlDev 0 busId 3 commId 0x7 - Init COMPLETE",
          "node-7:32:46 [1] NCCL INFO ncclCommInitRank comm 0x6 rank 1 nranks 2 cudaDev 1 "
          "nvmlDev 1 busId 4 commId 0x7 - Init COMPLETE"),
         "nccl-connections", "unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE"),
        (("NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC",
         "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB e:10.1.0.1<0>",
          "NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0"), "gpu-direct", "unset NCCL_NET_GDR_LEVEL"),
    ],
)  # fmt: skip
def test_a_slow_way_that_a_setting_chose(tmp_path: Path, lines: tuple[str, ...], rule: str, words: str) -> None:
    finding = first(tmp_path, *(HEAD * line.startswith("NCCL") + line for line in lines))
    assert finding is not None
    assert finding.rule == rule
    assert words in [advice.command for advice in finding.advice]


def test_a_lost_connection_comes_after_its_cause(tmp_path: Path) -> None:
    closed = f"{HEAD}misc/socket.cc:5 NCCL WARN socketProgress: Connection closed by remote peer node-9<40217>"
    full = "node-9:31:45 [0] shm.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9: No space left on device"
    finding = first(tmp_path, closed, full)
    assert finding is not None
    assert "/dev/shm of node-9 is full" in finding.title


def test_harmless_lines_are_no_error(tmp_path: Path) -> None:
    lines = (
        "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
        'init.cpp:1 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
        "NCCL INFO NVLS multicast support is available on dev 0",
        "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Abort COMPLETE of an earlier one is not here",
    )
    finding = first(tmp_path, *(HEAD + line for line in lines[:4]))
    assert finding is None or finding.rule != "nccl-error"


@pytest.mark.parametrize(("end", "fires"), [("NET/IB/0", True), ("NET/IB/0/GDRDMA", False)])
@pytest.mark.parametrize("head", [HEAD, " [0] "])
def test_links_without_gpu_direct_are_named(tmp_path: Path, head: str, end: str, *, fires: bool) -> None:
    finding = first(
        tmp_path,
        f"{head}NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE ; OOB br0:10.5.9.4<0>",
        f"{head}NCCL INFO Channel 00 : 7[3d000] -> 0[1a000] [receive] via {end}",
        f"{head}NCCL INFO Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC",
    )
    assert (finding is not None and finding.rule == "gpu-direct") == fires
    assert not fires or (finding is not None and "1 link" in finding.title)


@pytest.mark.parametrize(("card", "module"), [("mlx5_2:1/RoCE", True), ("hfi1_0:1/IB", False)])
def test_omni_path_is_not_sent_to_a_module_of_other_cards(tmp_path: Path, card: str, *, module: bool) -> None:
    finding = first(
        tmp_path,
        f"{HEAD}NCCL INFO NET/IB : Using [0]{card} ; OOB br0:10.5.9.4<0>",
        f"{HEAD}NCCL INFO Channel 00 : 7[3d000] -> 0[1a000] [receive] via NET/IB/0",
    )
    assert finding is not None
    assert any("nvidia_peermem" in (advice.command or "") for advice in finding.advice) == module
