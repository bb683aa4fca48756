"""What rules on traces share: shares of the window, commands, words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from statistics import fmean, median
from typing import TYPE_CHECKING

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import in_words, listed
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.frameworks import option, used_in
from stepscope.diagnose.rule import (
    GRAVE,
    WORTH,
    Advices,
    Claim,
    Declared,
    Limit,
    Lines,
    Rule,
    Statement,
    advise,
    finding,
)
from stepscope.records.finding import Advice, Finding, Skipped, VerdictKind
from stepscope.records.trace_budget import Parts
from stepscope.records.trace_collectives import RankWaitTotal
from stepscope.records.trace_rules import KernelKind, KernelMix
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence

if TYPE_CHECKING:
    from stepscope.records.trace_quality import Figure

SHARES = {
    "warning": OF_WINDOW,
    "problem": Limit(
        GRAVE,
        unit="share of the window",
        source=f"stepscope's choice, 2026-11: a gain of up to {1 / (1 - GRAVE):.2f}; the scaling efficiency of what is "
        "left is called good",
    ),
}
"""From which share on a part of the window is worth a finding, and from which on that is grave."""


def reads_traces(rule: Declared) -> bool:
    """Whether a rule can say something where there is nothing but traces."""
    return set(rule.needs) <= {"traces"} and "traces" in (*rule.needs, *rule.any_of)


def read_in_full(summary: TraceSummary) -> list[RankPass]:
    """Ranks of which more than the device events was read."""
    return [p for p in summary.ranks if p.budget is not None and not p.partial]


def on_device(summary: TraceSummary) -> list[RankPass]:
    """Ranks of jobs on GPUs of which more than the device events was read."""
    return [p for p in read_in_full(summary) if p.budget is not None and p.budget.source == "device"]


def unread(summary: TraceSummary, otherwise: str) -> Skipped:
    """Why a rule found no rank to look at; ``otherwise``: what the traces lack when they were read in full."""
    if why := next((p.unread for p in summary.ranks if p.unread), None):
        reason = why
    elif not any(p.budget for p in summary.ranks):
        reason = "the trace contains no device work, operators or communication"
    elif all(p.partial for p in summary.ranks if p.budget):
        reason = "only device events were read (--show budget)"
    else:
        reason = otherwise
    return Skipped(reason=reason)


def window_ns(rank: RankPass) -> int:
    """Length of the rank's window, at least 1."""
    return max(rank.budget.parts.window_ns, 1) if rank.budget else 1


def steps_ns(summary: TraceSummary, chosen: Collection[int | None]) -> float:
    """Return the length of these steps together, median over ranks, or of the window where none are marked."""
    marked = [sum(s.parts.window_ns for s in p.steps if s.step in chosen) for p in summary.ranks if p.steps]
    return float(median(marked or summary.windows_ns.values() or [0]))


def idle_share(rank: RankPass, *causes: str) -> float:
    """Idle time of these causes, or of all where none is given, / the window."""
    return sum(i.idle_ns for i in rank.idle if not causes or i.cause in causes) / window_ns(rank)


PYTHON_OWNS = Limit(
    0.5,
    unit="share of the host's delay",
    source="stepscope's choice, 2026-11: below half `launch-bound` has the advice, above it `python-overhead`",
)

MOSTLY_SHORT = Limit(
    0.5,
    unit="of all compute kernels, by number",
    source="stepscope's choice, 2026-11: half; 24 to 95% (median 43%) in seven GPU traces",
)


def python_shares(ranks: Sequence[RankPass]) -> list[float] | None:
    """Return the share of the window in which each rank on a GPU waits for Python between operators; None unless that is
    most of what its host is late and worth a finding. `python-overhead` has that time, and `launch-bound` has not."""
    late = [p.host_lateness for p in ranks if p.host_lateness is not None]
    total = sum(lateness.late_ns for lateness in late)
    shares = [p.host_lateness.python_ns / window_ns(p) if p.host_lateness else 0.0 for p in ranks]
    if not total or sum(lateness.python_ns for lateness in late) / total < PYTHON_OWNS:
        return None
    measured = [share for p, share in zip(ranks, shares, strict=True) if p.host_lateness is not None]
    return shares if fmean(measured) >= WORTH else None


def larger_batch(frameworks: Iterable[str], text: str, command: str | None = None) -> tuple[Advice, Advice]:
    """Advise more work for each kernel, of which one applies: a larger micro-batch, as {} in the text, to a training, a
    larger batch, with the option of its engine, to what only infers."""
    engine = option("larger batch", frameworks, plain="")
    batch = text.format("a larger batch") + (f" ({engine})" if engine else "")
    return (
        advise(text.format("a larger micro-batch"), command, key="larger kernels", only_for=("trains",)),
        advise(batch, command, key="larger batch"),
    )


