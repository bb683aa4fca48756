"""What ``stepscope example`` does: it writes the examples and says what to try."""

from __future__ import annotations

import shlex

from stepscope.cli.commands.example import Example
from stepscope.cli.console import out
from stepscope.core.errors import UsageError
from stepscope.examples.jobs import EXAMPLES


def run(options: Example) -> None:
    """Write every example into its own folder. Raises UsageError where one of them is there already."""
    directory = options.directory
    for name in EXAMPLES:
        if (directory / name).exists():
            raise UsageError(f"{directory / name} already exists", fix="name another folder, or delete this one")
    try:
        for name, example in EXAMPLES.items():
            example.write(directory / name)
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", fix="name a folder that is writable"
        ) from error
    console = out()
    console.print(f"{len(EXAMPLES)} example jobs in {directory}, generated, each with one known problem")
    for name, example in EXAMPLES.items():
        where = shlex.quote(str(directory / name))
        console.print(f"\n{name}: {example.planted}", soft_wrap=True)
        for command in example.commands:
            console.print(f"  $ stepscope {command.replace('{}', where)}", soft_wrap=True)
    where = shlex.quote(str(directory / "straggler"))
    console.print(
        f"\nA page to look at in a browser:\n  $ stepscope report {where} -o {shlex.quote(str(directory / 'page'))}"
    )
