"""The other ranks wait for one rank: in most steps, in turn, or occasionally.

What
----
Steps of `bench`: the own time of a rank is its step without exposed communication; d is a rank's own time minus the
median of the others', step by step. A rank is a straggler (chronic) if over at least {steps} the median of d exceeds
{excess%} of the others' own time and the lower end of the block bootstrap's 95% interval is above 0; of 16 ranks or
more it also exceeds how much ranks differ (p < {host#} for all of them together). So are all ranks of a host, or of a
rail (the same place on every host), if its median rank is, against the others', nine of ten of its ranks have half of
that excess, and nine of ten of the others are faster; those of one host are named over 3 to 19 steps if they come last
in each, beyond chance (p < {host#}) or a third longer (95%). If no rank is, the rule tests the lead of the last rank of
each step against {rotating%} (rotating) and sums the steps in which a rank exceeds its usual by more than {outlier}
(one-off).
Traces: for each collective that all ranks leave together, after clock alignment, which rank came last. A rank is named
if, over fewer than {steps#} steps, the collectives in which it came last carry at least {share of skew} and it was last
more often than chance allows (binomial, Bonferroni over ranks, p < {p#}), and so by whole steps, of which the
collectives are not independent; over {steps#} steps or more, as in `bench`. If no rank is named and waiting takes
{waiting}, the skew rotates; over fewer than {steps#} steps that is an observation, unless waiting takes
{waiting of few steps}.
In a grid, where ranks meet in different groups, lateness is passed on, and who comes last proves nothing: a rank's own time
in a step (without what it waits in collectives and messages) is compared with that of the ranks that do the same work,
those of its stage of the pipeline, all where there is none. Over {steps#} steps or more as in `bench`; over fewer a rank is
named whose own time exceeds the median of its peers' in each step, by {grid excess%} and by {grid noise#} times what both
vary or the peers differ; of one step by {grid step%}. What it costs is how much earlier the capture ends when it is
replayed with the peers' time in place of the rank's own. A rank alone in its stage has no peers: `pipeline-imbalance`
compares stages.
A capture that begins later on one rank makes no rank late: what the others wait for it in that first collective is left out.
Files of the NCCL Inspector: the rank whose time in a call is shortest came last to it. A rank is named if that holds in
{calls}, of half of the calls to which a rank came late, more often than chance allows (as above, p < {arrivals p#}), and if
the others wait for it {late share}.

Why
---
All ranks leave a collective together: the job runs at the speed of the last rank, and the waiting of the others looks
like communication. A faster network does not shorten it: one of 8 GPUs that is 50 ms late on a 15 ms step costs 77% of
the throughput.

Known problems
--------------
With two ranks, slow and fast cannot be distinguished. If more than half of the ranks are slow, they count as normal. A
z-score over ranks cannot exceed sqrt(n - 1), so 2 sigma never fires on 4 or 5 GPUs and must not be used. On shared
machines other jobs cause rotating ranks. The Inspector's files show who came last, not why. With traces of some ranks
only, missing ranks cannot be named, and waiting is a lower bound; a short capture names who was late in it, not who is
always late. A pipeline is known by its messages: where none was recorded, a rank that is late because another rank's data
arrived late is named itself. A late rank whose only peer is late, too, is not named.

References
----------
docs/reference/metrics.md, Traces; docs/reference/trace.md, Who is late in a grid. D / (T + D) = 50 / (15 + 50): loss of
throughput by a delay D on a step T. Replay: Lin et al., Understanding Stragglers in Large Model Training Using What-if
Analysis, OSDI 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.commands import again, excluding, profiled
from stepscope.diagnose.rule import (
    GRAVE,
    WORTH,
    Finding,
    Limit,
    Rule,
    Statement,
    advise,
    finding,
    inspect,
    severity_of,
    skipped,
)
from stepscope.diagnose.trace_facts import unread
from stepscope.records.finding import Advice
from stepscope.records.parts import LATE
from stepscope.records.trace_path import Straggler, StragglerReport
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.cell_facts import TimedCell, by_model, others, planted, timed_cells, traced
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.slow_ranks import (
    HOST_P,
    MIN_ONE_OFF,
    MIN_ROTATING,
    OUTLIER_MADS,
    Slow,
    comparable_ranks,
    excess_fractions,
    slow_ranks,
)
from stepscope.stats.compare import CLEAR_EXCESS, CLEAR_NOISE, LEAST_STEPS, LONE_EXCESS, MIN_EXCESS
from stepscope.stats.step_table import StepTable
from stepscope.traces.waits import exposed_waiting, waits_of

if TYPE_CHECKING:
    from stepscope.records.comm import Arrivals

MIN_STAKE = 0.05
"""Of the window: a late rank that costs less is a warning."""

SURE_WAITING = Limit(
    0.30,
    unit="share of the window",
    source="clean jobs of two ranks wait for up to 14% of three steps (2026-11): twice that is unlikely",
)

NEGLIGIBLE = 0.01
"""Of the window: a late rank that costs less, because the others compute until it comes, is not worth a finding."""

_WHAT = {
    "launch-bound": "launches late",
    "more compute": "computes longer",
    "more work": "does more work",
    "same work": "is slower at the same work",
    "data": "waits for data",
    "sync": "waits for its device",
    "memory copies": "copies more",
}

SAME_WORK = Limit(
    0.02, unit="of the others' FLOP a step", source="stepscope's choice, 2026-11: padding of a batch changes more"
)

LATE_CALLS = Limit(8, unit="late calls", source="of fewer, chance names a rank of two as often as once in 100 jobs")
LATE_P = Limit(0.001, unit="probability, Bonferroni over ranks", source="calls of one step are not independent")
LATE_SHARE = Limit(
    0.05, unit="share of the collectives' time", source="as for traces: a late rank that costs less is negligible"
)

CAUSE_ADVICE = {
    "launch-bound": "its host launches late: check this host's CPU (other jobs, governor, pinning, Python work)",
    "more compute": "it computes longer: rebalance data or shards, or check for a slower (throttled) device",
    "more work": "it is given more to compute: give every rank as much (batches of equal lengths, even shards)",
    "same work": "it is slower at the same work: check its clocks, its cores, and other processes beside it",
    "data": "its data loader is slower: check storage, worker count and CPU of this host",
    "sync": "its host waits for the device and then launches late: check for .item(), logging or checkpoints only here",
    "memory copies": "it copies more: check for logging, checkpoints or pageable memory on this rank only",
}


def check(evidence: Evidence) -> Statement:
    """Look for: the other ranks wait for one rank."""
    if evidence.arrivals and not evidence.cells:
        return _who_came_last(evidence.arrivals)
    cells = timed_cells(evidence, least_ranks=2)
    times = {id(cell): own for cell in cells if (own := comparable_ranks(cell.cell.result)) is not None}
    enough = [cell for cell in cells if id(cell) in times and times[id(cell)].steps >= LEAST_STEPS]
    slow = {at: late for at, own in times.items() if (late := slow_ranks(own))}
    if not enough and not slow:
        most = max((own.steps for own in times.values()), default=0)
        return skipped(
            f"{LEAST_STEPS} timed steps on several ranks are needed"
            + (f", the most of any cell is {most}" if times else ", no cell has any"),
            f"stepscope bench MATRIX.yaml --steps {2 * LEAST_STEPS}",
        )
    findings = []
    for group in by_model(cell for cell in cells if id(cell) in slow):
        ranked = sorted(group, key=lambda cell: -slow[id(cell)][0].stake_fraction)
        worst = ranked[0]
        rest = others(ranked, lambda cell: _in_short(slow[id(cell)][0]))
        findings += [
            _of_cell(evidence, worst, alike, times[id(worst)], rest if at == 0 else ())
            for at, alike in enumerate(grouped(slow[id(worst)], lambda late_rank: late_rank.about).values())
        ]
    if findings:
        return findings
    excess = [max(excess_fractions(times[id(cell)])) for cell in enough]
    return (
        f"{enough[excess.index(max(excess))].name}: the slowest rank takes {format_percent(max(excess))} more than "
        f"the others, limit {format_percent(MIN_EXCESS)}"
    )


def _who_came_last(communicators: Sequence[Arrivals]) -> Statement:
    """Name ranks that came last to the collectives of a training, the costliest first."""
    from stepscope.traces.stragglers import binomial_tail  # only files of the Inspector need it

    late: list[tuple[float, Arrivals, int]] = []
    for one in communicators:
        rank = max(range(len(one.hosts)), key=lambda rank: one.late_ns[rank])
        times, of_all = one.late_calls[rank], sum(one.late_calls)
        by_chance = binomial_tail(times, [1 / len(one.hosts)] * of_all) * len(one.hosts)
        share = one.late_ns[rank] / (sum(one.late_ns) + one.transfer_ns)
        if times >= max(LATE_CALLS, of_all / 2) and by_chance < LATE_P and share >= LATE_SHARE:
            late.append((share, one, rank))
    if not late:
        calls = max(one.calls for one in communicators)
        if calls < LATE_CALLS:
            return skipped(f"{counted(calls, 'collective')} in the files of all ranks: {LATE_CALLS:g} are needed")
        return f"{counted(calls, 'collective')} of all ranks: none came last more often than chance allows, at a cost"
    late.sort(key=lambda item: -item[1].late_ns[item[2]])
    share, first, rank = late[0]
    widest = [one for one in communicators if len(one.hosts) == max(len(other.hosts) for other in communicators)]
    of_job = widest == [first]
    times = first.late_calls[rank]
    host, whose = first.hosts[rank], "" if of_job else f" of {first.communicator}"
    return finding(
        f"straggler: rank {rank}{whose} on {host} comes last to its collectives: the others wait {LATE_SHARE.of(share)} for "
        "it",
        f"it came last to {times} of {counted(first.calls, 'call')}, {format_duration(first.late_ns[rank] / times)} after "
        f"the rank before it on average; other ranks came late to {sum(first.late_calls) - times}",
        "its own times in them are the shortest, as it waits for no other rank: ranks with long times are those that wait",
        [f"{one.communicator}: rank {r} on {one.hosts[r]}, {LATE_SHARE.of(part)}" for part, one, r in late[1:4]],
        severity=severity_of(share),
        confidence="measured; what keeps it before the collective is not in these files",
        advice=[
            (f"compare {host} with another host: clocks, other processes, free cores", "stepscope doctor"),
            (
                "see which part of its step is longer than on other ranks",
                "stepscope profile -- torchrun --nproc-per-node=GPUS TRAIN.py",
            ),
            "a faster network does not help: this time is waiting, not transfer",
        ],
        ranks=(rank,) if of_job else (),
    )


def _in_short(slow: Slow) -> str:
    return f"({'in turn' if slow.rank is None else f'rank {slow.rank}'}, {format_percent(slow.stake_fraction)})"


def _of_cell(
    evidence: Evidence, cell: TimedCell, alike: Sequence[Slow], times: StepTable, rest: tuple[str, ...]
) -> Finding:
    """Report late ranks of a cell that are alike, the costliest first."""
    slow = alike[0]
    chronic, text = slow.kind == "chronic", f"measured over {slow.steps} steps"
    if slow.kind == "one-off":
        text = "measured; what happened in those steps is not recorded"
    elif chronic and times.ranks == 2:
        text += "; with two ranks, slow only means slower than the other"
    return finding(
        _straggler_title(slow, len(alike)),
        planted(cell.cell, slow.excess_ns, "slow_rank", [one.rank for one in alike if one.rank is not None])
        if chronic
        else planted(cell.cell, slow.excess_ns, "jitter"),
        _straggler_evidence(slow, times),
        [f"rank {late_rank.rank}: {_excess_text(late_rank)}" for late_rank in alike[1:]],
        rest,
        severity="problem" if chronic and slow.stake_fraction > GRAVE else "warning",
        stake=slow.stake_fraction,
        confidence=text,
        advice=_straggler_advice(evidence, cell, slow, times),
        of=cell.run,
        ranks=() if slow.rank is None else (slow.rank,),
        job=traced(evidence, cell),
    )


def _straggler_title(slow: Slow, ranks: int) -> str:
    """Say who is late, how often and by how much."""
    excess = format_duration(slow.excess_ns)
    if slow.kind == "rotating":
        return f"stragglers in turn: the last rank rotates, {excess} of waiting in a typical step"
    where = f"rank {slow.rank} on {slow.host}"
    if slow.kind == "one-off":
        return f"{where} was {excess} late in {counted(slow.late_steps, 'step')} of {slow.steps}"
    ratio = f"{1 + slow.excess_ns / slow.others_ns:.2f}x the others' time, who wait"
    if ranks > 1:
        place = slow.host if slow.of == "host" else f"rail {slow.rail}"
        return f"straggler: each of the {ranks} ranks on {place} is slower, up to {ratio}"
    return f"straggler: {where} takes {ratio} for it"


def _excess_text(slow: Slow) -> str:
    """Say what a rank's own time is beyond the others', and how much that is at least."""
    at_least = "(95%)" if slow.steps >= LEAST_STEPS else "in every step"
    return (
        f"own time {format_duration(slow.others_ns + slow.excess_ns)} against {format_duration(slow.others_ns)} of the "
        f"others: {format_duration(slow.excess_ns)} more in the median of {slow.steps} steps, at least "
        f"{format_duration(slow.low_ns or 0.0)} {at_least}"
    )


def _straggler_evidence(slow: Slow, times: StepTable) -> list[str]:
    some = f"{slow.late_steps} of {slow.steps} steps"
    if slow.kind == "rotating":
        return [
            f"own time {format_duration(slow.others_ns)}; the last rank takes {format_duration(slow.excess_ns)} more than "
            "the others (median)",
            f"in {some} by over {format_percent(MIN_ROTATING)}; no rank is last most of the time",
        ]
    neighbours = sum(host == slow.host for host in times.hosts)
    return [
        *((_excess_text(slow), f"chronic: late in {some}") if slow.kind == "chronic" else ()),
        ""
        if slow.kind == "chronic"
        else f"one-off: {some} beyond {OUTLIER_MADS:g} MAD of its usual, "
        f"{format_percent(slow.stake_fraction)} of all step time",
        f"{format_duration(slow.part_ns)} of it {LATE[slow.part]}" if slow.part and slow.part_ns is not None else "",
        f"it gets {slow.samples_ratio:.2f} times the others' samples per step"
        if slow.samples_ratio is not None and abs(slow.samples_ratio - 1) > MIN_EXCESS
        else "",
        f"{counted(neighbours, 'rank')} of {times.ranks} run on {slow.host}" if neighbours < times.ranks else "",
    ]


def _straggler_advice(evidence: Evidence, cell: TimedCell, slow: Slow, times: StepTable) -> tuple[Advice, ...]:
    """Return what to look at, by how the lateness is spread and which part of the step it is."""
    if slow.kind == "rotating":
        return (
            inspect(
                "check what interrupts ranks: other jobs, too many threads, data of uneven length", "stepscope doctor"
            ),
        )
    if slow.kind == "one-off":
        return (
            inspect(
                "check what ran in these steps: checkpoints, evaluation, garbage collection, other jobs",
                profiled(evidence, cell.cell),
            ),
        )
    if slow.samples_ratio is not None and slow.samples_ratio > 1 + MIN_EXCESS:
        first = advise("rebalance: give every rank as many samples", key="even work")
    elif slow.part == "data":
        first = advise(
            f"its data arrives late: check where rank {slow.rank} reads from, and give it loader workers",
            again(evidence, cell.cell, ("num_workers", 2)),
        )
    else:
        first = inspect(
            f"check {slow.host}: throttled clocks, other jobs on its cores, another GPU model", "stepscope doctor"
        )
    without = (
        advise(
            f"exclude {slow.host}: the step is then up to {format_percent(slow.stake_fraction)} shorter",
            excluding(evidence, slow.host),
            key="without the host",
        )
        if len(set(times.hosts)) > 1
        else advise(
            "rebalance: a smaller share of the batch for this rank, or a job without it",
            "stepscope doctor --quick",
            key="even work",
        )
    )
    return first, without


def _straggler_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the other ranks wait for one rank."""
    report = job.summary.stragglers
    if report is None:
        return unread(job.summary, "no collective was recorded")
    if report.pattern == "alone":
        return skipped("each stage of the pipeline has one rank: no other does the same work")
    if not report.instances and not report.stragglers:
        return unread(job.summary, "no collective appears on two ranks: give the traces of all ranks")
    windows = job.summary.windows_ns.values()
    waiting = report.waiting_ns / sum(windows) if any(windows) else 0.0
    if report.stragglers:
        typical_ns = sum(windows) / len(windows) if windows else 0.0
        return [
            _straggler_finding(job, straggler, typical_ns)
            for straggler in report.stragglers
            if straggler.saved_ns >= NEGLIGIBLE * typical_ns
        ] or f"{report.text}; the others compute meanwhile: it costs less than {OF_WINDOW.of(NEGLIGIBLE)}"
    if waiting >= WORTH and report.pattern in ("rotating", "one-off", "undecided"):
        return _no_straggler_finding(job, report, waiting)
    if waiting >= MIN_STAKE and (why := _cannot_name(job, report)):
        return skipped(why)
    return f"{report.text}; waiting takes {OF_WINDOW.of(waiting)}"


