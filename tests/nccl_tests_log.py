"""Logs of nccl-tests made by hand, in the layouts that its versions print.

log([(1 << 20, 27.37), ...], op="all_reduce", ranks=8)
"""

from __future__ import annotations

from collections.abc import Sequence

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,  # noqa: ARG005
    "reduce": lambda n: 1.0,  # noqa: ARG005
}
REDOPS = {"all_reduce": "sum", "reduce_scatter": "sum", "reduce": "sum"}


def devices(ranks: int, *, hosts: int = 1, name: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    each = ranks // hosts
    return [
        f"#  Rank {rank:2} Group  0 Pid {1000 + rank} on node-{rank // each} device {rank % each:2} [0000:19:00] {name}"
        for rank in range(ranks)
    ]


def row(size: int, us: float, *, op: str, ranks: int, wrong: str = "0", old: bool = False) -> str:
    rate = size / us / 1e3
    figures = f"{_time(us):>8} {rate:7.2f} {rate * FACTORS[op](ranks):7.2f} {wrong:>6}"
    redop = REDOPS.get(op, "" if old else "none")
    middle = f"{redop:>7}" if old else f"{redop:>7} {-1:7}"
    return f"{size:12} {size // 4:13} {'float':>9} {middle} {figures} {figures}"


def _time(us: float) -> str:
    return f"{us:.0f}" if us >= 1e4 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def log(
    sizes: Sequence[tuple[int, float]],
    *,
    op: str = "all_reduce",
    ranks: int = 8,
    hosts: int = 1,
    name: str = "NVIDIA H100 80GB HBM3",
    listed: bool = True,
    started: bool = True,
    wrong: str = "0",
    old: bool = False,
    average: str | None = "right",
    bounds: int = 0,
) -> str:
    """One run's output. average: ``right``, any other text, or None: the line is missing."""
    lines = [f"# Collective test starting: {op}_perf"] if started else []
    lines.append(
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0"
    )
    lines += ["#", "# Using devices", *devices(ranks, hosts=hosts, name=name), "#"] if listed else ["#"]
    column = "error" if old else "#wrong"
    root = "" if old else "    root"
    times = f"    time   algbw   busbw {column}"
    lines += [
        "#                                                              out-of-place                       in-place",
        f"#       size         count      type   redop{root} {times} {times}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    lines += [row(size, us, op=op, ranks=ranks, wrong=wrong, old=old) for size, us in sizes]
    lines.append(f"# Out of bounds values : {bounds} {'FAILED' if bounds else 'OK'}")
    if average == "right":
        rates = [round(round(s / us / 1e3, 4) * FACTORS[op](ranks), 2) for s, us in sizes]
        average = f"{sum(rates) / max(1, len(rates)):g}"
    if average is not None:
        lines.append(f"# Avg bus bandwidth    : {average} ")
    return "\n".join([*lines, "#", ""])
