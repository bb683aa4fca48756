"""What a training command runs on each rank, whatever starts the ranks: its launcher is left to the job's script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import UsageError

PYTHON = re.compile(r"python[\d.]*")
MODULE = ("-m", "--module")
_RANKS = "--nproc-per-node"
_PLACES = ("--nnodes", "--node-rank", "--standalone", "--rdzv", "--master", "--local-addr")
"""Beginnings of torchrun's options that say where ranks are and meet."""
_FLAGS = frozenset({"--standalone", "--use-agent-store", "--virtual-local-rank", "--no-python"})
"""Options of torchrun without a value."""


def words_of_torchrun(command: Sequence[str]) -> int:
    """Return how many words start torchrun, before its options; 0: another program starts the command's ranks."""
    if Path(command[0]).name == "torchrun":
        return 1
    unbuffered = command[1:2] == ["-u"]
    module = list(command[1 + unbuffered : 3 + unbuffered])
    return 3 + unbuffered if module in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]) else 0


def split_torchrun(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return torchrun's options, each with its value, and what it starts: a script, or ``-m`` and a module."""
    options: list[list[str]] = []
    module: list[str] = []
    coming = iter(words)
    for word in coming:
        if word in MODULE:
            module = ["-m"]
        elif not word.startswith("-"):
            return options, [*module, word, *coming]
        else:
            alone = "=" in word or word.replace("_", "-") in _FLAGS
            options.append([word] if alone else [word, next(coming, "")])
    return options, []


def program_of_ranks(command: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Return (torchrun's further options, script or ``-m`` module, its arguments), and the ranks a node that the command
    says.

    Takes ``torchrun [--nproc-per-node N] train.py``, ``python train.py``, ``python -m train`` and ``train.py``. Raises
    UsageError for a command that starts its ranks in another way, and for options that the job's script decides.
    """
    if begin := words_of_torchrun(command):
        return _of_torchrun(command[begin:])
    first = Path(command[0]).name
    if PYTHON.fullmatch(first):
        words = command[2:] if command[1:2] == ["-u"] else command[1:]
        if words[:1] and (words[0] == "-m" or words[0].endswith(".py")):
            return tuple(words), None
    if first.endswith(".py"):
        return tuple(command), None
    raise UsageError(
        f"{command[0]}: it is unknown how this command starts its ranks",
        why="the script starts them itself, with torchrun on each node",
        fix="give the program of a rank: torchrun train.py, python train.py, or python -m train",
    )


def _of_torchrun(words: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Return the command without torchrun's own options of the world, and the ranks that they state."""
    options, program = split_torchrun(words)
    kept: list[str] = []
    ranks: int | None = None
    for option in options:
        name, equals, value = option[0].partition("=")
        name = name.replace("_", "-")
        if name == _RANKS:
            value = value if equals else option[-1]
            if not value.isdecimal():
                raise UsageError(f"{_RANKS} {value}: on a cluster the ranks of a node are a number")
            ranks = int(value)
        elif name.startswith(_PLACES):
            raise UsageError(
                f"{name} of torchrun is decided by the job's script",
                why="only the job knows its nodes",
                fix=f"leave {name} out; --nodes and --ranks-per-node say how many",
            )
        else:
            kept += option
    return (*kept, *program), ranks