def _of_work(summary: TraceSummary, straggler: Straggler) -> tuple[str, str]:
    """Return the cause, more or the same work where the rank computes longer, and the figures that decide it."""
    if straggler.cause not in ("more compute", "unknown"):
        return straggler.cause, ""
    flop = _against_others({p.facts.rank: p.step_flop for p in summary.ranks}, straggler)
    calls = _against_others({p.facts.rank: p.step_operators for p in summary.ranks}, straggler)
    if flop is not None and flop > 1 + SAME_WORK:
        return "more work", f"it is given {flop:.2f}x the FLOP of the others, by recorded shapes"
    if calls is not None and calls > 1 + SAME_WORK:
        return "more work", f"it calls {calls:.2f}x as many operators a step as the others"
    if straggler.cause == "more compute" and min(flop or 0.0, calls or 0.0) > 1 - SAME_WORK:
        return "same work", "it calls as many operators with as many FLOP a step as the others, by recorded shapes"
    return straggler.cause, ""


def _against_others(of_rank: Mapping[int, float | None], straggler: Straggler) -> float | None:
    """This rank's figure / the median of its peers', else of all others'; None where it is unknown of either."""
    own, peers = of_rank.get(straggler.rank), straggler.peers or of_rank.keys() - {straggler.rank}
    others = [value for peer in peers if (value := of_rank.get(peer))]
    return own / median(others) if own and others else None


