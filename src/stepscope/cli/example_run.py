"""What ``stepscope example`` does: it writes the examples and says what to try."""

from __future__ import annotations

import shlex
from pathlib import Path

from stepscope.cli.commands.example import Example
from stepscope.cli.console import out, say
from stepscope.core.errors import Interrupted, UsageError
from stepscope.examples.jobs import EXAMPLES


def run(options: Example) -> None:
    """Write every example into its own folder. Raises UsageError where one of them is there already."""
    directory = options.directory
    for name in EXAMPLES:
        if (directory / name).exists():
            raise UsageError(f"{directory / name} already exists", fix="name another folder, or delete this one")
    written: list[str] = []
    try:
        for name, example in EXAMPLES.items():
            example.write(directory / name)
            written.append(name)
    except KeyboardInterrupt:
        raise _interrupted(directory, written) from None
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", fix="name a folder that is writable"
        ) from error
    console = out()
    console.print(f"{len(EXAMPLES)} example jobs in {directory}, generated, each with one known problem")
    for name, example in EXAMPLES.items():
        where = shlex.quote(str(directory / name))
        say(f"\n{name}: {example.planted}")
        for command in example.commands:
            say(f"  $ stepscope {command.replace('{}', where)}")
    where = shlex.quote(str(directory / "straggler"))
    console.print(
        f"\nA page to look at in a browser:\n  $ stepscope report {where} -o {shlex.quote(str(directory / 'page'))}"
    )


def _interrupted(directory: Path, written: list[str]) -> Interrupted:
    """What is complete, and what to delete before the next try, which refuses folders that exist."""
    begun = [name for name in EXAMPLES if name not in written and (directory / name).exists()]
    if not written and not begun:
        return Interrupted("interrupted: nothing is written")
    parts = [f"complete in {directory}: {', '.join(written)}"] if written else []
    parts += [f"incomplete: {directory / name}" for name in begun]
    return Interrupted(
        f"interrupted: {'; '.join(parts)}", fix=f"delete {directory}, or name another folder, and try again"
    )
