"""Entry point: runs a command, turns errors and signals into messages and exit codes.

Everything is imported inside, so that Ctrl-C during the imports ends as it does later on.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any


class _Interrupts:
    """Notes Ctrl-C before raising it: code that is interrupted (an import, a callback) may make another error of it."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, signum: int, frame: object) -> None:  # noqa: ARG002
        self.seen = True
        raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit the process."""
    sys.exit(_ended(argv))


def command() -> None:
    """Run the console script: as ``main``, and the process is left at once where nothing else runs in it."""
    import gc

    gc.set_threshold(
        50_000
    )  # commands make few cycles: looking for them every 700 objects takes 3 to 6 % of their time
    code = _ended(None)
    from threading import active_count

    from stepscope.core.forks import leave

    if active_count() > 1 or "torch" in sys.modules or sys.getprofile() is not None:
        sys.exit(code)
    leave(code)


def _ended(argv: list[str] | None) -> int:
    """Run the command line, to its end or Ctrl-C; the exit code."""
    interrupts = _Interrupts()
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupts)
        code = _run(argv, interrupts)
        if signal.getsignal(signal.SIGINT) is interrupts:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is the interpreter's own way out
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    return code


def _run(argv: list[str] | None, interrupts: _Interrupts) -> int:
    from stepscope.cli.console import checked_streams

    with checked_streams():
        try:
            code = _command(argv)
            if interrupts.seen and code == 130:  # typer has turned it into its own silent exit
                raise KeyboardInterrupt
            return code
        except Exception as error:
            if interrupts.seen and not _is_ours(error):
                raise KeyboardInterrupt from error
            return _code_of(error)


def _is_ours(error: Exception) -> bool:
    """Whether the command has dealt with the interrupt itself and has more to say of it."""
    from stepscope.core.errors import Interrupted

    return isinstance(error, Interrupted)


def _command(argv: list[str] | None) -> int:
    from stepscope.cli.command import read
    from stepscope.cli.commands import REGISTRY
    from stepscope.core.errors import ExitCode
    from stepscope.core.registry import uncollected

    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in ("help", "version"):
        arguments = [*arguments[1:], f"--{arguments[0]}"]
    completing = "_STEPSCOPE_COMPLETE" in os.environ  # a shell asks what may follow: nothing is run
    shipped = bool(arguments) and arguments[0] in REGISTRY.shipped and not completing
    with uncollected():
        named = REGISTRY.load(arguments[0]) if shipped else None
        options = None if named is None else read(named.options, arguments[1:])
    if named is not None and options is not None:
        code = named.run(options)
    else:
        from stepscope.cli import app

        code = app.main(arguments)
    sys.stdout.flush()
    return code if isinstance(code, int) else ExitCode.OK


_NO_MORE = (
    "Cannot allocate memory", "cannot allocate memory", "can't start new thread", "failed to map segment",
    "Too many open files",
)  # fmt: skip
"""What the system says, beside MemoryError, where it gives no more: to a fork, a thread, a library, a file."""


def _code_of(error: Exception) -> int:
    """Tell the user about ``error`` (ours, one of click, a limit of the system, else a bug) and return the exit code."""
    from stepscope.cli.console import ReaderGone
    from stepscope.core.errors import ExitCode, StepscopeError

    if isinstance(error, ReaderGone):
        return error.exit_code
    if isinstance(error, StepscopeError):
        _print_error(str(error))
        return error.exit_code
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own UsageError family
        context = getattr(error, "ctx", None)
        fix = "" if context is None else f"\n  fix: see `{context.command_path} --help`"
        _print_error(f"{_nearest_option(error) or _plain(error.format_message())}{fix}")
        return ExitCode.USAGE
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _NO_MORE):
        # no import, no colour: there is no memory for them
        sys.stderr.write(
            f"error: the system gives no more memory, files or processes ({type(error).__name__}: {error})\n"
            "  fix: a higher limit (`ulimit -a` shows them), or fewer ranks and files at a time\n"
        )
        return ExitCode.ENVIRONMENT
    import traceback

    from stepscope.cli.console import err

    err().print("".join(traceback.format_exception(error)), end="")
    err().print("[bold red]this is a bug in stepscope[/]: please report it with the lines above", markup=True)
    return ExitCode.BUG


def _plain(message: str) -> str:
    """Write ``--ci: expected at most 1`` from the words of the library that checked the value."""
    if missing := re.fullmatch(r"Missing (?:argument|option) '(.*)'\.", message):
        return f"{missing[1]} is missing"
    match = re.fullmatch(r"Invalid value for '(?P<name>[^']*)': Input should be (?P<what>[^,]*).*", message)
    if match is None:
        return message
    what = match["what"].replace("less than or equal to", "at most").replace("greater than or equal to", "at least")
    return f"{match['name']}: expected {what.replace('valid ', '')}"


RANKS = ("--gpus", "--nproc", "--nproc-per-node", "--nranks", "--num-ranks", "--num-gpus", "--world-size", "-n", "-np")
"""What other tools call the number of ranks."""


def _nearest_option(error: Any) -> str | None:
    """Return one sentence for an option that the command does not have; None for other mistakes."""
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is None or not name:
        return None
    from stepscope.core.words import did_you_mean

    options = [word for param in context.command.params for word in param.opts if word.startswith("--")]
    guess = "--ranks" if name in RANKS and "--ranks" in options else did_you_mean(name, options)
    return f"{context.command_path} has no option {name}" + (f"; did you mean {guess}?" if guess else "")


def _print_error(text: str) -> None:
    from contextlib import suppress

    from rich.markup import escape

    from stepscope.cli.console import ReaderGone, err

    with suppress(ReaderGone):
        err().print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True, markup=True)


if __name__ == "__main__":
    main()
