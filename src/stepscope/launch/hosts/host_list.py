"""What ``--hosts`` says: ``a``, ``user@b``, ``c:4`` separated by commas, or a file with one host in each line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import UsageError, unreadable

_HOST = re.compile(r"(?P<name>(?:[\w.+-]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+))(?::(?P<slots>\d+))?")
_LINE = re.compile(r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\d+))?")
MOST_HOSTS = 1024


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A host as the user names it. name: as ssh takes it. slots: ranks that it may have; None: one for each GPU, or one on
    the CPU."""

    name: str
    slots: int | None = None


def parse_hosts(text: str) -> tuple[NamedHost, ...]:
    """Return the hosts in their order; ranks fill the first one first. Raises UsageError, and DataError for a file.

    ``text`` is a file where it names one; there, a line is ``a``, ``a:4`` or MPI's ``a slots=4``, and # begins a comment.
    """
    words = _host_words(Path(text)) if "/" in text or Path(text).is_file() else text.split(",")
    hosts = tuple(_named_host(word.strip()) for word in words if word.strip())
    if not hosts:
        raise UsageError(f"--hosts {text!r} names no host", fix="write --hosts a,b or --hosts user@a:4,user@b:4")
    if len(hosts) > MOST_HOSTS:
        raise UsageError(f"--hosts names {len(hosts)} hosts; at most {MOST_HOSTS} are started over ssh")
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--hosts names {twice} twice", fix=f"several ranks on one host: --hosts {twice}:2")
    return hosts


def _named_host(word: str) -> NamedHost:
    """Return the host of a word. Raises UsageError for anything but HOST, USER@HOST or HOST:RANKS."""
    match = _HOST.fullmatch(word)
    if match is None or word.startswith("-"):
        raise UsageError(
            f"--hosts: {word!r} is not HOST, USER@HOST or HOST:RANKS",
            fix="a port or key of ssh belongs into ~/.ssh/config, or into --ssh 'ssh -p 2222'",
        )
    slots = None if match["slots"] is None else int(match["slots"])
    if slots == 0:
        raise UsageError(f"--hosts: {word!r} gives the host 0 ranks", fix="leave the host out")
    return NamedHost(match["name"], slots)


def _host_words(path: Path) -> list[str]:
    """Return the words of a file of hosts, a line each; comments are left out. Raises UsageError for a bad one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    words = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        match = _LINE.fullmatch(text)
        if text and match is None:
            raise UsageError(f"{path}:{number}: {text!r} is not HOST or HOST slots=RANKS")
        if match is not None:
            words.append(match["host"] + (f":{match['slots']}" if match["slots"] else ""))
    return words


def placement(slots: tuple[int, ...], world_size: int) -> tuple[int, ...] | None:
    """Return the number of ranks on each host, the first hosts filled first, or None where ``slots`` do not hold so many."""
    placed: list[int] = []
    for most in slots:
        placed.append(min(most, world_size - sum(placed)))
    return tuple(placed) if sum(placed) == world_size else None