def mostly_short_kernels(ranks: Sequence[RankPass]) -> bool:
    """Whether most compute kernels are no longer than their launch: then the gaps between them are `small-kernels`'."""
    mixes = [p.mix for p in ranks if p.mix is not None]
    return sum(m.short_calls for m in mixes) >= MOSTLY_SHORT * max(1, sum(m.calls for m in mixes))


def device_name(summary: TraceSummary) -> str | None:
    """The device that the traces name; the first, where ranks name several."""
    return next((p.facts.device_name for p in summary.ranks if p.facts.device_name), None)


def is_amd_device(summary: TraceSummary) -> bool:
    """Whether the traces name a device of AMD: nvidia-smi is none of its tools."""
    return any(word in (device_name(summary) or "") for word in ("AMD", "Instinct", "Radeon"))


def _parts_and_waits(summary: TraceSummary) -> list[tuple[Parts, RankWaitTotal]]:
    """Return the budget and the waiting of each rank whose waiting is known."""
    from stepscope.traces.waits import waits_of

    waits = waits_of(summary.collectives)
    pairs = [(p.budget, waits[p.facts.rank]) for p in summary.ranks if p.facts.rank in waits]
    return [(budget.parts, waited) for budget, waited in pairs if budget is not None]


def waiting_share(summary: TraceSummary) -> float | None:
    """Share of the exposed communication of all ranks that is waiting for another rank; None where it is not known."""
    pairs = _parts_and_waits(summary)
    exposed = sum(parts.exposed_comm_ns for parts, _ in pairs)
    return sum(waited.exposed_ns for _, waited in pairs) / exposed if exposed else None


MAINLY_LACKING = 0.5
"""From this share in collectives that lack ranks on, transfer may be waiting for those."""


def lacking_share(summary: TraceSummary) -> float:
    """Share of the exposed communication in collectives that lack ranks: what of it is waiting for those is unknown."""
    instances = summary.collectives.instances if summary.collectives is not None else ()
    lacking = sum(i.exposed_ns for i in instances if i.waiting_ns is not None and not i.complete)
    return lacking / (sum(i.exposed_ns for i in instances) or 1)


def ahead_share(summary: TraceSummary) -> float:
    """Share of the exposed communication of all ranks that is transfer exposed because a rank is ahead of the last one."""
    pairs = _parts_and_waits(summary)
    exposed = sum(parts.exposed_comm_ns for parts, _ in pairs)
    return min(1.0, sum(waited.ahead_ns for _, waited in pairs) / exposed) if exposed else 0.0


def exposed_transfer(summary: TraceSummary) -> float | None:
    """Share of the window that a perfect network could return (median rank): exposed communication without waiting, and
    without the transfer that is exposed only because the rank is ahead of the last one."""
    shares = [
        max(0, parts.exposed_comm_ns - waited.exposed_ns - waited.ahead_ns) / max(parts.window_ns, 1)
        for parts, waited in _parts_and_waits(summary)
    ]
    return median(shares) if shares else None


def compute_to_transfer(summary: TraceSummary) -> float:
    """Computation / communication without waiting, as far as that is known; median over ranks that communicate."""
    from stepscope.traces.activity import compute_to_comm
    from stepscope.traces.waits import waits_of

    waits = waits_of(summary.collectives)
    parts = [(p.budget.parts, waits.get(p.facts.rank)) for p in summary.ranks if p.budget is not None]
    ratios = [
        compute_to_comm(part, waiting_ns=waited.alone_ns if waited else 0) for part, waited in parts if part.comm_ns
    ]
    return median([ratio if ratio is not None else math.inf for ratio in ratios])


