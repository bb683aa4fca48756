"""``stepscope bench``: run a matrix of training cells and record what each one costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options, listed


class Bench(Options):
    """Benchmark training strategies: a matrix of models, strategies, ranks and precisions."""

    matrix: Annotated[
        Path | None, typer.Argument(help="Matrix file (YAML).", metavar="MATRIX.yaml", show_default=False)
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(help="In place of a file: a matrix that comes with stepscope (--list).", metavar="NAME"),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="In place of a file: your own model, by the function that returns it.", metavar="MODULE:FUNCTION"
        ),
    ] = None
    batch: Annotated[
        int | None, typer.Option(help="With --model: samples per rank and step; default: 32.", metavar="N", min=1)
    ] = None
    strategies: Annotated[
        str | None, typer.Option(help="With --model: strategies to compare; default: single,ddp.", metavar="NAME,...")
    ] = None
    ranks: Annotated[
        str | None,
        typer.Option(
            help="With --model: numbers of ranks; default: 1, 2, 4, ... up to all GPUs, or cores.", metavar="N,..."
        ),
    ] = None
    input: Annotated[
        str | None,
        typer.Option(
            help="With --model: random samples of this shape: 3x224x224; 128:50257: 128 ids below 50257.",
            metavar="SHAPE[:BELOW]",
        ),
    ] = None
    list_: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False
    show: Annotated[bool, typer.Option("--show", help="Print the resolved matrix as YAML and exit.")] = False
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the cells and the longest time they may take; run nothing.")
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Run folder; one that exists is resumed. Default: ./stepscope-runs/NAME-TIME.",
            metavar="DIR",
        ),
    ] = None
    set_: Annotated[
        tuple[str, ...],
        typer.Option("--set", help="Change one key: --set base.lr=0.01. Repeatable.", metavar="KEY=VALUE"),
    ] = ()
    only: Annotated[
        str | None, typer.Option(help="Of a matrix with sections, such as suite: run these.", metavar="NAME,...")
    ] = None
    warmup: Annotated[str | None, typer.Option(help="Warm-up steps: a number, or auto.", metavar="N|auto")] = None
    steps: Annotated[str | None, typer.Option(help="Timed steps: a number, or auto.", metavar="N|auto")] = None
    emulate_network: Annotated[
        str | None,
        typer.Option(
            "--emulate-network",
            help="Put ranks on emulated hosts, RATE[:HOSTS][,delay=TIME]: 2gbit:2.",
            metavar="NETWORK",
        ),
    ] = None
    inject: Annotated[
        tuple[str, ...],
        typer.Option(help="Plant a fault: slow_rank=2:30%, jitter or loader. Repeatable.", metavar="FAULT[=AMOUNT]"),
    ] = ()
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets.", metavar="DIR")] = None
    download: Annotated[bool, typer.Option("--download", help="Fetch missing public data into --data-dir.")] = False
    profile: Annotated[
        bool, typer.Option("--profile", help="Add three profiled steps to each cell: one trace per rank.")
    ] = False
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the traces for TensorBoard into this folder.", metavar="DIR")
    ] = None
    rerun: Annotated[
        str | None,
        typer.Option(
            help="In a run folder that exists: measure these cells again.", metavar="CELL|failed|baseline,..."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Use the run folder although it is of another matrix, machine or torch.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False

    @property
    def sections(self) -> tuple[str, ...] | None:
        """What ``--only`` lists; None: everything."""
        return None if self.only is None else listed(self.only)

    @property
    def rerun_words(self) -> tuple[str, ...]:
        """What ``--rerun`` lists."""
        return listed(self.rerun)


COMMAND = Command(options=Bench, where="stepscope.cli.bench_run", panel="Measure")
