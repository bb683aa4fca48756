"""``stepscope example``: job folders to try the other commands on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import Command, Options, argument, option
from stepscope.cli.console import say
from stepscope.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from stepscope.examples.jobs import Example as Job


class Example(Options):
    """Write small generated job folders, each with one known problem, and print the commands that find it.

    Takes a few seconds and needs neither torch nor a GPU. Nothing is measured: `stepscope demo` measures this machine.
    """

    directory: Path = argument("Folder to write the jobs into.", "DIR")
    inject: tuple[str, ...] = option(
        "Also a job of 8 ranks with this fault: slow_rank=2:30% or loader. Repeatable.", "FAULT[=AMOUNT]", default=()
    )


def run(options: Example) -> None:
    """Write every example into its own folder. Raises UsageError where one of them is there already."""
    from stepscope.examples.jobs import EXAMPLES

    directory, examples = options.directory, EXAMPLES | _planted(options.inject)
    for name in examples:
        if (directory / name).exists():
            raise UsageError(f"{directory / name} already exists", fix="name another folder, or delete this one")
    written: list[str] = []
    try:
        for name, example in examples.items():
            example.write(directory / name)
            written.append(name)
    except KeyboardInterrupt:
        raise _interrupted(directory, written, examples) from None
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", fix="name a folder that is writable"
        ) from error
    say(f"{len(examples)} example jobs in {directory}, generated, each with one known problem")
    for name, example in examples.items():
        where = shlex.quote(str(directory / name))
        say(f"\n{name}: {example.planted}")
        for command in example.commands:
            say(f"  $ stepscope {command.replace('{}', where)}")
    where = shlex.quote(str(directory / "straggler"))
    page = shlex.quote(str(directory / "page"))
    say(f"\nA page to look at in a browser:\n  $ stepscope report {where} -o {page}")


def _planted(faults: tuple[str, ...]) -> dict[str, Job]:
    """Return the job with the faults that the command line names; none without. Raises UsageError."""
    if not faults:
        return {}
    from stepscope.examples.jobs import WORLD, own_ns, with_faults
    from stepscope.records.injection import absent, parse_injection

    injection = parse_injection(",".join(faults))
    if (reason := absent(injection, WORLD)) is not None:
        raise UsageError(f"--inject {reason}")
    if injection.jitter is not None:
        raise UsageError(
            "--inject jitter: a generated job of a few steps cannot show it", fix="stepscope bench --preset straggler"
        )
    slower = {s.rank: 1 + s.by.share for s in injection.slow if s.by.share is not None}
    late = {s.rank: s.by.ns for s in injection.slow if s.by.ns is not None}
    data_ns = 0 if injection.loader is None else round(injection.loader.of(own_ns()))
    return {"injected": with_faults(injection.words, slower=slower, late_ns=late, data_ns=data_ns)}


def _interrupted(directory: Path, written: list[str], examples: Iterable[str]) -> Interrupted:
    """Return the error that says what is complete, and what to delete before the next try: it refuses folders that exist."""
    begun = [name for name in examples if name not in written and (directory / name).exists()]
    if not written and not begun:
        return Interrupted("interrupted: nothing is written")
    parts = [f"complete in {directory}: {', '.join(written)}"] if written else []
    parts += [f"incomplete: {directory / name}" for name in begun]
    return Interrupted(
        f"interrupted: {'; '.join(parts)}", fix=f"delete {directory}, or name another folder, and try again"
    )


COMMAND = Command(options=Example, where="stepscope.cli.commands.example", panel="Start here")
