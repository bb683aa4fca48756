"""``stepscope comm``: measure collectives the way nccl-tests does, on anything PyTorch runs on."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, option, switch


class Comm(Options):
    """Measure collectives: time, algbw and busbw against size, every result checked.

    Time of a call is the slowest rank's. Sizes and busbw are those of nccl-tests.
    """

    ops: str = option("Collectives, separated by commas, or all.", "OP,...|all", default="all_reduce")
    sizes: str = option("FROM:TO:FACTOR, FROM:TO:+STEP, or a list. 1K = 1024.", "SIZES", default="1K:64M:4")
    dtype: str = option("Element types: fp32, bf16, fp16, fp64, int8, uint8, int32, int64.", "TYPE,...", default="fp32")
    reduce_op: str = option("Reduce operations: sum, avg, max, min, product.", "OP,...", default="sum")
    ranks: str | None = option("Numbers of ranks; default: all GPUs, or 2 on the CPU.", "N,...")
    backend: str = option("nccl, gloo or auto.", "NAME", default="auto")
    device: str = option("cpu, cuda or auto.", "NAME", default="auto")
    mode: str = option(
        "How calls are made: blocking, or K at a time: async:K, coalesced:K, grouped:K.", "MODE,...", default="blocking"
    )
    in_place: str = option(
        "Whether the result replaces the input: no, yes, both; auto: as torch's own call does.", "WORD", default="auto"
    )
    pattern: str = option("Of send_recv: ring, uni (one direction), bi (both).", "PATTERN,...", default="ring")
    root: int = option("Rank that is the root of broadcast, reduce, gather, scatter.", "RANK", default=0, min=0)
    pacing: str = option(
        "barrier: an untimed barrier before each call; back-to-back: none; auto: barrier on gloo.",
        "WORD",
        default="auto",
    )
    warmup: str = option("Calls before the timed ones: a number, or auto.", "N|auto", default="auto")
    iters: str = option("Timed calls: a number, or auto (until --ci is reached).", "N|auto", default="auto")
    ci: float = option(
        "Precision for --iters auto: half width of the median's 95% interval, as a fraction.",
        "FRACTION",
        default=0.02,
        min=0.001,
        max=1,
    )
    budget: str = option("Maximum time for one size.", "TIME", default="5s")
    timeout: str = option("Give a size up as hanging after this long without progress.", "TIME", default="120s")
    check: bool = option("Verify the result of every size.", None, "--check/--no-check", default=True)
    pairs: bool = switch("Also measure messages between every two ranks.")
    matmul: bool = switch("Also measure matrix products: FLOP/s that the device reaches.")
    overlap: bool = switch("Also run each collective beside matrix products: how much both slow down.")
    env: tuple[str, ...] = option(
        "Repeat with each value of an environment variable: NCCL_ALGO=Ring,Tree.", "NAME=V,...", default=()
    )
    hosts: str | None = option(
        "Run on these hosts, over ssh: a,user@b:4 (ranks on it), or a file of hosts.", "HOST[:RANKS],..."
    )
    ssh: str | None = option("With --hosts: the ssh command: 'ssh -p 2222 -i KEY'.", "COMMAND")
    remote_python: str | None = option("With --hosts: their Python; default: this one's path, else python3.", "PATH")
    emulate_network: str | None = option(
        "Put ranks on emulated hosts: 1gbit:2, or 1gbit:4,delay=1ms,slow=2:200mbit.", "NETWORK"
    )
    nccl_debug: str | None = option(
        "Keep NCCL's log of these subsystems, and read it: INIT,GRAPH,TUNING,... or all.", "SUBSYS"
    )
    threads: str = option("Compute threads of each rank: a number, or auto.", "N|auto", default="auto")
    output: Path | None = option(
        "Run folder; one that exists is resumed. Default: ./stepscope-runs/comm-TIME.", "DIR", "-o"
    )
    plan: bool = switch("Print the sweeps; run nothing.", without="json output charts format_ force")
    charts: bool = switch("Also draw the charts (PNG) into the run folder.")
    format_: str = option(
        "What to print: table, csv, or document-001 (the JSON of a benchmark suite).", "FORMAT", default="table"
    )
    force: bool = switch("Use the run folder although it is of other sweeps, another machine or torch.")
    json: bool = switch("One JSON document on stdout instead of the table.")


COMMAND = Command(options=Comm, where="stepscope.cli.comm_run", panel="Measure")
