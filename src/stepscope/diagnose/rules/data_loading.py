"""Computation stops while data are loaded.

What
----
Steps of `bench`: the share of the step from its start until the batch is on the device (`data_wait`), slowest rank,
median over steps; the advice follows from the settings: no workers, workers that restart each epoch, pageable copies to
a GPU. Traces: idle time of the device (on CPU jobs: time without operators) that falls mostly into the data loader's
annotation or a function that prepares inputs, over the window; mean over ranks.

Why
---
Late data stops the rank and, in the next collective, all others. More worker processes on the host nearly always help.

Known problems
--------------
Synthetic data and cached arrays do not represent a real input pipeline. Loading that overlaps device work costs nothing
and does not count. In traces only marked loading counts (`enumerate(DataLoader)`, `stepscope.data`), and, where stacks were
recorded, functions of Python by name (`preprocess`, `collate_fn`, `tokenize`, processors of transformers); a loop that reads
by hand appears as `launch-bound` or `python-overhead`. On CPU jobs operators inside the annotation (collation,
augmentation) count as loading, those of another thread do not.

References
----------
torch.utils.data.DataLoader: num_workers, persistent_workers, pin_memory, prefetch_factor; PyTorch performance tuning guide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, in_words, plural
from stepscope.diagnose.bounds import OF_STEP, bound, over_share
from stepscope.diagnose.commands import again
from stepscope.diagnose.frameworks import LOADERS, in_words_of, option
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import Finding, Limit, Statement, advise, finding, inspect
from stepscope.diagnose.trace_facts import RankShares, cut, idle_share, read_in_full, share_rule
from stepscope.records.finding import Advice
from stepscope.results.cell_facts import TimedCell, measured, others, planted, traced
from stepscope.results.evidence import Evidence

PROBLEM = Limit(0.30, unit="share of the step", source="without it the job runs 1.4 times as fast")


def check(evidence: Evidence) -> Statement:
    return over_share(evidence, "input-bound", "data_wait", _slow_loader_finding, spent="of the step waits for data")


def _slow_loader_finding(evidence: Evidence, ranked: list[TimedCell]) -> Finding:
    """Return the finding of cells that wait for data, with more workers where cores are free."""
    cell = ranked[0]
    share, spec = cell.share("data_wait"), cell.spec
    cores = None if evidence.environment is None else evidence.environment.usable_cores
    busy = spec.world_size * (cell.run.threads_per_rank or 1)
    now, more = spec.num_workers, 2 * spec.num_workers
    full = f" (workers need cores: {counted(busy, 'compute thread')} on {counted(cores or 0, 'core')} already)"
    crowded = cores is not None and busy + spec.world_size * max(1, more) > cores
    on = {True: "on", False: "off"}
    return finding(
        f"{format_percent(share)} of the step waits for data",
        planted(cell.cell, cell.phases.data_wait_ns, "loader"),
        f"{format_duration(cell.phases.data_wait_ns)} of {format_duration(cell.step_ns)} pass before the batch arrives",
        f"num_workers {now}, persistent_workers {on[spec.persistent_workers]}, pin_memory {on[spec.pin_memory]}",
        others(ranked, lambda other: f"({format_percent(other.share('data_wait'))})"),
        severity="problem" if share > PROBLEM else "warning",
        stake=share,
        confidence=measured(cell),
        advice=[
            now == 0
            and advise(
                f"load batches in advance in worker processes{full if crowded else ''}",
                again(evidence, cell.cell, ("num_workers", [0, 1, 2])),
            ),
            now > 0
            and not crowded
            and advise(
                f"use {more} workers instead of {now}", again(evidence, cell.cell, ("num_workers", [now, more]))
            ),
            now > 0
            and not spec.persistent_workers
            and advise("keep workers alive between epochs", again(evidence, cell.cell, ("persistent_workers", True))),
            spec.device == "cuda"
            and not spec.pin_memory
            and advise(
                "copy from pinned memory without waiting: pin_memory, non_blocking=True",
                again(evidence, cell.cell, ("pin_memory", True)),
            ),
            advise(
                "synthetic batches are made in memory: check the copy to the device and what else runs on these cores"
                if spec.dataset == "synthetic"
                else "make a batch cheaper: decode and tokenise in advance, store arrays, read from a local disk",
                key="cheaper loading",
            ),
        ],
        of=cell.run,
        job=traced(evidence, cell),
    )


def _data_loading_statement(part: RankShares) -> Statement:
    """Report what a loader costs; where few ranks wait it is fast enough, and something is wrong on those."""
    assert part.job is not None
    ranks, facts = len(part.ranks), facts_of(part.job.summary)
    on_cpu = all(p.budget is not None and p.budget.source == "cpu_spans" for p in part.ranks)
    idles = "no operator runs" if on_cpu else "the device idles"
    waiting = [p.facts.rank for p in part.ranks if bound("input-bound", idle_share(p, "data"), "trace")]
    calls = [i.call for p in part.ranks for i in p.idle if i.cause == "data" and i.call]
    function = next((call for call in calls if "torch/utils/data" not in call), None)
    now = None if facts.loader is None else facts.loader.workers
    none = now == 0 or (now is None and facts.loads_in_workers is False)
    cores = f", {counted(facts.cores or 0, 'core')} for {counted(facts.ranks_a_host or 1, 'rank')}"
    look = "--show phases,idle"
    library = not LOADERS.isdisjoint(facts.frameworks) and facts.loads_in_workers is None
    workers = option("loader workers", facts.frameworks, plain="DataLoader(num_workers=...)")
    more = option("loader workers", facts.frameworks, plain="num_workers")
    if facts.cores is None and facts.loading is None:
        workers += ", where cores are free"
    if 2 * len(waiting) <= ranks and ranks > 1:
        who = f"{plural(len(waiting), 'rank')} {in_words(waiting)}"
        text = (
            f"only {who} of {ranks} wait{'s' * (len(waiting) == 1)}: check storage, cores and share of the data there"
        )
        advice = [inspect(text, look)]
    elif function is not None:
        advice = [
            advise(
                "prepare the next input while the device runs, in a thread or process ahead of it; a pipeline of "
                "transformers does with a dataset, num_workers and batch_size",
                look,
                key="loader",
            ),
            advise(
                "make it cheaper: a fast processor (use_fast=True), fewer or smaller frames, inputs kept prepared",
                key="cheaper loading",
            ),
            advise("decode, resize and normalise on the device", key="augment on the device"),
        ]
    else:
        advice = [
            advise(
                f"use {2 * now} loader workers instead of {now}: {workers}"
                if now
                else f"the loader has worker processes already, which do not keep up: raise {more}, or prefetch_factor"
                if now is None and facts.loads_in_workers
                else f"load more batches in advance: {workers}"
                if library
                else f"load batches in advance in worker processes{', none does now' * none}: {workers}",
                look,
                key="loader workers",
            ),
            *([] if library else _torch_loader_advice(facts.frameworks)),
            advise(
                "make a batch cheaper: decode and augment in advance, store arrays, read from a local disk",
                key="cheaper loading",
            ),
            advise("augment on the device", key="augment on the device"),
        ]
    return part.finding(
        f"input-bound: {part} waits for data",
        f"{idles} while the host is in {'the data loader' if function is None else cut(function)}",
        now is not None and f"the loader has num_workers={now}{'' if facts.cores is None else cores}",
        confidence="measured from operators" if on_cpu else "measured from launches and their kernels",
        advice=advice,
    )


def _torch_loader_advice(frameworks: Collection[str]) -> Iterator[Advice]:
    """Yield what else torch's own loader does."""
    keep = "keep workers between epochs: persistent_workers=True"
    yield from in_words_of("keep workers", frameworks, plain=keep)
    pin = "copy from pinned memory: DataLoader(pin_memory=True)"
    yield from in_words_of("pin batches", frameworks, plain=pin)


RULE = share_rule(
    symptom="computation stops while data are loaded",
    any_of=("cells", "traces"),
    look=check,
    ranks=read_in_full,
    without="no rank has measurable events",
    measure=lambda ranks: [idle_share(p, "data") for p in ranks],
    figures=lambda part: f"{part} waits for data",
    report=_data_loading_statement,
    claims=("idle",),
    kind="input-bound",
    protocol=2,
    thresholds={"step": OF_STEP, "problem of a step": PROBLEM},
)
