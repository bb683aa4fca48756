"""Options that `diagnose`, `report` and `compare` share: the same word means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Options

WorldSize = Annotated[
    str | None,
    typer.Option(
        "--world-size", help="Number of ranks of runs that do not state it: exp021=4,exp044=4.", metavar="RUN=N,..."
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(help="What stays constant as ranks are added, where files do not state it.", metavar="strong|weak"),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Meaning of a table's columns: tok_s=tokens_per_s; NAME=- ignores one.", metavar="NAME=MEANING,..."
    ),
]
DropEpochs = Annotated[int, typer.Option("--drop-epochs", help="First epochs to leave out of epoch times.", min=0)]
Paths = Annotated[
    tuple[Path, ...],
    typer.Argument(
        help="Run folders, traces, or results of other tools (tables, logs, nccl-tests, ...).",
        metavar="PATHS",
        show_default=False,
    ),
]


class EvidenceOptions(Options):
    """What is read, and what the user states of it: ``world_size``, ``columns`` and ``target_accuracy`` as typed."""

    paths: Paths
    world_size: WorldSize = None
    scaling: Scaling = None
    columns: Columns = None
    target_accuracy: Annotated[
        str | None,
        typer.Option("--target-accuracy", help="Also show the time to these validation accuracies.", metavar="A,..."),
    ] = None
    drop_epochs: DropEpochs = 1
    cell: Annotated[str | None, typer.Option(help="Only this cell of a run folder.", metavar="ID")] = None
