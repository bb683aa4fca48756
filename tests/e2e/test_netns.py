"""Emulated networks really made: their rate and delay, what they leave of this machine, and how they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import stepscope
from stepscope.core.errors import Unavailable
from stepscope.launch import torchrun
from stepscope.launch.ends.cell import exit_codes, first_seen
from stepscope.launch.netns import world
from stepscope.launch.netns.build import tool
from stepscope.launch.netns.start import probe_emulation, start
from stepscope.records.network import parse_network
from stepscope.records.samples import RankError
from stepscope.store.layout import GroupLayout
from stepscope.store.reader import read_record

pytestmark = pytest.mark.e2e

TRAFFIC = """
import json, os, socket, sys, time
size, pings = int(sys.argv[1]), int(sys.argv[2])
address, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])

def read(count):
    while count:
        count -= len(link.recv(min(count, 1 << 20)))

if rank == 0:
    link, _ = socket.create_server((address, 5000)).accept()
else:
    for _ in range(200):
        try:
            link = socket.create_connection((address, 5000))
            break
        except OSError:
            time.sleep(0.05)
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

def send(count):
    begin = time.perf_counter()
    if rank == 0:
        read(count)
        link.sendall(b"x")
    else:
        link.sendall(bytes(count))
        read(1)
    return time.perf_counter() - begin

send(size)  # fills the windows
times = [send(1) for _ in range(pings)]
few, many = min(send(size) for _ in range(10)), min(send(3 * size) for _ in range(10))
if rank == 1:
    print(json.dumps({"rate": 2 * size / (many - few), "round_trip_ns": min(times) * 1e9}))
"""
FOREVER = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture(scope="module", autouse=True)
def emulation() -> None:
    found = probe_emulation()
    if isinstance(found, Unavailable):
        pytest.skip(f"no emulated networks here: {found.reason}")


@pytest.fixture
def _delayed() -> None:
    found = probe_emulation(delayed=True)
    if isinstance(found, Unavailable):
        pytest.skip(f"no delays here: {found.reason}")


Launch = Callable[..., tuple[torchrun.Launched, GroupLayout]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts ranks that run a script in a network."""
    started = []

    def launch(network: str, script: str, *arguments: object, ranks: int = 2) -> tuple[torchrun.Launched, GroupLayout]:
        files = GroupLayout(tmp_path / f"group-{len(started)}")
        argv = [sys.executable, "-c", script, *map(str, arguments)]
        launched = start(files, parse_network(network), world_size=ranks, threads_per_rank=1, extra_env={}, argv=argv)
        started.append(launched)
        return launched, files

    yield launch
    for launched in started:
        torchrun.stop(launched)


def out(files: GroupLayout, rank: int, stream: str = "stdout") -> str:
    (path,) = files.rank_logs.glob(f"*/attempt_*/{rank}/{stream}.log")
    return path.read_text()


def measured(launched: torchrun.Launched, files: GroupLayout) -> dict[str, float]:
    assert launched.process.wait(timeout=60) == 0, files.launcher_log.read_text() + out(files, 1, "stderr")
    found: dict[str, float] = json.loads(out(files, 1))
    return found


def until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


def network_of(pid: int | str) -> Path:
    """The network namespace that a process is in, by the name the kernel gives it."""
    return Path(f"/proc/{pid}/ns/net").readlink()


def networks_in_use() -> set[Path]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.add(network_of(folder.name))
        except OSError:
            continue
    return found


def running(files: GroupLayout) -> bool:
    """Whether both ranks have begun to write."""
    logs = list(files.rank_logs.glob("*/attempt_*/*/stdout.log"))
    return len(logs) == 2 and all(log.read_text() for log in logs)


def machine() -> list[str]:
    """What `ip` shows of this machine's own network."""
    path = tool("ip")
    assert path is not None
    return [
        subprocess.run([path, *asked], capture_output=True, text=True, check=True).stdout
        for asked in (["-o", "link"], ["-o", "addr"], ["route"], ["netns", "list"])
    ]


def assert_rate(found: dict[str, float], network: str) -> None:
    """No faster than the link, but for what its buckets let through at once; slower as far as a busy machine makes it."""
    asked = parse_network(network).payload_bytes_per_s
    assert 0.5 * asked < found["rate"] < 1.15 * asked


def test_a_link_has_its_rate_in_two_worlds_at_once_and_nothing_of_them_shows_outside(launch: Launch) -> None:
    before = machine()
    slower = launch("200mbit:2", TRAFFIC, 500_000, 20)
    faster = launch("1gbit:2,slow=1:400mbit", TRAFFIC, 1_000_000, 20)
    until(lambda: list(faster[1].rank_logs.glob("*/*/1/stdout.log")))
    during = machine()
    assert_rate(measured(*slower), "200mbit")
    assert_rate(measured(*faster), "400mbit")
    assert before == during == machine()


@pytest.mark.usefixtures("_delayed")
def test_the_router_adds_its_delay_and_keeps_the_rate(launch: Launch) -> None:
    found = measured(*launch("200mbit:2,delay=5ms", TRAFFIC, 500_000, 40))
    assert 10e6 <= found["round_trip_ns"] < 20e6  # once each way, and what a busy machine adds
    assert_rate(found, "200mbit")


