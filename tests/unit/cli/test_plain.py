"""A command line read without typer is the one that typer reads; the rest is left to typer."""

from pathlib import Path
from typing import Any

import pytest
import typer

from stepscope.cli.command import Command, Options, read
from stepscope.cli.commands.comm import Comm
from stepscope.cli.commands.profile import Profile
from stepscope.cli.commands.run import Run
from stepscope.cli.commands.trace import Trace

seen: list[Any] = []


def run(options: Options) -> None:
    seen.append(options)


def by_typer(kind: type[Options], words: list[str]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command("any")(Command(options=kind, where=__name__).typer_function())
    app(args=words, standalone_mode=False)
    return seen.pop()


@pytest.mark.parametrize(
    "words",
    [
        ["a.json"],
        ["a.json", "b c.json", "--json", "--cache"],
        ["--show", "budget,overlap", "a"],
        ["--show=budget", "a", "--limit=0", "--flop", "1e12", "--hardware-flop", "2.5"],
        ["a", "--rank-of", "x=1", "--rank-of=y=2", "--fail-if", "idle_fraction > 0.1", "--processes", "2"],
        ["a", "--merge", "out.json.gz", "--csv", "folder", "--steps", "1-3", "--rank", "0"],
        ["a", "--csv", "folder", "--rank", "0", "--diff-steps", "1:2"],
        ["--ops", "all_reduce", "-o", "run", "--ci", "0.5", "--root=1", "--env", "A=1", "--env=B=2"],
    ],
)
def test_a_plain_command_line_means_what_typer_makes_of_it(words: list[str]) -> None:
    kind = Comm if "--ops" in words else Trace
    plain = read(kind, words)
    assert plain is not None
    assert vars(plain) == vars(by_typer(kind, words))


def test_types_and_defaults_are_those_of_the_fields() -> None:
    options = read(Trace, ["a", "--csv", "x", "--limit", "7"])
    assert options is not None
    assert vars(options) == vars(Trace(paths=("a",), csv=Path("x"), limit=7))
    assert options.show == ""
    assert options.rank_of == ()


@pytest.mark.parametrize(
    "words",
    [
        [],  # PATHS are required
        ["--json"],
        ["a", "--help"],
        ["a", "-h"],
        ["a", "--shwo", "budget"],
        ["a", "--show"],
        ["a", "--show", "--json"],
        ["a", "--limit", "-1"],
        ["a", "--limit", "many"],
        ["a", "--processes", "0"],
        ["a", "--flop", "1e"],
        ["a", "--json=yes"],
        ["a", "--json", "--json"],
        ["a", "--show", "budget", "--show", "overlap"],
        ["a", "--", "--json"],
        ["a", "-"],
    ],
)
def test_whatever_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    assert read(Trace, words) is None


def test_bounds_pairs_of_switches_and_commands_of_the_user_are_left_to_typer() -> None:
    assert read(Comm, ["--ci", "2"]) is None
    assert read(Comm, ["--no-check"]) is None
    assert read(Run, ["sleep", "1"]) is None
    assert read(Profile, ["-o", "here", "--", "true"]) is None
