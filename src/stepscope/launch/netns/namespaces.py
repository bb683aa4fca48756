"""Linux namespaces: leaving the caller's, entering others (for processes with one thread only).

Namespaces here have no names and end with their last process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2


@dataclass(frozen=True, slots=True)
class HostNamespaces:
    """Open descriptors of one host's network and host-name namespaces: they exist as long as these are open."""

    name: str
    net: int
    uts: int


def leave_host() -> bool:
    """Give this process a network, a host name and mounts of its own.

    Returns whether it took a user namespace (no privilege). Raises OSError where neither way is permitted.
    """
    own = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS
    try:
        _call_libc("unshare", own)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        _call_libc("unshare", own | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        return True
    return False


def replace_file(path: str, content: str) -> None:
    """Show ``content`` in place of the file ``path`` to this process and those it starts. Raises OSError.

    The text is in memory, under a mount that nobody else sees: nothing of it can be left behind.
    """
    _call_libc("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
    _call_libc("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None)
    try:
        own = Path("/tmp/file")
        own.write_text(content)
        own.chmod(0o644)
        _call_libc("mount", bytes(own), path.encode(), None, _MS_BIND, None)
    finally:
        _call_libc("umount2", b"/tmp", _MNT_DETACH)


def make_host(name: str) -> HostNamespaces:
    """Make new namespaces for a host called ``name``. This process stays where it is."""
    with _back_afterwards():
        _call_libc("unshare", CLONE_NEWNET | CLONE_NEWUTS)
        _set_host_name(name)
        return _current_namespaces(name)


def entering(host: HostNamespaces) -> Callable[[], None]:
    """Return a function that moves the process that calls it to ``host``."""

    def enter() -> None:
        _call_libc("setns", host.net, CLONE_NEWNET)
        _call_libc("setns", host.uts, CLONE_NEWUTS)

    return enter


@contextmanager
def within(host: HostNamespaces) -> Iterator[None]:
    """Move this process to ``host`` for the block."""
    with _back_afterwards():
        entering(host)()
        yield


def _current_namespaces(name: str) -> HostNamespaces:
    return HostNamespaces(name, *(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts")))


@contextmanager
def _back_afterwards() -> Iterator[None]:
    """Enter the present namespaces again afterwards."""
    here = _current_namespaces("here")
    try:
        yield
    finally:
        entering(here)()
        os.close(here.net)
        os.close(here.uts)


def _set_host_name(name: str) -> None:
    encoded = name.encode()
    _call_libc("sethostname", encoded, len(encoded))


def _call_libc(name: str, *arguments: int | bytes | None) -> None:
    """Call a libc function that returns 0 or sets errno. Raises OSError, or its kin by errno."""
    if sys.platform != "linux":
        raise OSError(f"{name}: namespaces exist on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