def _straggler_finding(job: TraceEvidence, straggler: Straggler, window_ns: float) -> Finding:
    """Return the finding, with evidence, stake and advice: the other ranks wait for one rank."""
    hosts = job.summary.hosts
    host, rank = hosts.get(straggler.rank), f"rank {straggler.rank}"
    cause, work = _of_work(job.summary, straggler)
    stake = min(1.0, straggler.saved_ns / window_ns) if window_ns else None
    return finding(
        f"straggler: {rank}{f' on {host}' if host else ''} {_WHAT.get(cause, 'comes last')}"
        + (f", which costs {OF_WINDOW.of(stake)}" if stake is not None else ""),
        f"{straggler.kind}: {straggler.evidence}",
        work,
        f"matching {'its peers' if straggler.peers else 'the second-slowest rank'} would save up to "
        f"{format_duration(straggler.saved_ns)} of this capture's {format_duration(window_ns)}",
        severity="warning" if stake is not None and stake < MIN_STAKE else "problem",
        stake=stake,
        confidence=straggler.confidence,
        advice=[
            (
                CAUSE_ADVICE.get(cause, "compare its kernels and host activity with another rank's"),
                f"--show idle,kernels,operators --rank {straggler.rank}",
            ),
            straggler.kind == "chronic"
            and cause != "more work"
            and host is not None
            and len(set(hosts.values())) > 1
            and advise(
                f"if it is late in every run without a known cause, exclude {host} from the job", key="without the host"
            ),
            "a faster network does not help: this time is waiting, not transfer",
        ],
        of=rank,
        ranks=(straggler.rank,),
        at_ns=_costliest_collective(job, straggler.rank),
    )


