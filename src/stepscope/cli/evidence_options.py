"""Options that `diagnose`, `report` and `compare` share: the same word means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Options

WorldSize = Annotated[
    str | None,
    typer.Option(
        "--world-size",
        help="Number of ranks, for runs whose files do not state it: exp021=4,exp044=4.",
        metavar="RUN=N,...",
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(
        help="Where files do not state it: strong (same global batch on more ranks) or weak (same batch per rank).",
        metavar="strong|weak",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="What a table's columns mean: tok_s=tokens_per_s; NAME=- leaves a column out.", metavar="NAME=MEANING,..."
    ),
]
DropEpochs = Annotated[
    int, typer.Option("--drop-epochs", help="Number of first epochs to leave out of epoch times.", min=0, metavar="N")
]
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
