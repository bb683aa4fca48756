"""What ``stepscope export`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cli.console import say
from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from stepscope.cli.commands.export import Export


def run(options: Export) -> int:
    """Write to every target; the exit code. Raises StepscopeError."""
    from stepscope.report.export_job import export, parse_target

    if not options.to:
        raise UsageError("export needs a target", fix="for example --to prometheus:metrics")
    targets = tuple(dict.fromkeys(options.to))
    kinds = [parse_target(target)[0] for target in targets]
    for kind, place in zip(kinds, export(options.path, targets), strict=True):
        say(f"{kind}: {place}")
    return 0
