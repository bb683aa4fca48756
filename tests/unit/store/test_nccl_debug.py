"""NCCL's debug log: what is read of it, from whatever it lies between."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.nccl_log import CHANNELS, Talk

from stepscope.core.errors import DataError
from stepscope.records.nccl import NcclDebug, NcclLink
from stepscope.store import nccl_job
from stepscope.store.importers.nccl_debug import read_nccl_debug


def written(folder: Path, *files: list[str], end: str = "\n") -> list[Path]:
    paths = []
    for number, lines in enumerate(files):
        path = folder / f"log-{number}.txt"
        path.write_text("\n".join(lines) + end)
        paths.append(path)
    return paths


def read(folder: Path, *files: list[str]) -> NcclDebug:
    return read_nccl_debug(written(folder, *files))


def mixed(talk: Talk) -> list[str]:
    """All ranks' lines in one stream, one line of each in turn."""
    texts = talk.texts()
    return [text[i] for i in range(max(map(len, texts))) for text in texts if i < len(text)]


def link_via(folder: Path, via: str, *, end: str = "") -> NcclLink:
    talk = Talk(nranks=2, per_host=1)
    lines = [talk.init(0, "START"), talk.say(0, f"Channel 03/0 : 0[0] -> 1[1]{end} via {via}")]
    (found,) = read(folder, [*lines, talk.init(0, "COMPLETE")]).communicators[0].links
    return found


def test_one_file_a_rank_gives_the_communicator(tmp_path: Path) -> None:
    found = read(tmp_path, *Talk().texts())
    assert found.versions == ("2.27.3+cuda12.9",)
    (comm,) = found.communicators
    assert (comm.id, comm.nranks, comm.versions, comm.networks) == ("0xabc1", 4, found.versions, ("IB",))
    assert [(r.rank, r.host, r.pid) for r in comm.ranks] == [
        (0, "alpha", 700), (1, "alpha", 701), (2, "beta", 702), (3, "beta", 703),
    ]  # fmt: skip
    assert [(r.cuda_device, r.nvml_device, r.bus_id) for r in comm.ranks] == [
        (0, 4, "1b000"), (1, 5, "2b000"), (0, 4, "1b000"), (1, 5, "2b000"),
    ]  # fmt: skip
    assert all(r.initialised and r.ended is None for r in comm.ranks)
    assert [(r.channel, r.ranks, r.complete) for r in comm.rings] == [
        (0, (0, 1, 2, 3), True),
        (1, (0, 1, 2, 3), True),
    ]
    assert [(t.channel, t.parents, t.root) for t in comm.trees] == [
        (0, (-1, 0, 1, 2), 0),
        (1, (-1, 0, 1, 2), 0),
    ]
    assert (comm.coll_channels, comm.collnet_channels, comm.nvls_channels) == (2, 0, 0)
    assert (comm.p2p_channels, comm.p2p_channels_per_peer) == (4, 1)
    assert comm.missing_ranks == ()


@pytest.mark.parametrize(
    ("via", "end", "transport", "nics", "gdrdma", "proxy"),
    [
        ("P2P/IPC", "", "P2P/IPC", (), None, None),
        ("P2P/direct pointer/read", "", "P2P/direct pointer/read", (), None, None),
        ("P2P/CUMEM/CE", "", "P2P/CUMEM/CE", (), None, None),
        ("P2P/indirect/5[3b000]/read", "", "P2P/indirect/read", (), None, None),
        ("SHM/direct/direct", "", "SHM/direct/direct", (), None, None),
        ("direct shared memory", "", "direct shared memory", (), None, None),
        ("NET/Socket/0", " [send]", "NET/Socket", (0,), False, None),
        ("NET/IB/11/GDRDMA(PCI)/Shared", " [send]", "NET/IB", (11,), True, None),
        ("NET/IB/2(5)/GDRDMA", " [send]", "NET/IB", (2,), True, 5),
        ("NET/AWS Libfabric/1/GDRDMA/Shared", " [send]", "NET/AWS Libfabric", (1,), True, None),
        ("NET/IBext_v8/3", " [send]", "NET/IBext_v8", (3,), False, None),
    ],
)
def test_every_transport_is_told_apart(
    via: str,
    end: str,
    transport: str,
    nics: tuple[int, ...],
    gdrdma: bool | None,
    proxy: int | None,
    tmp_path: Path,
) -> None:
    found = link_via(tmp_path, via, end=end)
    assert (found.transport, found.send_nics, found.gdrdma, found.proxy_rank) == (
        transport,
        nics,
        gdrdma,
        proxy,
    )
    assert (found.source, found.destination, found.channels, found.receive_nics) == (0, 1, 1, ())


