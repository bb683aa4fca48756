"""Exposed communication takes a large share of the time: no computation runs beside it.

What
----
Measure(union of communication minus union of computation) / window, median over ranks (metrics.md, One step), less what of
it is waiting for late ranks, which ``straggler`` reports. Of a dry run: of the predicted step on most GPUs.

Why
---
Exposed communication lengthens the step; hidden communication costs nothing. The evidence distinguishes poor overlap
(little is hidden) from too much communication (too little computation to hide it under). Reductions of the forward pass
(tensor parallel) are on the critical path: the next operation needs their result, and no computation of the same
micro-batch can hide them.

Known problems
--------------
With traces of some ranks only, waiting cannot be separated from transfer, and the stake is an upper bound. On gloo,
communication threads share cores with computation, so overlap is not free. Concurrent computation counts as hiding,
although both may slow each other.

References
----------
Li et al., PyTorch Distributed, VLDB 2020 (overlap by buckets); docs/reference/metrics.md, One step and Traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.frameworks import option
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import WORTH, Advices, Limit, Rule, Statement, advise, finding, inspect
from stepscope.diagnose.trace_facts import (
    MAINLY_LACKING,
    SHARES,
    ahead_share,
    compute_to_transfer,
    exposed_transfer,
    lacking_share,
    on_device,
    unread,
    waiting_share,
)
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.traces.groups import IN_EACH_PASS

SMALL = Limit(
    64 << 10, unit="bytes", source="8 A100 and 8 H100, nccl-tests logs: 64 KiB take at most 1.2 times as long as 1 KiB"
)
_HALF = ("half", "bfloat16", "float16", "bf16", "fp16", "c10::half", "c10::bfloat16")

UNKNOWN = 0.05
"""A larger share of exposed communication of which it is unknown what is waiting is reported."""

MAINLY_WAITING = 0.5
"""From this share of waiting on, sending less does not help."""


def _judge_job(job: TraceEvidence) -> Statement:
    summary = job.summary
    measured = [p.budget.parts for p in summary.ranks if p.budget is not None]
    if not measured:
        return unread(summary, "no rank has measurable events")
    parts = [rank_parts for rank_parts in measured if rank_parts.comm_ns]
    if not parts:
        return "no communication"
    share = median(p.exposed_comm_fraction for p in parts)
    is_exposed = f"{OF_WINDOW.of(share)} is {EXPOSED_COMM}"
    if share < WORTH:
        return f"{is_exposed}, limit {format_percent(WORTH)}"
    waiting, net = waiting_share(summary), exposed_transfer(summary)
    transfer = share if net is None else min(share, net)
    if transfer < WORTH:
        named = summary.stragglers is not None and summary.stragglers.stragglers
        return (
            f"{is_exposed}, most of it waiting for {'a straggler' if named else 'other ranks'}: "
            f"{format_percent(transfer)} is transfer, limit {format_percent(WORTH)}"
        )
    forward = _forward_share(summary)
    kind = "tp" if _is_tensor(summary, forward) else _size_or_kind(summary)
    most = max(summary.ranks, key=lambda p: p.budget.parts.exposed_comm_ns if p.budget else 0)
    step = max(most.steps, key=lambda step: step.parts.exposed_comm_ns, default=None)
    hidden = median(h for p in parts if (h := p.hidden_fraction) is not None)
    critical = (
        f"{format_percent(forward)} of the reductions' time is in the forward pass (tensor parallel): the next "
        "operation needs their result, so overlap within a micro-batch cannot hide them"
    )
    split = waiting is not None and lacking_share(summary) < MAINLY_LACKING
    return finding(
        f"{EXPOSED_COMM}: {OF_WINDOW.of(transfer)}" + (" (median rank)" if len(parts) > 1 else ""),
        f"exposed {format_duration(median(p.exposed_comm_ns for p in parts))} per rank; {format_percent(hidden)} of "
        "communication is hidden under computation",
        # A stage waits for its neighbour: nothing of the same micro-batch could run meanwhile.
        kind != "pp" and (critical if kind == "tp" and forward else _room_text(summary)),
        waiting is not None and _waiting_text(summary, waiting),
        cause=_small_messages(summary) if kind in ("small", "one small") else "",
        stake=transfer,
        ranks=(most.facts.rank,),
        at_ns=None if step is None else (step.start_ns, step.start_ns + step.parts.window_ns),
        confidence="measured" if split else "measured; includes waiting for late ranks",
        advice=_exposed_advice(job, waiting if split else None, kind=kind),
    )


def _judge_dry(evidence: Evidence) -> Statement:
    """Judge the largest world of a dry run."""
    from stepscope.diagnose.dry_findings import communication_statement

    job = next((job for job in evidence.dry if job.worlds), None)
    return "no step" if job is None else communication_statement(job, limit=WORTH, small=SMALL)


def _waiting_text(summary: TraceSummary, waiting: float) -> str:
    """Say how much of the exposed communication is waiting for the last rank."""
    text = f"{format_percent(waiting)} of the {EXPOSED_COMM} is waiting for the last rank"
    if lacking_share(summary) >= UNKNOWN:
        return f"{text} of those here; what of the rest is waiting for ranks without a trace is unknown"
    ahead = ahead_share(summary)
    if ahead >= UNKNOWN:
        text += f", {format_percent(ahead)} transfer during which that rank still computes"
    instances = summary.collectives.instances if summary.collectives is not None else ()
    unsplit: Counter[str] = Counter()
    for instance in instances:
        if instance.unsplit is not None:
            unsplit[instance.op] += instance.exposed_ns
    unknown = unsplit.total() / (sum(instance.exposed_ns for instance in instances) or 1)
    if unknown < UNKNOWN:
        return f"{text}, the rest transfer" + (" that stays when no rank is late" if ahead >= UNKNOWN else "")
    op = unsplit.most_common(1)[0][0]
    return f"{text}; {format_percent(unknown)} of it is in collectives whose waiting is unknown, mostly {op}"


def _room_text(summary: TraceSummary) -> str:
    """Say how much of the communication, waiting left out, the computation beside it could hide at the very best."""
    room = compute_to_transfer(summary)
    if room < 1:
        return (
            f"computation could hide at most {format_percent(room)} of the transfer; only fewer bytes or more work per "
            "synchronisation reduce the rest"
        )
    return "computation takes longer than the transfer: overlap could hide nearly all of it"


def _forward_share(summary: TraceSummary) -> float:
    """Share of the time of all reductions launched before the backward pass; 0 where steps or passes are not marked."""
    syncs = [p.gradient_sync for p in summary.ranks if p.gradient_sync is not None]
    total = sum(place.total_ns for s in syncs for place in (s.before, s.inside, s.after))
    return sum(s.before.total_ns for s in syncs) / total if total else 0.0


def _is_tensor(summary: TraceSummary, forward: float) -> bool:
    """Whether most of the exposed communication is that of tensor-parallel layers. Where groups do not say, reductions of
    both passes do; metrics and losses are reduced between two steps alone, and count as ahead of the backward pass."""
    if kind := _exposed_kind(summary):
        return kind == "tp"
    return IN_EACH_PASS <= forward <= 1 - IN_EACH_PASS and not facts_of(summary).parallel & {"ddp", "sharded"}


def _exposed_kind(summary: TraceSummary) -> str:
    """Name what most of the exposed communication is of: pp, ep, ... as groups carry it, "sharded" for units of FSDP."""
    exposed: Counter[str] = Counter()
    for rank in summary.ranks:
        for group in rank.groups:
            exposed["sharded" if group.kind == "dp" and rank.units is not None else group.kind] += group.exposed_ns
    kind, most = max(exposed.items(), key=lambda item: item[1], default=("", 0))
    return kind if most > exposed.total() / 2 else ""


def _size_or_kind(summary: TraceSummary) -> str:
    """Return ``_exposed_kind``; of gradients and what is unknown ``small`` where most of the exposed time is of small
    messages (``one small`` of at most one a step), and ``half``, of sharded units ``sharded half``, where it is of 16-bit
    types."""
    kind = _exposed_kind(summary)
    calls = [c for p in summary.ranks if p.communication is not None for c in p.communication.collectives]
    exposed = sum(c.exposed_ns for c in calls)
    if not exposed or kind not in ("", "dp", "sharded"):
        return kind
    small = sum(c.exposed_ns for c in calls if c.size_bytes is not None and c.size_bytes < SMALL)
    half = sum(c.exposed_ns for c in calls if (c.dtype or "").lower() in _HALF)
    if small > exposed / 2:
        steps = sum(len(p.steps) for p in summary.ranks if p.communication is not None)
        return "one small" if kind != "sharded" and steps and len(calls) <= steps else "small"
    if half <= exposed / 2:
        return kind
    return "sharded half" if kind == "sharded" else "half"


def _small_messages(summary: TraceSummary) -> str:
    """Say how many of a step's collectives are small, on the median rank."""
    small_calls = median(
        sum((c.size_bytes or SMALL) < SMALL for c in p.communication.collectives) / (len(p.steps) or 1)
        for p in summary.ranks
        if p.communication is not None
    )
    one = round(small_calls) == 1
    many = "1 collective a step carries" if one else f"{small_calls:.0f} collectives a step carry"
    return f"{many} less than {format_bytes_binary(SMALL)}" + ("" if one else " each")


