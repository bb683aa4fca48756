"""What a training command runs on each rank, whatever starts the ranks: its launcher is left to the job's script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import UsageError

_PYTHON = re.compile(r"python[\d.]*")
_RANKS = "--nproc-per-node"
_PLACES = ("--nnodes", "--node-rank", "--standalone", "--rdzv", "--master", "--local-addr")
"""Beginnings of torchrun's options that say where ranks are and meet."""


def program_of_ranks(command: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Return (torchrun's further options, script or ``-m`` module, its arguments), and the ranks a node that the command
    says.

    Takes ``torchrun [--nproc-per-node N] train.py``, ``python train.py``, ``python -m train`` and ``train.py``. Raises
    UsageError for a command that starts its ranks in another way, and for options that the job's script decides.
    """
    first = Path(command[0]).name
    if first == "torchrun":
        return _of_torchrun(command[1:])
    if _PYTHON.fullmatch(first):
        words = command[2:] if command[1:2] == ["-u"] else command[1:]
        if list(words[:2]) in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            return _of_torchrun(words[2:])
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
    kept: list[str] = []
    ranks: int | None = None
    coming = iter(words)
    for word in coming:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name == _RANKS:
            value = value if equals else next(coming, "")
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
            kept.append(word)
            if not word.startswith("-") or word in ("-m", "--module"):
                kept += coming
                break
            if not equals and name in _WITH_VALUE:
                kept += [next(coming, "")]
    return tuple(kept), ranks


_WITH_VALUE = frozenset({
    "--max-restarts", "--monitor-interval", "--start-method", "--role", "--log-dir", "--redirects", "-r", "--tee", "-t",
    "--local-ranks-filter", "--logs-specs", "--numa-binding", "--event-log-handler",
})  # fmt: skip
