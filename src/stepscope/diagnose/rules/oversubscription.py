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
from dataclasses import dataclass
from statistics import fmean

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import Doubt, Finding, Severity, Skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.evidence import CellEvidence, Evidence, in_line, name_of

CORES = Limit(value=1.0, unit="threads per usable core", source="one thread runs on a core at a time")
GLOO_THREADS = Limit(
    value=4.0,
    unit="threads of a gloo rank",
    source="main, gloo_tcp_loop and two pt_gloo_runloop threads, torch 2.13 (counted, 2026-11)",
)


DELAYED = Limit(
    value=0.3,
    unit="of the timed steps",
    source="stepscope's choice, 2026-11: gloo's own threads make up to 0.13 on as many ranks as cores",
)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    environment = evidence.environment
    if environment is None:
        return Skipped(reason="the machine was not recorded, or the sources ran on different machines")
    loads = [load for cell in evidence.cells if (load := _load(cell)) is not None]
    if not loads:
        return Skipped(reason="no rank recorded its number of threads")
    looked = (
        _contended(environment, loads),
        _threads(evidence, environment, loads),
        _gpus(evidence, environment, loads),
        _gloo(environment, loads),
    )
    if findings := tuple(finding for finding in looked if finding is not None):
        return findings
    fullest = max(loads, key=lambda load: load.wanted)
    return f"at most {counted(fullest.wanted, 'thread')} on {counted(environment.usable_cores, 'usable core')}"


def _load(cell: CellEvidence) -> _Load | None:
    summaries = cell.result.summaries
    if not summaries:
        return None
    hosts = Counter(s.host for s in summaries)
    host, ranks = hosts.most_common(1)[0]
    here = [s for s in summaries if s.host == host]
    return _Load(
        cell=cell,
        ranks=ranks,
        threads=max(s.num_threads for s in here),
        workers=ranks * cell.result.spec.num_workers,
        ordinary=any(s.scheduler_policy == "SCHED_OTHER" for s in here),
    )


def _contended(environment: EnvironmentRecord, loads: list[_Load]) -> Finding | None:
    """Report cells whose threads had cores, and did not get them."""
    delays = [
        (fmean(shares), load)
        for load in loads
        if load.wanted <= environment.usable_cores
        and (shares := [s.run_delay_fraction for s in load.cell.result.summaries if s.run_delay_fraction is not None])
    ]
    over = sorted((delay for delay in delays if delay[0] >= DELAYED.value), key=lambda delay: -delay[0])
    if not over:
        return None
    worst, load = over[0]
    return Finding(
        severity="problem",
        priority="wrong",
        title=f"contended machine: ranks were ready to run and had no processor for {DELAYED.of(worst)}",
        evidence=(
            f"{in_line(load.cell.run)}: {load.wanted} threads of ranks, {counted(environment.usable_cores, 'usable core')}",
            f"{len(over)} of {counted(len(loads), 'cell')} waited {DELAYED.of(over[-1][0])} or more",
        ),
        confidence="measured: the scheduler's own count of each rank's training thread",
        advice=(advise("find what else runs here, and measure again on an idle machine"),),
        subject=name_of(load.cell.run),
        runs=tuple(other.cell.run.run_id for _, other in over),
        casts_doubt={
            other.cell.run.run_id: Doubt(why=f"its ranks had no processor for {format_percent(share)} of the step")
            for share, other in over
        },
    )


