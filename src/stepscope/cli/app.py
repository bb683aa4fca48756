"""The command line as typer sees it: one command per file of ``cli/commands``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import typer

from stepscope import __version__
from stepscope.cli.commands import REGISTRY
from stepscope.core.errors import ExitCode


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command that ``arguments`` name, alone; where they name none, all of them as help lists them."""
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

    names = REGISTRY.names()
    asked = next((text for text in arguments if not text.startswith("-")), None)
    if asked in names:
        command = REGISTRY.load(asked)
        settings = {"allow_interspersed_args": not command.runs_a_command}
        app.command(asked, context_settings=settings)(command.typer_function())
        return app
    for name in names:
        command = REGISTRY.load(name)
        app.command(name, help=inspect.getdoc(command.options), rich_help_panel=command.panel)(_listed_only)
    return app


def _listed_only() -> None:
    """A command in the list of all, where none is run: reading its options would cost time."""
