"""What a training command runs on each rank, whatever starts the ranks: its launcher is left to the job's script."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.core.dataclass import record
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


@record
class RankProgram:
    """How one rank of a command is started without its launcher. words: its Python, script and arguments, behind what stood
    before them (``uv run``). launcher: ``torchrun``, ``accelerate``, ``srun``, ``mpirun``; None: the command starts one
    process. ranks: of a node, as the command says. options: of the launcher, of ``accelerate`` alone."""

    words: tuple[str, ...]
    launcher: str | None = None
    ranks: int | None = None
    options: tuple[str, ...] = ()


_STARTERS = {
    "srun": ("srun", re.compile(r" --n?tasks-per-node[= ](\d+)")),
    **dict.fromkeys(
        ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"),
        ("mpirun", re.compile(r" (?:--?npernode|-N|--?ppn|-perhost)[= ](\d+)| (?:--map-by )?ppr:(\d+):node")),
    ),
}
"""Program -> the launcher that it is, and its option that states the ranks of a node."""
_OPAQUE = {
    **dict.fromkeys(("bash", "sh", "zsh"), "which ranks a shell script starts is not seen from outside"),
    "deepspeed": "DeepSpeed's engine partitions and moves tensors in compiled code of its own, which needs the GPU",
}


def rank_program(command: Sequence[str]) -> RankProgram:
    """Return how one rank of ``command`` is started, whatever starts its ranks. Raises UsageError where it names no Python
    program."""
    first = Path(command[0]).name
    at = next((at for at, word in enumerate(command) if _begins_program(word)), None)
    if at is None or first in _OPAQUE:
        raise UsageError(
            f"{command[0]}: it is unknown which Python program this command starts",
            why=_OPAQUE.get(first),
            fix="give the training command itself: -- torchrun train.py, -- python train.py",
        )
    before, words = tuple(command[:at]), list(command[at:])
    starter, states = _STARTERS.get(first, (None, None))
    stated = None if states is None else states.search(" ".join(["", *before[1:], ""]))
    program = _launched(words, python=python_beside(words[0]) if starter or not before else "python")
    if not program.words[1:] and not program.words[0].endswith(".py"):
        raise UsageError(f"{words[0]}: no script to start", fix="name it: torchrun train.py, python train.py")
    return replace(
        program,
        words=(*(() if starter else before), *program.words),
        launcher=program.launcher or starter,
        ranks=program.ranks or (stated and int(next(filter(None, stated.groups())))),
    )


def _begins_program(word: str) -> bool:
    name = Path(word).name
    return name in ("torchrun", "accelerate") or name.endswith(".py") or PYTHON.fullmatch(name) is not None


def _launched(words: Sequence[str], *, python: str) -> RankProgram:
    """Return the program of a rank; ``words`` begin with its launcher, its Python or itself. python: of a launcher that is a
    program of its own."""
    if begin := words_of_torchrun(words):
        options, program = split_torchrun(words[begin:])
        named = {option[0].partition("=")[0].replace("_", "-"): option[-1].rpartition("=")[2] for option in options}
        ranks = named.get(_RANKS, "")
        own = [] if "--no-python" in named else [python if begin == 1 else words[0]]
        return RankProgram(words=(*own, *program), launcher="torchrun", ranks=int(ranks) if ranks.isdecimal() else None)
    begin = 2 if Path(words[0]).name == "accelerate" else 3 * ("accelerate.commands.launch" in words[:3])
    if not begin:
        return RankProgram(words=tuple(words))
    at = next((at for at, word in enumerate(words) if word in MODULE[begin == 3 :] or word.endswith(".py")), len(words))
    return RankProgram(
        words=(python if begin == 2 else words[0], *words[at:]),
        launcher="accelerate",
        options=tuple(words[begin:at]),
    )


def python_beside(launcher: str) -> str:
    """Return the Python beside the launcher, or the first on PATH where there is none."""
    path = shutil.which(launcher)
    beside = None if path is None else Path(path).parent / "python"
    return str(beside) if beside is not None and beside.exists() else "python"
