"""``stepscope plan``: which layout of a model on some GPUs is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.command import Argument, Command, Option, Options


class Plan(Options):
    """Search the layouts of a model on some GPUs: those that fit, fastest first, and why the others lose.

    Nothing is measured: every layout that fits is timed by the model of `stepscope predict --model`.
    """

    run: Annotated[Path | None, Argument(help="The same as --from RUN.", metavar="RUN", show_default=False)] = None
    from_: Annotated[
        Path | None,
        Option(
            "--from",
            help="In place of --model: the model of a profiled job, as far as its traces show it.",
            metavar="RUN|TRACE",
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(help="A named model (llama3-8b), or its dimensions: FILE.yaml, config.json.", metavar="MODEL"),
    ] = None
    gpu: Annotated[str | None, Option(help="A GPU of `stepscope hardware`: h100-sxm.", metavar="GPU")] = None
    gpus: Annotated[str | None, Option(help="Number of GPUs.", metavar="N")] = None
    layout: Annotated[
        tuple[str, ...],
        Option(
            help="What every layout must keep: gbs=512,seq=8192,precision=fp8, tp=4, ...; the rest is searched.",
            metavar="KEY=VALUE",
        ),
    ] = ()
    gpus_per_node: Annotated[
        int | None,
        Option(help="GPUs of one node; default: the usual number for the GPU, mostly 8.", metavar="N", min=1),
    ] = None
    network: Annotated[str | None, Option(help="Network between nodes: infiniband-ndr, ...", metavar="NETWORK")] = None
    adapters: Annotated[
        int | None, Option(help="Network adapters per node; default: the usual number.", metavar="N", min=1)
    ] = None
    sharp: Annotated[bool, Option("--sharp", help="The network's switches do the reductions (SHARP).")] = False
    calib: Annotated[
        Path | None, Option(help="Correct the model by this result of `stepscope calibrate`.", metavar="FILE")
    ] = None
    matrix: Annotated[
        Path | None,
        Option(help="Write a matrix for `stepscope bench` that measures the three best layouts.", metavar="FILE"),
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Plan, where="stepscope.cli.predict_step:run_plan", panel="Predict")