def test_ranks_have_host_names_places_and_no_way_out(launch: Launch) -> None:
    script = (
        "import json, os, socket\n"
        "try:\n    socket.create_connection(('192.0.2.1', 9), timeout=5)\n"
        "except OSError as error:\n    told = error.strerror\n"
        "print(json.dumps([socket.gethostname(), os.environ['LOCAL_RANK'], socket.gethostbyname('host1'), told]))"
    )
    launched, files = launch("1gbit:2", script, ranks=3)
    assert launched.process.wait(timeout=30) == 0
    assert [json.loads(out(files, rank)) for rank in range(3)] == [
        ["host0", "0", "10.77.0.2", "Network is unreachable"],
        ["host0", "1", "10.77.0.2", "Network is unreachable"],
        ["host1", "0", "10.77.0.2", "Network is unreachable"],
    ]


def test_a_rank_that_is_killed_ends_the_others_and_is_reported(launch: Launch) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(600)"
    launched, files = launch("1gbit:2", script, ranks=3)
    assert launched.process.wait(timeout=30) == 1
    log = files.launcher_log.read_text()
    assert first_seen(log) == 1
    assert exit_codes(log) == {0: -15, 1: -9, 2: -15}


def test_a_stopped_group_leaves_no_process_and_no_namespace(launch: Launch) -> None:
    launched, files = launch("1gbit:2", FOREVER)
    until(lambda: running(files))
    family = [psutil.Process(launched.process.pid), *psutil.Process(launched.process.pid).children()]
    made = {network_of(member.pid) for member in family}
    assert len(made) == 3, "a switch and two hosts"
    assert network_of("self") not in made
    torchrun.stop(launched)
    until(lambda: not any(p.is_running() for p in family))
    assert not made & networks_in_use()
    assert launched.process.returncode == 128 + signal.SIGTERM


CONTROLLER = """
import sys, time
from pathlib import Path
from stepscope.records.network import parse_network
from stepscope.launch.netns.start import start
from stepscope.store.layout import GroupLayout
launched = start(GroupLayout(Path(sys.argv[1])), parse_network("1gbit:2"), world_size=2, threads_per_rank=1,
                 extra_env={}, argv=[sys.executable, "-c", sys.argv[2]])
print(launched.process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """(a process that has started a world, that world's launcher), when its ranks run."""
    files = GroupLayout(tmp_path / "theirs")
    line = [sys.executable, "-c", CONTROLLER, str(files.root), FOREVER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        launcher = psutil.Process(int(process.stdout.readline()))
        until(lambda: running(files))
        yield process, launcher
        for left in (process.pid, launcher.pid):
            if psutil.pid_exists(left):
                os.kill(left, signal.SIGKILL)


Controller = tuple[subprocess.Popen[str], psutil.Process]


@pytest.mark.parametrize("killed", ["controller", "launcher"])
def test_who_is_killed_takes_the_world_along(controller: Controller, killed: str) -> None:
    process, launcher = controller
    family = [launcher, *launcher.children(recursive=True)]
    assert len(family) == 3
    (process if killed == "controller" else launcher).kill()
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family))


def test_a_network_that_cannot_be_made_is_told_in_rank_zeros_name(tmp_path: Path) -> None:
    line = world.command_of_ranks(
        "1gbit:2",
        parent=os.getpid(),
        world_size=2,
        log_dir=tmp_path,
        error_file=tmp_path / "error",
        argv=["true"],
    )
    broken = f"import sys, stepscope.launch.netns.build as b; b.tool = lambda _: None\n" \
             f"from stepscope.launch.netns.world import main; sys.exit(main({line[3:]!r}))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    error = read_record(tmp_path / "error", RankError)
    assert (error.rank, error.phase) == (0, "start")
    assert "program 'ip' is missing" in error.exception


@pytest.fixture
def nobody() -> Iterator[tuple[list[str], Path]]:
    """(start of a command line that runs our Python code without any privilege, a folder that it may write to)."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root and setpriv to become another user; without root all tests here are of this kind")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        # The checkout and the environment may lie where nobody else may look.
        shutil.copytree(Path(stepscope.__file__).parent, folder / "code" / "stepscope")
        become = [
            setpriv,
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            f"PYTHONPATH={folder / 'code'}",
        ]
        for python in (sys.executable, "/usr/bin/python3"):
            line = [*become, "PYTHONDONTWRITEBYTECODE=1", python]
            if not subprocess.run(
                [*line, "-c", "import stepscope.launch.netns.world"], capture_output=True, check=False
            ).returncode:
                yield line, folder
                return
        pytest.skip("no Python that another user may run")


def test_a_user_without_privilege_has_the_same_network(nobody: tuple[list[str], Path]) -> None:
    line, folder = nobody
    launcher = [*line, "-m", "stepscope.launch.netns.world", "--network", "200mbit:2"]
    asked = subprocess.run(launcher, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.skip(f"not without privilege: {asked.stderr.strip()}")
    assert asked.stdout.split() == [world.ROOTLESS]
    ranks = ["--log-dir", str(folder / "logs"), "--", line[-1], "-c", TRAFFIC, "500000", "5"]
    done = subprocess.run([*launcher, *ranks], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "logs/ranks/attempt_0/1/stdout.log").read_text())
    assert_rate(found, "200mbit")
