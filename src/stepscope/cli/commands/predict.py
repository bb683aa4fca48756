"""``stepscope predict``: what something will cost before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.command import Argument, Command, Option, Options


class Predict(Options):
    """Predict a measured job on more GPUs, a training step of a named model, the time of a collective, the best buckets.

    A measured job (--from): step, throughput, efficiency, exposed communication on each number of GPUs. A step: its parts,
    tokens/s, MFU, memory, the knee of its scaling curve. A collective: time, bus bandwidth, the algorithm the library
    would choose and why. Each with an 80% interval.
    """

    run: Annotated[Path | None, Argument(help="The same as --from RUN.", metavar="RUN", show_default=False)] = None
    from_: Annotated[
        Path | None,
        Option(
            "--from",
            help="Predict this measured job on more GPUs: a run of bench, traces, a profile.",
            metavar="RUN|TRACE|PROFILE",
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(help="A named model (llama3-8b), or its dimensions: FILE.yaml, config.json.", metavar="MODEL"),
    ] = None
    layout: Annotated[
        tuple[str, ...],
        Option(
            help="With --model: tp=2,pp=4,zero=1,mbs=1,gbs=512,seq=8192,recompute=full,...; dp follows from --gpus.",
            metavar="KEY=VALUE",
        ),
    ] = ()
    scaling: Annotated[
        str | None,
        Option(
            help="With --from: weak keeps the batch of a rank (default), strong the global batch.",
            metavar="weak|strong",
        ),
    ] = None
    measured: Annotated[
        tuple[str, ...],
        Option(
            help="With --model: tokens/s that the whole job reached on this number of GPUs: 64=620000.",
            metavar="GPUS=TOKENS/S",
        ),
    ] = ()
    memory: Annotated[
        bool, Option("--memory", help="With --model: show memory by kind, and what would make it fit.")
    ] = False
    what_if: Annotated[
        tuple[str, ...],
        Option(
            help="Change one thing: gpu=h200-sxm, link=pcie, batch=2x, precision=bf16, overlap=perfect, bucket=8MiB.",
            metavar="KEY=VALUE",
        ),
    ] = ()

    collective: Annotated[
        str | None,
        Option(
            help="Predict a collective: all_reduce, all_gather, reduce_scatter, ...", metavar="OP", show_default=False
        ),
    ] = None
    size: Annotated[
        str | None,
        Option(help="With --collective: message size as nccl-tests counts it: 25MiB; 1K = 1024.", metavar="SIZE"),
    ] = None
    sizes: Annotated[
        str | None, Option(help="With --collective: several sizes, FROM:TO:FACTOR or a list.", metavar="SIZES")
    ] = None
    gpus: Annotated[
        str | None, Option(help="Number of GPUs; several numbers for a scaling curve: 8,64,512.", metavar="N")
    ] = None
    gpu: Annotated[str | None, Option(help="A GPU of `stepscope hardware`: h100-sxm.", metavar="GPU")] = None
    gpus_per_node: Annotated[
        int | None, Option(help="GPUs of one node; default: the usual number for the GPU, mostly 8.", metavar="N")
    ] = None
    network: Annotated[
        str | None,
        Option(help="Network between nodes: infiniband-ndr, roce-400g, efa-p5, ...", metavar="NETWORK"),
    ] = None
    adapters: Annotated[
        int | None,
        Option(help="Network adapters per node; default: the usual number.", metavar="N", min=1),
    ] = None
    sharp: Annotated[bool, Option("--sharp", help="The network's switches do the reductions (SHARP).")] = False
    algorithm: Annotated[
        str | None, Option(help="Force one algorithm, as NCCL_ALGO does: ring, tree, nvls.", metavar="ALGO")
    ] = None
    caller: Annotated[
        str,
        Option(help="nccl-tests: calls queued back to back; torch: each call waited for.", metavar="nccl-tests|torch"),
    ] = "nccl-tests"
    dtype: Annotated[str | None, Option(help="With --collective: element type, fp32, bf16, ...", metavar="TYPE")] = None
    calib: Annotated[
        Path | None,
        Option(
            help="Predict from this result of `stepscope calibrate`; with --model it corrects the model.",
            metavar="FILE",
        ),
    ] = None
    validate: Annotated[
        Path | None,
        Option(
            help="Refused: `python -m benchmarks.validate DIR` of the repository compares with measured tables.",
            metavar="DIR|FILE",
        ),
    ] = None
    chart: Annotated[
        Path | None,
        Option(
            help="Draw speed over GPUs into this file: .svg, .png or .pdf.",
            metavar="FILE",
        ),
    ] = None
    buckets: Annotated[
        Path | None,
        Option(
            help="Find the best gradient bucket size for this run of `stepscope bench`; needs --calib.", metavar="RUN"
        ),
    ] = None
    cell: Annotated[str | None, Option(help="With --from or --buckets: the cell of the run.", metavar="ID")] = None
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False


def _where(options: Predict) -> str:
    """The module of the mode, so that only what it needs is imported."""
    if options.from_ is not None or options.run is not None:
        return "stepscope.cli.predict_from"
    return "stepscope.cli.predict_run" if options.model is None else "stepscope.cli.predict_step"


COMMAND = Command(options=Predict, where=_where, panel="Predict")
