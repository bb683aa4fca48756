"""Carrying out a plan in the namespaces of this process: everything goes when the last process in them ends."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from stepscope.core.errors import MissingError
from stepscope.launch.netns.namespaces import HostNamespaces, leave_host, make_host, replace_file, within
from stepscope.launch.netns.plan import OPTIONAL, SWITCH, NetworkStep, burst_bytes, host_name, hosts_file, plan
from stepscope.records.network import EmulatedNetwork

TUN_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SBIN = "/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class World:
    """A network that is up: its hosts, and the router when it has one. rootless: in a user namespace."""

    hosts: tuple[HostNamespaces, ...]
    router: subprocess.Popen[bytes] | None
    rootless: bool


def tool(name: str) -> str | None:
    """Return the path of a program that ordinary users often have no PATH to."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")


@contextmanager
def built(network: EmulatedNetwork, hosts: int, *, prepare: Callable[[], None]) -> Iterator[World]:
    """Move this process to a switch of its own and make ``hosts`` hosts around it. Raises MissingError.

    prepare: called in each process that is started, before it runs.
    """
    try:
        rootless = leave_host()
        made = {host_name(host): make_host(host_name(host)) for host in range(hosts)}
    except OSError as error:
        raise MissingError(
            "this machine does not permit an emulated network",
            why=str(error.strerror or error),
            fix="run as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
        ) from error
    _name_hosts(hosts)
    taps = _carry_out(plan(network, hosts), made)
    router = _start_router(network, taps, prepare) if taps else None
    for tap in taps:
        os.close(tap)
    try:
        yield World(tuple(made.values()), router, rootless)
    finally:
        if router is not None:
            router.kill()
            router.wait()
        for namespaces in made.values():
            os.close(namespaces.net)
            os.close(namespaces.uts)


def _name_hosts(hosts: int) -> None:
    """Give the hosts names. Without them everything works, but libraries that look up their own host warn or wait."""
    try:
        replace_file("/etc/hosts", hosts_file(hosts))
    except OSError as error:
        sys.stderr.write(f"hosts of the emulated network have no names in /etc/hosts: {error}\n")


def _carry_out(steps: Sequence[NetworkStep], hosts: Mapping[str, HostNamespaces]) -> list[int]:
    """Do ``steps``; returns the TAP devices, in order."""
    taps: list[int] = []
    for (where, program), group in groupby(steps, key=_batch_of):
        batch = list(group)
        try:
            with nullcontext() if where == SWITCH else within(hosts[where]):
                if program:
                    _run_batch(program, batch, hosts)
                    continue
                for step in batch:
                    name, *_, value = step.line.split()
                    if name == "tap":
                        taps.append(_open_tap(value))
                    elif (path := Path("/proc/sys", name)).exists() or not name.endswith(OPTIONAL):
                        path.write_text(value)
        except OSError as error:
            raise _no_network_error(f"{batch[0]}: {error.strerror or error}") from error
    return taps


def _batch_of(step: NetworkStep) -> tuple[str, str]:
    """Return a key: steps with equal keys in a row are done by one process of the program, or by this one."""
    program = step.line.partition(" ")[0]
    return step.where, program if program in ("ip", "tc") else ""


def _run_batch(program: str, batch: Sequence[NetworkStep], hosts: Mapping[str, HostNamespaces]) -> None:
    """Run one ``ip -batch`` or ``tc -batch`` for lines of the same namespace. Raises MissingError."""
    path = tool(program)
    if path is None:
        raise MissingError(
            f"the program {program!r} is missing", why="emulated networks need it", fix="install iproute2"
        )
    # Our namespaces have no names outside this process, but paths.
    lines = [
        re.sub(r"netns (\w+)", lambda match: f"netns /proc/self/fd/{hosts[match[1]].net}", step.line) for step in batch
    ]
    done = subprocess.run(
        [path, "-batch", "-"],
        input="".join(f"{line.partition(' ')[2]}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        pass_fds=[h.net for h in hosts.values()],
    )
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        number = errors[-1].removeprefix("Command failed -:")
        raise _no_network_error(f"{batch[int(number) - 1 if number.isdecimal() else 0]}: {errors[0]}")


def _no_network_error(why: str) -> MissingError:
    return MissingError(
        "the emulated network cannot be made",
        why=why,
        fix="see docs/reference/emulated-network.md for what a machine must permit",
    )


def _open_tap(name: str) -> int:
    """Open a new TAP device in this process's network namespace; frames have a virtio header and may be segment trains."""
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        tap = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    except OSError as error:
        raise MissingError(
            f"{TUN_DEVICE} cannot be used",
            why=f"{error.strerror}; a delay needs TAP devices",
            fix=f"leave the delay out, or get read and write permission for {TUN_DEVICE}",
        ) from error
    return tap


def _start_router(
    network: EmulatedNetwork, taps: Sequence[int], prepare: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """Start the process that forwards between the hosts' taps with their rates and delay."""
    rates = [network.rate_of(host) for host in range(len(taps))]
    ports = [f"{tap}:{rate}:{burst_bytes(rate)}" for tap, rate in zip(taps, rates, strict=True)]
    return subprocess.Popen(
        [sys.executable, "-m", "stepscope.launch.netns.router", "--delay-ns", str(network.delay_ns), *ports],
        stdin=subprocess.DEVNULL,
        pass_fds=taps,
        preexec_fn=prepare,
    )