def test_a_link_counts_as_gpu_direct_only_when_every_line_says_so(tmp_path: Path) -> None:
    talk = Talk(nranks=2, per_host=1)
    ends = "0[0] -> 1[1]"
    (comm,) = read(
        tmp_path,
        [
            talk.init(0, "START"),
            talk.say(0, f"Channel 00/0 : {ends} [send] via NET/IB/0/GDRDMA"),
            talk.say(0, f"Channel 01/0 : {ends} [send] via NET/IB/1"),
            talk.say(0, f"Channel 02/0 : {ends} [send] via NET/IB/0/GDRDMA"),
        ],
    ).communicators
    assert [(e.gdrdma, e.send_nics, e.channels) for e in comm.links] == [(False, (0, 1), 3)]


def test_an_unknown_transport_is_left_out_and_said(tmp_path: Path) -> None:
    talk = Talk(nranks=2, per_host=1)
    ring = talk.say(0, "Channel 00/1 :   0   1")
    odd = talk.say(0, "Channel 00/0 : 0[0] -> 1[1] via CARRIER?PIGEON 7")
    found = read(tmp_path, [talk.init(0, "START"), ring, odd, odd])
    assert found.communicators[0].links == ()
    assert found.notes == ("2 lines with an unknown transport left out, for example 'CARRIER?PIGEON 7'",)


CHOSEN = {
    "AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}": ("AllReduce", 4096, "Tree", "LL", (0, 3)),
    "AllGather: 64 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}": (
        "AllGather", 64, "NVLSTree", "Simple", (0, 15)
    ),
    "Reduce: 1 Bytes -> Algo COLLNET_DIRECT proto LL128 channel{Lo..Hi}={2..2}": (
        "Reduce", 1, "CollnetDirect", "LL128", (2, 2)
    ),
    "AllReduce: 8192 Bytes -> Algo 1 proto 2 time 31.415926": ("AllReduce", 8192, "Ring", "Simple", None),
    "8192 Bytes -> Algo 4 proto 1 time 3.1": (None, 8192, "NVLS", "LL128", None),
    "AllReduce: 8 Bytes -> Algo WARP proto NINE time 1.0": ("AllReduce", 8, "WARP", "NINE", None),
}  # fmt: skip


@pytest.mark.parametrize("line", CHOSEN)
def test_choices_are_read_from_names_and_from_numbers(line: str, tmp_path: Path) -> None:
    talk = Talk(nranks=1)
    said = talk.say(0, line, tid=700)
    (comm,) = read(tmp_path, [*talk.rank_lines(0), said, said]).communicators
    (c,) = comm.choices
    assert (c.op, c.low_bytes, c.algorithm, c.protocol, c.channels) == CHOSEN[line]
    assert (c.high_bytes, c.calls) == (c.low_bytes, 2)


def test_too_many_sizes_are_counted_by_powers_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_job, "SIZES_KEPT", 2)
    talk = Talk(nranks=1)
    sizes = [16, 17, 100, 127, 100, 17]
    calls = [talk.say(0, f"AllReduce: {s} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}") for s in sizes]
    (comm,) = read(tmp_path, [*talk.rank_lines(0), *calls]).communicators
    assert [(c.low_bytes, c.high_bytes, c.calls) for c in comm.choices] == [
        (16, 16, 1),
        (17, 17, 2),
        (64, 127, 3),
    ]


def test_a_choice_goes_to_the_communicator_called_last_where_rank_0_of_several_speaks(tmp_path: Path) -> None:
    world, group = Talk(nranks=2), Talk(nranks=1, comm_id="0xdef2", number=1)
    chosen = world.say(0, "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}", tid=700)
    call = (
        "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 16 datatype 7 op 0 root 0 comm {} [nranks=1] stream 0x2"
    )
    both = [*world.rank_lines(0), *group.rank_lines(0)]
    told = read(tmp_path, [*both, world.say(0, call.format(group.pointer(0)), tid=700), chosen])
    assert {c.id: len(c.choices) for c in told.communicators} == {"0xabc1": 0, "0xdef2": 1}
    untold = read(tmp_path, [*both, chosen])
    assert {(c.id, c.nranks): len(c.choices) for c in untold.communicators} == {
        ("0xabc1", 2): 0, ("0xdef2", 1): 0, (None, None): 1,
    }  # fmt: skip
    assert "fit several communicators" in untold.notes[-1]


