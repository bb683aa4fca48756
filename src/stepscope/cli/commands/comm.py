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
        str, typer.Option(help="fp32, bf16, fp16, fp64, int8, uint8, int32, int64.", metavar="TYPE,...")
    ] = "fp32"
    reduce_op: Annotated[str, typer.Option(help="sum, avg, max, min, product.", metavar="OP,...")] = "sum"
    ranks: Annotated[
        str | None,
        typer.Option(help="World sizes; default: all GPUs, or 2 on the CPU.", metavar="N,..."),
    ] = None
    backend: Annotated[str, typer.Option(help="nccl, gloo or auto.")] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    mode: Annotated[
        str,
        typer.Option(help="blocking, async:K, coalesced:K, grouped:K (K calls in flight).", metavar="MODE,..."),
    ] = "blocking"
    in_place: Annotated[str, typer.Option(help="no, yes, both, or auto: as torch calls it without a copy.")] = "auto"
    pattern: Annotated[str, typer.Option(help="Pattern of send_recv: ring, uni, bi.", metavar="PATTERN,...")] = "ring"
    root: Annotated[int, typer.Option(help="Root of broadcast, reduce, gather, scatter.", min=0)] = 0
    pacing: Annotated[
        str,
        typer.Option(help="barrier: an untimed barrier before each call; back-to-back: none; auto: barrier on gloo."),
    ] = "auto"
    warmup: Annotated[str, typer.Option(help="Calls before the timed ones: a number, or auto.", metavar="N|auto")] = (
        "auto"
    )
    iters: Annotated[
        str,
        typer.Option(help="Timed calls: a number, or auto (until the median is known well enough).", metavar="N|auto"),
    ] = "auto"
    ci: Annotated[
        float,
        typer.Option(help="auto stops when the median's 95% interval is within this fraction.", min=0.001, max=1),
    ] = 0.02
    budget: Annotated[str, typer.Option(help="Maximum time for one size.", metavar="TIME")] = "5s"
    timeout: Annotated[
        str,
        typer.Option(help="Report a size as hanging after this long without progress.", metavar="TIME"),
    ] = "120s"
    check: Annotated[bool, typer.Option("--check/--no-check", help="Verify the result at every size.")] = True
    pairs: Annotated[bool, typer.Option("--pairs", help="Also measure messages between every two ranks.")] = False
    matmul: Annotated[bool, typer.Option("--matmul", help="Also measure matrix products: achievable FLOP/s.")] = False
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Also run each collective together with matrix products.")
    ] = False
    env: Annotated[
        tuple[str, ...],
        typer.Option(
            "--env",
            help="Sweep an environment variable, one world per value: NCCL_ALGO=Ring,Tree.",
            metavar="NAME=V,...",
        ),
    ] = ()
    emulate_network: Annotated[
        str | None,
        typer.Option(
            "--emulate-network",
            help="Ranks on emulated hosts: RATE[:HOSTS][,delay=TIME][,slow=HOST:RATE], such as 1gbit:2.",
            metavar="NETWORK",
        ),
    ] = None
    nccl_debug: Annotated[
        str | None,
        typer.Option("--nccl-debug", help="Write and read NCCL's log: INIT,GRAPH,TUNING,... or all.", metavar="SUBSYS"),
    ] = None
    threads: Annotated[str, typer.Option(help="Compute threads of each rank: a number, or auto.", metavar="N|auto")] = (
        "auto"
    )
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder; an existing run is resumed.", metavar="DIR"),
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="Print the sweeps; run nothing.")] = False
    charts: Annotated[bool, typer.Option("--charts", help="Also draw the charts (PNG) into the run folder.")] = False
    format_: Annotated[
        str, typer.Option("--format", help="Output format: table, csv or document-001.", metavar="FORMAT")
    ] = "table"
    force: Annotated[
        bool, typer.Option("--force", help="Allow a run folder of other sweeps, another machine or torch.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False


COMMAND = Command(options=Comm, where="stepscope.cli.comm_run", panel="Measure")
