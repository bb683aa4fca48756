"""More compute threads than cores, or more ranks than GPUs.

What
----
Compares ranks per host x compute threads per rank (as each rank reported them) with the cores that the job may use
(affinity and cgroup included). DataLoader workers count as one thread each. On GPUs also: more ranks on a host than
GPUs; more threads than cores are a note there, since the threads of such ranks mostly sleep. A separate finding covers
gloo, whose three extra threads per rank preempt the thread that holds the lock under the default scheduling policy.

Cells whose ranks were ready to run and had no processor for {delayed} of the timed steps, though their threads have cores,
were measured on a contended machine: what else ran there is in their figures.

Why
---
Threads that share a core alternate in slices of milliseconds. A collective ends when the last rank has run, so each
step pays for the slowest thread.

Known problems
--------------
Sleeping threads cost nothing: a loader that is far ahead, or a rank that waits. Hyper-threads count as cores. The cores
are those of the host of the command; other hosts are assumed to have as many.

References
----------
torch.distributed.run sets OMP_NUM_THREADS=1 for this reason (torch/distributed/run.py). gloo on 2 cores, 1 KiB
all_reduce, mean: 2 ranks 1.3 to 1.6 ms, 4 ranks 6.4 ms, 8 ranks 16 ms; SCHED_BATCH 0.13 to 0.19, 1.5 and 9 to 11 ms
(2026-11).
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import Doubt
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.evidence import CellEvidence, Evidence, in_line

CORES = Limit(1.0, unit="threads per usable core", source="one thread runs on a core at a time")
GLOO_THREADS = Limit(
    4.0,
    unit="threads of a gloo rank",
    source="main, gloo_tcp_loop and two pt_gloo_runloop threads, torch 2.13 (counted, 2026-11)",
)
DELAYED = Limit(
    0.3,
    unit="of the timed steps",
    source="stepscope's choice, 2026-11: gloo's own threads make up to 0.13 on as many ranks as cores",
)


@record
class _Load:
    """One cell on its fullest host. workers: DataLoader processes of all its ranks."""

    cell: CellEvidence
    ranks: int
    threads: int
    workers: int
    ordinary: bool  # scheduling policy that lets gloo's threads preempt each other

    @property
    def wanted(self) -> int:
        return self.ranks * self.threads + self.workers


def check(evidence: Evidence) -> Statement:
    """Look for: more threads than cores, or more ranks than GPUs."""
    environment = evidence.environment
    if environment is None:
        return skipped("the machine was not recorded, or the sources ran on different machines")
    loads = [_cell_load(cell) for cell in evidence.cells if cell.result.summaries]
    if not loads:
        return skipped("no rank recorded its number of threads")
    cores = environment.usable_cores
    gpus = environment.torch.device_count if environment.torch is not None else len(environment.gpus)
    crowded = [load for load in loads if load.wanted > CORES * cores]
    shared = [load for load in loads if load.cell.spec.device == "cuda" and gpus and load.ranks > gpus]
    gloo = [
        load
        for load in loads
        if load.cell.spec.backend == "gloo" and load.ranks > 1 and load.ordinary and load.ranks * GLOO_THREADS > cores
    ]

    def by_ranks(load: _Load) -> int:
        return load.ranks

    fullest = max(loads, key=lambda load: load.wanted)
    looked = (
        _contended_finding(loads, cores),
        bool(crowded) and _threads_finding(evidence, environment, crowded, len(loads)),
        bool(shared) and _shared_gpus_finding(evidence, max(shared, key=by_ranks), gpus),
        bool(gloo) and _gloo_finding(max(gloo, key=by_ranks), cores),
    )
    return [report for report in looked if report] or (
        f"at most {counted(fullest.wanted, 'thread')} on {counted(cores, 'usable core')}"
    )


def _cell_load(cell: CellEvidence) -> _Load:
    """Return the threads and workers of a cell's fullest host."""
    summaries = cell.result.summaries
    host, ranks = Counter(s.host for s in summaries).most_common(1)[0]
    here = [s for s in summaries if s.host == host]
    return _Load(
        cell=cell,
        ranks=ranks,
        threads=max(s.num_threads for s in here),
        workers=ranks * cell.result.spec.num_workers,
        ordinary=any(s.scheduler_policy == "SCHED_OTHER" for s in here),
    )