def test_a_split_without_an_id_is_known_by_its_parent_and_colour(tmp_path: Path) -> None:
    world = Talk(nranks=4, per_host=4)
    files = world.texts()
    for rank in range(4):
        name = f"ncclCommSplit comm 0x77{rank} rank {rank // 2} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}0"
        parent = f"parent {world.pointer(rank)} splitCount 1 color {rank % 2} key {rank}"
        files[rank] += [
            world.say(rank, f"{name} {parent}- Init START"),
            world.say(rank, f"{name} {parent} - Init COMPLETE"),
        ]
    found = read(tmp_path, *files)
    assert [(c.nranks, [r.pid for r in c.ranks]) for c in found.communicators] == [
        (4, [700, 701, 702, 703]), (2, [700, 702]), (2, [701, 703]),
    ]  # fmt: skip


def test_before_2_18_ranks_of_one_size_are_one_communicator(tmp_path: Path) -> None:
    old = Talk(modern=False, version="2.10.3+cuda11.3")
    first, second = old.texts(), Talk(modern=False, number=1, version=old.version).texts()
    found = read(tmp_path, *(a + b for a, b in zip(first, second, strict=True)))
    assert [(c.id, c.nranks, len(c.ranks)) for c in found.communicators] == [(None, 4, 4), (None, 4, 4)]
    for comm in found.communicators:
        assert [t.parents for t in comm.trees] == [(-1, 0, 1, 2)] * CHANNELS
        assert len(comm.links) == 4
        assert comm.ranks[0].nvml_device is None
    assert found.notes == ()


def test_before_2_18_groups_of_one_size_open_at_once_are_not_thrown_together(tmp_path: Path) -> None:
    left = [Talk(nranks=2, modern=False).rank_lines(r) for r in range(2)]
    right = [[line.replace("alpha:70", "omega:90") for line in lines] for lines in left]
    found = read(tmp_path, *left, *right)
    assert [(c.nranks, [r.host for r in c.ranks]) for c in found.communicators] == [
        (2, ["alpha"]), (2, ["alpha"]), (2, ["omega"]), (2, ["omega"]),
    ]  # fmt: skip
    assert "4 ranks shown separately" in found.notes[0]


def test_trees_of_the_oldest_layouts_have_the_same_parents(tmp_path: Path) -> None:
    talk = Talk(nranks=3, per_host=3, modern=False)
    mirrored = [
        talk.say(0, "Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1"),
        talk.say(1, "Trees [0] 2/-1/-1->1->0|0->1->2/-1/-1"),
        talk.say(2, "Trees [0] 1->2->-1/-1/-1"),  # 2.4: upwards on the left
    ]
    (comm,) = read(tmp_path, [*mirrored, *(talk.init(r, "COMPLETE") for r in range(3))]).communicators
    assert [t.parents for t in comm.trees] == [(-1, 0, 1)]


def test_missing_ranks_and_unfinished_initialisations_are_told(tmp_path: Path) -> None:
    talk = Talk()
    hung = Talk(done=False)
    (comm,) = read(tmp_path, talk.rank_lines(0), hung.rank_lines(3)).communicators
    assert comm.missing_ranks == (1, 2)
    assert [(r.rank, r.initialised) for r in comm.ranks] == [(0, True), (3, False)]
    assert [t.parents for t in comm.trees] == [(-1, None, None, 2)] * CHANNELS


def test_a_ring_that_nccl_cut_off_is_not_complete(tmp_path: Path) -> None:
    talk = Talk(nranks=30, per_host=8)
    cut = talk.say(0, "Channel 00/02 :" + "".join(f" {r:3d}" for r in range(20)))
    garbled = talk.say(0, "Channel 01/02 :   0   1   1   2")
    (comm,) = read(tmp_path, [talk.init(0, "START"), cut, garbled, talk.init(0, "COMPLETE")]).communicators
    assert [(r.channel, len(r.ranks), r.complete) for r in comm.rings] == [(0, 20, False)]


def test_warnings_have_rank_host_place_and_how_often(tmp_path: Path) -> None:
    talk = Talk()
    where = talk.say(3, "", level="transport/net_ib.cc:77 NCCL WARN")
    newer = talk.say(1, "", level="misc/socket.cc:9 (connectOnce) NCCL WARN")
    lines = [
        *talk.rank_lines(3),
        "",
        f"[2031-02-03 04:05:06] {where}completion with error 12 from peer 10.0.0.1",
        "",
        f"{where}completion with error 12 from peer 10.0.0.2",
        talk.say(3, "transport/net.cc:1034 -> 6"),
        talk.say(3, "group.cc:64 -> 6 [Async thread]"),
        talk.say(3, "transport/net.cc:1034 -> 0"),
    ]
    found = read(tmp_path, lines, [f"{newer}connect to 10.0.0.1 timed out"])
    told = [(m.kind, m.rank, m.host, m.pid, m.cuda_device, m.place, m.count) for m in found.messages]
    assert told == [
        ("warning", 3, "beta", 703, 1, "transport/net_ib.cc:77", 2),
        ("returned", 3, "beta", 703, 1, "transport/net.cc:1034", 1),
        ("returned", 3, "beta", 703, 1, "group.cc:64", 1),
        ("warning", None, "alpha", 701, 1, "misc/socket.cc:9", 1),
    ]
    assert found.messages[0].text == "completion with error 12 from peer 10.0.0.1"


