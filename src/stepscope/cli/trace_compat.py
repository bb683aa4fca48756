"""``stepscope trace --compat hta``: another tool's numbers for the same files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.cli.blocks import print_block
from stepscope.cli.console import out, print_json
from stepscope.core.errors import UsageError
from stepscope.report.render import terminal
from stepscope.report.views import trace_compat

TOOLS = ("hta",)


def run(tool: str, paths: Sequence[str], *, ranks: Mapping[str, int], as_json: bool) -> int:
    """Print every table of the tool, or its record as JSON. Raises UsageError for an unknown tool."""
    from stepscope import __version__
    from stepscope.core.suggest import unknown
    from stepscope.records import codec
    from stepscope.traces.compat_hta import hta_report
    from stepscope.traces.load import load_traces

    if tool not in TOOLS:
        raise UsageError(unknown("tool for --compat", tool, TOOLS))
    report = hta_report(load_traces(paths, ranks=ranks))
    if as_json:
        head = {"schema": "stepscope.trace_compat/1", "tool_version": __version__, "tool": "hta 0.5.0"}
        print_json(codec.encode_document({**head, **codec.plain(report)}))
        return 0
    console = out()
    console.print(trace_compat.NOTE, style="yellow", soft_wrap=True)
    console.print()
    for table in trace_compat.build(report):
        console.print(table.title, style="bold")
        print_block(console, terminal.render(table, width=console.width))
        console.print()
    return 0
