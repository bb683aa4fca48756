"""What to do about the first cost of a verdict: of the finding that explains it, or the general advice for its kind.

Nothing is advised that the job has on already, nor what its device, backend or processors make useless or wrong: its
recorded facts decide (``job_facts.HOLDS``), and where they are unknown, advice that needs them is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from shlex import join, quote
from typing import TYPE_CHECKING

from stepscope.diagnose.frameworks import in_words_of, option
from stepscope.diagnose.job_facts import JobFacts, applies, facts_of_profiled
from stepscope.diagnose.rule import advise, inspect
from stepscope.diagnose.rules import kind_of
from stepscope.predict.loading import fewest_workers
from stepscope.records.finding import Advice, JobVerdict
from stepscope.results.diary import crowd
from stepscope.results.host_load import contention_of, host_loads
from stepscope.results.profiled_job import ProfiledJob

if TYPE_CHECKING:
    from stepscope.diagnose.costs import Causes

MOST = 2
"""Advised at once."""

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch with one kernel for all tensors, on CPUs too (torch 2.6)."""

ASYNC_SAVE = "save in the background: torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=PATH)"


def advice_for(verdict: JobVerdict, causes: Causes) -> tuple[Advice, ...]:
    """Return at most ``MOST`` pieces of advice: those of the finding that explains the first cost, or the general ones."""
    facts = facts_of_profiled(causes.job)
    return tuple(
        Advice(text=advice.text, command=advice.command)
        for advice in _offered_advice(verdict, causes, facts)
        if applies(advice, facts)
    )[:MOST]


def _offered_advice(verdict: JobVerdict, causes: Causes, facts: JobFacts) -> Iterable[Advice]:
    """Yield what may help against what a verdict names, by its kind."""
    job = causes.job
    if verdict.kind == "input-bound":
        outside = verdict.costs[0].rules == ("before",) or (bool(job.facts) and not job.loaders)
        before = (
            "see what the loop does before its forward pass; what prepares batches belongs in a DataLoader with "
            "num_workers"
        )
        return (advise(before, key="loader") if outside else _loader_advice(job, facts),)
    if verdict.kind == "straggler" and any(slow.kind == "chronic" and slow.part == "data" for slow in causes.late):
        from stepscope.diagnose.rules.straggler import CAUSE_ADVICE  # a log that names no slow rank needs none

        return (inspect(CAUSE_ADVICE["data"]),)
    if verdict.kind == "computation-or-python":
        ended = f"stepscope profile -- {join(job.record.command)}"
        look = f"stepscope profile --attach {quote(str(job.folder))}" if verdict.ended is None else ended
        return (inspect("profile some of its steps", look),)
    named = "host-bound" if verdict.kind == "before-forward" else verdict.kind
    explained = [f for f in causes.diagnosis.findings if kind_of(f) == named and f.advice]
    if explained:
        cause = None if verdict.part_cost is None else verdict.part_cost.cause
        return next((finding for finding in explained if finding.rule == cause), explained[0]).advice
    if verdict.kind == "contended-machine":
        return (_contended_advice(job, facts),)
    general = GENERAL.get(verdict.kind, ())
    return (general,) if isinstance(general, Advice) else general(job, facts) if callable(general) else general


def _loader_advice(job: ProfiledJob, facts: JobFacts) -> Advice:
    """Advise more workers where processors are free for them or loading needs none, else cheaper loading."""
    wanted, loading, conditions, busy = _wanted_workers(facts), facts.loading, [], ""
    if wanted is not None and wanted > (job.loader_workers or 0):
        if facts.loader is not None and facts.loader.streamed:
            conditions.append("each worker reads its part of the stream (get_worker_info)")
        if facts.setup.start_method in ("spawn", "forkserver"):
            conditions.append("the script starts below if __name__ == '__main__'")
        provided = f"; so that {', and '.join(conditions)}" if conditions else ""
        return advise(f"{loader_with(wanted, facts)}{provided}", key="loader workers")
    loads = host_loads(job.steps) if job.steps is not None else ()
    if loads and loading is not None and loading.used_ns is not None:
        busy = f"{loads[0].busy:.1f} of {loads[0].cores} cores are busy, and workers need free ones; "
    return advise(f"make loading cheaper: {busy}decode once and store, fewer transforms", key="cheaper loading")