_MORE_WORK = (
    advise("increase the work per step: a larger micro-batch", key="larger micro-batch"),
    advise("increase the work per step: a larger batch", key="larger batch"),
)


def _send_less(summary: TraceSummary, kind: str) -> Iterable[Advices]:
    """Advise by what the exposed communication is of; of gradients and what is unknown where no kind is known."""
    used = facts_of(summary).frameworks
    accumulate = advise(
        "synchronise less often: "
        + option("accumulate", used, plain="`with model.no_sync():` around all micro-steps but the last"),
        only_for=("replicated", "micro-steps"),
        key="accumulate",
    )
    half = advise(
        "send fewer bytes: " + option("smaller messages", used, plain="reduce in bf16 (a bf16 hook)"),
        only_for=("replicated",),
        key="smaller messages",
    )
    same = inspect("a smaller type cuts nothing: the messages have 16 bits already")
    keep = advise(
        "keep units gathered where memory has room: "
        + option("keep gathered", used, plain="reshard_after_forward=False"),
        key="keep gathered",
    )
    small = (
        advise(
            "send fewer, larger messages (several tensors in one, a larger bucket, several layers in a unit): most of a "
            "small message's time is latency, which a smaller type does not cut",
            key="larger messages",
            only_for=("trains",),
        ),
        advise(
            "send fewer, larger messages, or in one kernel with what follows: most of a small message's time is latency",
            key="larger messages",
            only_for=("infers",),
        ),
    )
    where = "within NVLink" if on_device(summary) else "on one host"
    return {
        "tp": (
            advise(f"keep a tensor-parallel group {where}", key="group on one host"),
            advise("split the sequence too (sequence parallel)", key="split sequence"),
            advise(
                "make the tensor-parallel group smaller, or split the batch in two, so that one half computes during "
                "the communication of the other",
                key="smaller tensor group",
            ),
        ),
        "pp": (
            advise(
                "use more micro-batches a step or an interleaved schedule: stages then wait less for each other",
                key="micro-batches",
            ),
        ),
        "ep": (
            advise(f"keep an expert-parallel group {where}", key="group on one host"),
            advise("overlap the exchange with shared experts or another part of the batch", key="overlap the exchange"),
        ),
        "sharded": (
            advise("gather and reduce in bf16 (mixed precision of the wrapper)", key="gather in bf16"),
            keep,
            _MORE_WORK,
        ),
        "sharded half": (keep, same, _MORE_WORK),
        "small": (small, _MORE_WORK),
        "one small": (accumulate, _MORE_WORK),
        "half": (accumulate, same, _MORE_WORK),
    }.get(kind, (accumulate, half, _MORE_WORK))