def _contended_finding(loads: list[_Load], cores: int) -> Finding | None:
    """Report cells whose threads had cores, and did not get them."""
    delays = [
        (fmean(shares), load.cell.run, load)
        for load in loads
        if load.wanted <= cores
        and (shares := [s.run_delay_fraction for s in load.cell.result.summaries if s.run_delay_fraction is not None])
    ]
    over = sorted((delay for delay in delays if delay[0] >= DELAYED), key=lambda delay: -delay[0])
    if not over:
        return None
    worst, run, load = over[0]
    return finding(
        f"contended machine: ranks were ready to run and had no processor for {DELAYED.of(worst)}",
        f"{in_line(run)}: {load.wanted} threads of ranks, {counted(cores, 'usable core')}",
        f"{len(over)} of {counted(len(loads), 'cell')} waited {DELAYED.of(over[-1][0])} or more",
        severity="problem",
        priority="wrong",
        confidence="measured: the scheduler's own count of each rank's training thread",
        advice=["find what else runs here, and measure again on an idle machine"],
        of=tuple(run for _, run, _ in over),
        casts_doubt={
            run.run_id: Doubt(why=f"its ranks had no processor for {format_percent(share)} of the step")
            for share, run, _ in over
        },
    )


def _threads_finding(evidence: Evidence, environment: EnvironmentRecord, over: list[_Load], total: int) -> Finding:
    """Return the finding of more threads than cores."""
    cores = environment.usable_cores
    worst = max(over, key=lambda load: load.wanted)
    ranks, workers, wanted = worst.ranks, worst.workers, worst.wanted
    fits = max(1, (cores - workers) // ranks)
    sleeping = worst.cell.spec.device == "cuda" and ranks + workers <= cores
    share = f"{wanted} threads {'may ' * sleeping}share {counted(cores, 'core')}"
    return finding(
        share if sleeping else f"{share}: step times depend on the scheduler",
        f"{in_line(worst.cell.run)}: {counted(ranks, 'rank')} x {counted(worst.threads, 'compute thread')}"
        + (f" + {counted(workers, 'loader worker')}" if workers else "")
        + f" = {wanted} on {counted(cores, 'usable core')}",
        environment.logical_cores > cores
        and f"the machine has {environment.logical_cores} cores; affinity or a cgroup leaves {cores}",
        len(over) > 1 and f"{len(over)} of {counted(total, 'cell')} want more threads than cores",
        severity="info" if sleeping else "problem" if ranks * worst.threads > cores else "warning",
        confidence="likely harmless: intra-op threads of ranks on GPUs sleep unless operators run on the CPU"
        if sleeping
        else "certain: threads and cores are counted; the cost is unknown",
        advice=[
            worst.threads > fits
            and (
                f"give each rank {counted(fits, 'thread')}: OMP_NUM_THREADS={fits}",
                f"{again(evidence, worst.cell)} --set launch.threads_per_rank={fits}",
            ),
            workers > 0
            and (
                "use fewer loader workers: each is a process that needs a core",
                again(evidence, worst.cell, ("num_workers", 0)),
            ),
            ranks > cores
            and (
                f"run at most {counted(cores, 'rank')} on this machine: more ranks only cost scheduling time",
                again(evidence, worst.cell, ("world_size", [min(2, cores), cores] if cores > 2 else [cores])),
            ),
        ],
        of=worst.cell.run,
    )


def _shared_gpus_finding(evidence: Evidence, worst: _Load, gpus: int) -> Finding:
    """Return the finding of ranks that share a GPU."""
    return finding(
        f"{counted(worst.ranks, 'rank')} of one host share {counted(gpus, 'GPU')}",
        f"{in_line(worst.cell.run)}: {worst.ranks} ranks, {gpus} visible to torch",
        severity="problem",
        confidence="certain: counted",
        advice=[
            (
                "start one rank per GPU; if the host has more GPUs, make them visible",
                again(evidence, worst.cell, ("world_size", [gpus])),
            )
        ],
        of=worst.cell.run,
    )


def _gloo_finding(worst: _Load, cores: int) -> Finding:
    threads, exposed = worst.ranks * int(GLOO_THREADS), worst.cell.run.exposed_comm_ns
    return finding(
        f"gloo's threads preempt each other: {threads} on {counted(cores, 'core')} with the default scheduler",
        f"{counted(worst.ranks, 'rank')} x {GLOO_THREADS:g} threads of gloo = {threads} on "
        f"{counted(cores, 'core')}, under SCHED_OTHER",
        "with SCHED_BATCH small messages take a tenth to a half of that time and vary less",
        exposed is not None and f"{EXPOSED_COMM}: {format_duration(exposed.value)} a step",
        confidence="likely: the policy is recorded; its cost depends on the kernel",
        advice=[
            (
                "run ranks under SCHED_BATCH (no privilege needed): unset STEPSCOPE_SCHEDULER, in your own script "
                "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)) before init_process_group",
                "chrt --batch 0 COMMAND",
            )
        ],
        of=worst.cell.run,
    )


RULE = Rule(
    symptom="more threads than cores, or more ranks than GPUs",
    needs=("cells",),
    look=check,
    kind="contended-machine",
    protocol=1,
    thresholds={"cores": CORES, "gloo_threads": GLOO_THREADS, "delayed": DELAYED},
)
