"""A made ``trace_view.json`` as Ascend's profiler writes it: no categories, times as texts, processes by their names."""

from __future__ import annotations

import json
from typing import Any

PYTHON, CANN, HARDWARE, COMMUNICATION, OVERLAP, FREQUENCY = 4242000, 4242001, 4242002, 4242003, 4242004, 4242005
PROCESSES = {
    PYTHON: ("Python", "CPU"),
    CANN: ("CANN", "CPU"),
    HARDWARE: ("Ascend Hardware", "NPU"),
    COMMUNICATION: ("Communication", "NPU"),
    OVERLAP: ("Overlap Analysis", "NPU"),
    FREQUENCY: ("AI Core Freq", "NPU"),
}
START_US = 1_718_180_918_000_000


def span(pid: int, tid: int, name: str, start: float, end: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{START_US + start:.3f}", "dur": round(end - start, 3),
            "args": args}  # fmt: skip


def trace_view(*, steps: int = 4, communication: str = "Communication") -> tuple[str, dict[str, float]]:
    """Each step of 1000 us: a product of 600 us, an all-reduce of 300 us of which 100 us lie under it, a copy of 50 us
    behind both, and nothing for the rest. Returns the text, and the us of the parts in a step."""
    events: list[dict[str, Any]] = []
    for pid, (name, label) in PROCESSES.items():
        name = communication if name == "Communication" else name
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}})
    for step in range(steps):
        at, link = 1000.0 * step, 10 * step
        events.append({**span(PYTHON, 1, f"ProfilerStep#{step}", at, at + 999), "cat": "cpu_op"})
        events.append({**span(PYTHON, 1, "aten::matmul", at + 1, at + 20), "cat": "cpu_op"})
        for k, name in enumerate(("Node@launch", "Node@launch", "AscendCL@aclrtMemcpyAsync")):
            events.append(span(CANN, 1, name, at + 2 + 3 * k, at + 4 + 3 * k, connection_id=link + k))
        events.append(span(HARDWARE, 2, "aclnnMatmul_MatMulCommon_MatMulV2", at + 10, at + 610, connection_id=link,
                           **{"Task Type": "AI_CORE", "Physic Stream Id": 2}))  # fmt: skip
        events.append(
            span(COMMUNICATION, 3, f"hcom_allReduce__123_{step}_1", at + 510, at + 810, connection_id=link + 1)
        )
        for task, (begin, end) in {
            "Notify_Wait": (510, 700),
            "Memcpy": (700, 760),
            "Reduce_Inline": (760, 810),
        }.items():
            events.append(span(COMMUNICATION, 4, task, at + begin, at + end))
        events.append(span(HARDWARE, 5, "Notify_Wait", at + 510, at + 700, **{"Task Type": "Notify_Wait"}))
        events.append(span(HARDWARE, 5, "SDMA", at + 700, at + 810, **{"Task Type": "SDMA"}))
        events.append(span(HARDWARE, 2, "EVENT_WAIT", at + 610, at + 815, **{"Task Type": "EVENT_WAIT"}))
        events.append(span(HARDWARE, 2, "MEMCPY_ASYNC", at + 815, at + 865, connection_id=link + 2))
        for name, begin, end in (("Computing", 10, 610), ("Communication", 510, 810), ("Free", 810, 1010)):
            events.append(span(OVERLAP, 0, name, at + begin, at + end))
        events.append(
            {"ph": "C", "name": "AI Core Freq", "pid": FREQUENCY, "ts": f"{START_US + at}", "args": {"MHz": 1800}}
        )
    return json.dumps(events), {"compute": 600, "communication": 300, "overlap": 100, "copy": 50}
