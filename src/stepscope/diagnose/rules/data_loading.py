"""Computation stops while data are loaded.

What
----
Steps of `bench`: the share of the step from its start until the batch is on the device (`data_wait`), slowest rank,
median over steps; the advice follows from the settings: no workers, workers that restart each epoch, pageable copies to
a GPU. Traces: idle time of the device (on CPU jobs: time without operators) that falls mostly into the data loader's
annotation, over the window; mean over ranks.

Why
---
Late data stops the rank and, in the next collective, all others. More worker processes on the host nearly always help.

Known problems
--------------
Synthetic data and cached arrays do not represent a real input pipeline. Loading that overlaps device work costs nothing
and does not count. In traces only marked loading counts (`enumerate(DataLoader)`, `stepscope.data`); a loop that reads
by hand appears as `launch-bound` or `python-overhead`. On CPU jobs operators inside the annotation (collation,
augmentation) count as loading, those of another thread do not.

References
----------
torch.utils.data.DataLoader: num_workers, persistent_workers, pin_memory, prefetch_factor; PyTorch performance tuning guide.
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, in_words, plural
from stepscope.diagnose.commands import again
from stepscope.diagnose.frameworks import option
from stepscope.diagnose.job_facts import JobFacts, facts_of
from stepscope.diagnose.rule import Limit, Statement, advise, inspect, over_share
from stepscope.diagnose.trace_facts import (
    OF_STEP,
    WORTH,
    RankShares,
    idle_share,
    read_in_full,
    share_rule,
    trace_command,
)
from stepscope.records.finding import Advice, Finding
from stepscope.results.cell_facts import TimedCell, measured, others, planted, traced
from stepscope.results.evidence import Evidence, TraceEvidence

PROBLEM = Limit(value=0.30, unit="share of the step", source="without it the job runs 1.4 times as fast")


def check(evidence: Evidence) -> Statement:
    return over_share(evidence, "data_wait", OF_STEP.value, _of_cells, spent="of the step waits for data")


def _of_cells(evidence: Evidence, ranked: list[TimedCell]) -> Finding:
    cell = ranked[0]
    share = cell.share("data_wait")
    spec = cell.cell.result.spec
    sentences = [
        *planted(cell.cell, cell.phases.data_wait_ns, "loader"),
        f"{format_duration(cell.phases.data_wait_ns)} of {format_duration(cell.step_ns)} pass before the batch arrives",
        f"num_workers {spec.num_workers}, persistent_workers {_on(spec.persistent_workers)}, "
        f"pin_memory {_on(spec.pin_memory)}",
    ]
    return Finding(
        severity="problem" if share > PROBLEM.value else "warning",
        title=f"{format_percent(share)} of the step waits for data",
        evidence=(*sentences, *others(ranked, lambda other: f"({format_percent(other.share('data_wait'))})")),
        stake_fraction=share,
        confidence=measured(cell),
        advice=_advice(evidence, cell),
        subject=cell.name,
        runs=(cell.cell.run.run_id,),
        job=traced(evidence, cell),
    )


def _advice(evidence: Evidence, cell: TimedCell) -> tuple[Advice, ...]:
    spec, environment = cell.cell.result.spec, evidence.environment
    cores = None if environment is None else environment.usable_cores
    busy = spec.world_size * (cell.cell.run.threads_per_rank or 1)
    advice = []
    if spec.num_workers == 0:
        warning = ""
        if cores is not None and busy + spec.world_size > cores:
            warning = f" (workers need cores: {counted(busy, 'compute thread')} on {counted(cores, 'core')} already)"
        advice.append(
            advise(
                f"load batches in advance in worker processes{warning}",
                again(evidence, cell.cell, ("num_workers", [0, 1, 2])),
            )
        )
    else:
        more = 2 * spec.num_workers
        if cores is None or busy + spec.world_size * more <= cores:
            advice.append(
                advise(
                    f"use {more} workers instead of {spec.num_workers}",
                    again(evidence, cell.cell, ("num_workers", [spec.num_workers, more])),
                )
            )
        if not spec.persistent_workers:
            advice.append(
                advise("keep workers alive between epochs", again(evidence, cell.cell, ("persistent_workers", True)))
            )
    if spec.device == "cuda" and not spec.pin_memory:
        advice.append(
            advise(
                "copy from pinned memory without waiting: pin_memory, non_blocking=True",
                again(evidence, cell.cell, ("pin_memory", True)),
            )
        )
    if spec.dataset == "synthetic":
        text = "synthetic batches are made in memory: check the copy to the device and what else runs on these cores"
    else:
        text = "make a batch cheaper: decode and tokenise in advance, store arrays, read from a local disk"
    return (*advice, advise(text, key="cheaper loading"))


def _on(value: bool) -> str:
    return "on" if value else "off"


def _report(part: RankShares) -> Finding:
    assert part.job is not None
    on_cpu = all(p.budget is not None and p.budget.source == "cpu_spans" for p in part.ranks)
    idles = "no operator runs" if on_cpu else "the device idles"
    waiting = [p.facts.rank for p in part.ranks if idle_share(p, "data") >= WORTH]
    return part.finding(
        f"input-bound: {part} waits for data",
        (f"{idles} while the host is in the data loader", *_recorded(facts_of(part.job.summary))),
        confidence="measured from operators" if on_cpu else "measured from launches and their kernels",
        advice=_of_loader(part.job, waiting, len(part.ranks)),
    )


def _of_loader(job: TraceEvidence, waiting: list[int], ranks: int) -> tuple[Advice, ...]:
    """Advise on the loader; where few ranks wait it is fast enough, and something is wrong on those."""
    look = trace_command(job, "--show phases,idle")
    if 2 * len(waiting) <= ranks and ranks > 1:
        who = f"{plural(len(waiting), 'rank')} {in_words(waiting)}"
        text = (
            f"only {who} of {ranks} wait{'s' * (len(waiting) == 1)}: check storage, cores and share of the data there"
        )
        return (inspect(text, look),)
    facts = facts_of(job.summary)
    return (
        advise(_workers(facts), look, only_for=("room for workers",), key="loader workers"),
        advise(
            option("keep workers", facts.frameworks, plain="keep workers between epochs: persistent_workers=True"),
            only_for=("workers that end",),
            key="keep workers",
        ),
        advise(
            option("pin batches", facts.frameworks, plain="copy from pinned memory: DataLoader(pin_memory=True)"),
            only_for=("pageable batches",),
            key="pin batches",
        ),
        advise(
            "make a batch cheaper: decode and augment in advance, store arrays, read from a local disk",
            key="cheaper loading",
        ),
        advise("augment on the device", only_for=("gpu",), key="augment on the device"),
    )


def _recorded(facts: JobFacts) -> tuple[str, ...]:
    """The loader's settings, as the job recorded them."""
    loader = facts.loader
    if loader is None or loader.workers is None:
        return ()
    cores = (
        ""
        if facts.cores is None
        else f", {counted(facts.cores, 'core')} for {counted(facts.ranks_a_host or 1, 'rank')}"
    )
    return (f"the loader has num_workers={loader.workers}{cores}",)


def _workers(facts: JobFacts) -> str:
    """Advise more workers than there are, as many as have cores."""
    now = facts.loader.workers if facts.loader is not None else None
    text = option("loader workers", facts.frameworks, plain="DataLoader(num_workers=...)")
    if facts.cores is None and facts.loading is None:
        text += ", where cores are free"
    if now is None:
        return f"load batches in advance in worker processes: {text}"
    if now == 0:
        return f"load batches in advance in worker processes, none does now: {text}"
    return f"use {2 * now} loader workers instead of {now}: {text}"


RULE = share_rule(
    symptom="computation stops while data are loaded",
    any_of=("cells", "traces"),
    look=check,
    ranks=read_in_full,
    without="no rank has measurable events",
    measure=lambda ranks: [idle_share(p, "data") for p in ranks],
    figures=lambda part: f"{part} waits for data",
    report=_report,
    claims=("step/idle/data",),
    kind="input-bound",
    protocol=2,
    thresholds={"step": OF_STEP, "problem of a step": PROBLEM},
)
