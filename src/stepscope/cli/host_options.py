"""``--hosts``, ``--ssh`` and ``--remote-python`` of the commands that reach other hosts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Protocol

from stepscope.cli.console import err
from stepscope.core.errors import UsageError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.words import counted
from stepscope.launch.hosts.host_list import NamedHost, parse_hosts
from stepscope.launch.hosts.session import Reach
from stepscope.launch.hosts.survey import HostWorld, survey
from stepscope.launch.join import joined_world


class HostOptions(Protocol):
    """The options of a command that reaches other hosts."""

    @property
    def hosts(self) -> str | None: ...

    @property
    def ssh(self) -> str | None: ...

    @property
    def remote_python(self) -> str | None: ...


def asked_hosts(
    options: HostOptions, *, against: Mapping[str, tuple[object, str]]
) -> tuple[tuple[NamedHost, ...], Reach] | None:
    """Return the hosts and the way to them; None without --hosts. against: options that cannot be with it: value and reason.

    Raises UsageError.
    """
    if options.hosts is None:
        for name, given in (("--ssh", options.ssh), ("--remote-python", options.remote_python)):
            if given is not None:
                raise UsageError(f"{name} has no effect without --hosts")
        return None
    for name, (value, why) in against.items():
        if value:
            raise UsageError(f"{name} cannot be used with --hosts", why=why)
    if joined_world(os.environ) is not None:
        raise UsageError(
            "--hosts starts ranks on other hosts, and a launcher has already started this world",
            fix="leave --hosts out under srun and torchrun, or unset RANK and WORLD_SIZE",
        )
    try:
        ssh = shlex.split(options.ssh or "ssh")
    except ValueError as error:
        raise UsageError(f"--ssh {options.ssh!r}: {error}") from None
    if not ssh:
        raise UsageError("--ssh is empty", fix="name the command: --ssh 'ssh -p 2222'")
    return parse_hosts(options.hosts), Reach(ssh=tuple(ssh), python=options.remote_python)


def host_world(options: HostOptions, *, against: Mapping[str, tuple[object, str]]) -> HostWorld | None:
    """Return the hosts of --hosts, reached and asked; None without it. Raises UsageError, MissingError."""
    asked = asked_hosts(options, against=against)
    if asked is None:
        return None
    hosts, reach = asked
    text = f"asking {counted(len(hosts), 'host')} ..."
    with stop_signals_raise("interrupted"), err().status(text) if err().is_terminal else nullcontext():
        return survey(hosts, reach)