def _costliest_collective(job: TraceEvidence, rank: int) -> tuple[int, int] | None:
    """Return the collective in which the rank cost the others most (waiting that nothing hid), on its own clock: from the
    first arrival to the end."""
    communication = next((p.communication for p in job.summary.ranks if p.facts.rank == rank), None)
    instances = job.summary.collectives.instances if job.summary.collectives else ()
    late = [i for i in instances if i.last_ranks == (rank,) and i.transfer_ns is not None]
    if communication is None or not late:
        return None
    waits = waits_of(job.summary.collectives)
    worst = max(late, key=lambda i: (exposed_waiting(i, waits), i.skew_ns or 0))
    own = next(communication.collectives[member.position] for member in worst.ranks if member.rank == rank)
    return own.start_ns - (worst.skew_ns or 0), own.end_ns


def _no_straggler_finding(job: TraceEvidence, report: StragglerReport, waiting: float) -> Finding:
    """Return the finding of ranks that wait for each other where no straggler can be named."""
    pattern = "long" if report.pattern == "undecided" and report.steps >= LEAST_STEPS else report.pattern
    when, sure, advice = _NOBODY[pattern]
    few = report.steps < LEAST_STEPS and waiting < SURE_WAITING
    return finding(
        f"ranks wait for each other {OF_WINDOW.of(waiting)}{when}",
        report.text,
        f"{counted(report.instances, 'collective')}; waiting of all ranks that no computation covers: "
        f"{format_duration(report.waiting_ns)}",
        _cannot_name(job, report),
        severity="info" if few else "warning",
        stake=None if few else min(1.0, waiting),
        confidence=f"measured; {sure}",
        advice=[(advice, "--show collectives,stragglers")],
    )


