"""``stepscope compare``: A against B, with intervals and a test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options
from stepscope.cli.evidence import Columns, DropEpochs, Scaling, WorldSize


class Compare(Options):
    """Say whether B differs from A, by how much, and how sure that is; differences in settings and machine first.

    The test needs 4 or more rounds, epochs or blocks of steps of each. `--run A.yaml A.yaml`: the noise of this machine.
    """

    paths: Annotated[
        tuple[Path, ...],
        typer.Argument(
            help="Two or more runs (folders, or results of other tools); with --run, two matrix files.",
            metavar="A B ...",
            show_default=False,
        ),
    ]
    run: Annotated[
        bool, typer.Option("--run", help="A and B are matrix files: measure them now, in alternating rounds.")
    ] = False
    rounds: Annotated[
        int | None, typer.Option(help="With --run: number of rounds, 4 or more; default: 6.", metavar="N")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="With --run: folder of both runs; the same folder again resumes.", metavar="DIR"
        ),
    ] = None
    data_dir: Annotated[Path | None, typer.Option(help="With --run: folder of the data sets.", metavar="DIR")] = None
    set_: Annotated[
        tuple[str, ...],
        typer.Option("--set", help="With --run: change a key of both matrix files: base.lr=0.1.", metavar="KEY=VALUE"),
    ] = ()
    metric: Annotated[
        str | None,
        typer.Option(help="Compare only these figures: step_ns,samples_per_s,...", metavar="KEY,..."),
    ] = None
    world_size: WorldSize = None
    scaling: Scaling = None
    columns: Columns = None
    drop_epochs: DropEpochs = 1
    fail_if: Annotated[
        tuple[str, ...],
        typer.Option(
            "--fail-if",
            help="Exit 6 when this holds: 'samples_per_s < -3%' (against A), 'test_accuracy < 0.9'.",
            metavar="CONDITION",
        ),
    ] = ()
    everything: Annotated[bool, typer.Option("--all", help="Every figure and every difference, however many.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Compare, where="stepscope.cli.compare_run", panel="Look at a job")
