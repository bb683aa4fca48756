"""``stepscope mcp``: an assistant's client asks about jobs, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument


class Mcp(Options):
    """Answer an assistant's questions about jobs below these folders (Model Context Protocol, stdin and stdout).

    The assistant's client starts it. It only reads, runs nothing and uses no network. What an assistant should ask:
    `stepscope skill`.
    """

    folders: tuple[Path, ...] = argument(
        "Folders whose jobs may be read, with all below them; default: this one.", "FOLDER", default=()
    )


COMMAND = Command(options=Mcp, where="stepscope.cli.mcp_run", panel="Look at a job")