def _cannot_name(job: TraceEvidence, report: StragglerReport) -> str | None:
    """Why no rank can be named, however late it is: too few independent waits; None where enough were recorded."""
    ranks = max((len(i.ranks) for i in job.summary.collectives.instances), default=0) if job.summary.collectives else 0
    if report.steps >= LEAST_STEPS or report.stragglers or ranks < 2:
        return None
    waits = max(report.steps, 1)  # reductions of one step overlap: a late rank is late for all of them at once
    least = min(1.0, ranks * (1 / ranks) ** waits)
    from stepscope.traces.stragglers import MAX_P  # only a job that was traced has what it needs

    if least < MAX_P:
        return None
    return (
        f"{counted(waits, 'step')} of {counted(ranks, 'rank')} cannot reach p < {MAX_P:g} (at best {least:.2g}): no rank "
        "can be named; record more steps"
    )


_CHANCE = "no rank was late more often than chance allows"
_UNEVEN = "check for uneven work between steps: sequence lengths, padding, jitter of loaders or of shared hosts"
_NOBODY = {
    "one-off": (
        ", mostly in one collective",
        _CHANCE,
        "check for occasional pauses: garbage collection, a checkpoint, a stalled read",
    ),
    "rotating": (", each time for a different rank", _CHANCE, _UNEVEN),
    "undecided": (
        "",
        "over so few waits chance can make one rank the last in most of them",
        "profile more steps (--steps 20): they show whether one rank is slower, or ranks are late by chance",
    ),
    "long": ("", "the rank that is mostly last computes no longer than the others in a typical step", _UNEVEN),
}
"""By the pattern of the skew: end of the title, confidence, advice."""


