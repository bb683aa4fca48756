"""Options that `diagnose`, `report` and `compare` share, one type each: the same word means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

WorldSize = Annotated[
    str | None,
    typer.Option("--world-size", help="Ranks of runs that do not tell: exp021=4,exp044=4.", metavar="RUN=N,..."),
]
Scaling = Annotated[
    str | None,
    typer.Option(help="What is kept as ranks are added, where files do not tell.", metavar="strong|weak"),
]
TargetAccuracy = Annotated[
    str | None,
    typer.Option("--target-accuracy", help="Also the time to these validation accuracies.", metavar="A,..."),
]
DropEpochs = Annotated[int, typer.Option("--drop-epochs", help="First epochs left out of epoch times.", min=0)]
Cell = Annotated[str | None, typer.Option(help="Only this cell of a run folder.", metavar="ID")]

ANY_RESULTS = "Run folders, traces, or results of other tools (nccl-tests, metrics.csv, ...)."
"""Help of the argument PATHS."""