def _threads(evidence: Evidence, environment: EnvironmentRecord, loads: list[_Load]) -> Finding | None:
    cores = environment.usable_cores
    over = [load for load in loads if load.wanted > CORES.value * cores]
    if not over:
        return None
    worst = max(over, key=lambda load: load.wanted)
    sentences = [
        f"{in_line(worst.cell.run)}: {counted(worst.ranks, 'rank')} x "
        f"{counted(worst.threads, 'compute thread')}"
        + (f" + {counted(worst.workers, 'loader worker')}" if worst.workers else "")
        + f" = {worst.wanted} on {counted(cores, 'usable core')}"
    ]
    if environment.logical_cores > cores:
        sentences.append(f"the machine has {environment.logical_cores} cores; affinity or a cgroup leaves {cores}")
    if len(over) > 1:
        sentences.append(f"{len(over)} of {counted(len(loads), 'cell')} want more threads than cores")
    fits = max(1, (cores - worst.workers) // worst.ranks)
    advice = []
    if worst.threads > fits:
        advice.append(
            advise(
                f"give each rank {counted(fits, 'thread')}: OMP_NUM_THREADS={fits}",
                f"{again(evidence, worst.cell)} --set launch.threads_per_rank={fits}",
            )
        )
    if worst.workers:
        advice.append(
            advise(
                "use fewer loader workers: each is a process that needs a core",
                again(evidence, worst.cell, ("num_workers", 0)),
            )
        )
    if worst.ranks > cores:
        advice.append(
            advise(
                f"run at most {counted(cores, 'rank')} on this machine: more ranks only cost scheduling time",
                again(evidence, worst.cell, ("world_size", [min(2, cores), cores] if cores > 2 else [cores])),
            )
        )
    grave: Severity = "problem" if worst.ranks * worst.threads > cores else "warning"
    sleeping = worst.cell.spec.device == "cuda" and worst.ranks + worst.workers <= cores
    return Finding(
        severity="info" if sleeping else grave,
        title=f"{worst.wanted} threads may share {counted(cores, 'core')}"
        if sleeping
        else f"{worst.wanted} threads share {counted(cores, 'core')}: step times depend on the scheduler",
        evidence=tuple(sentences),
        confidence="likely harmless: intra-op threads of ranks on GPUs sleep unless operators run on the CPU"
        if sleeping
        else "certain: threads and cores are counted; the cost is unknown",
        advice=tuple(advice),
        subject=name_of(worst.cell.run),
        runs=(worst.cell.run.run_id,),
    )


def _gpus(evidence: Evidence, environment: EnvironmentRecord, loads: list[_Load]) -> Finding | None:
    gpus = environment.torch.device_count if environment.torch is not None else len(environment.gpus)
    over = [load for load in loads if load.cell.spec.device == "cuda" and gpus and load.ranks > gpus]
    if not over:
        return None
    worst = max(over, key=lambda load: load.ranks)
    return Finding(
        severity="problem",
        title=f"{counted(worst.ranks, 'rank')} of one host share {counted(gpus, 'GPU')}",
        evidence=(f"{in_line(worst.cell.run)}: {worst.ranks} ranks, {gpus} visible to torch",),
        confidence="certain: counted",
        advice=(
            advise(
                "start one rank per GPU; if the host has more GPUs, make them visible",
                again(evidence, worst.cell, ("world_size", [gpus])),
            ),
        ),
        subject=name_of(worst.cell.run),
        runs=(worst.cell.run.run_id,),
    )


def _gloo(environment: EnvironmentRecord, loads: list[_Load]) -> Finding | None:
    cores = environment.usable_cores
    over = [
        load
        for load in loads
        if load.cell.spec.backend == "gloo"
        and load.ranks > 1
        and load.ordinary
        and load.ranks * GLOO_THREADS.value > cores
    ]
    if not over:
        return None
    worst = max(over, key=lambda load: load.ranks)
    threads = worst.ranks * int(GLOO_THREADS.value)
    sentences = [
        f"{counted(worst.ranks, 'rank')} x {GLOO_THREADS.value:g} threads of gloo = {threads} on "
        f"{counted(cores, 'core')}, under SCHED_OTHER",
        "with SCHED_BATCH small messages take a tenth to a half of that time and vary less",
    ]
    if worst.cell.run.exposed_comm_ns is not None:
        sentences.append(f"{EXPOSED_COMM}: {format_duration(worst.cell.run.exposed_comm_ns.value)} a step")
    return Finding(
        severity="warning",
        title=f"gloo's threads preempt each other: {threads} on {counted(cores, 'core')} with the default scheduler",
        evidence=tuple(sentences),
        confidence="likely: the policy is recorded; its cost depends on the kernel",
        advice=(
            advise(
                "run ranks under SCHED_BATCH (no privilege needed): unset STEPSCOPE_SCHEDULER, in your own script "
                "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)) before init_process_group",
                "chrt --batch 0 COMMAND",
            ),
        ),
        subject=name_of(worst.cell.run),
        runs=(worst.cell.run.run_id,),
    )


RULE = Rule(
    symptom="more threads than cores, or more ranks than GPUs",
    needs=("cells",),
    look=check,
    kind="contended-machine",
    protocol=1,
    thresholds={"cores": CORES, "gloo_threads": GLOO_THREADS, "delayed": DELAYED},
)
