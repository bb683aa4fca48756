"""A pipeline's messages in a trace against its plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.hand_events import mark, trace

from stepscope.records.trace_conformance import ConformanceCheck
from stepscope.traces.conformance import check_plan

MESSAGE = {"numel": 8, "dtype": "float32"}
PLAN = [
    {**MESSAGE, "op": "send", "phase": "forward"},
    {**MESSAGE, "op": "recv", "phase": "backward"},
    {**MESSAGE, "op": "all_reduce", "phase": "after_backward"},
]


def checked(*ops: str) -> ConformanceCheck:
    """One step in which these were called."""
    rank = trace(mark("ProfilerStep#1", 0, 100))
    rank = replace(rank, meta=replace(rank.meta, stepscope={"communication_plan": PLAN, "strategy": "pipeline"}))
    called: list[Any] = [SimpleNamespace(op=op, size_bytes=32, launch_ns=10 + n) for n, op in enumerate(ops)]
    found = check_plan(rank, called)
    assert found is not None
    return found


def test_both_ends_of_a_message_are_send_recv_and_need_no_backward_region() -> None:
    assert checked("send_recv", "all_reduce", "send_recv").differences == ()
    assert checked("send_recv", "send_recv", "all_reduce").holds


def test_a_message_less_is_named() -> None:
    assert checked("send_recv", "all_reduce").differences == ("step 1: missing 1 x send_recv of 32 bytes",)
