"""The hosts before anything runs on them: reached, of one version, with torch; where they meet, over which interface."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError, StepscopeError, UsageError
from stepscope.core.words import counted, in_words
from stepscope.launch.hosts.conversation import Conversation, HostLost
from stepscope.launch.hosts.host_list import NamedHost, placement
from stepscope.launch.hosts.session import HostSession, Reach
from stepscope.records.codec import decode
from stepscope.records.environment import EnvironmentRecord

FACTS_S = 120.0
TRY_S = 30.0
T = TypeVar("T")
R = TypeVar("R")


@record
class SurveyedHost:
    """A host and its facts. name: as ssh takes it. slots: as asked for. interface: the one that reaches the first host;
    None: it is alone."""

    name: str
    slots: int | None
    environment: EnvironmentRecord
    interface: str | None = None

    @property
    def gpus(self) -> int:
        torch = self.environment.torch
        return torch.device_count if torch is not None and torch.cuda_available else 0


@record
class HostWorld:
    """The hosts of a command, in order. address: the first one's, at which the others reach it."""

    hosts: tuple[SurveyedHost, ...]
    reach: Reach
    address: str

    @property
    def record(self) -> EnvironmentRecord:
        """The first host's record; its ``extra`` has all hosts: their names, the ranks asked for, their interfaces."""
        first = self.hosts[0].environment
        hosts = {
            host.name: {"host": host.environment.host, "ranks": host.slots, "interface": host.interface}
            for host in self.hosts
        }
        return replace(first, extra={**first.extra, "hosts": hosts})

    def slots(self, device: str) -> tuple[int, ...]:
        """Return the ranks that each host takes: as asked for, else one for each GPU, or one on the CPU. Raises
        UsageError."""
        for host in self.hosts:
            if device == "cuda" and (host.slots or 0) > host.gpus:
                raise UsageError(
                    f"--hosts {host.name}:{host.slots}: {host.name} has {counted(host.gpus, 'GPU')}",
                    fix=f"at most one rank per GPU: --hosts {host.name}:{host.gpus}" if host.gpus else "--device cpu",
                )
        return tuple(host.slots or (host.gpus if device == "cuda" else 1) for host in self.hosts)

    def placed(self, world_size: int, device: str) -> tuple[int, ...]:
        """Return the ranks on each host for so many in all; world sizes that do not fit were refused before."""
        ranks = placement(self.slots(device), world_size)
        assert ranks is not None
        return ranks

    def cores(self, world_size: int, device: str) -> int:
        """Return the cores for so many ranks: of the fewest on a host, times the ranks over those of the fullest host."""
        ranks = [number for number in self.placed(world_size, device) if number]
        fewest = min(h.environment.usable_cores for h in self.hosts[: len(ranks)])
        return fewest * world_size // max(ranks)


def survey(hosts: Sequence[NamedHost], reach: Reach, *, torch_timeout_s: float = 60.0) -> HostWorld:
    """Ask every host. Raises HostLost or MissingError: a host cannot be reached or used, with the way to see why."""
    with ExitStack() as stack:
        sessions = open_sessions([host.name for host in hosts], reach, stack)
        environments = on_all(sessions, lambda session: facts_of(session, torch_timeout_s=torch_timeout_s))
        for session, facts in zip(sessions, environments, strict=True):
            _require_torch(session.host, facts)
        _refuse_two_torches(sessions, environments)
        address, interfaces = meet(sessions, environments[0])
    return HostWorld(
        hosts=tuple(
            SurveyedHost(name=host.name, slots=host.slots, environment=facts, interface=interface)
            for host, facts, interface in zip(hosts, environments, interfaces, strict=True)
        ),
        reach=reach,
        address=address,
    )


def open_sessions(names: Sequence[str], reach: Reach, stack: ExitStack) -> list[HostSession]:
    """Open and greet the sessions, which ``stack`` closes. Raises HostLost.

    Started one after the other by this thread: they end with the thread that started them.
    """
    sessions = [stack.enter_context(HostSession(name, reach)) for name in names]
    on_all(sessions, HostSession.greet)
    return sessions


