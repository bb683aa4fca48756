"""``stepscope comm``: measure collectives the way nccl-tests does, on anything PyTorch runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Comm(Options):
    """Measure collectives: time, algbw and busbw against size, every result checked.

    Time of a call is the slowest rank's. Sizes and busbw are those of nccl-tests.
    """

    ops: Annotated[str, typer.Option(help="Collectives, separated by commas, or all.", metavar="OP,...|all")] = (
        "all_reduce"
    )
    sizes: Annotated[
        str, typer.Option(help="FROM:TO:FACTOR, FROM:TO:+STEP, or a list. 1K = 1024.", metavar="SIZES")
    ] = "1K:64M:4"
    dtype: Annotated[
        str, typer.Option(help="Element types: fp32, bf16, fp16, fp64, int8, uint8, int32, int64.", metavar="TYPE,...")
    ] = "fp32"
    reduce_op: Annotated[
        str, typer.Option(help="Reduce operations: sum, avg, max, min, product.", metavar="OP,...")
    ] = "sum"
    ranks: Annotated[
        str | None,
        typer.Option(help="Numbers of ranks; default: all GPUs, or 2 on the CPU.", metavar="N,..."),
    ] = None
    backend: Annotated[str, typer.Option(help="nccl, gloo or auto.", metavar="NAME")] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.", metavar="NAME")] = "auto"
    mode: Annotated[
        str,
        typer.Option(
            help="How calls are made: blocking, or K at a time: async:K, coalesced:K, grouped:K.", metavar="MODE,..."
        ),
    ] = "blocking"
    in_place: Annotated[
        str,
        typer.Option(
            help="Whether the result replaces the input: no, yes, both; auto: as torch's own call does.", metavar="WORD"
        ),
    ] = "auto"
    pattern: Annotated[
        str, typer.Option(help="Of send_recv: ring, uni (one direction), bi (both).", metavar="PATTERN,...")
    ] = "ring"
    root: Annotated[
        int, typer.Option(help="Rank that is the root of broadcast, reduce, gather, scatter.", min=0, metavar="RANK")
    ] = 0
    pacing: Annotated[
        str,
        typer.Option(
            help="barrier: an untimed barrier before each call; back-to-back: none; auto: barrier on gloo.",
            metavar="WORD",
        ),
    ] = "auto"
    warmup: Annotated[str, typer.Option(help="Calls before the timed ones: a number, or auto.", metavar="N|auto")] = (
        "auto"
    )
    iters: Annotated[
        str,
        typer.Option(help="Timed calls: a number, or auto (until --ci is reached).", metavar="N|auto"),
    ] = "auto"
    ci: Annotated[
        float,
        typer.Option(
            help="Precision for --iters auto: half width of the median's 95% interval, as a fraction.",
            min=0.001,
            max=1,
            metavar="FRACTION",
        ),
    ] = 0.02
    budget: Annotated[str, typer.Option(help="Maximum time for one size.", metavar="TIME")] = "5s"
    timeout: Annotated[
        str,
        typer.Option(help="Give a size up as hanging after this long without progress.", metavar="TIME"),
    ] = "120s"
    check: Annotated[bool, typer.Option("--check/--no-check", help="Verify the result of every size.")] = True
    pairs: Annotated[bool, typer.Option("--pairs", help="Also measure messages between every two ranks.")] = False
    matmul: Annotated[
        bool, typer.Option("--matmul", help="Also measure matrix products: FLOP/s that the device reaches.")
    ] = False
    overlap: Annotated[
        bool,
        typer.Option("--overlap", help="Also run each collective beside matrix products: how much both slow down."),
    ] = False
    env: Annotated[
        tuple[str, ...],
        typer.Option(
            "--env",
            help="Repeat with each value of an environment variable: NCCL_ALGO=Ring,Tree.",
            metavar="NAME=V,...",
        ),
    ] = ()
    emulate_network: Annotated[
        str | None,
        typer.Option(
            "--emulate-network",
            help="Put ranks on emulated hosts: 1gbit:2, or 1gbit:4,delay=1ms,slow=2:200mbit.",
            metavar="NETWORK",
        ),
    ] = None
    nccl_debug: Annotated[
        str | None,
        typer.Option(
            "--nccl-debug",
            help="Keep NCCL's log of these subsystems, and read it: INIT,GRAPH,TUNING,... or all.",
            metavar="SUBSYS",
        ),
    ] = None
    threads: Annotated[str, typer.Option(help="Compute threads of each rank: a number, or auto.", metavar="N|auto")] = (
        "auto"
    )
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Run folder; one that exists is resumed. Default: ./stepscope-runs/comm-TIME.",
            metavar="DIR",
        ),
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="Print the sweeps; run nothing.")] = False
    charts: Annotated[bool, typer.Option("--charts", help="Also draw the charts (PNG) into the run folder.")] = False
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="What to print: table, csv, or document-001 (the JSON of a benchmark suite).",
            metavar="FORMAT",
        ),
    ] = "table"
    force: Annotated[
        bool,
        typer.Option("--force", help="Use the run folder although it is of other sweeps, another machine or torch."),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False


COMMAND = Command(options=Comm, where="stepscope.cli.comm_run", panel="Measure")
