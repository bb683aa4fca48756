"""Hosts by name, what is placed on them, what a conversation with one carries and why it ends. No torch, no sshd."""

from __future__ import annotations

import io
import json
import queue
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.machines import laptop

from stepscope import __version__
from stepscope.core.errors import DataError, UsageError
from stepscope.launch.hosts import messages
from stepscope.launch.hosts.host_list import NamedHost, parse_hosts, placement
from stepscope.launch.hosts.messages import HostMessage
from stepscope.launch.hosts.peers import Listener, measure_peer, try_addresses
from stepscope.launch.hosts.remote_ranks import Mirror
from stepscope.launch.hosts.session import HostLost, Reach, command, why_lost
from stepscope.launch.hosts.survey import HostWorld, SurveyedHost, meet, open_sessions
from stepscope.launch.hosts.world import HostPart, Pump, clock_offset_ns, lost_host
from stepscope.launch.torchrun import Node
from stepscope.launch.torchrun import command as torchrun_command
from stepscope.records import codec
from stepscope.records.environment import NicFact
from stepscope.records.samples import Heartbeat, RankError
from stepscope.store.layout import GroupLayout, RunLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import write_record


def test_hosts_are_names_users_and_numbers_of_ranks() -> None:
    assert parse_hosts("a, me@b:4,10.0.0.3,[fd00::1]:2") == (
        NamedHost("a"),
        NamedHost("me@b", 4),
        NamedHost("10.0.0.3"),
        NamedHost("[fd00::1]", 2),
    )


