"""``stepscope predict``: what something will cost before it runs."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.records.nouns import EXPOSED_COMM


class Predict(Options):
    __doc__ = f"""
    Predict your script on GPUs before you rent them, a measured job on more, a named model, a collective, the best buckets.

    stepscope predict --gpus 8,64,1024 --gpu h100-sxm --network infiniband-ndr -- torchrun --nproc-per-node 8 train.py

    A script (after --): run here without a GPU as one rank of each world, unchanged; its memory, its step, what limits it.
    A measured job (--from): step, throughput, efficiency, {EXPOSED_COMM} on each number of GPUs. A step (--model): its
    parts, tokens/s, MFU, memory, the knee of its scaling curve. A collective: time, bus bandwidth, the algorithm the
    library would choose and why. Each with an 80% interval.
    """

    run: Path | None = argument("The same as --from RUN.", "RUN", default=None, same_as="from_")
    command: list[str] | None = argument(
        "Your training command, as you would run it: its script runs on this machine, without GPUs and without data.",
        "-- COMMAND...",
        default=None,
        after=True,
        only="output gpus gpu gpus_per_node network adapters what_if calib calibrate batch_from timeout memory chart json",
    )
    from_: Path | None = option(
        "Predict this measured job on more GPUs: a run of bench, traces, a profile; or show a dry run again.",
        "RUN|TRACE|PROFILE|DRYRUN",
        only="run from_ cell gpus gpu gpus_per_node network adapters what_if scaling calib calibrate memory chart json",
    )
    output: Path | None = option(
        "Folder for what a dry run records; default: ./stepscope-runs/dry-NAME-TIME.", "DIR", "-o", needs="command"
    )
    batch_from: Path | None = option(
        "Batch that the script's loader would give, for its shapes: FILE.pt of torch.save.", "FILE", needs="command"
    )
    timeout: float = option(
        "Seconds that one rank of the script may take to its second step.",
        "SECONDS",
        default=600.0,
        min=1,
        needs="command",
    )
    calibrate: Path | None = option(
        "Take the times of operators from this profile of the same script on one device, or on one rank of the host.",
        "PROFILE",
    )
    model: str | None = option(
        "A named model (llama3-8b), or its dimensions: FILE.yaml, config.json.",
        "MODEL",
        only="layout gpu gpus gpus_per_node network adapters sharp memory measured what_if calib chart json",
    )
    layout: tuple[str, ...] = option(
        "With --model: tp=2,pp=4,zero=1,mbs=1,gbs=512,seq=8192,recompute=full,...; dp follows from --gpus.",
        "KEY=VALUE",
        default=(),
    )
    scaling: str | None = option(
        "With --from: weak keeps the batch of a rank (default), strong the global batch.", "weak|strong"
    )
    measured: tuple[str, ...] = option(
        "With --model: tokens/s that the whole job reached on this number of GPUs: 64=620000.",
        "GPUS=TOKENS/S",
        default=(),
    )
    memory: bool = switch("With --model or a script: show memory by kind, and what would make it fit.")
    what_if: tuple[str, ...] = option(
        "Change one thing: gpu=h200-sxm, link=pcie, batch=2x, precision=bf16, overlap=perfect, bucket=8MiB, reshard=no.",
        "KEY=VALUE",
        default=(),
    )

    collective: str | None = option("Predict a collective: all_reduce, all_gather, reduce_scatter, ...", "OP")
    size: str | None = option("With --collective: message size as nccl-tests counts it: 25MiB; 1K = 1024.", "SIZE")
    sizes: str | None = option("With --collective: several sizes, FROM:TO:FACTOR or a list.", "SIZES")
    gpus: str | None = option("Number of GPUs; several numbers for a scaling curve: 8,64,512.", "N")
    gpu: str | None = option("A GPU of `stepscope hardware`: h100-sxm.", "GPU")
    gpus_per_node: int | None = option("GPUs of one node; default: the usual number for the GPU, mostly 8.", "N")
    network: str | None = option("Network between nodes: infiniband-ndr, roce-400g, efa-p5, ...", "NETWORK")
    adapters: int | None = option("Network adapters per node; default: the usual number.", "N", min=1)
    sharp: bool = switch("The network's switches do the reductions (SHARP).")
    algorithm: str | None = option("Force one algorithm, as NCCL_ALGO does: ring, tree, nvls.", "ALGO")
    caller: str = option(
        "nccl-tests: calls queued back to back; torch: each call waited for.", "nccl-tests|torch", default="nccl-tests"
    )
    dtype: str | None = option("With --collective: element type, fp32, bf16, ...", "TYPE")
    calib: Path | None = option(
        "Predict from this result of `stepscope calibrate`; with --model it corrects the model.", "FILE"
    )
    validate: Path | None = option(
        "Refused: `python -m benchmarks.validate DIR` of the repository compares with measured tables.", "DIR|FILE"
    )
    chart: Path | None = option("Draw speed over GPUs into this file: .svg, .png or .pdf.", "FILE")
    buckets: Path | None = option(
        "Find the best gradient bucket size for this run of `stepscope bench`; needs --calib.",
        "RUN",
        only="calib cell json",
    )
    cell: str | None = option("With --from or --buckets: the cell of the run.", "ID")
    json: bool = switch("Print one JSON document.")


def _where(options: Predict) -> str:
    """Return the module of the mode, so that only what it needs is imported."""
    if options.command is not None:
        return "stepscope.cli.predict_script"
    if options.from_ is not None or options.run is not None:
        return "stepscope.cli.predict_from"
    return "stepscope.cli.predict_run" if options.model is None else "stepscope.cli.predict_step"


COMMAND = Command(options=Predict, where=_where, panel="Predict")
