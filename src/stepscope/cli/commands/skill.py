"""``stepscope skill``: what an assistant has to know, as a SKILL.md."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options


class Skill(Options):
    """Print a SKILL.md for an assistant: what to ask first, which command answers what, what never to claim.

    stepscope skill > ~/.claude/skills/stepscope/SKILL.md
    """


def run(_: Skill) -> None:
    """Print the file."""
    print(Path(__file__).parents[1].joinpath("skill.md").read_text(encoding="utf-8"), end="")


COMMAND = Command(options=Skill, where="stepscope.cli.commands.skill", panel="Reference")
