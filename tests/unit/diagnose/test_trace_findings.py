"""Traces alone: which rules look, and in which order they speak."""

from __future__ import annotations

from pathlib import Path

from tests.trace_evidence import generated

import stepscope
from stepscope.diagnose.engine import all_rules, diagnose_traces, trace_rules
from stepscope.diagnose.trace_facts import reads_traces

RULES = {
    "clock-skew", "compute-bound", "data-loading", "exposed-communication", "exposed-memcpy", "exposed-tail-bucket",
    "fp32-matmul", "host-sync", "launch-bound", "low-mfu", "memory-bandwidth-bound", "naive-synchronisation",
    "no-communication", "no-tensor-cores", "plan-broken", "python-overhead", "small-kernels", "straggler",
    "tensor-parallel-slow-link",
}  # fmt: skip


def test_every_rule_on_traces_is_asked() -> None:
    asked = {rule.name for rule in trace_rules()}
    assert asked >= RULES
    assert asked == {rule.name for rule in all_rules() if reads_traces(rule)}


def test_every_rule_has_an_answer_on_every_shape_of_job(tmp_path: Path) -> None:
    asked = {rule.name for rule in trace_rules()}
    for shape, device in (("ddp", "gpu"), ("fsdp", "gpu"), ("pipeline", "gpu"), ("ddp", "gloo")):
        summary = generated(tmp_path / f"{shape}-{device}", shape=shape, device=device, world=2).traces[0].summary
        said = diagnose_traces(summary)
        answered = {f.rule for f in said.findings} | {q.rule for q in said.quiet} | {s.rule for s in said.skipped}
        assert answered == asked


def test_hidden_communication_is_nothing_but_good_news(tmp_path: Path) -> None:
    summary = (
        generated(tmp_path, world=2, steps=4, transfer_ns=20_000, backward_ns=900_000, forward_ns=900_000)
        .traces[0]
        .summary
    )
    assert [f.rule for f in stepscope.diagnose_traces(summary).findings] == ["compute-bound"]