def _wanted_workers(facts: JobFacts) -> int | None:
    """Return how many workers a rank should have, or None where more do not help."""
    loading = facts.loading
    if loading is not None and loading.used_ns is not None:
        return fewest_workers(loading)
    if not facts.workers_fit:
        return None
    helps = None if loading is None else fewest_workers(loading)
    if helps is None or facts.cores is None:
        return helps
    return min(helps, max(1, facts.cores // (facts.ranks_a_host or 1) - ((facts.threads or 1) if facts.on_cpu else 1)))


def loader_with(workers: int, facts: JobFacts) -> str:
    """Return the loader with so many workers, in the words of the job's framework."""
    keep = "" if facts.loader is not None and facts.loader.persistent else ", persistent_workers=True"
    plain = f"DataLoader(num_workers={workers}{keep})"
    return option("loader workers", facts.frameworks, plain=plain).replace("...", str(workers))


def _contended_advice(job: ProfiledJob, facts: JobFacts) -> Advice:
    """Choose the advice by who takes the processors."""
    assert job.steps is not None
    first = next(iter(contention_of(job.steps)), None)
    if first is None:
        return inspect(
            "see what else runs on the host, and whether its control group is throttled (cpu.stat)", "top -b -n 1"
        )
    of = f"{first.takes:.1f} of {first.cores} cores" + (f" of {first.host}" if first.host else "")
    match first.who:
        case "others":
            return inspect(f"other processes take {of}: end them, or measure without them", "top -b -n 1 | head -20")
        case "stepscope":
            return inspect(f"stepscope takes {of}: measure without a window", "stepscope run --deep off -- COMMAND")
        case "workers":
            text = f"make loading cheaper: its workers take {of}, and no core is free; decode once and store"
            return advise(text, key="cheaper loading")
    # As many threads as there are cores for; fewer ranks, or the script, where OMP_NUM_THREADS is not the way.
    full = crowd(job.steps)
    ranks = full.ranks if full is not None else facts.ranks_a_host or 1
    threads = (full.threads if full is not None else first.cores + int(first.takes)) // ranks
    fitting = max(1, first.cores // ranks)
    if threads <= fitting:
        return advise(f"start no more ranks on a host than its {first.cores} cores", key="fewer ranks")
    why = f"{ranks} ranks x {threads} threads on {first.cores} cores"
    set_to = (facts.setup.environment or {}).get("OMP_NUM_THREADS")
    if set_to is not None and set_to != str(threads):  # the script has another number than the variable
        return advise(f"torch.set_num_threads({fitting}) in the script: {why}", key="fewer threads")
    return advise(f"OMP_NUM_THREADS={fitting}: {why}", key="fewer threads")


def _optimizer_advice(job: ProfiledJob, facts: JobFacts) -> Iterable[Advice]:
    name = (job.facts.get("optimizer") or {}).get("class")
    if name in FUSED and facts.setup.fused is not True:
        return (advise(f"one kernel for all parameters: torch.optim.{name}(..., fused=True)", key="fused optimizer"),)
    return (inspect("see what the optimizer's step does: clipping, schedules, copies of parameters"),)


def _garbage_advice(_: ProfiledJob, facts: JobFacts) -> Iterable[Advice]:
    """Yield advice on garbage collection: at the same steps on all ranks, without what never dies."""
    if facts.setup.collects is False:
        return (inspect("the job collects by itself: see how often it calls gc.collect()"),)
    every = "gc.disable(), and gc.collect() every so many steps, at the same step on all ranks"
    return (
        advise(
            "gc.collect(); gc.freeze() after set-up: later collections skip what is there then", key="freeze garbage"
        ),
        advise(every, key="rare collections"),
    )


def _checkpoint_advice(_: ProfiledJob, facts: JobFacts) -> Iterable[Advice]:
    over = " (it needs init_process_group('cpu:gloo,cuda:nccl'))" if facts.backend == "nccl" else ""
    return (advise(f"{ASYNC_SAVE}{over}", key="async checkpoint"), advise("save less often", key="rare checkpoint"))


def _compute_advice(job: ProfiledJob, facts: JobFacts) -> Iterable[Advice]:
    """Advise on a GPU what the job has not; on CPUs lower precision is no gain, and only a look is certain."""
    if facts.device == "cuda":
        plain = "torch.set_float32_matmul_precision('high') before the first step: TF32 for products in float32"
        yield advise(plain, key="tf32")
        yield from in_words_of("compile", facts.frameworks, plain="torch.compile(model)")
    if job.steps_profiled:
        yield inspect("see which operators take it", f"stepscope trace {job.folder} --show operators --sort host_self")
    else:
        yield inspect("see which operators take it", "stepscope profile -- COMMAND")


def _bubble_advice(job: ProfiledJob, _facts: JobFacts) -> Iterable[Advice]:
    yield advise("more micro-batches a step, or an interleaved schedule", key="micro-batches")
    if job.steps_profiled:
        yield inspect(
            "see which stage the others wait for", f"stepscope trace {job.folder} --show groups,idle,stragglers"
        )


GENERAL: Mapping[str, Advice | Callable[[ProfiledJob, JobFacts], Iterable[Advice]]] = {
    "straggler": inspect("compare its work and its host with another rank's: samples, clocks, other jobs"),
    "uneven-work": advise("give ranks batches of equal work: sort or bucket samples by length", key="even work"),
    "evaluation": advise("evaluate less often, on a part of the data, or in a job of its own", key="rare evaluation"),
    "checkpointing": _checkpoint_advice,
    "garbage-collection": _garbage_advice,
    "compilation": advise(
        "see what changes: TORCH_LOGS=recompiles; torch.compile(dynamic=True) where shapes vary",
        key="static shapes",
    ),
    "periodic-pause": inspect("look at what the loop does at those steps: logging, saving, validation"),
    "optimizer-bound": _optimizer_advice,
    "pipeline-bubble": _bubble_advice,
    "independent-processes": advise(
        "start them with torchrun, and call torch.distributed.init_process_group() before training", key="torchrun"
    ),
    "compute-bound": _compute_advice,
    "worker-start": lambda _job, facts: in_words_of(
        "keep workers", facts.frameworks, plain="DataLoader(..., persistent_workers=True)"
    ),
    "inference": advise(
        "batch them: fewer and larger ones, in torch.inference_mode(); fewer only if the algorithm allows it",
        key="inference mode",
    ),
    "before-forward": inspect(
        "see what the loop does from one optimizer step to its next forward pass: a DataLoader's workers can do it"
    ),
}
"""Kind -> what is advised where no finding explains it."""
