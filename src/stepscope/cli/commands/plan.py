"""``stepscope plan``: which layout of a model on some GPUs is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.command import Command, Options
from stepscope.cli.plain import Argument, Option


class Plan(Options):
    """Search the layouts of a model on some GPUs: those that fit, fastest first, and why the others lose.

    Nothing is measured. Constraints drop most layouts before they are priced as `stepscope predict --model` does. --from
    takes the model from a profiled job, as far as its traces show its dimensions.
    """

    run: Annotated[Path | None, Argument(help="The same as --from RUN.", metavar="RUN", show_default=False)] = None
    from_: Annotated[
        Path | None,
        Option("--from", help="The model of a profiled job, instead of --model.", metavar="RUN|TRACE"),
    ] = None
    model: Annotated[
        str | None,
        Option(help="A named model (llama3-8b), or its dimensions: FILE.yaml, config.json.", metavar="MODEL"),
    ] = None
    gpu: Annotated[str | None, Option(help="A GPU of `stepscope hardware`: h100-sxm.", metavar="GPU")] = None
    gpus: Annotated[str | None, Option(help="How many.", metavar="N")] = None
    layout: Annotated[
        tuple[str, ...],
        Option(
            help="What is fixed: gbs=512,seq=8192,precision=fp8, and degrees such as tp=4; the rest is searched.",
            metavar="KEY=VALUE",
        ),
    ] = ()
    gpus_per_node: Annotated[
        int | None, Option(help="Default: what is usual for the GPU, mostly 8.", metavar="N", min=1)
    ] = None
    network: Annotated[str | None, Option(help="Network between nodes: infiniband-ndr, ...", metavar="NETWORK")] = None
    adapters: Annotated[
        int | None, Option(help="Network adapters per node; default: the usual number.", metavar="N", min=1)
    ] = None
    sharp: Annotated[bool, Option("--sharp", help="The switches reduce (SHARP).")] = False
    calib: Annotated[
        Path | None, Option(help="Correct the constants by this calibration of `stepscope calibrate`.", metavar="FILE")
    ] = None
    matrix: Annotated[
        Path | None,
        Option(help="Write the matrix with which `stepscope bench` measures the first three.", metavar="FILE"),
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Plan, where="stepscope.cli.plan_run", panel="Predict")
