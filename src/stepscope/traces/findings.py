"""The two or three things that matter first in a trace, with their evidence."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_summary import RankPass, TraceFinding, TraceSummary

RULES = (
    "no-communication",
    "exposed-communication",
    "launch-bound",
    "host-sync",
    "data-loading",
    "straggler",
)
"""Every rule that this file can fire; ``--fail-if RULE`` accepts these."""


def findings_of(summary: TraceSummary) -> tuple[TraceFinding, ...]:
    """Everything worth acting on, largest stake first; what has no stake last."""
    found = [
        *_stragglers(summary),
        *_no_communication(summary),
        *_exposed(summary),
        *_idle(summary),
        *_plan(summary),
    ]
    return tuple(sorted(found, key=lambda f: -(f.stake_fraction or 0.0)))


def _no_communication(summary: TraceSummary) -> Iterable[TraceFinding]:
    """Several ranks and not one communication kernel: never a silent zero."""
    world = summary.world_size or len(summary.ranks)
    silent = [p for p in summary.ranks if p.budget is not None and p.budget.parts.comm_ns == 0]
    if world < 2 or len(silent) < len(summary.ranks) or not silent:
        return
    yield TraceFinding(
        rule="no-communication",
        severity="warning",
        title=f"no communication in the trace of a job of {counted(world, 'rank')}",
        evidence=(f"{counted(len(silent), 'trace')} without a single communication event",),
        stake_fraction=None,
        confidence="certain for these files",
        advice=(
            "was the capture taken outside the optimizer step, or with gradient synchronisation off (no_sync)?",
            "record communication: ProfilerActivity.CUDA on GPUs, ProfilerActivity.CPU on gloo",
        ),
    )


def _stragglers(summary: TraceSummary) -> Iterable[TraceFinding]:
    """Ranks that the others wait for. The stake: what waiting for them takes of all ranks' time."""
    report = summary.stragglers
    if report is None:
        return
    window = sum(p.budget.parts.window_ns for p in summary.ranks if p.budget is not None)
    for each in report.stragglers:
        advice = _CAUSE_ADVICE.get(
            each.cause, "compare its kernels and host with another rank's: --show idle,kernels"
        )
        yield TraceFinding(
            rule="straggler",
            severity="problem",
            title=f"rank {each.rank} is a straggler: the others wait for it ({each.cause})",
            evidence=(each.evidence, f"worth up to {format_duration(each.saved_ns)} of this capture"),
            stake_fraction=min(1.0, each.share_of_skew * report.waiting_ns / window) if window else None,
            confidence=each.confidence,
            advice=(advice, "a faster network would not help: this time is waiting, not transfer"),
        )


_CAUSE_ADVICE = {
    "launch-bound": "its host launches late: look at this host's CPU (other jobs, governor, pinning, Python work)",
    "more compute": "it computes longer: uneven data or sharding, or a slower (throttled) device",
    "data": "its data loader is slower: storage, worker count or CPU of this host",
    "sync": "its host waits for the device and then launches late: .item(), logging or checkpoints on this rank only?",
    "memory copies": "it copies more: logging, checkpoints or pageable memory on this rank only?",
}


def _plan(summary: TraceSummary) -> Iterable[TraceFinding]:
    """A strategy that did not communicate as it promised."""
    broken = [
        p.conformance for p in summary.ranks if p.conformance is not None and p.conformance.holds is False
    ]
    if broken:
        first = broken[0]
        yield TraceFinding(
            rule="plan-broken",
            severity="problem",
            title=f"strategy {first.strategy!r} did not communicate as its plan says, on {counted(len(broken), 'rank')}",
            evidence=tuple(f"rank {first.rank}: {text}" for text in first.differences[:4]),
            stake_fraction=None,
            confidence="certain: collectives counted by operation and bytes",
            advice=("the strategy's comm_plan or its deed is wrong; predictions from the plan are, too",),
        )


