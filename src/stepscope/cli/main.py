"""Entry point: builds the command list from the folder, turns errors into messages and exit codes."""

from __future__ import annotations

import sys

import typer

from stepscope import __version__
from stepscope.cli.commands import REGISTRY
from stepscope.cli.console import err
from stepscope.core.errors import ExitCode, StepscopeError


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="stepscope",
        help="Shows where a distributed PyTorch training step's time goes, and what to change.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            typer.echo(f"stepscope {__version__}")
            raise typer.Exit

    for key in REGISTRY.names():
        command = REGISTRY.load(key)
        app.command(key, rich_help_panel=command.panel)(command.run)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit the process."""
    try:
        code = build_app()(args=argv, standalone_mode=False)
    except StepscopeError as error:
        err().print(f"[bold red]error:[/] {_escape(str(error))}")
        code = error.exit_code
    except KeyboardInterrupt:
        err().print("interrupted")
        code = ExitCode.SIGINT
    except Exception as error:  # noqa: BLE001 - process boundary: usage errors of click, else a bug
        code = _usage_or_bug(error)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _usage_or_bug(error: Exception) -> int:
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own UsageError family
        err().print(f"[bold red]error:[/] {_escape(error.format_message())}")
        context = getattr(error, "ctx", None)
        if context is not None:
            err().print(f"  fix: see `{_escape(context.command_path)} --help`")
        return ExitCode.USAGE
    import traceback

    err().print(_escape("".join(traceback.format_exception(error))), end="")
    err().print("[bold red]this is a bug in stepscope[/]: please report it with the lines above")
    return ExitCode.BUG


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