def at_once(items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Do ``work`` for all items at the same time. Left by Ctrl-C it waits for none: closing the sessions ends the
    questions."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(items)))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def on_all(items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Do ``work`` for all items at once. Raises the error of one, or one HostLost that names all that failed."""

    def attempt(item: T) -> R | StepscopeError:
        try:
            return work(item)
        except StepscopeError as error:
            return error

    outcomes = at_once(items, attempt)
    if errors := [outcome for outcome in outcomes if isinstance(outcome, StepscopeError)]:
        raise _joined_error(errors)
    return [outcome for outcome in outcomes if not isinstance(outcome, StepscopeError)]


def _joined_error(errors: Sequence[StepscopeError]) -> StepscopeError:
    """Return the errors of several hosts as one."""
    if len(errors) == 1:
        return errors[0]
    names = [error.host for error in errors if isinstance(error, HostLost)]
    return HostLost(
        names[0] if names else "",
        f"{counted(len(errors), 'host')} cannot be used: {in_words(names)}" if names else errors[0].what,
        why="; ".join(error.what if error.why is None else f"{error.what} ({error.why})" for error in errors),
        fix=errors[0].fix,
    )


def facts_of(session: Conversation, *, torch_timeout_s: float) -> EnvironmentRecord:
    message = session.ask("facts", timeout_s=FACTS_S + torch_timeout_s, torch_timeout_s=torch_timeout_s)
    return decode(message.body, EnvironmentRecord, source=f"the facts of {session.host}")


def _require_torch(host: str, facts: EnvironmentRecord) -> None:
    """Raise MissingError where torch does not answer on a host."""
    if facts.torch is None:
        raise MissingError(
            f"{host} has no torch that answers",
            why=facts.unavailable.get("torch"),
            fix=f"on {host}, with the pip of its stepscope: pip install torch",
        )


def _refuse_two_torches(sessions: Sequence[Conversation], environments: Sequence[EnvironmentRecord]) -> None:
    """Raise UsageError where hosts have different versions of torch."""
    versions = {
        session.host: facts.torch.version for session, facts in zip(sessions, environments, strict=True) if facts.torch
    }
    first, version = next(iter(versions.items()))
    for host, other in versions.items():
        if other != version:
            raise MissingError(
                f"{host} has torch {other}, and {first} has {version}",
                why="ranks of two versions hang, fail or measure two things",
                fix="install the same torch on all hosts",
            )


def addresses_of(facts: EnvironmentRecord) -> list[str]:
    """Return the addresses at which other hosts may reach this one: those of fast interfaces first."""
    nics = [nic for nic in facts.nics if nic.up and nic.kind != "loopback"]
    nics.sort(key=lambda nic: (nic.kind == "virtual", -(nic.speed_bits_per_s or 0)))
    addresses = [address for nic in nics for address in nic.addresses]
    usable = [address for address in addresses if not ipaddress.ip_address(address).is_link_local]
    return sorted(usable, key=lambda address: ":" in address)


def meet(sessions: Sequence[Conversation], first: EnvironmentRecord) -> tuple[str, list[str | None]]:
    """Return the first host's address that all others reach, and each host's interface to it.

    Tried, not looked up: names resolve to other addresses on other hosts, and clouds give a host several.
    """
    if len(sessions) == 1:
        return "127.0.0.1", [None]
    addresses = addresses_of(first)
    listening = sessions[0].ask("listen", timeout_s=TRY_S).fields
    tried = on_all(
        sessions[1:],
        lambda session: session.ask(
            "try", timeout_s=TRY_S, addresses=addresses, port=listening["port"], token=listening["token"]
        ).fields["found"],
    )
    for address in addresses:
        if all("error" not in replies[address] for replies in tried):
            own = next(nic.name for nic in first.nics if address in nic.addresses)
            return address, [own, *(replies[address]["interface"] for replies in tried)]
    raise _unreached_error(sessions, addresses, tried)


def _unreached_error(
    sessions: Sequence[Conversation], addresses: Sequence[str], tried: Sequence[dict[str, dict[str, str]]]
) -> HostLost:
    """Return the error of hosts that do not reach each other, with what was tried."""
    head = sessions[0].host
    if not addresses:
        return HostLost(head, f"{head} has no address that other hosts could reach", fix=f"on {head}: ip address")
    for session, replies in zip(sessions[1:], tried, strict=True):
        if all("error" in reply for reply in replies.values()):
            errors = "; ".join(f"{address}: {reply['error']}" for address, reply in replies.items())
            return HostLost(
                session.host,
                f"{session.host} does not reach {head}",
                why=errors,
                fix="let TCP of all ports through between the hosts: firewall, security group, or the same private network",
            )
    return HostLost(head, f"no address of {head} is reached by all other hosts", fix="put the hosts into one network")
