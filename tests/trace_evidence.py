"""Evidence of traced jobs for tests of rules: generated (tests/trace_builder.py), or written by hand.

generated(folder, world=2, steps=4, late={...})     a whole job through files and analyse_job
by_hand(*rows, device="Tesla V100-SXM2-32GB")       one rank of tests/hand_events.py rows
kernels(("ampere_sgemm_128x64_nn", 900), ...)       rows of kernels one after the other, lengths in us
with_idle(evidence, data=0.1), with_parts(evidence, exposed_comm_ns=...)   the same with a figure set on all ranks
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.hand_events import Row, copy, kernel, launch, op, trace
from tests.trace_builder import build, write_job

from stepscope.diagnose.engine import check
from stepscope.diagnose.rule import Rule
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.records.profile import JobSetup
from stepscope.records.trace_budget import IdleCause
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import Evidence, Source, TraceEvidence
from stepscope.traces.job import analyse_job, combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

US = 1_000
BEGIN = 1_000_000
"""When the first kernel of ``kernels`` starts, ns."""


_GENERATED: dict[str, tuple[Evidence, dict[str, Any]]] = {}


def traced(*summaries: TraceSummary, names: tuple[str, ...] = ()) -> Evidence:
    """Evidence of nothing but traces, one job a summary."""
    called = names or tuple(f"job{i}" for i in range(len(summaries)))
    jobs = tuple(TraceEvidence(name=n, summary=s) for n, s in zip(called, summaries, strict=True))
    return Evidence(sources=(Source(path=Path("traces"), kind="trace"),), traces=jobs)


def generated(folder: Path, **plan: Any) -> Evidence:
    """A job of tests/trace_builder.py, written and read back: each of a process's tests once."""
    key = repr(sorted(plan.items()))
    if key not in _GENERATED:
        _GENERATED[key] = (
            written(folder, **plan),
            plan,
        )  # the plan stays, lest another's function gets the address in its name
    return _GENERATED[key][0]


def written(folder: Path, **plan: Any) -> Evidence:
    """As ``generated``, for tests that look at the files, too."""
    return traced(analyse_job(write_job(build(**plan), folder / "job"), Wanted()))


def by_hand(*rows: Row, device: str | None = None) -> Evidence:
    """One rank with these events."""
    made = trace(*rows, device_names=() if device is None else (device,))
    return traced(combine([analyse(made, Wanted())]))


def kernels(*named: tuple[str, float], gap_us: float = 0) -> list[Row]:
    """Kernels (name, length in us) in a row, all launched long before the first starts; ``Memcpy ...`` are copies."""
    rows: list[Row] = [op("aten::work", 0, 100 * len(named) + 100)]
    at = BEGIN
    for i, (name, length_us) in enumerate(named):
        end = at + round(length_us * US)
        rows.append(launch(100 * i, 100 * i + 50, i + 1))
        if name.startswith("Mem"):
            rows.append(copy(name, at, end, i + 1, size_bytes=round(length_us * 1000)))
        else:
            rows.append(kernel(name, at, end, i + 1))
        at = end + round(gap_us * US)
    return rows


def with_idle(evidence: Evidence, **shares: float) -> Evidence:
    """The same with exactly these shares of idle time by cause on every rank."""

    def changed(each: RankPass) -> RankPass:
        assert each.budget is not None
        window = each.budget.parts.window_ns
        causes = tuple(
            IdleCause(
                rank=each.facts.rank,
                cause=c,
                idle_ns=round(s * window),
                gap_count=4,
                largest_ns=round(s * window / 4),
            )
            for c, s in shares.items()
        )
        return replace(each, idle=causes)

    return _each(evidence, changed)


def with_parts(evidence: Evidence, **parts: int) -> Evidence:
    """The same with these parts of the window's budget on every rank."""

    def changed(each: RankPass) -> RankPass:
        assert each.budget is not None
        return replace(each, budget=replace(each.budget, parts=replace(each.budget.parts, **parts)))

    return _each(evidence, changed)


def with_ranks(evidence: Evidence, **fields: Any) -> Evidence:
    """The same with these fields on every rank."""
    return _each(evidence, lambda each: replace(each, **fields))


def with_setup(evidence: Evidence, setup: JobSetup, *, host: str = "a") -> Evidence:
    """The same job on one host, with what its process recorded of it."""
    return _each(evidence, lambda each: replace(each, facts=replace(each.facts, setup=setup, host=host)))


def findings(rule: Rule, evidence: Evidence) -> tuple[Finding, ...]:
    """What the rule finds; fails when it does not fire."""
    outcome = check(rule, evidence)
    assert isinstance(outcome, tuple), outcome
    assert outcome, "a rule that fires says something"
    for finding in outcome:
        assert finding.rule == rule.name
        assert finding.advice
        assert finding.stake_fraction is None or 0 <= finding.stake_fraction <= 1
    return outcome


def found(rule: Rule, evidence: Evidence) -> Finding:
    """The only thing that it finds."""
    (finding,) = findings(rule, evidence)
    return finding


def quiet(rule: Rule, evidence: Evidence) -> str:
    """What a rule that looked and found nothing says."""
    outcome = check(rule, evidence)
    assert isinstance(outcome, Quiet), outcome
    assert outcome.rule == rule.name
    return outcome.looked_at


def skipped(rule: Rule, evidence: Evidence) -> str:
    """Why the rule could not look."""
    outcome = check(rule, evidence)
    assert isinstance(outcome, Skipped), outcome
    assert outcome.rule == rule.name
    return outcome.reason


def _each(evidence: Evidence, change: Any) -> Evidence:
    return replace(
        evidence,
        traces=tuple(
            replace(job, summary=replace(job.summary, ranks=tuple(change(p) for p in job.summary.ranks)))
            for job in evidence.traces
        ),
    )


def cut_short(path: Path, share: float) -> None:
    """The file as a full disk leaves it."""
    data = path.read_bytes()
    path.write_bytes(data[: round(share * len(data))])
