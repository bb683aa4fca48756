"""``stepscope predict``: what something will cost before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Predict(Options):
    """Predict the time of a collective, from the hardware's specification or from a calibration; or the best buckets.

    Shows time, bus bandwidth, the algorithm the library would choose and why, the others, and an 80% interval.
    """

    collective: Annotated[
        str | None,
        typer.Option(help="all_reduce, all_gather, reduce_scatter, ...", metavar="OP", show_default=False),
    ] = None
    size: Annotated[
        str | None, typer.Option(help="Size S as nccl-tests counts it: 25MiB, 1K = 1024.", metavar="SIZE")
    ] = None
    sizes: Annotated[str | None, typer.Option(help="Several sizes: FROM:TO:FACTOR, or a list.", metavar="SIZES")] = None
    gpus: Annotated[str | None, typer.Option(help="Ranks, one GPU each.", metavar="N")] = None
    gpu: Annotated[str | None, typer.Option(help="A GPU of `stepscope hardware`: h100-sxm.", metavar="GPU")] = None
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Default: what is usual for the GPU, mostly 8.", metavar="N")
    ] = None
    network: Annotated[
        str | None,
        typer.Option(help="Network between nodes: infiniband-ndr, roce-400g, efa-p5, ...", metavar="NETWORK"),
    ] = None
    adapters: Annotated[
        int | None,
        typer.Option(help="Network adapters per node; default: the usual number.", metavar="N", min=1),
    ] = None
    sharp: Annotated[bool, typer.Option("--sharp", help="The switches reduce (SHARP).")] = False
    algorithm: Annotated[
        str | None, typer.Option(help="Force one algorithm, as NCCL_ALGO does: ring, tree, nvls.", metavar="ALGO")
    ] = None
    caller: Annotated[
        str,
        typer.Option(help="nccl-tests: calls queued back to back; torch: each call waited for."),
    ] = "nccl-tests"
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, ...", metavar="TYPE")] = None
    calib: Annotated[
        Path | None,
        typer.Option(help="Predict from this calibration, not from the specification.", metavar="FILE"),
    ] = None
    validate: Annotated[
        Path | None,
        typer.Option(help="Compare predictions with the measured tables in this folder or file.", metavar="DIR|FILE"),
    ] = None
    chart: Annotated[
        Path | None,
        typer.Option(help="Draw predicted against measured speed into this file: .svg, .png or .pdf.", metavar="FILE"),
    ] = None
    buckets: Annotated[
        Path | None,
        typer.Option(help="Find the best gradient bucket size for this run of `stepscope bench`.", metavar="RUN"),
    ] = None
    cell: Annotated[str | None, typer.Option(help="Cell of that run.", metavar="ID")] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Predict, where="stepscope.cli.predict_run", panel="Predict")
