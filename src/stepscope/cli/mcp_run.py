"""What ``stepscope mcp`` does: hand the tools of ``api.assistant`` to a client over stdin and stdout."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import __version__
from stepscope.api.assistant import Assistant
from stepscope.cli.console import log
from stepscope.core.errors import ExitCode, MissingError, StepscopeError, UsageError
from stepscope.core.forks import leave
from stepscope.core.words import in_words

if TYPE_CHECKING:
    from stepscope.cli.commands.mcp import Mcp

INSTRUCTIONS = """stepscope says where the time of distributed PyTorch training goes. Begin with `open` without a path, then
`verdict` of a job: its `screen` is the answer. Quote figures with their intervals and what they rest on; never name a cause
that no finding names, nor call what is `skipped` sound. Commands of `next_command` are for the user to run."""


def run(options: Mcp) -> None:
    """Serve until the client goes. Raises StepscopeError."""
    folders = options.folders or (Path(),)
    if not options.folders and Path().resolve() == Path("/"):
        raise UsageError("mcp would read all of /", why="no folder was named", fix="stepscope mcp FOLDER")
    assistant = Assistant(folders)
    try:
        import anyio
        import mcp_types as types
        from mcp.server import Server
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise MissingError(
            "stepscope mcp needs the Python SDK of the Model Context Protocol",
            why=f"its package mcp, version 2 or later, is not installed ({error})",
            fix=f"{sys.executable} -m pip install 'mcp>=2'",
        ) from error

    async def tools(_context: Any, _request: Any) -> types.ListToolsResult:
        reads = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=text, input_schema=schema, annotations=reads)
                for name, text, schema in assistant.schemas()
            ]
        )

    async def call(_context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        failed = True
        try:
            text, failed = assistant.call(request.name, request.arguments or {}), False
        except StepscopeError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - the server outlives a bug
            traceback.print_exc()
            text = f"{error!r}: this is a bug in stepscope; the traceback is in the server's log"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    server: Server[Any] = Server(
        "stepscope", version=__version__, instructions=INSTRUCTIONS, on_list_tools=tools, on_call_tool=call
    )

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    if sys.stdin.isatty():
        log(f"waiting for an assistant's client on stdin, about {in_words(assistant.folders)}; Ctrl-C ends")
    try:
        anyio.run(serve)
    except KeyboardInterrupt:
        log("interrupted")
        leave(ExitCode.SIGINT)  # the SDK's thread would still wait for a line of stdin