def _exposed_advice(job: TraceEvidence, waiting: float | None, *, kind: str) -> Iterable[Advices]:
    """Yield what hides communication of this kind, or shows how much of it is waiting."""
    if all(p.partial for p in job.summary.ranks):
        text = "rerun without --show budget to see how much of it is waiting for late ranks"
    elif waiting is None and len(job.summary.ranks) == job.summary.world_size:
        text = "compare when the ranks enter these calls: traces do not show what of them is waiting for late ranks"
    elif waiting is None:
        text = "give the traces of all ranks to see how much of it is waiting for late ranks"
    elif waiting >= WORTH:
        text = "check waiting and transfer separately before you buy a faster network"
    else:
        text = "find these collectives and what runs beside them"
    parts = {"sharded": "units", "sharded half": "units", "tp": "layers"}.get(kind, "buckets")
    look = inspect(text, f"--show overlap,collectives,stragglers,{parts}")
    if waiting is not None and waiting >= MAINLY_WAITING:
        return (look,)
    less = _send_less(job.summary, kind)
    return (look, *less) if waiting is None else (*less, look)


RULE = Rule(
    symptom=f"{EXPOSED_COMM}: no computation runs beside it",
    look=_judge_dry,
    look_at_job=_judge_job,
    any_of=("traces", "dry"),
    claims=("communication",),
    whole=True,
    kind="communication-bound",
    protocol=2,
    rests_on=("overlap",),
    thresholds={"small": SMALL, **SHARES},
)
