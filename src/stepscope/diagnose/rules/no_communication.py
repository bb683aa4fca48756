"""Traces of a job with several ranks contain no communication event.

What
----
Every given trace of a job of two or more ranks shows neither communication kernels nor gloo spans. Zero would read as
"communication costs nothing" although it was not recorded. Where `stepscope profile` recorded whole steps of optimizers with
as many parameters on every rank, nothing is missing: the ranks train copies that never exchange gradients.

Why
---
A capture taken while gradients are not synchronised (``no_sync``, between optimizer steps, one rank's warm-up) says
nothing about scaling, and every overlap figure from it is empty.

Known problems
--------------
A job that really does not communicate (independent replicas) fires too. Where more than 5% of the kernels' time is of
unknown kind, the rule does not speak.

References
----------
PyTorch, ``torch.nn.parallel.DistributedDataParallel.no_sync``; ``torch.profiler.ProfilerActivity``.
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.frameworks import used_in
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import Rule, Statement, advise, finding
from stepscope.diagnose.trace_facts import cut_short, unread
from stepscope.results.evidence import TraceEvidence


def _no_communication_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the traces of a job with several ranks contain no communication."""
    ranks = job.summary.ranks
    world = job.summary.world_size or len(ranks)
    budgets = [p.budget.parts for p in ranks if p.budget is not None]
    if not budgets:
        return unread(job.summary, "no rank has measurable events")
    if world < 2:
        return "a job of one rank does not communicate"
    silent = sum(parts.comm_ns == 0 for parts in budgets)
    if silent < len(ranks):
        usual = format_duration(median(parts.comm_ns for parts in budgets))
        return f"{usual} of communication on the median of {counted(len(budgets), 'rank')}"
    if cut := cut_short(job.summary):
        return cut
    if facts_of(job.summary).trains is False:
        return "no backward pass: ranks that infer need not communicate"
    setups = [p.facts.setup for p in ranks]
    sizes = {setup.parameters if setup is not None else None for setup in setups}
    if None not in sizes and len(sizes) == 1 and all(p.steps for p in ranks):  # whole steps of the same model
        return _copies_statement(job, world, silent)
    stated = job.summary.world_size is not None
    return finding(
        f"no communication in the trace of a job of {counted(world, 'rank')}"
        if stated
        else f"no communication in {counted(world, 'trace')}",
        f"{counted(silent, 'trace')} without a single communication event",
        not stated and "no trace says how many ranks its job has: these may be jobs of one rank",
        severity="warning" if stated else "info",
        confidence="measured" if stated else "likely: whether the traces are of one job is not recorded",
        advice=[
            not stated and "if each is a job of its own, diagnose them one by one",
            "check that the capture covers whole steps, with the synchronisation of gradients",
            "record communication: ProfilerActivity.CUDA on GPUs, ProfilerActivity.CPU on gloo",
        ],
    )


def _copies_statement(job: TraceEvidence, world: int, silent: int) -> Statement:
    """Return the finding of ranks that train copies of the model alone, each by itself."""
    ranks = job.summary.ranks
    divided = {p.facts.setup.loader.divided for p in ranks if p.facts.setup and p.facts.setup.loader}
    steps = min(len(p.steps) for p in ranks)
    return finding(
        f"no communication: {counted(world, 'rank')} train copies of the model that are never synchronised",
        f"{counted(silent, 'trace')} of {counted(steps, 'whole step')} each, without a single communication event",
        len(ranks) > 1 and "their optimizers step as many parameters",
        severity="problem",
        confidence=("measured" if len(ranks) > 1 else "likely: the trace of one rank")
        + "; ranks that are meant to train models of their own are as they should be",
        advice=[
            advise(
                "pass model, optimizer and loader through accelerator.prepare()"
                if "accelerate" in used_in(job.summary)
                else "wrap the model: DistributedDataParallel(model), after init_process_group()",
                key="wrap in ddp",
            ),
            divided != {True}
            and advise(
                "give each rank its share of the data: DataLoader(sampler=DistributedSampler(dataset))",
                key="shares of the data",
            ),
        ],
        priority="wrong",
    )


RULE = Rule(
    symptom="the traces of a job with several ranks contain no communication",
    look_at_job=_no_communication_of_job,
    decided_by="no collective at all on several ranks",
    kind="independent-processes",
    rests_on=("classes",),
    protocol=1,
)