def test_a_file_of_hosts_may_be_one_of_mpi(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rented\na slots=2\n\nme@b:3  # the slow one\nc\n")
    assert parse_hosts(str(file)) == (NamedHost("a", 2), NamedHost("me@b", 3), NamedHost("c"))
    file.write_text("a slots=2 max_slots=4\n")
    with pytest.raises(UsageError, match=":1:"):
        parse_hosts(str(file))
    with pytest.raises(DataError):
        parse_hosts(str(tmp_path / "absent"))


@pytest.mark.parametrize("text", ["", ",", "a:0", "a b", "-oProxyCommand=x", "a:x", "a,a", "a;reboot", "a/b:1", "$(x)"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises((UsageError, DataError)):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("slots", "world_size", "ranks"),
    [((1, 1), 2, (1, 1)), ((8, 8), 4, (4, 0)), ((8, 8), 12, (8, 4)), ((1, 1), 3, None), ((2, 3), 5, (2, 3))],
)
def test_the_first_hosts_are_filled_first(
    slots: tuple[int, ...], world_size: int, ranks: tuple[int, ...] | None
) -> None:
    assert placement(slots, world_size) == ranks


def test_cores_of_a_world_are_those_of_the_hosts_it_is_on() -> None:
    hosts = tuple(
        SurveyedHost(name=name, slots=2, environment=laptop(usable_cores=cores)) for name, cores in (("a", 8), ("b", 4))
    )
    world = HostWorld(hosts=hosts, reach=Reach(), address="10.0.0.1")
    assert world.cores(4, "cpu") == 8  # 2 ranks on each host, and the smaller host has 2 cores for each
    assert world.cores(2, "cpu") == 8  # both on a
    assert world.slots("cpu") == (2, 2)
    with pytest.raises(UsageError, match="a has 0 GPUs"):
        world.slots("cuda")


def test_ssh_never_asks_and_the_users_own_options_come_first() -> None:
    line = command("me@b", Reach(ssh=("ssh", "-p", "2222", "-o", "ConnectTimeout=3")))
    assert line[:5] == ["ssh", "-p", "2222", "-o", "ConnectTimeout=3"]
    assert line.index("BatchMode=yes") < line.index("me@b")
    assert line[-2] == "me@b"
    assert "StrictHostKeyChecking" not in " ".join(line)
    assert command("localhost", Reach())[0] == sys.executable


def test_torchrun_meets_at_a_static_address() -> None:
    node = Node(rank=1, nodes=2, address="10.0.0.1", port=21000)
    line = torchrun_command(Path("spec.json"), world_size=4, log_dir=Path("logs"), node=node)
    assert "--standalone" not in line
    for name, value in (
        ("--nnodes", "2"),
        ("--node-rank", "1"),
        ("--master-addr", "10.0.0.1"),
        ("--master-port", "21000"),
    ):
        assert line[line.index(name) + 1] == value


@pytest.mark.parametrize(
    ("code", "said", "what", "fix"),
    [
        (255, "me@b: Permission denied (publickey,password).", "password", "ssh-copy-id"),
        (255, "Host key verification failed.", "key of b", "ssh b"),
        (255, "ssh: connect to host b port 22: No route to host", "connection to b", "BatchMode=yes b true"),
        (1, "/usr/bin/python3: ... (ModuleNotFoundError: No module named 'stepscope')", "no stepscope", "make wheel"),
        (1, "python3: No module named stepscope.launch.hosts", "older stepscope", "make wheel"),
        (127, "sh: 1: exec: python3: not found", "no such Python", "--remote-python"),
        (-9, "", "ended with code -9", "BatchMode=yes b true"),
    ],
)
def test_each_reason_to_lose_a_host_has_its_own_fix(code: int, said: str, what: str, fix: str) -> None:
    lost = why_lost("b", code, said, by_hand="`ssh -o BatchMode=yes b true`", python=None)
    assert what in lost.what
    assert fix in (lost.fix or "")
    assert lost.host == "b"


def test_a_message_arrives_as_it_was_sent_after_whatever_the_shell_prints() -> None:
    stream = io.BytesIO()
    stream.write(b"Welcome!\nlast login: today\nprompt> ")
    stream.write(messages.MARK)
    messages.send(stream, "file", b"\x00\n{", path="a/b", at=0)
    messages.send(stream, "ended", code=None)
    stream.seek(0)
    assert messages.skip_to_mark(stream)
    assert messages.receive(stream) == HostMessage("file", {"path": "a/b", "at": 0}, b"\x00\n{")
    assert messages.receive(stream) == HostMessage("ended", {"code": None})
    assert messages.receive(stream) is None
    assert messages.receive(io.BytesIO(b'{"kind": "file", "bytes": 10}\nhalf')) is None
    with pytest.raises(DataError):
        messages.receive(io.BytesIO(b"Segmentation fault\n"))
    assert not messages.skip_to_mark(io.BytesIO(b"no agent\n" * 20_000))


def test_a_host_is_asked_for_its_clock_and_reaches_a_listener() -> None:
    with ExitStack() as stack:
        (session,) = open_sessions(["localhost"], Reach(), stack)
        offset_ns, uncertainty_ns = clock_offset_ns(session)
        assert abs(offset_ns) <= uncertainty_ns  # it is the same clock
        listening = session.ask("listen", timeout_s=10).fields
        found = measure_peer("127.0.0.1", listening["port"], listening["token"], trips=3, size_bytes=1 << 20)
        assert found["interface"] == "lo"
        assert found["round_trip_ns"] > 0
        assert found["bytes_per_s"] > 0
        wrong = try_addresses(["127.0.0.1"], listening["port"], "0" * 32)
        assert "error" in wrong["127.0.0.1"]  # some other service, for all that is known


def test_hosts_meet_at_the_fast_address_that_all_of_them_reach() -> None:
    class Asked:
        def __init__(self, host: str, answers: dict[str, dict[str, str]]) -> None:
            self.host, self.answers = host, answers

        def ask(self, kind: str, **asked: object) -> HostMessage:
            if kind == "listen":
                return HostMessage("listening", {"port": 1, "token": "t"})
            assert asked["addresses"] == ["10.1.0.1", "10.0.0.1", "172.17.0.1"]
            return HostMessage("try", {"found": self.answers})

    first = laptop(
        nics=(
            NicFact(name="docker0", kind="virtual", speed_bits_per_s=None, up=True, addresses=("172.17.0.1",)),
            NicFact(name="eth0", kind="ethernet", speed_bits_per_s=10**9, up=True, addresses=("10.0.0.1",)),
            NicFact(name="eth1", kind="ethernet", speed_bits_per_s=10**11, up=True, addresses=("10.1.0.1",)),
            NicFact(name="eth2", kind="ethernet", speed_bits_per_s=10**11, up=False, addresses=("10.2.0.1",)),
        )
    )
    refused, open_ = {"error": "Connection refused"}, {"local": "10.0.0.2", "interface": "ens3"}
    b = Asked("b", {"10.1.0.1": open_, "10.0.0.1": open_, "172.17.0.1": refused})
    c = Asked("c", {"10.1.0.1": refused, "10.0.0.1": open_, "172.17.0.1": refused})
    assert meet([Asked("a", {}), b, c], first) == ("10.0.0.1", ["eth0", "ens3", "ens3"])  # type: ignore[list-item]
    nowhere = Asked("d", dict.fromkeys(["10.1.0.1", "10.0.0.1", "172.17.0.1"], refused))
    with pytest.raises(HostLost, match="d does not reach a"):
        meet([Asked("a", {}), b, nowhere], first)  # type: ignore[list-item]


def test_another_version_is_refused_with_both_named(tmp_path: Path) -> None:
    hello = json.dumps({"kind": "hello", "bytes": 0, "version": "0.0.9", "executable": "/usr/bin/python3"})
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho {messages.MARK.decode().strip()}\necho '{hello}'\ncat\n")
    ssh.chmod(0o755)
    with pytest.raises(HostLost) as refused, ExitStack() as stack:
        open_sessions(["b"], Reach(ssh=(str(ssh),)), stack)
    assert "0.0.9" in refused.value.what
    assert __version__ in refused.value.what


@pytest.fixture
def group(tmp_path: Path) -> tuple[Mirror, GroupLayout, Path]:
    folder = tmp_path / "remote"
    files = RunLayout(folder).group("001")
    files.rank_logs.mkdir(parents=True)
    return Mirror(folder, files, name="b", first_rank=4), files, folder


def sent(mirror: Mirror) -> list[HostMessage]:
    stream = io.BytesIO()
    mirror.send(stream)
    stream.seek(0)
    found = []
    while (message := messages.receive(stream)) is not None:
        found.append(message)
    return found


def test_files_arrive_as_they_grow_and_final_records_last(
    group: tuple[Mirror, GroupLayout, Path], tmp_path: Path
) -> None:
    mirror, files, folder = group
    here = RunLayout(tmp_path / "here")
    pump = Pump([], queue.Queue(), here)
    part = HostPart("b", None, 4, 2)  # type: ignore[arg-type]

    def carry() -> list[str]:
        found = sent(mirror)
        for message in found:
            pump._store(part, message)
        return [message.fields["path"] for message in found]

    cell = folder / "cells" / "x"
    cell.mkdir(parents=True)
    (cell / "rank-00004.json").write_text("{}")
    (cell / "samples-00004.jsonl").write_text("1\n")
    (cell / ".rank-00005.json.tmp").write_text("half")
    big = bytes(range(256)) * 8192
    (cell / "trace").mkdir()
    (cell / "trace" / "rank-00004.json.gz").write_bytes(big)
    files.launcher_log.write_text("log")
    logs = files.rank_logs / "none_abc" / "attempt_0" / "1"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("rank 5 here")
    carried = carry()
    assert carried.index("cells/x/samples-00004.jsonl") < carried.index("cells/x/rank-00004.json")
    assert (here.root / "cells/x/trace/rank-00004.json.gz").read_bytes() == big
    assert (here.group("001").rank_logs / "b" / "attempt_0" / "5" / "stderr.log").read_text() == "rank 5 here"
    assert (here.group("001").rank_logs / "b" / "launcher.log").read_text() == "log"
    assert carry() == []
    with (cell / "samples-00004.jsonl").open("a") as file:
        file.write("2\n")
    assert carry() == ["cells/x/samples-00004.jsonl"]
    assert (here.root / "cells/x/samples-00004.jsonl").read_text() == "1\n2\n"


def test_a_file_outside_the_run_folder_is_refused(tmp_path: Path) -> None:
    pump = Pump([], queue.Queue(), RunLayout(tmp_path / "run"))
    message = HostMessage("file", {"path": "../../etc/x", "at": 0, "append": False, "last": True}, b"x")
    with pytest.raises(DataError):
        pump._store(HostPart("b", None, 0, 1), message)  # type: ignore[arg-type]


def test_heartbeats_arrive_on_the_clock_of_this_machine(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    beat = Heartbeat(
        rank=1, host="b", pid=9, cell_id="x", phase="measure", step=7, time_ns=10**18 + 5 * 10**9, moved_ns=10**18
    )
    part = HostPart("b", None, 1, 1, clock_ns=5 * 10**9)  # type: ignore[arg-type]
    fields = {"path": "cells/x/heartbeat-00001", "at": 0, "append": False, "last": True}
    Pump([], queue.Queue(), layout)._store(part, HostMessage("file", fields, codec.encode_line(beat, header=True)))
    found = read_record(layout.cell("x").heartbeat(1), Heartbeat)
    assert (found.time_ns, found.moved_ns, found.entered_ns) == (10**18, 10**18 - 5 * 10**9, 0)
    assert part.last is not None
    assert part.last.step == 7


def test_a_group_says_which_host_it_lost_and_others_errors_do_not(tmp_path: Path) -> None:
    files = RunLayout(tmp_path).group("001")
    error = RankError(
        rank=0, host="a", pid=1, cell_id=None, phase="init", step=0, kind="error", exception="ValueError: x", traceback=""
    )  # fmt: skip
    write_record(files.error(0), error)
    assert lost_host(files) is None
    lost = RankError(
        rank=1, host="b", pid=1, cell_id=None, phase="measure", step=3, kind="error", fix="try it",
        exception="HostLost: the connection to b broke", traceback="HostLost",
    )  # fmt: skip
    write_record(files.error(1), lost)
    found = lost_host(files)
    assert found is not None
    assert (found.host, found.what, found.fix) == ("b", "the connection to b broke", "try it")


def test_a_listener_that_is_closed_lets_its_port_go() -> None:
    listener = Listener()
    listener.close()
    for _ in range(50):
        try:
            socket.create_server(("127.0.0.1", listener.port)).close()
            break
        except OSError:
            time.sleep(0.02)
    else:
        pytest.fail("the port is still taken")
    assert threading.active_count() < 50
