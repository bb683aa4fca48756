"""The command line as typer sees it: one command per file of ``cli/commands``."""

from __future__ import annotations

import typer

from stepscope import __version__
from stepscope.cli.commands import REGISTRY
from stepscope.core.errors import ExitCode


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="stepscope",
        help="Shows where a distributed PyTorch training step's time goes, and what to change.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            print(f"stepscope {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help(), end="")
            raise typer.Exit(ExitCode.USAGE)

    for key in REGISTRY.names():
        command = REGISTRY.load(key)
        app.command(key, rich_help_panel=command.panel)(command.run)
    return app
