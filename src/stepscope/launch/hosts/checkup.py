"""Nodes looked at together: facts of each, its clock, what differs, and what every two of them say of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.launch.hosts.conversation import Conversation, HostLost
from stepscope.launch.hosts.pairs import SlowSide, TriedPair, slow_ends, slow_pairs, try_pairs
from stepscope.launch.hosts.survey import addresses_of, at_once, facts_of
from stepscope.launch.hosts.world import clock_offset_ns
from stepscope.machine.nodes import NodeDifference, NodeFacts, differences
from stepscope.records import codec

T = TypeVar("T")


@record
class Checkup:
    """What a check-up of hosts showed. failed: hosts that gave no facts, and why."""

    nodes: tuple[NodeFacts, ...]
    differences: tuple[NodeDifference, ...]
    pairs: tuple[TriedPair, ...]
    slow: tuple[TriedPair, ...]
    slow_ends: tuple[SlowSide, ...]
    failed: tuple[HostLost, ...]

    @property
    def sound(self) -> bool:
        return not (self.differences or self.slow or self.failed or any(pair.error for pair in self.pairs))


def each_or_lost(hosts: Sequence[Conversation], ask: Callable[[Conversation], T]) -> list[T | HostLost]:
    """Ask all hosts at once; return what each answers, or why it does not."""

    def asked(host: Conversation) -> T | HostLost:
        """Return the answer of one host, or that it is lost."""
        try:
            return ask(host)
        except HostLost as error:
            return error
        except StepscopeError as error:
            return HostLost(host.host, error.what, why=error.why, fix=error.fix)

    return at_once(hosts, asked)


def check_up(hosts: Sequence[Conversation], *, torch_timeout_s: float, failed: Sequence[HostLost] = ()) -> Checkup:
    """Ask all ``hosts``, which have been greeted. failed: others, which could not be."""

    clocks = each_or_lost(hosts, clock_offset_ns)  # all of them before the facts, which take processor time
    answers = each_or_lost(hosts, lambda host: facts_of(host, torch_timeout_s=torch_timeout_s))
    nodes: list[NodeFacts] = []
    answering: list[Conversation] = []
    lost = [*failed]
    for host, clock, facts in zip(hosts, clocks, answers, strict=True):
        if isinstance(facts, HostLost):
            lost.append(facts)
        elif isinstance(clock, HostLost):
            lost.append(clock)
        else:
            nodes.append(NodeFacts(name=host.host, environment=facts, clock_ns=clock[0], clock_error_ns=clock[1]))
            answering.append(host)
    pairs: tuple[TriedPair, ...] = ()
    if len(nodes) > 1:
        pairs = try_pairs(answering, {node.name: addresses_of(node.environment) for node in nodes})
    reaching = {pair.source: pair.interface for pair in pairs if pair.interface}
    with_interfaces = tuple(replace(node, interface=reaching.get(node.name)) for node in nodes)
    return Checkup(
        nodes=with_interfaces,
        differences=differences(with_interfaces),
        pairs=pairs,
        slow=slow_pairs(pairs),
        slow_ends=slow_ends(pairs),
        failed=tuple(lost),
    )


def document(checkup: Checkup) -> dict[str, Any]:
    """``doctor --hosts --json``: schema stepscope.doctor_hosts/1."""
    return {
        **codec.headed("doctor_hosts/1"),
        "sound": checkup.sound,
        "nodes": [
            {
                "name": node.name,
                "clock_offset_ns": node.clock_ns,
                "clock_error_ns": node.clock_error_ns,
                "interface": node.interface,
                "environment": codec.to_builtins(node.environment),
            }
            for node in checkup.nodes
        ],
        "differences": [codec.to_builtins(difference) for difference in checkup.differences],
        "pairs": [{**codec.to_builtins(pair), "slow": pair in checkup.slow} for pair in checkup.pairs],
        "slow_ends": [codec.to_builtins(end) for end in checkup.slow_ends],
        "failed": [{"host": e.host, "what": e.what, "why": e.why, "fix": e.fix} for e in checkup.failed],
    }