def _exposed(summary: TraceSummary) -> Iterable[TraceFinding]:
    shares = [p.budget.parts for p in summary.ranks if p.budget is not None and p.budget.parts.comm_ns]
    if not shares:
        return
    share = median(p.exposed_comm_fraction for p in shares)
    if share < 0.1:
        return
    hidden = median(h for p in shares if (h := p.hidden_fraction) is not None)
    exposed = median(p.exposed_comm_ns for p in shares)
    evidence = [
        f"exposed {format_duration(exposed)} a rank; {hidden:.0%} of communication runs under computation"
    ]
    where = " (median rank)" if len(shares) > 1 else ""
    waiting = _waiting_share(summary)
    if all(p.partial for p in summary.ranks):
        advice = "read without --show budget to see how much of it is waiting for late ranks"
    elif waiting is None:
        advice = "how much of it is waiting for late ranks, the traces of all ranks would tell"
    else:
        evidence.append(
            f"{waiting:.0%} of the time in collectives is waiting for the last rank, the rest transfer"
        )
        advice = "waiting is not transfer: see --show collectives,stragglers before buying a faster network"
    yield TraceFinding(
        rule="exposed-communication",
        severity="problem" if share >= 0.2 else "warning",
        title=f"communication that nothing hides takes {share:.0%} of the time{where}",
        evidence=tuple(evidence),
        stake_fraction=share * (1 - (waiting or 0.0)),
        confidence="measured",
        advice=(advice,),
    )


def _waiting_share(summary: TraceSummary) -> float | None:
    """Waiting / all time in collectives that could be split; None when none could."""
    split = (
        [i for i in summary.collectives.instances if i.transfer_ns is not None] if summary.collectives else []
    )
    total = sum(r.end_ns - r.start_ns for i in split for r in i.ranks)
    return sum(i.waiting_ns or 0 for i in split) / total if total else None


def _idle(summary: TraceSummary) -> Iterable[TraceFinding]:
    """Idle time of the device by what would remove it."""
    ranks = [p for p in summary.ranks if p.budget is not None and p.budget.source == "device" and p.idle]
    for rule, (causes, title, advice) in _IDLE.items():
        shares = [_share(each, causes) for each in ranks]
        if not shares or (share := sum(shares) / len(shares)) < 0.1:
            continue
        evidence = []
        if len(ranks) > 1:
            evidence.append(f"mean of {len(ranks)} ranks; between {min(shares):.0%} and {max(shares):.0%}")
        if len(causes) > 1:
            split = {cause: sum(_share(each, (cause,)) for each in ranks) / len(ranks) for cause in causes}
            evidence.append(", ".join(f"{_SAID[cause]} {part:.0%}" for cause, part in split.items()))
        yield TraceFinding(
            rule=rule,
            severity="problem" if share >= 0.2 else "warning",
            title=title.format(share=f"{share:.0%}"),
            evidence=tuple(evidence),
            stake_fraction=share,
            confidence="measured from launches and their kernels",
            advice=advice,
        )


def _share(each: RankPass, causes: tuple[str, ...]) -> float:
    window = max(each.budget.parts.window_ns, 1) if each.budget else 1
    return sum(cause.idle_ns for cause in each.idle if cause.cause in causes) / window


_SAID = {
    "host_late": "not yet launched",
    "launch_latency": "launched, not yet started",
    "kernel_gap": "gaps between queued kernels",
}

_IDLE: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "launch-bound": (
        ("host_late", "launch_latency", "kernel_gap"),
        "launch-bound: the device idles {share} of the time because the host launches work too late",
        (
            "fewer, larger kernels: a larger micro-batch, fused optimizers (fused=True), torch.compile",
            "CUDA graphs where shapes are constant",
        ),
    ),
    "host-sync": (
        ("sync",),
        "the device idles {share} of the time after the host waited for it",
        (
            "look for .item(), .cpu(), print(loss) and blocking copies inside the step",
            "keep losses on the device and read them every N steps",
        ),
    ),
    "data-loading": (
        ("data",),
        "the device idles {share} of the time while the host loads data",
        ("more DataLoader workers, persistent_workers=True, pin_memory=True, prefetch_factor",),
    ),
}