@dataclass(frozen=True, slots=True)
class RankShares:
    """A part of what ``limit`` is a share of, as its share on each rank; the mean decides.

    job, ranks: whose it is. also: the other share that a rule compares with a limit, where it has two.
    """

    shares: Sequence[float]
    job: TraceEvidence | None = None
    ranks: Sequence[RankPass] = ()
    also: float = 0.0
    limit: Limit = OF_WINDOW

    @property
    def share(self) -> float:
        return fmean(self.shares)

    def __str__(self) -> str:
        """``52% of the window``."""
        return self.limit.of(self.share)

    @property
    def percent(self) -> str:
        """The share alone, beside another share of the same: ``52%``."""
        return format_percent(self.share)

    @property
    def spread(self) -> tuple[str, ...]:
        """How the mean over ranks comes about, in words; nothing for one rank."""
        if len(self.shares) < 2:
            return ()
        least, most = format_percent(min(self.shares)), format_percent(max(self.shares))
        return (
            f"mean of {len(self.shares)} ranks" + (", all alike" if least == most else f"; between {least} and {most}"),
        )

    @property
    def mixes(self) -> list[KernelMix]:
        return [p.mix for p in self.ranks if p.mix is not None]

    def kinds(self, *names: str) -> list[KernelKind]:
        """Kinds of kernels of all ranks; those of these names, where any is given."""
        return [kind for mix in self.mixes for kind in mix.kinds if not names or kind.kind in names]

    @property
    def device(self) -> str | None:
        """The device as the traces name it."""
        return None if self.job is None else device_name(self.job.summary)

    @property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that the job uses."""
        return frozenset() if self.job is None else used_in(self.job.summary)

    def finding(
        self,
        title: str,
        *evidence: Lines,
        advice: Iterable[Advices],
        confidence: str = "measured",
        stake: float | None = None,
    ) -> Finding:
        """Make a finding on this part, as grave as it is large, its spread first. stake: what can be won of it; None:
        all."""
        return finding(
            title,
            self.spread,
            *evidence,
            severity="problem" if self.share >= SHARES["problem"] else "warning",
            stake=self.share if stake is None else stake,
            share=self.share,
            confidence=confidence,
            advice=advice,
        )


def idle_part(ranks: Iterable[RankPass], *causes: str) -> RankShares:
    return RankShares([idle_share(p, *causes) for p in ranks])


def share_rule(
    *,
    symptom: str,
    ranks: Callable[[TraceSummary], Sequence[RankPass]],
    without: str,
    measure: Callable[[Sequence[RankPass]], Sequence[float]],
    also: tuple[Callable[[Sequence[RankPass]], float], Limit] | None = None,
    figures: Callable[[RankShares], str],
    report: Callable[[RankShares], Statement],
    limit: Limit = OF_WINDOW,
    thresholds: Mapping[str, Limit] | None = None,
    protocol: int,
    claims: tuple[Claim, ...],
    whole: bool = False,
    kind: VerdictKind | None = None,
    any_of: tuple[str, ...] = (),
    rests_on: tuple[Figure, ...] = (),
    look: Callable[[Evidence], Statement] | None = None,
) -> Rule:
    """A rule on a share of the window, mean over ranks, that fires from ``limit`` on.

    ranks: that can be judged; without: what the traces lack where there are none. measure: the share on each of them.
    also: another share that has to reach a limit of its own. figures: in words, as a quiet rule says them before its limits.
    report: the finding on a part that is large enough. thresholds: further limits.
    """
    limits = [limit] if also is None else [also[1], limit]

    @wraps(report)
    def look_at_job(job: TraceEvidence) -> Statement:
        """Judge one traced job: the finding where the share is beyond its limit, else how large it is."""
        judged = ranks(job.summary)
        if not judged:
            return unread(job.summary, without)
        part = RankShares(measure(judged), job, judged, 0.0 if also is None else also[0](judged), limit)
        if part.share >= limit and (also is None or part.also >= also[1]):
            return report(part)
        return f"{figures(part)}, limit{'s' * (len(limits) > 1)} {in_words(map(format_percent, limits))}"

    return Rule(
        symptom=symptom,
        look=look,
        look_at_job=look_at_job,
        any_of=any_of,
        rests_on=rests_on,
        claims=claims,
        whole=whole,
        kind=kind,
        protocol=protocol,
        thresholds={**(thresholds or {}), "warning": limit, "problem": SHARES["problem"]},
    )


def cut_short(summary: TraceSummary) -> Skipped | None:
    """Return why a rule that speaks of what is not there, or of ranks side by side, has nothing to say: a file is cut."""
    cut = [f"rank {p.facts.rank}" for p in summary.ranks if any(note.kind == "truncated" for note in p.notes)]
    return Skipped(reason=f"the trace of {listed(cut)} is truncated: what it lacks is unknown") if cut else None


def cut(name: str, at: int = 90) -> str:
    """A kernel's name, short enough for a sentence."""
    return name if len(name) <= at else f"{name[:at].rstrip()}…"


def kinds_ns(mix: KernelMix | None, *kinds: str) -> int:
    """Time of the rank's compute kernels of these kinds."""
    return sum(kind.total_ns for kind in mix.kinds if kind.kind in kinds) if mix is not None else 0


def with_kernels(summary: TraceSummary) -> list[RankPass]:
    """Ranks on GPUs whose compute kernels were counted."""
    return [p for p in on_device(summary) if p.mix is not None]


def total_ns(kinds: Iterable[KernelKind]) -> int:
    return sum(kind.total_ns for kind in kinds)


def largest_text(kinds: Iterable[KernelKind]) -> str:
    largest = max(kinds, key=lambda kind: kind.largest_ns)
    return f"the largest: {cut(largest.largest)}, {format_duration(largest.largest_ns)}"


def kinds_shares(ranks: Sequence[RankPass], *kinds: str) -> list[float]:
    """Compute kernels of these kinds / the window, on each rank."""
    return [kinds_ns(p.mix, *kinds) / window_ns(p) for p in ranks]