def test_nics_plugins_settings_and_nvls(tmp_path: Path) -> None:
    talk = Talk(nranks=1)
    before = [
        talk.say(0, "NCCL_IB_HCA set by environment to mlx5"),
        talk.say(0, "NET/Plugin: Loaded net plugin AWS Libfabric (v8)"),
        talk.say(0, "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
        talk.say(0, "Bootstrap : Using [0]eth0:10.0.0.1<0>"),
        talk.say(0, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"),
        talk.say(0, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
        talk.say(0, "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'"),
    ]
    inside = [
        talk.say(0, "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"),
        talk.say(0, f"comm {talk.pointer(0)} rank 0 nRanks 1 nNodes 1 localRanks 1 localRank 0 MNNVL 0"),
        talk.say(0, "8 coll channels, 16 nvls channels, 4 p2p channels, 2 p2p channels per peer"),
    ]
    found = read(tmp_path, [*before, talk.init(0, "START"), *inside, talk.init(0, "COMPLETE")])
    assert found.settings == (("NCCL_IB_HCA", "mlx5"),)
    assert found.net_plugins == ("AWS Libfabric (v8)",)
    assert found.no_plugin == ("Could not find: libnccl-net.so. Using internal network plugin.",)
    (host,) = found.hosts
    assert (host.host, host.nics) == ("alpha", ("mlx5_0:1/IB", "mlx5_1:1/RoCE"))
    assert (host.gdr_nics, host.no_gdr_nics) == (("mlx5_0",), ("mlx5_1",))
    (comm,) = found.communicators
    assert (comm.nvls, comm.nvls_channels, comm.collnet_channels, comm.nodes) == (True, 16, None, 1)


def test_two_versions_in_one_job_are_noted(tmp_path: Path) -> None:
    lines = Talk().texts()
    lines[1].insert(0, Talk().say(1, "NCCL version 2.19.1+cuda12.2"))
    found = read(tmp_path, *lines)
    assert found.communicators[0].versions == ("2.27.3+cuda12.9", "2.19.1+cuda12.2")
    assert found.notes == ("different versions of NCCL in one job: 2.19.1+cuda12.2, 2.27.3+cuda12.9",)


# Damage.


def test_a_line_that_another_process_wrote_into_is_left_out_and_the_other_one_read(tmp_path: Path) -> None:
    talk = Talk(nranks=2, per_host=1)
    whole = talk.say(1, "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0")
    torn = talk.say(0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1")[:-8] + whole
    lines = [talk.init(0, "START"), talk.init(1, "START"), torn, "ET/IB/1"]
    found = read(tmp_path, lines)
    assert [(e.source, e.destination) for e in found.communicators[0].links] == [(1, 0)]
    assert found.files[0].torn_lines == 1
    (note,) = found.notes
    assert f"{tmp_path / 'log-0.txt'}: 1 torn line left out" in note


def test_numbers_printed_right_before_a_line_are_no_part_of_the_host(tmp_path: Path) -> None:
    talk = Talk(nranks=1)
    lines = talk.rank_lines(0)
    glued = [f"    4096   float   sum     -1{talk.say(0, 'NCCL_ALGO set by environment to Ring')}"]
    for order in ([*lines, *glued], [*glued, *lines]):
        found = read(tmp_path, order)
        assert [r.host for c in found.communicators for r in c.ranks] == ["alpha"]
        assert found.communicators[0].networks == ("IB",)
        assert len(found.communicators) == 1


@pytest.mark.parametrize("before", ["step: 12  mfu: 30.2", "alpha:700:800 [0] NCCL INFO Using network", "saving los"])
def test_a_rank_that_speaks_inside_other_output_only_is_of_a_known_host(tmp_path: Path, before: str) -> None:
    talk = Talk(nranks=2, per_host=2)
    found = read(tmp_path, [*talk.rank_lines(0), before + talk.init(1, "COMPLETE")])
    assert [(r.rank, r.host) for r in found.communicators[0].ranks] == [(0, "alpha"), (1, "alpha")]


def test_two_lines_that_look_like_one_are_torn(tmp_path: Path) -> None:
    """The beginning of one rank's line, and the end of another's, which is on another device."""
    talk = Talk(nranks=2, per_host=2)
    glued = talk.init(0, "START").partition(" comm ")[0] + " comm " + talk.init(1, "START").partition(" comm ")[2]
    found = read(tmp_path, [*talk.rank_lines(0), glued])
    assert [r.rank for r in found.communicators[0].ranks] == [0]
    assert found.files[0].torn_lines == 1


def test_hosts_whose_names_end_alike_stay_apart(tmp_path: Path) -> None:
    talk = Talk(nranks=2, per_host=2)
    here = talk.rank_lines(0)
    there = [line.replace("alpha:701", "my-alpha:700") for line in talk.rank_lines(1)]
    (comm,) = read(tmp_path, [*here, *there]).communicators
    assert [r.host for r in comm.ranks] == ["alpha", "my-alpha"]


def test_a_line_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    talk = Talk(nranks=2, per_host=1)
    last = talk.say(0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1")  # of NET/IB/12/GDRDMA
    (path,) = written(tmp_path, [talk.init(0, "START"), last], end="")
    found = read_nccl_debug(path)
    assert found.communicators[0].links == ()
    assert found.files[0].truncated
    assert found.notes == ("log-0.txt: cut off in the middle of a line; what followed is missing",)


@pytest.mark.parametrize("cut", [0, 40])
def test_a_packed_log_is_read_as_far_as_it_goes(cut: int, tmp_path: Path) -> None:
    lines = "\n".join(mixed(Talk())) + "\n"
    packed = gzip.compress((lines * 40).encode(), mtime=0)
    path = tmp_path / "job.log.gz"
    path.write_bytes(packed[: len(packed) - cut])
    found = read_nccl_debug(path)
    assert len(found.communicators[0].ranks) == 4
    assert found.files[0].truncated is (cut > 0)


def test_one_log_given_twice_counts_once(tmp_path: Path) -> None:
    texts = Talk().texts()
    once = read(tmp_path, *texts)
    twice = read(tmp_path, *texts, *texts)
    assert twice.communicators == once.communicators
    assert "4 ranks reported twice" in twice.notes[0]


def test_empty_and_foreign_files_of_a_folder_are_skipped_and_said(tmp_path: Path) -> None:
    written(tmp_path, *Talk().texts())
    (tmp_path / "a-empty.log").touch()
    (tmp_path / "b-train.log").write_text("loss 1.0\nNCCL INFO is mentioned here by somebody\n")
    found = read_nccl_debug(tmp_path)
    assert len(found.files) == 4
    assert found.notes == (
        "a-empty.log: it is empty; left out",
        "b-train.log: none of its 2 lines is one that NCCL writes; left out",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"epoch 1\nNCCL INFO: a word in a text\n", "none of its 2 lines"),
        (bytes(range(256)) * 20_000, "none of its 20,000 lines"),
        (b"NCCL " * 700_000, "none of its 0 lines"),
    ],
    ids=["empty", "text", "binary", "one line without an end"],
)
def test_a_file_that_is_no_log_of_nccls_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not an NCCL log") as raised:
        read_nccl_debug(path)
    assert why in (raised.value.why or "")


def test_a_log_that_tells_nothing_of_use_says_how_to_get_one_that_does(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do not mention communicators") as raised:
        read(tmp_path, [Talk().say(0, "Launch mode Parallel")])
    assert "NCCL_DEBUG_SUBSYS=" in (raised.value.fix or "")


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing\.log"):
        read_nccl_debug(tmp_path / "nothing.log")
    with pytest.raises(DataError, match="no NCCL line"):
        read_nccl_debug(tmp_path)


def test_a_log_without_initialisations_still_tells_its_links(tmp_path: Path) -> None:
    link = Talk().say(0, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    (comm,) = read(tmp_path, [link]).communicators
    assert (comm.id, comm.nranks, comm.ranks) == (None, None, ())
    assert [(e.source, e.destination, e.transport) for e in comm.links] == [(0, 1, "P2P/CUMEM")]


def test_lines_without_any_prefix_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = (
        "NCCL_P2P_DISABLE set by environment to 1.",
        *(f"Channel 0{n}/0 : 0[0] -> 1[1] via SHM/direct/direct" for n in (0, 1)),
    )
    path.write_text("".join(f"NCCL INFO {line}\n" for line in lines))
    (communicator,) = read_nccl_debug(path).communicators
    assert [(link.source, link.destination, link.transport) for link in communicator.links] == [
        (0, 1, "SHM/direct/direct")
    ]