RULE = Rule(
    symptom="the other ranks wait for one rank",
    any_of=("cells", "traces", "arrivals"),
    look=check,
    look_at_job=_straggler_of_job,
    claims=("waiting",),
    whole=True,
    kind="straggler",
    rests_on=("classes",),
    protocol=2,
    thresholds={
        "steps": Limit(LEAST_STEPS, unit="common timed steps", source="docs/reference/metrics.md, Traces"),
        "excess": Limit(
            MIN_EXCESS,
            unit="median excess / others' own time",
            source="as for traces: clocks and schedulers usually cause less (2026-11)",
        ),
        "host": Limit(
            HOST_P,
            unit="probability that a host's ranks are last in every step",
            source="steps beside each other are alike, hence a small one (2026-11)",
        ),
        "rotating": Limit(
            MIN_ROTATING,
            unit="median lead of the last / own time",
            source="twice the expected range of 8 normal samples whose spread is 3%",
        ),
        "one_off": Limit(
            MIN_ONE_OFF, unit="share of all step time", source="less is negligible: 1 step of 100, 5 times as long"
        ),
        "outlier": Limit(
            OUTLIER_MADS, unit="MAD over steps", source="with normal noise one step in 1e9 exceeds 6 sigma"
        ),
        "share of skew": Limit(0.20, unit="share of all skew", source="docs/reference/trace.md"),
        "p": Limit(0.05, unit="probability, Bonferroni over ranks", source="docs/reference/trace.md"),
        "grid excess": Limit(
            CLEAR_EXCESS,
            unit="of its peers' own time",
            source="made grids of 8 to 64 ranks, 100 with a slow rank and 100 without (2026-11)",
        ),
        "grid noise": Limit(
            CLEAR_NOISE, unit="times what both vary and the peers differ", source="as for the excess in a grid"
        ),
        "grid step": Limit(
            LONE_EXCESS,
            unit="of its peers' own time in the only step",
            source="as for the excess in a grid: one step has no spread over steps",
        ),
        "same work": SAME_WORK,
        "waiting of few steps": SURE_WAITING,
        "waiting": OF_WINDOW,
        "calls": LATE_CALLS,
        "arrivals p": LATE_P,
        "late share": LATE_SHARE,
    },
)
