"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd in one folder, started and stopped here.

Each node is a network namespace with an address of its own; they see no network but each other and slurmctld. Needs root
and the programs of slurm-wlm and munge: ``obstacle`` says what is missing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stepscope.core.processes import die_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip")
PATH = os.pathsep.join(["/usr/sbin", "/sbin", os.environ.get("PATH", "")])
NODES = ("n1", "n2")
PATIENCE_S = 60.0

CONF = """\
ClusterName=stepscope
SlurmctldHost={host}({net}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/log/ctld.log
StateSaveLocation={folder}/ctld
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=3
InactiveLimit=0
MinJobAge=300
NodeName=n1 NodeHostname={host} NodeAddr={net}.1 Port={port1} CPUs=4 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr={net}.2 Port={port2} CPUs=4 RealMemory=4000
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=00:10:00 State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=00:10:00 State=UP PriorityTier=10 PreemptMode=OFF
"""


def obstacle() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"{', '.join(missing)} not installed (apt install slurm-wlm munge iproute2)"
    if os.getuid() != 0:
        return "slurmd and network namespaces need root"
    name = f"ss-try-{os.getpid()}"
    if _ip("netns", "add", name, check=False).returncode != 0:
        return "network namespaces cannot be made here"
    _ip("netns", "del", name)
    return None


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env={**os.environ, "PATH": PATH}, timeout=30)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


@dataclass
class Cluster:
    """folder: of configuration, logs and state. tag: of the names of its interfaces. net: how addresses begin."""

    folder: Path
    tag: str
    net: str
    environ: Mapping[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *words: str, timeout_s: float = 120, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(words), capture_output=True, text=True, env=dict(self.environ), timeout=timeout_s, cwd=cwd,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """``RUNNING``, ``PENDING``, ``COMPLETED``, ..."""
        return self.fact(job, "JobState")

    def fact(self, job: str, key: str) -> str:
        line = self.ask("scontrol", "show", "job", job, "--oneliner")
        return dict(word.partition("=")[::2] for word in line.split()).get(key, "")

    def wait(self, job: str, *states: str, patience_s: float = PATIENCE_S) -> str:
        wait_until(lambda: self.state(job) in states, f"job {job} {'/'.join(states)}", patience_s)
        return self.state(job)

    def start_node(self, name: str) -> None:
        line = [
            "ip",
            "netns",
            "exec",
            f"{self.tag}-{name}",
            "slurmd",
            "-D",
            "-N",
            name,
            "-f",
            str(self.folder / "slurm.conf"),
        ]
        self._start(name, line)

    def kill_node(self, name: str) -> None:
        """The node is gone: slurmd and all that it started."""
        daemon = self.daemons.pop(name)
        for pid in _ip("netns", "pids", f"{self.tag}-{name}").stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        daemon.wait(timeout=20)

    def _start(self, name: str, line: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(self.environ), start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL, parent=os.getpid()),
            )  # fmt: skip

    def start(self) -> None:
        folder, conf = self.folder, str(self.folder / "slurm.conf")
        for part in ("ctld", "munge", "log", *NODES):
            (folder / part).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (folder / "munge" / "key").chmod(0o600)
        host = os.uname().nodename.partition(".")[0]
        number = 20_000 + os.getpid() % 10_000
        ports = {"port": number, "port1": number + 1, "port2": number + 2}
        Path(conf).write_text(CONF.format(folder=folder, host=host, net=self.net, **ports))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        _ip("link", "add", f"{self.tag}br", "type", "bridge")
        _ip("addr", "add", f"{self.net}.254/24", "dev", f"{self.tag}br")
        _ip("link", "set", f"{self.tag}br", "up")
        for place, name in enumerate(NODES, start=1):
            space, outer = f"{self.tag}-{name}", f"{self.tag}v{place}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outer, "master", f"{self.tag}br", "up")
            _ip("-n", space, "addr", "add", f"{self.net}.{place}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        munge = str(folder / "munge")
        self._start("munged", [
            "munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/sock",
                f"--pid-file={munge}/pid",
            f"--seed-file={munge}/seed", f"--log-file={munge}/log",
        ])  # fmt: skip
        wait_until((folder / "munge" / "sock").exists, "munged", 10)
        self._start("ctld", ["slurmctld", "-D", "-f", conf])
        for name in NODES:
            self.start_node(name)
        wait_until(self.idle, "two idle nodes", 30)

    def idle(self) -> bool:
        return self.run("sinfo", "-hN", "-p", "debug", "-o", "%t").stdout.split() == ["idle", "idle"]

    def clear(self) -> None:
        """No job is left, and no node is down."""
        if jobs := self.run("squeue", "-ho", "%A").stdout.split():
            self.run("scancel", *jobs)
        for name in NODES:
            if name not in self.daemons:
                self.start_node(name)
            self.run("scontrol", "update", f"nodename={name}", "state=resume")

    def stop(self) -> None:
        for name in NODES:
            if name in self.daemons:
                self.kill_node(name)
        for name in ("ctld", "munged"):
            if name in self.daemons:
                daemon = self.daemons.pop(name)
                daemon.kill()
                daemon.wait(timeout=20)
        for name in NODES:
            _ip("netns", "del", f"{self.tag}-{name}", check=False)
        _ip("link", "del", f"{self.tag}br", check=False)


def wait_until(found: Callable[[], object], what: str, patience_s: float) -> None:
    limit = time.monotonic() + patience_s
    while not found():
        assert time.monotonic() < limit, f"{what}: not within {patience_s} s"
        time.sleep(0.1)


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """A cluster with two idle nodes, stopped at the end."""
    number = os.getpid() % 200
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "OMP_"))}
    environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH, "OMP_NUM_THREADS": "1"}
    cluster = Cluster(folder, f"ss{os.getpid() % 100_000}", f"10.213.{number}", environ)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def statuses(run: Path) -> dict[str, dict[str, object]]:
    """Cell -> its status record, of a run folder."""
    return {path.parent.name: json.loads(path.read_text()) for path in run.glob("cells/*/status.json")}
