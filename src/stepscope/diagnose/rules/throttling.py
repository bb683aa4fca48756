"""A device computes slower than similar ones: throttled clocks, a lowered power limit, or other work on it.

What
----
Two kinds of evidence. Matrix products of `stepscope comm --matmul`, the same on every rank at the same time: the
slowest rank's median is at least {spread%} behind the fastest at {sizes} or more, always on the same rank. The
driver's power limit is below the default.

Why
---
All ranks wait for the slowest at every step. A hot GPU, a loose power cable or a forgotten `nvidia-smi -pl` slows the
whole job, and no line of code shows it.

Known problems
--------------
On CPUs, ranks share cores, caches and memory bandwidth with each other and with other processes: the usual cause is
other work, and the finding says so. Clocks are not recorded; the device's own tools show why it is slow.

References
----------
nvidia-smi -q -d PERFORMANCE (clocks event reasons); NVML API, nvmlClocksEventReasons; Sinha et al., Not all GPUs are created
equal, SC 2022: 8 to 20% between GPUs of one kind in five clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_flops, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import is_amd
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding
from stepscope.machine.peaks.lookup import find
from stepscope.records.comm import CommRow
from stepscope.records.environment import GpuFact
from stepscope.results.evidence import Evidence

MOST_SPREAD = Limit(
    0.10,
    unit="(slowest - fastest rank) / slowest",
    source="GPUs of one kind differ by 8% on average (Sinha et al., SC 2022)",
)
LEAST_SIZES = Limit(
    0.5,
    unit="of the sizes",
    source="2 ranks on a busy 2-core machine: one of 4 sizes 27% apart, the others 0 to 2% (2026-11): a transient, "
    "not the device",
)
LEAST_LIMIT = Limit(0.98, unit="of the default power limit", source="as stepscope doctor; limits are rounded")
_QUERY = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER"


def check(evidence: Evidence) -> Statement:
    """Look for: a device computes slower than similar devices."""
    products = [
        row
        for row in evidence.comm
        if row.kind == "matmul" and row.status == "ok" and row.rank_spread is not None and row.world_size > 1
    ]
    gpus = (*(() if evidence.environment is None else evidence.environment.gpus), *_stated_gpus(evidence))
    capped = [gpu for gpu in gpus if _power_fraction(gpu) < LEAST_LIMIT]
    findings = [_power_limit_finding(capped)] if capped else []
    behind = [row for row in products if _rank_spread(row) >= MOST_SPREAD]
    # The sizes at which one and the same rank is far behind, where that is half of them or more.
    ((rank, often),) = Counter(row.slowest_rank for row in behind).most_common(1) or [(None, 0)]
    if often and often >= LEAST_SIZES * len(products):
        findings.append(
            _slow_device_finding(
                [row for row in behind if row.slowest_rank == rank], len(products), amd=is_amd(evidence)
            )
        )
    if findings:
        return findings
    if products:
        return (
            f"no rank is {format_percent(MOST_SPREAD)} behind at half of {counted(len(products), 'size')}; most "
            f"at one: {format_percent(max(map(_rank_spread, products)))}"
        )
    if any(gpu.power_limit_w is not None for gpu in gpus):
        return "power limits at their default; no matrix products were measured"
    return RULE.blind


def _stated_gpus(evidence: Evidence) -> Iterator[GpuFact]:
    """Return GPUs with the power limits that ``nvidia-smi`` prints; the default of the model where it prints none."""
    smi = [reading for reading in evidence.readings if reading.tool == "nvidia-smi"]
    for index, reading in enumerate(smi):
        model = find(reading.facts.get("product name", ""))
        usual = 0.0 if isinstance(model, Unavailable) else model.watts or 0.0
        yield GpuFact(
            index=index, name=reading.device, uuid=None, memory_bytes=None, compute_capability=None, driver_version=None,
            power_limit_w=reading.number("current power limit", "power limit") or None,
            power_limit_default_w=reading.number("default power limit") or usual or None,
        )  # fmt: skip


def _rank_spread(row: CommRow) -> float:
    return row.rank_spread or 0.0


def _power_fraction(gpu: GpuFact) -> float:
    """The power limit / the default; 1 where either is unknown."""
    limit, default = gpu.power_limit_w, gpu.power_limit_default_w
    return 1.0 if limit is None or not default else limit / default


def _power_limit_finding(gpus: list[GpuFact]) -> Finding:
    """Return the finding of GPUs whose power limit was lowered."""
    lowest = min(gpus, key=_power_fraction)
    return finding(
        f"power limit lowered on {counted(len(gpus), 'GPU')}: GPU {lowest.index} may draw "
        f"{lowest.power_limit_w:.0f} of {lowest.power_limit_default_w:.0f} W",
        [f"GPU {g.index} ({g.name}): {g.power_limit_w:.0f} W of {g.power_limit_default_w:.0f} W" for g in gpus[:8]],
        confidence="certain: reported by the driver; how far clocks drop depends on the work",
        advice=[
            ("ask the operator, or raise the limit as root", "nvidia-smi -pl WATTS"),
            ("show what limits the clocks under load", _QUERY),
        ],
        of="power limit",
    )


def _slow_device_finding(slow: list[CommRow], products: int, *, amd: bool) -> Finding:
    """Return the finding of ranks that multiply more slowly than others."""
    worst = max(slow, key=_rank_spread)
    rate = "" if worst.flops_per_s is None else f", {format_flops(worst.flops_per_s)}"
    time = "" if worst.time_ns is None else f" ({format_duration(worst.time_ns)} a product{rate})"
    cpu = worst.device == "cpu"
    return finding(
        f"rank {worst.slowest_rank} computes {format_percent(_rank_spread(worst))} slower than the fastest rank on the "
        "same product",
        f"{worst.dtype} product on every rank at once{time}",
        f"the same at {len(slow)} of {counted(products, 'size')}",
        severity="warning",
        stake=worst.rank_spread,
        confidence="likely: shared cores and memory of one host also make ranks differ"
        if cpu
        else "measured; the device's own tools show the cause",
        advice=[
            ("check for other processes on its cores", "top -H -b -n 1 | head -30")
            if cpu
            else (
                "check its host under load: clocks, temperature and clock limits",
                "rocm-smi" if amd else f"{_QUERY},TEMPERATURE",
            ),
            ("measure again; if the same rank is slow, exclude its host or reduce its work", RULE.unseen_command),
        ],
        of=f"rank {worst.slowest_rank}",
    )


RULE = Rule(
    symptom="a device computes slower than similar devices",
    sees=("comm", "environment", "readings"),
    unseen="no matrix products were measured on every rank",
    unseen_command="stepscope comm --ops none --matmul",
    look=check,
    looks_at="comm --matmul, environment, nvidia-smi",
    protocol=3,
    thresholds={"spread": MOST_SPREAD, "sizes": LEAST_SIZES, "limit": LEAST_LIMIT},
)
