"""``python -m tests.ssh_hosts NETWORK HOSTS FOLDER -- COMMAND``: hosts in namespaces of their own, an sshd on each.

COMMAND runs on host0, with ``FOLDER/ssh`` as its way to the others. Keys and settings are in FOLDER, the network is one that
no other process sees, and everything ends with this process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from stepscope.core.errors import Unavailable
from stepscope.core.processes import die_with_parent
from stepscope.launch.netns.build import built, tool
from stepscope.launch.netns.namespaces import _call_libc, entering
from stepscope.launch.netns.plan import address, host_name
from stepscope.launch.netns.start import probe_emulation
from stepscope.records.network import parse_network

PORT = 2222
SERVER = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication {password}
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
AcceptEnv *
"""
CLIENT = """\
Host *
  Port {port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  LogLevel ERROR
"""


def obstacle() -> str | None:
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "an sshd that lets its user in needs root"
    for program in ("sshd", "ssh", "ssh-keygen"):
        if tool(program) is None:
            return f"the program {program!r} is missing: install openssh-server and openssh-client"
    found = probe_emulation()
    return f"no emulated networks here: {found.reason}" if isinstance(found, Unavailable) else None


def prepare_folder(folder: Path, hosts: int) -> Path:
    """Keys and settings; the command that reaches the hosts."""
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True, capture_output=True
        )
    kind, text, *_ = (folder / "host_key.pub").read_text().split()
    names = [f"[{name}]:{PORT}" for host in range(hosts) for name in (host_name(host), address(host))]
    (folder / "known_hosts").write_text("".join(f"{name} {kind} {text}\n" for name in names))
    (folder / "config").write_text(CLIENT.format(port=PORT, folder=folder))
    for host in range(hosts):
        settings = SERVER.format(port=PORT, address=address(host), folder=folder, password="no")
        (folder / f"sshd_config_{host}").write_text(settings)
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec ssh -F "{folder}/config" "$@"\n')
    ssh.chmod(0o755)
    return ssh


def main(network: str, hosts: int, folder: Path, argv: list[str]) -> int:
    parent = os.getppid()
    owner = os.getpid()

    def prepare() -> None:
        die_with_parent(signal.SIGKILL, parent=owner)

    def on(host: int) -> Callable[[], None]:
        enter = entering(world.hosts[host])

        def ready() -> None:
            enter()
            prepare()

        return ready

    with ExitStack() as stack, built(parse_network(network), hosts, prepare=prepare) as world:
        die_with_parent(signal.SIGTERM, parent=parent)
        run = Path("/run/sshd")
        if not run.is_dir():  # sshd insists on it; only this process and its children see it
            _call_libc("mount", b"tmpfs", b"/run", b"tmpfs", 0, None)
            run.mkdir()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        signal.signal(signal.SIGINT, lambda *_: None)  # the command's to answer, and not ignored there, too
        for host in range(hosts):
            server = subprocess.Popen(
                [tool("sshd") or "sshd", "-D", "-e", "-f", str(folder / f"sshd_config_{host}")],
                stdin=subprocess.DEVNULL,
                stderr=(folder / f"sshd_{host}.log").open("wb"),
                preexec_fn=on(host),
            )
            (folder / f"sshd_{host}.pid").write_text(str(server.pid))
            stack.callback(_end, server)
        command = subprocess.Popen(argv, preexec_fn=on(0))
        stack.callback(_end, command)
        (folder / "command.pid").write_text(str(command.pid))
        return command.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: sshd's own processes for its connections are in other sessions."""
    import psutil

    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    asked = sys.argv[1:]
    place = asked.index("--")
    where = Path(asked[2])
    if not (where / "config").exists():
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        prepare_folder(where, int(asked[1]))
    sys.exit(main(asked[0], int(asked[1]), where, asked[place + 1 :]))
