"""``stepscope plan``: which layout of a model on some GPUs is best."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch


class Plan(Options):
    """Search the layouts of a model on some GPUs: those that fit, fastest first, and why the others lose.

    Nothing is measured: every layout that fits is timed by the model of `stepscope predict --model`.
    """

    run: Path | None = argument("The same as --from RUN.", "RUN", default=None)
    from_: Path | None = option(
        "In place of --model: the model of a profiled job, as far as its traces show it.", "RUN|TRACE"
    )
    model: str | None = option("A named model (llama3-8b), or its dimensions: FILE.yaml, config.json.", "MODEL")
    gpu: str | None = option("A GPU of `stepscope hardware`: h100-sxm.", "GPU")
    gpus: str | None = option("Number of GPUs.", "N")
    layout: tuple[str, ...] = option(
        "What every layout must keep: gbs=512,seq=8192,precision=fp8, tp=4, ...; the rest is searched.",
        "KEY=VALUE",
        default=(),
    )
    gpus_per_node: int | None = option("GPUs of one node; default: the usual number for the GPU, mostly 8.", "N", min=1)
    network: str | None = option("Network between nodes: infiniband-ndr, ...", "NETWORK")
    adapters: int | None = option("Network adapters per node; default: the usual number.", "N", min=1)
    sharp: bool = switch("The network's switches do the reductions (SHARP).")
    calib: Path | None = option("Correct the model by this result of `stepscope calibrate`.", "FILE")
    matrix: Path | None = option("Write a matrix for `stepscope bench` that measures the three best layouts.", "FILE")
    json: bool = switch("Print one JSON document.")


COMMAND = Command(options=Plan, where="stepscope.cli.predict_step:run_plan", panel="Predict")
