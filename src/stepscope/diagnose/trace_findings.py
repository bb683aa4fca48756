"""The rules that need nothing but traces, on one job."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from stepscope.diagnose import rules
from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.trace_facts import reads_traces
from stepscope.records.finding import Diagnosis
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, Source, TraceEvidence

OWN = (
    "clock_skew", "compute_bound", "data_loading", "expert_skew", "exposed_communication", "exposed_memcpy",
    "exposed_tail_bucket", "fp32_matmul", "fsdp_no_prefetch", "fsdp_regathers", "fsdp_root_unit", "fsdp_small_units",
    "fsdp_wait_on_copy", "gradient_sync_each_micro_step", "host_sync", "impossible_figures", "launch_bound", "long_gap",
    "low_mfu", "memory_bandwidth_bound", "naive_synchronisation", "no_communication", "no_tensor_cores",
    "pipeline_bubble", "pipeline_imbalance", "plan_broken", "profiler_overhead", "python_overhead", "queued_idle",
    "small_kernels", "straggler", "tensor_parallel_slow_link",
)  # fmt: skip
"""The rules shipped that read traces: `trace` does without importing the others, which takes as long as a small trace. A
test holds the list against the rules themselves."""


def trace_rules() -> tuple[Rule, ...]:
    """Rules that can say something where there is nothing but traces, by name; those of third parties among them."""
    shipped = {module.name for module in pkgutil.iter_modules(rules.__path__)}
    keys = [key for key in rules.REGISTRY.names() if key in OWN or key not in shipped]
    return tuple(rule for key in keys if reads_traces(rule := rules.REGISTRY.load(key)))


def diagnose_traces(summary: TraceSummary, *, name: str = "trace") -> Diagnosis:
    """What the traces of one job alone say: findings by stake, rules that were quiet, rules that could not look."""
    evidence = Evidence(
        sources=(Source(path=Path(name), kind="trace"),), traces=(TraceEvidence(name=name, summary=summary),)
    )
    return diagnose(evidence, rules=trace_rules())
