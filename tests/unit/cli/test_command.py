"""The options of a command are spelled once: as fields, which typer sees as parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stepscope.cli.command import Command, Options, argument, option, switch


class Reading(Options):
    paths: tuple[Path, ...] = argument("What to read.", "PATHS")
    limit: int = option("Longest list.", "N", default=24)


class Look(Reading):
    """Look at things."""

    env: tuple[str, ...] = option("Sweep.", "NAME=VALUE", default=())
    json: bool = switch("One document.")


def run(options: Look) -> int:
    typer.echo(repr(options))
    return 3


def called(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(Command(options=Look, where=__name__).typer_function())
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def test_fields_become_parameters_and_what_is_typed_arrives_in_them() -> None:
    assert called("a", "b", "--env", "X=1", "--env", "Y=2", "--json") == (
        f"Look(paths=({Path('a')!r}, {Path('b')!r}), limit=24, env=('X=1', 'Y=2'), json=True)\n"
    )
    assert called("a") == f"Look(paths=({Path('a')!r},), limit=24, env=(), json=False)\n"


def test_help_is_the_docstring_and_a_field_without_default_is_required() -> None:
    assert "Look at things." in called("--help")
    assert "Missing argument" in called("--limit", "3")


def test_options_made_by_hand_have_the_same_defaults() -> None:
    options = Look(paths=(Path("a"),))
    assert (options.limit, options.env, options.json) == (24, (), False)


def test_options_refuse_what_is_missing_unknown_or_changed() -> None:
    with pytest.raises(TypeError, match="needs paths"):
        Look(limit=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no lmit"):
        Look(paths=(), lmit=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="frozen"):
        Look(paths=()).limit = 3  # type: ignore[misc]
