"""The command line as typer sees it: one command per file of ``cli/commands``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from stepscope import __version__
from stepscope.cli.command import Options, _fields, after_dashes
from stepscope.cli.commands import REGISTRY
from stepscope.core.errors import ExitCode, UsageError

PANELS = ("Start here", "Look at a job", "Measure", "Predict", "Look at a machine", "On a cluster", "Reference")
"""Headings of the list of commands, in their order; others follow."""

COMPLETING = "_STEPSCOPE_COMPLETE"
"""The variable of the shell that asks for completions; it says what to answer."""


class _PlainHelp:
    """Shows switches without ``<bool>``, arguments without ``<list[Path]>`` and double brackets, bounds with their name."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = _no_type
                parameter._usage_display_name = partial(_in_usage, parameter)
            elif parameter.metavar:
                bounds = parameter._get_number_range_help_str
                parameter._get_number_range_help_str = partial(_bounds, bounds, parameter.metavar)
        return parameters


def _no_type(ctx: Any) -> None:
    """Python's name of an argument's type tells a user nothing."""


def _bounds(bounds: Callable[[], str | None], metavar: str) -> str | None:
    """Write ``N>=1`` in place of ``x>=1``: the letter that stands beside it."""
    text = bounds()
    return text and text.replace("x", metavar)


def _in_usage(argument: Any) -> str:
    """Write ``PATHS...``, ``[RUN]``: brackets where it may be left out, dots where it may be repeated."""
    name = argument.display_name_raw + ("..." if argument.nargs != 1 and "..." not in argument.display_name_raw else "")
    return name if argument.required else f"[{name}]"


class _Group(_PlainHelp, TyperGroup):
    pass


class _Command(_PlainHelp, TyperCommand):
    """kind: the options of the command, where what follows ``--`` is the user's own command."""

    kind: type[Options] = Options

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words, after = after_dashes(self.kind, args)
        rest = super().parse_args(ctx, words)
        if not after and any(field.after and ctx.params.get(name) for name, field in _fields(self.kind).items()):
            raise UsageError(
                "the training command begins after `--`", fix=f"stepscope {ctx.info_name} ... -- torchrun train.py"
            )
        ctx.params.update(after)
        return rest


def main(arguments: Sequence[str]) -> int | None:
    """Run ``arguments`` as typer reads them, or answer the shell that completes a line."""
    code: int | None = build_app(arguments)(args=list(arguments), prog_name="stepscope", standalone_mode=False)
    return code


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Build the command that ``arguments`` name, alone; where they name none, all of them as help lists them."""
    completing = COMPLETING in os.environ
    asks_for_completion = any("-completion" in text for text in arguments[:1])
    app = typer.Typer(
        name="stepscope",
        cls=_Group,
        help="Shows where a distributed PyTorch training step's time goes, and what to change.",
        add_completion=completing or asks_for_completion or not arguments or arguments[0] in ("-h", "--help"),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
    ) -> None:
        if version:
            print(f"stepscope {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help(), end="")
            raise typer.Exit(ExitCode.USAGE)

    names = REGISTRY.names()
    words = _line_of_shell() if completing else arguments
    asked = next((text for text in words if not text.startswith("-")), None)
    if asked in names and not (completing and words[-1:] == [asked]):
        command = REGISTRY.load(asked)
        settings = {"allow_interspersed_args": not command.runs_a_command}
        own = type("_Command", (_Command,), {"kind": command.options})
        app.command(asked, cls=own, context_settings=settings)(command.typer_function())
        return app
    commands = {name: REGISTRY.load(name) for name in names}
    for name, command in sorted(commands.items(), key=lambda item: _place(item[1].panel)):
        app.command(name, help=inspect.getdoc(command.options), rich_help_panel=command.panel)(_listed_only)
    return app


def options_of(name: str, words: Sequence[str]) -> Options:
    """Return the options of the command ``name`` in a line that another command is given. Raises click's errors of usage."""
    command = REGISTRY.load(name)
    group = typer.main.get_command(build_app([name]))
    own = cast(TyperGroup, group).commands[name]
    given = own.make_context(f"stepscope {name}", list(words)).params
    return command.options(**given)


def _place(panel: str) -> int:
    return PANELS.index(panel) if panel in PANELS else len(PANELS)


def _line_of_shell() -> list[str]:
    """Return the words typed so far, as bash, zsh and fish hand them over."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def _listed_only() -> None:
    """Stand for a command in the list of all, where none is run: reading its options would cost time."""
