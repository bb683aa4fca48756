"""The step waits for Python code of the host between the operators.

What
----
On GPU jobs: time in which the device idles for a launch not yet made while the host runs no operator and no runtime
call on any thread; it must be at least {of late}. On CPU jobs: time without operators and collectives,
data loading excluded; below {sure on CPUs} an observation, because the profiler's own time between operators is part
of it. Over the window, mean over ranks.

Why
---
Neither a fused kernel nor a CUDA graph of single operators removes it: the cause is the interpreter, hooks, logging,
garbage collection, or another process on the core. `launch-bound` excludes this time.

Known problems
--------------
Operators that the profiler does not record (custom C++ without a record function) count as Python. A host whose core
another process uses looks the same. The profiler with stacks slows Python itself.

References
----------
PyTorch performance tuning guide; torch.compiler documentation; py-spy. A published checklist asks it as "Python
overhead?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.core.units import format_percent
from stepscope.diagnose.frameworks import in_words_of
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import Limit, Statement, advise
from stepscope.diagnose.trace_facts import PYTHON_OWNS, RankShares, idle_share, read_in_full, share_rule, window_ns
from stepscope.records.trace_summary import RankPass

SURE_ON_CPU = Limit(
    0.20, unit="share of the window", source="36% measured where py-spy saw 17% on a CPU (2026-11): half is its own"
)


def _python_figures_text(part: RankShares) -> str:
    cpu = _on_cpu(part.ranks[0])
    subject = "Python between operators takes" if cpu else "the device waits for Python between operators"
    return f"{subject} {part}"


def _python_overhead_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: nothing runs while the host executes Python between operators."""
    on_cpu = _on_cpu(part.ranks[0])
    late = [(p.host_lateness, window_ns(p)) for p in part.ranks if p.host_lateness is not None and not _on_cpu(p)]
    total = sum(h.late_ns for h, _ in late)
    of_late = sum(h.python_ns for h, _ in late) / total if total else 1.0
    if of_late < PYTHON_OWNS:
        return (
            f"{_python_figures_text(part)}, {format_percent(of_late)} of the host's delay, which is mostly in operators"
        )
    finding = part.finding(
        f"host-bound: {_python_figures_text(part)}",
        f"the device idles {RankShares([h.late_ns / w for h, w in late])} because launches come late; for "
        f"{RankShares([h.operator_ns / w for h, w in late]).percent} the host is in "
        "operators and runtime calls meanwhile, for the rest in Python"
        if late
        else "no operator, collective or data loader runs in that time",
        confidence="measured; a sampling profiler shows whether it is Python or another process on that core"
        + ("; what the profiler itself takes between operators is part of it" if on_cpu else ""),
        advice=[
            (
                "find the lines: sample the process while it "
                + ("runs" if part.job is not None and facts_of(part.job.summary).trains is False else "trains"),
                "py-spy record --native --duration 30 -o profile.svg --pid PID",
            ),
            advise(
                "move logging, metrics and hooks out of the step",
                "--show phases,annotations,operators --sort host_self",
                key="less python",
            ),
            in_words_of("cuda graphs", part.frameworks),
            in_words_of("compile", part.frameworks, plain="torch.compile(model) runs less Python a step"),
        ],
    )
    if on_cpu and part.share < SURE_ON_CPU:
        return replace(finding, severity="info", stake_fraction=None)
    return finding


def _on_cpu(rank: RankPass) -> bool:
    return rank.budget is not None and rank.budget.source == "cpu_spans"


def _python_shares(ranks: Sequence[RankPass]) -> list[float]:
    """Return for each rank the share of the window in which the device, or on a CPU the rank, waits for Python."""
    return [
        p.host_lateness.python_ns / window_ns(p)
        if p.host_lateness is not None and not _on_cpu(p)
        else idle_share(p, "outside_operators")
        for p in ranks
    ]


RULE = share_rule(
    symptom="nothing runs while the host executes Python between operators",
    ranks=lambda summary: [p for p in read_in_full(summary) if _on_cpu(p) or p.host_lateness is not None],
    without="no operators were recorded: profile with ProfilerActivity.CPU",
    measure=_python_shares,
    figures=_python_figures_text,
    report=_python_overhead_statement,
    claims=("idle",),
    kind="host-bound",
    protocol=4,
    rests_on=("idle",),
    thresholds={"of late": PYTHON_OWNS, "sure on CPUs": SURE_ON_CPU},
)
