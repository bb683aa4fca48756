"""What ``stepscope doctor --hosts`` does, and ``srun stepscope doctor`` on several nodes: ask all, compare, print."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

from rich.text import Text

from stepscope.cli.console import err, log, print_document, say
from stepscope.cli.findings import show_facts, show_table
from stepscope.cli.host_options import asked_hosts
from stepscope.core.errors import CheckFailed, UsageError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.units import format_bandwidth
from stepscope.core.words import counted, in_words
from stepscope.launch.hosts.checkup import Checkup, check_up, document
from stepscope.launch.hosts.conversation import Conversation, HostLost
from stepscope.launch.hosts.session import HostSession, Reach
from stepscope.launch.hosts.tasks import answer_first_task, gather, named_apart
from stepscope.launch.join import world_environ
from stepscope.machine.nodes import shared
from stepscope.report.table import Column, Table, duration, identity_column, lead_column, tabled, wording

if TYPE_CHECKING:
    from stepscope.cli.commands.doctor import Doctor


def run(options: Doctor) -> int:
    """Check the hosts of --hosts.

    Raises HostLost, after the report, when one gave no facts; CheckFailed under ``--strict``.
    """
    if options.quick or options.ranks is not None:
        raise UsageError(
            "--quick starts its ranks on this machine, and --hosts asks others",
            fix="to measure on the hosts: stepscope comm --hosts ... or bench --hosts ...",
        )
    asked = asked_hosts(options, against={})
    assert asked is not None
    named, reach = asked
    waiting = _waiting(options, f"asking {counted(len(named), 'host')} ...")
    with stop_signals_raise("interrupted"), ExitStack() as stack, waiting:
        greeted, failed = _greeted([host.name for host in named], reach, stack)
        checkup = check_up(greeted, torch_timeout_s=options.torch_timeout, failed=failed)
    return show(checkup, options)


def run_tasks(options: Doctor, nodes: int) -> int:
    """Check the nodes of a started world: rank 0 asks, one task of each other node answers."""
    environ = world_environ(os.environ)
    if environ["RANK"] != "0":
        answer_first_task(environ)
        log("rank 0 reports for all nodes", "")
        return 0
    waiting = _waiting(options, f"waiting for {counted(nodes - 1, 'other node')} ...")
    with stop_signals_raise("interrupted"), ExitStack() as stack, waiting:
        others = gather(environ, nodes, stack)
        own = stack.enter_context(HostSession("localhost", Reach()))
        own.host = str(own.greet().fields["host"])
        checkup = check_up(named_apart([own, *others]), torch_timeout_s=options.torch_timeout)
    return show(checkup, options)


def _waiting(options: Doctor, text: str) -> AbstractContextManager[object]:
    return err().status(text) if err().is_terminal and not options.json else nullcontext()


def _greeted(names: list[str], reach: Reach, stack: ExitStack) -> tuple[list[Conversation], list[HostLost]]:
    """Return the sessions that answer, and why the others do not."""
    greeted: list[Conversation] = []
    failed: list[HostLost] = []
    for session in [stack.enter_context(HostSession(name, reach)) for name in names]:
        try:
            session.greet()
        except HostLost as error:
            failed.append(error)
        else:
            greeted.append(session)
    return greeted, failed


def show(checkup: Checkup, options: Doctor) -> int:
    """Print, and raise what follows from it."""
    if options.json:
        print_document(document(checkup))
    else:
        _print(checkup)
    if checkup.failed:
        first = checkup.failed[0]
        rest = in_words([error.host for error in checkup.failed[1:]])
        fix = f"{first.fix}; {rest} too" if rest and first.fix else first.fix
        raise HostLost(first.host, first.what, why=first.why, fix=fix)
    if options.strict and not checkup.sound:
        raise CheckFailed("the nodes differ, or their network does", fix="see the lines above, or drop --strict")
    return 0


def _print(checkup: Checkup) -> None:
    nodes, differing = checkup.nodes, checkup.differences
    broken = [pair for pair in checkup.pairs if pair.error]
    parts = [counted(len(nodes), "node"), counted(len(differing), "difference") if differing else "no difference"]
    if checkup.failed:
        parts.append(f"{counted(len(checkup.failed), 'host')} without an answer")
    if broken:
        parts.append(f"{counted(len(broken), 'pair')} without a connection")
    if checkup.slow:
        parts.append(f"{counted(len(checkup.slow), 'slow pair')}")
    say(", ".join(parts), "bold")
    for error in checkup.failed:
        say()
        say(Text.assemble(("FAIL  ", "bold red"), error.what))
        for line in (error.why and f"why: {error.why}", error.fix and f"fix: {error.fix}"):
            if line:
                say(f"      {line}")
    for difference in differing:
        say()
        say(Text.assemble(("WARN  ", "yellow"), (difference.title, "cyan"), f"  {difference.sentence}"))
        say(f"      {difference.effect}")
        where = f" on {in_words(difference.odd, at_most=4)}" if difference.odd else " on each"
        say(f"      see: `{difference.command}`{where}", "dim")
    if len(nodes) == 2 and differing:
        say()
        say("two nodes: they differ, and no majority decides which of them is wrong", "dim")
    same = shared(nodes)
    if len(nodes) > 1 and same:
        say()
        say("the same on all nodes", "bold")
        show_facts(same)
    if checkup.pairs:
        say()
        show_table(pairs_table(checkup), titled=True)
        _print_network(checkup)


def _print_network(checkup: Checkup) -> None:
    for end in checkup.slow_ends:
        say(
            f"{end.host}: {'sends' if end.direction == 'out' else 'receives'} {format_bandwidth(end.bytes_per_s)}, typical "
            f"is {format_bandwidth(end.typical)}: look at its interface, cable and switch port",
            "yellow",
        )
        say(f"      see: `ethtool IFACE; ip -s link` on {end.host}", "dim")
    if checkup.slow and not checkup.slow_ends:
        for pair in checkup.slow:
            say(
                f"{pair.source} to {pair.target} is slow: `stepscope comm --hosts ... --pairs` measures it well",
                "yellow",
            )
    for pair in checkup.pairs:
        if pair.error:
            say(f"{pair.source} does not reach {pair.target}: {pair.error}", "bold red")


def pairs_table(checkup: Checkup) -> Table:
    return tabled(
        "pairs",
        "Network between every two nodes",
        checkup.pairs,
        lead_column("source", "from", "source"),
        identity_column("target", "to", "target"),
        identity_column("interface", "interface", lambda pair: pair.interface or "?", drop=2),
        identity_column("address", "address", lambda pair: pair.address or "-", drop=1),
        Column("round_trip_ns", "round trip", "round_trip_ns", duration),
        Column(
            "bytes_per_s", "rate",
            lambda pair: None if pair.bytes_per_s is None else wording(
                format_bandwidth(pair.bytes_per_s), pair.bytes_per_s, tone="warn" if pair in checkup.slow else "plain"
            ),
        ),
        footnotes=("round trip: of one byte over TCP, median of 30; rate: 8 MiB over one TCP connection, the best of 4",),
    )  # fmt: skip
